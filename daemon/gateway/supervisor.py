# SPDX-License-Identifier: Apache-2.0
"""Lifetime of the gateway: what is acquired, in which order, and how it is let go.

    configuration, certificates -> (what a running gateway hands over) | control socket
    -> listening sockets -> workers, all ready -> (the former lets go, control socket) -> ready

The supervisor never touches a client's bytes. It keeps the listening sockets for good, so neither a
worker that dies nor another configuration nor a successor refuses a connection. A reload is a new
generation of workers on the same sockets: when all of them serve, the former ones retire.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from xdp_router.adapters.control import ControlServer
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.listeners import GatewayConfig
from xdp_router.daemon import former
from xdp_router.daemon.config_file import ConfigFile
from xdp_router.daemon.logs import log_fault
from xdp_router.daemon.notify import notify
from xdp_router.daemon.signals import Interrupted, Signals
from xdp_router.daemon.tasks import Tasks
from xdp_router.daemon.watchdog import Watchdog

from . import handover, spawning
from .board import LAYOUT, Board
from .control_commands import ControlCommands
from .estate import Estate, hear
from .generation import Document, Generation, Means
from .handover import HandoverServer, Legacy, Succession
from .hearsay import WANTED, Hearsay
from .kept import Remembered
from .listening import ListeningSockets
from .page import PASSING, FiguresPage, figures_of
from .page_told import COUNTED
from .prober import Prober
from .reloads import CannotReload, Reloads
from .rows import Rows, addresses
from .sharing import SocketSharing
from .totals import Totals
from .upgrade import Upgrades
from .worker_process import WorkerProcess

PATIENCE_S: Final = 2.0
"""How long a start waits for addresses: workers whose supervisor was killed let go in a moment."""
HUNG_S: Final = 20.0
"""A worker that has not answered for so long is ended; another one is started."""
LOOK_S: Final = 1.0
"""How often workers are asked what they have counted."""
ANSWERS_S: Final = 1.0
"""How long clients of the control socket are given to get theirs when it is handed over."""
BUSY_S: Final = 30.0
"""How long a successor waits for a start or a reload that is under way."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """What ``gateway`` was asked for, beside its configuration."""

    control: Path
    control_group: int | None = None
    log_format: str = "console"


class Supervisor:
    """One gateway. Commands read its fields."""

    def __init__(self, file: ConfigFile, document: Document, options: GatewayOptions) -> None:
        self.file = file
        self.state = "starting"
        self.started_s = time.monotonic()
        self.generations: list[Generation] = []
        self.tasks = Tasks()
        self._document = document
        self._options = options
        self._numbers = itertools.count(1)
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self._changed = asyncio.Event()
        self.reloads = Reloads(file, self.tasks, self._require_serving, self._bring)
        self.upgrades = Upgrades(self.tasks, self._require_serving, self.reloads.lock)
        self._page: FiguresPage | None = None

    @property
    def config(self) -> GatewayConfig:
        """What is served."""
        return self._document.config

    @property
    def board(self) -> Board:
        """What workers share."""
        return self._means.board

    @property
    def deaths(self) -> int:
        """Workers that have ended without being told to."""
        return self._means.totals.deaths

    @property
    def rows(self) -> Rows:
        """Of the board."""
        return self._means.rows

    @property
    def generation(self) -> int:
        """Number of the one that serves."""
        return self.generations[-1].number if self.generations else 0

    @property
    def workers(self) -> Sequence[WorkerProcess]:
        """Of all generations that are there."""
        return [each for generation in self.generations for each in generation.workers]

    # Lifetime

    async def serve(self, undo: contextlib.AsyncExitStack, signals: Signals) -> None:
        """Serve until it is to stop, and all streams have ended. Raises what kept it from it."""
        signals.connect(self._stop, self._hang_up, self._at_once.set)
        signals.on_upgrade = self.upgrades.signalled
        succession = await handover.ask(self._options.control)
        if succession is not None:
            undo.callback(succession.close)
        undo.push_async_callback(self.tasks.cancel)  # before: one of them hears what it says
        async with self.reloads.lock:
            await self._begin_to_serve(succession, undo)
        if signals.hangups:
            self._hang_up()
        _log.info(
            "gateway_ready",
            listeners={each.name: str(each.address) for each in self.config.listeners},
            workers=[each.pid for each in self.workers],
            control=str(self._options.control),
        )
        notify(f"READY=1\nMAINPID={os.getpid()}")
        former.done()
        self.tasks.keep(Watchdog(self._one_line).run, "watchdog")
        await self._stop.wait()
        is_heir_there = self.state == "handed over"
        self.state = "draining"
        notify("STOPPING=1")
        await self._drain(self.config.decisions_kept if is_heir_there else 0)
        if is_heir_there:
            await self._handover.finish()

    async def _begin_to_serve(
        self, succession: Succession | None, undo: contextlib.AsyncExitStack
    ) -> None:
        self._acquire(succession, undo)
        self._commands = ControlCommands(self)
        self._estate = Estate(lambda: figures_of(self), self.remembered)
        self._handover = HandoverServer(
            self._options.control, self._legacy, self._release, self._estate
        )
        self._sharing = SocketSharing(self._options.control, self._shown)
        undo.push_async_callback(self._let_go)
        former = succession.legacy.metrics if succession is not None else None
        if succession is None:
            await self._open_control()
        if self.config.metrics is not None and list(self.config.metrics) != former:
            await self._serve_metrics(self.config.metrics)
        await asyncio.to_thread(self._means.sockets.prepare, self.config, PATIENCE_S)
        first = Generation(next(self._numbers), self._document, self._means, self._changed.set)
        self._check_descriptors()
        await self._begin(first)
        self.prober = Prober(self.board)
        undo.push_async_callback(self.prober.close)
        self.prober.follow(self.config, self.rows.all)
        self.hearsay.begin(self.config, self.rows.all)
        if succession is not None:
            await self._succeed(succession)
        self._means.sockets.keep_only(self.config)
        self._sharing.start()
        self.state = "serving"
        self.tasks.keep(self._look, "figures")

    def _acquire(self, succession: Succession | None, undo: contextlib.AsyncExitStack) -> None:
        legacy = succession.legacy if succession is not None else None
        inherits = legacy is not None and tuple(legacy.layout) == LAYOUT
        fd = legacy.board_fd if legacy is not None and inherits else Board.create()
        undo.callback(os.close, fd)
        if legacy is not None and not inherits:
            os.close(legacy.board_fd)
        board = Board(fd)
        undo.callback(board.close)
        self.hearsay = Hearsay(board, self.tasks)
        sockets = ListeningSockets(legacy.sockets if legacy is not None else None)
        undo.callback(sockets.close)
        self._means = Means(
            board,
            fd,
            Rows(board, legacy.rows if legacy is not None and inherits else None),
            sockets,
            Totals(PASSING),
            Remembered(self.config.decisions_kept),
            self.tasks,
            self._options.log_format,
        )

    def _check_descriptors(self) -> None:
        most = spawning.raise_descriptor_limit()
        needed = 2 * sum(each.max_connections for each in self.config.listeners)
        if most < needed:
            _log.warning(
                "few_descriptors",
                limit=most,
                needed=needed,
                consequence="connections beyond it wait, though max_connections would take them",
                mend="raise the limit (systemd: LimitNOFILE=, else ulimit -Hn)",
            )

    async def _begin(self, generation: Generation) -> None:
        """Have its workers serve. Raises XdpRouterError: there are none then."""
        in_use = [each for one in self.generations for each in addresses(one.config)]
        start = asyncio.create_task(generation.start(in_use))
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                start.cancel()
                await asyncio.gather(start, return_exceptions=True)
                raise Interrupted("stopped before it was ready")
            start.result()
        finally:
            stop.cancel()
        self.generations.append(generation)

    async def _open_control(self) -> None:
        options = self._options
        self._control = ControlServer(
            options.control,
            self._commands.reading,
            lambda command, error: _log.error("control_fault", command=command, error=repr(error)),
            options.control_group,
            self._commands.changing,
        )
        await self._control.start()
        self._handover.start()

    async def _succeed(self, succession: Succession) -> None:
        """Our workers serve: the former gateway lets go. What fails from here on is told only:
        nobody but us serves any more."""
        former = succession.legacy.pid
        try:
            self._hear(await succession.take())
            _log.info("taken_over", former=former)
            self.tasks.spawn(succession.follow(self._hear), "former gateway")
        except handover.HandoverError as error:  # it has ended in this very moment
            _log.warning("former_gone", former=former, reason=str(error))
        try:
            await self._open_control()
        except XdpRouterError as error:
            _log.error("no_control_socket", reason=str(error), consequence="it serves all the same")
        if self._page is None:
            try:
                await self._serve_metrics(self.config.metrics)
            except XdpRouterError as error:
                _log.error("no_metrics", reason=str(error), consequence="it serves all the same")

    def _hear(self, line: Mapping[str, Any]) -> None:
        """What the former gateway has counted, and its records."""
        figures = hear(line, self.remembered)
        if figures is not None:
            self.totals.inherited = figures

    async def _serve_metrics(self, address: tuple[str, int] | None) -> None:
        await self._stop_metrics()
        if address is None:
            return
        page = FiguresPage(address, self)
        await page.start()
        self._page = page

    async def _stop_metrics(self) -> None:
        page, self._page = self._page, None
        if page is not None:
            await page.close()

    async def _let_go(self, answers_s: float = 0.0) -> None:
        """Of what can be one gateway's only. ``answers_s``: for answers that are on their way."""
        self._handover.close()
        self._sharing.close()
        if hasattr(self, "_control"):
            await self._control.close(answers_s)
        await self._stop_metrics()

    def stop(self, *, now: bool = False) -> None:
        """Drain, and end; ``now``: end, whatever is open."""
        self._stop.set()
        if now:
            self._at_once.set()

    async def _drain(self, records: int) -> None:
        _log.info("draining", connections=sum(each.open for each in self.workers))
        self._handover.close()
        self._sharing.close()
        await self.upgrades.cancel()
        async with self.reloads.lock:
            pass  # a reload that was under way has given up now, or is done; no other one begins
        # Before the workers': those accept until they close the last ones.
        self._means.sockets.close()
        for generation in self.generations:
            generation.retire(records)
        at_once: asyncio.Task[object] = asyncio.create_task(self._at_once.wait())
        try:
            while not all(each.ended for each in self.generations):
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait({changed, at_once}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if at_once.done() and self.state != "ending":
                    self.state = "ending"
                    _log.warning("streams_cut", connections=sum(w.open for w in self.workers))
                    for generation in self.generations:
                        generation.end()
                    at_once = asyncio.create_task(asyncio.sleep(3600))
        finally:
            at_once.cancel()

    # Another configuration

    def _hang_up(self) -> None:
        if self.state == "starting":
            return  # the file may be read already: it is read again when all is ready
        self.reloads.hang_up()

    async def reload(self, *, dry_run: bool = False) -> dict[str, Any]:
        """Read the file again, and do what it says. Raises XdpRouterError: nothing was done."""
        if dry_run:
            config = (await self.reloads.check()).config
        else:
            await self.reloads.reload()
            config = self.config
        return {
            "applied": not dry_run,
            "generation": self.generation,
            "listeners": len(config.listeners),
            "workers": config.workers,
        }

    def _require_serving(self) -> None:
        if self.state != "serving":
            raise CannotReload(f"the gateway is {self.state}")
        if self._handover.busy:
            raise CannotReload("a successor is about to take over: it has read the file itself")
        if self.upgrades.busy:
            raise CannotReload("an upgrade is under way: the successor reads the file itself")

    async def _bring(self, document: Document) -> None:
        sockets, former = self._means.sockets, self._document
        made = await asyncio.to_thread(sockets.prepare, document.config)
        try:
            await self._move_metrics(former.config.metrics, document.config.metrics)
            new = Generation(next(self._numbers), document, self._means, self._changed.set)
            await self._begin(new)
        except BaseException:
            sockets.discard(made)
            with contextlib.suppress(XdpRouterError):
                await self._move_metrics(document.config.metrics, former.config.metrics)
            raise
        self._document = document
        sockets.keep_only(document.config)
        self._sharing.tell()
        self.prober.follow(document.config, self.rows.all)
        self.hearsay.follow(document.config, self.rows.all)
        self.remembered.keep(document.config.decisions_kept)
        for each in self.generations[:-1]:
            each.retire(self.remembered.limit)
        self._forget_ended()
        _log.info(
            "reloaded",
            generation=new.number,
            listeners={each.name: str(each.address) for each in document.config.listeners},
            workers=[each.pid for each in new.workers],
        )

    async def _move_metrics(
        self, former: tuple[str, int] | None, to: tuple[str, int] | None
    ) -> None:
        """Serve them elsewhere. Raises MetricsError: they are where they were."""
        if former == to:
            return
        try:
            await self._serve_metrics(to)
        except XdpRouterError:
            with contextlib.suppress(XdpRouterError):
                await self._serve_metrics(former)
            raise

    # Showing, and handing over

    def _shown(self) -> dict[str, socket.socket]:
        """A listening socket of each listener, for a router on this host."""
        sockets = self._means.sockets
        return {each.name: sockets.of(each.address)[0] for each in self.config.listeners}

    async def _legacy(self) -> Legacy:
        """Once a start or a reload is done, if one is under way."""
        if self.state in ("starting", "serving"):
            try:
                async with asyncio.timeout(BUSY_S):
                    await self.reloads.lock.acquire()
            except TimeoutError as error:
                doing = "starting" if self.state == "starting" else "reloading"
                raise handover.HandoverError(
                    f"it has been {doing} for {BUSY_S:.0f} s: try again when that is done "
                    "('xdp-router gateway status', and its log)"
                ) from error
            self.reloads.lock.release()
        if self.state != "serving":
            raise handover.HandoverError(f"it is {self.state}: try again in a moment")
        means, metrics = self._means, self.config.metrics
        return Legacy(
            means.board_fd,
            LAYOUT,
            means.rows.all,
            means.sockets.all(),
            list(metrics) if metrics is not None else None,
        )

    async def _release(self) -> None:
        """A successor serves on the same sockets."""
        self.upgrades.taken(*self._handover.successor)
        self.state = "handed over"
        _log.info("handed_over", consequence="it finishes its streams, and ends")
        await self._let_go(ANSWERS_S)
        await self.prober.close()
        self._estate.settle(COUNTED)
        self.hearsay.close()
        self._stop.set()

    # Looking

    async def look(self) -> None:
        """Have the newest figures of all workers."""
        await asyncio.gather(*(each.look() for each in self.workers))
        if self.hearsay.is_wanted:
            figures = [each.figures for each in self.workers]
            self.hearsay.look(self.totals.sum(figures, WANTED))

    def _end_hung(self) -> None:
        """A worker whose loop does not turn serves nobody, and takes connections all the same."""
        for worker in self.workers:
            if worker.state == "serving" and worker.silent_s > HUNG_S:
                _log.error("worker_hung", pid=worker.pid, silent_s=round(worker.silent_s))
                worker.kill()

    async def _look(self) -> None:
        while True:
            await self.look()
            self._end_hung()
            self._forget_ended()
            await asyncio.sleep(LOOK_S)

    def _forget_ended(self) -> None:
        self.generations = [each for each in self.generations if not each.ended]

    @property
    def remembered(self) -> Remembered:
        """Records of workers that have ended."""
        return self._means.remembered

    @property
    def totals(self) -> Totals:
        """What workers that have ended had counted."""
        return self._means.totals

    def _one_line(self) -> str:
        """For ``systemctl status``."""
        connections = sum(each.open for each in self.workers)
        return f"{len(self.config.listeners)} listeners, {connections} connections"


async def run(
    file: ConfigFile, document: Document, options: GatewayOptions, signals: Signals
) -> None:
    """Serve until SIGTERM or SIGINT, or until a successor has taken over."""
    asyncio.get_running_loop().set_exception_handler(log_fault)
    async with contextlib.AsyncExitStack() as undo:
        await Supervisor(file, document, options).serve(undo, signals)
    _log.info("stopped")
