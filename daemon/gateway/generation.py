# SPDX-License-Identifier: Apache-2.0
"""The workers of one configuration: started together, kept going, and retired together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from xdp_router.core.errors import XdpRouterError
from xdp_router.core.listeners import GatewayConfig
from xdp_router.daemon.tasks import Tasks

from .board import Board
from .certificates import Pems
from .kept import Remembered
from .listening import ListeningSockets
from .rows import Rows, addresses
from .totals import Totals
from .worker_process import Task, WorkerProcess

LIVED_S: Final = 10.0
"""A worker that has lived so long is started again at once, and not counted as one that fails."""
PAUSE_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Before a worker is started again, by how often it has failed in a row."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Means:
    """What all generations of a supervisor share."""

    board: Board
    board_fd: int
    rows: Rows
    sockets: ListeningSockets
    totals: Totals
    remembered: Remembered
    tasks: Tasks
    log_format: str


@dataclass(frozen=True, slots=True)
class Document:
    """A configuration, and the text and the certificates that were read for it."""

    config: GatewayConfig
    text: str
    label: str
    pems: Pems


class Generation:
    """``number`` counts from 1."""

    def __init__(
        self, number: int, document: Document, means: Means, changed: Callable[[], None]
    ) -> None:
        """``changed`` is called when all of its workers have ended after it was retired."""
        self.number = number
        self.document = document
        self._means = means
        self._changed = changed
        self._workers: dict[int, WorkerProcess] = {}
        self._retiring = False
        self._keepers = 0

    @property
    def config(self) -> GatewayConfig:
        """What its workers do."""
        return self.document.config

    @property
    def workers(self) -> Sequence[WorkerProcess]:
        """Those that are there."""
        return list(self._workers.values())

    def _is_over(self) -> bool:  # a call: it changes while others have their turn
        return self._retiring

    @property
    def ended(self) -> bool:
        """Whether nothing of it is left."""
        return self._retiring and not self._keepers

    async def start(self, in_use: Sequence[str]) -> None:
        """Return when all workers serve. Raises XdpRouterError: then there are none.

        ``in_use``: addresses of backends that other generations still have.
        """
        self._rows = self._means.rows.assign(addresses(self.config), in_use)
        await self._all([self._start_one(number) for number in range(self.config.workers)])
        # None accepts before all are ready: what a refused configuration took would be cut.
        await self._all([worker.serve() for worker in self.workers])
        for number, worker in self._workers.items():
            self._keepers += 1
            self._means.tasks.spawn(self._keep(number, worker), f"worker {number}")

    async def _all(self, works: Sequence[Awaitable[object]]) -> None:
        try:
            results = await asyncio.gather(*works, return_exceptions=True)
        except asyncio.CancelledError:
            self.end()
            raise
        failed = [each for each in results if isinstance(each, BaseException)]
        if failed:
            self._retiring = True
            for worker in self.workers:
                worker.kill()
                await worker.ended()
            self._workers.clear()
            raise failed[0]

    async def _start_one(self, number: int) -> WorkerProcess:
        means, workers = self._means, self.config.workers
        worker = WorkerProcess(number, means.board, means.board_fd, means.remembered)
        sockets = {
            str(each.address): means.sockets.dealt(each, workers, number)
            for each in self.config.listeners
        }
        document = self.document
        await worker.start(
            Task(
                document.text,
                document.label,
                document.pems,
                self._rows,
                sockets,
                means.log_format,
            )
        )
        self._workers[number] = worker
        return worker

    async def _keep(self, number: int, worker: WorkerProcess) -> None:
        """Have a worker there until the generation retires, and then until it has ended."""
        failures = 0
        try:
            while True:
                await self._gone(worker)
                if self._is_over():
                    return
                lived = time.monotonic() - worker.started_s > LIVED_S
                failures = 0 if lived else failures + 1
                found = await self._again(number, failures)
                if found is None:
                    return
                worker = found
        finally:
            self._keepers -= 1
            if self.ended:
                self._changed()

    async def _again(self, number: int, failures: int) -> WorkerProcess | None:
        while not self._is_over():
            pause_s = PAUSE_S[min(max(failures - 1, 0), len(PAUSE_S) - 1)]
            await asyncio.sleep(pause_s)
            if self._is_over():
                break
            try:
                worker = await self._start_one(number)
                await worker.serve()
            except XdpRouterError as error:
                failures += 1
                _log.error("worker_not_started", number=number, reason=str(error))
                continue
            _log.info("worker_started", number=number, pid=worker.pid)
            if self._is_over():  # meanwhile: it was not there to be told
                self._means.tasks.spawn(worker.retire(0, 0), "retiring worker")
            return worker
        return None

    async def _gone(self, worker: WorkerProcess) -> None:
        status = await worker.ended()
        if self._workers.get(worker.number) is worker:
            del self._workers[worker.number]
        self._means.totals.keep(worker.figures)
        if not self._retiring:
            self._means.totals.deaths += 1
            how = {"signal": -status} if status < 0 else {"status": status}
            _log.error(
                "worker_died",
                number=worker.number,
                pid=worker.pid,
                **how,
                consequence="its connections are cut; another one is started",
            )
        elif worker.open:
            _log.warning("streams_cut", pid=worker.pid, connections=worker.open)

    def retire(self, records: int) -> None:
        """Have all of them take nothing more, and end with their streams or in their time.

        ``records``: how many each is to tell at its end.
        """
        self._retiring = True
        for worker in self.workers:
            work = worker.retire(self.config.drain_timeout_ns, records)
            self._means.tasks.spawn(work, f"retiring {worker}")
        if self.ended:
            self._changed()

    def end(self) -> None:
        """End them now, with whatever they have."""
        self._retiring = True
        for worker in self.workers:
            worker.end()
