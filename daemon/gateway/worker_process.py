# SPDX-License-Identifier: Apache-2.0
"""One worker, as the supervisor sees it: a process, the channel to it, its slot of the board."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from xdp_router.core.errors import XdpRouterError

from . import spawning
from .board import Board
from .certificates import Pems
from .channel import Channel, ChannelClosed, Refused
from .kept import Remembered
from .totals import Figures

READY_S: Final = 60.0
"""How long a worker may take until it serves: on a busy machine the imports alone take seconds."""
ASK_S: Final = 5.0
GRACE_S: Final = 5.0
"""How long beyond its time a worker may take to end, before it is killed."""

_MODULE = "xdp_router.daemon.gateway.worker"
_log = structlog.get_logger()


class WorkerFailed(XdpRouterError):
    """A worker has not come to serve; the text says why."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is started for. ``sockets``: its own, by the address that they listen on.

    It reads no file itself: what was good when the configuration was read may not be any more.
    """

    text: str
    label: str
    pems: Pems
    rows: Mapping[str, int]
    sockets: Mapping[str, Sequence[socket.socket]]
    log_format: str


class WorkerProcess:
    """Made by ``start``; gone when ``ended`` returns."""

    def __init__(self, number: int, board: Board, board_fd: int, remembered: Remembered) -> None:
        """``remembered`` gets what it tells at its end."""
        self.number = number
        self.state = "starting"
        self.started_s = time.monotonic()
        self.open = 0
        self.figures: Figures = {}
        self._board = board
        self._board_fd = board_fd
        self._remembered = remembered
        self._slot = -1
        self._answered_s = self.started_s

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def slot(self) -> int:
        """Of the board."""
        return self._slot

    async def start(self, task: Task) -> None:
        """Start the process, and return when it is ready. Raises WorkerFailed: there is none."""
        await self._or_none(self._start(task))

    async def serve(self) -> None:
        """Have it accept from now on. Raises WorkerFailed: it is gone."""
        await self._or_none(self._channel.ask("serve", READY_S))
        self.state = "serving"
        self._answered_s = time.monotonic()

    async def _or_none(self, work: Awaitable[object]) -> None:
        try:
            await work
        except (OSError, Refused, ChannelClosed, TimeoutError) as error:
            self.kill()
            await self.ended()
            raise WorkerFailed(f"a worker did not start: {_reason(error)}") from error
        except BaseException:
            self.kill()
            raise

    async def _start(self, task: Task) -> None:
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, self._told)
        fds = {name: [each.fileno() for each in some] for name, some in task.sockets.items()}
        with theirs:
            self._spawn(
                task.log_format, theirs.fileno(), [each for some in fds.values() for each in some]
            )
        self._exited = spawning.watch_exit(self._process)
        self._slot = self._board.claim(self._board_fd, self.pid)
        await self._channel.open()
        await self._channel.ask(
            "begin",
            READY_S,
            text=task.text,
            label=task.label,
            pems={name: [each.chain, each.key] for name, each in task.pems.items()},
            slot=self._slot,
            board=self._board_fd,
            rows=task.rows,
            sockets=fds,
        )

    def _spawn(self, log_format: str, channel: int, sockets: Sequence[int]) -> None:
        self._process = subprocess.Popen(
            [*spawning.python(_MODULE), log_format, str(channel)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[channel, self._board_fd, *sockets],
            env=spawning.environment(),
        )

    async def ask(self, what: str, **args: object) -> Any:
        """Ask it; None if it does not answer, as when it is about to end."""
        try:
            return await self._channel.ask(what, ASK_S, **args)
        except (ChannelClosed, Refused, TimeoutError):
            return None

    async def look(self) -> None:
        """Have its newest figures."""
        answer = await self.ask("figures")
        if answer is not None:
            self._answered_s = time.monotonic()
            self._told("last", answer)

    @property
    def silent_s(self) -> float:
        """How long it has not answered."""
        return time.monotonic() - self._answered_s

    def _told(self, what: str, args: Mapping[str, Any]) -> None:
        if what == "last":
            self.open, self.figures = args["open"], args["figures"]
        elif what == "records":
            self._remembered.add(self.pid, args["rows"])

    async def retire(self, timeout_ns: int, records: int) -> None:
        """Have it take nothing more, finish what it has in that time, tell so many records, and
        end."""
        self.state = "retiring"
        await self.ask("retire", timeout_ns=timeout_ns, records=records)
        try:
            async with asyncio.timeout(timeout_ns / 1e9 + GRACE_S):
                await asyncio.shield(self._exited)
        except TimeoutError:
            _log.warning("worker_killed", pid=self.pid, reason="it did not end in its time")
            self.kill()

    def end(self) -> None:
        """End it now, whatever it has."""
        self.kill()

    def kill(self) -> None:
        """The same by force."""
        if hasattr(self, "_process"):
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)

    async def ended(self) -> int:
        """Its exit status, when it is gone, its last words were heard and its slot is free."""
        if not hasattr(self, "_exited"):
            return -1
        status = await asyncio.shield(self._exited)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                await self._channel.ended()
        self._channel.close()
        if self._slot >= 0:
            self._board.release(self._board_fd, self._slot)
            self._slot = -1
        self.state = "ended"
        return status

    def __str__(self) -> str:
        return f"worker {self.number}"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it was not ready within {READY_S:.0f} s"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
