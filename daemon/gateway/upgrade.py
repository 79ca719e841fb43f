# SPDX-License-Identifier: Apache-2.0
"""A gateway that starts its own successor: ``xdp-router gateway upgrade``, and SIGUSR2.

    we -> the successor       started as we were, of what is on disk now
    the successor -> us       takes over (see ``handover``); or says why not by its pipe, and ends
    we -> systemd             MAINPID=: only when it serves; from there on we are silent

Until it serves nothing has changed, and nothing has if it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from xdp_router.core.errors import XdpRouterError
from xdp_router.daemon.notify import notify
from xdp_router.daemon.tasks import Tasks

from . import detached
from .detached import Detached
from .handover import HandoverError

PARENT_VARIABLE: Final = "XDP_ROUTER_GATEWAY_PARENT"
"""Process that starts another gateway when this one ends."""
LIMIT_S: Final = 80.0
"""How long a successor may take until it serves; the control socket waits a little longer."""

_log = structlog.get_logger()


class CannotUpgrade(XdpRouterError):
    """There is no successor, and nothing has changed."""


def own_command() -> list[str]:
    """How this process was started, by the path of its interpreter: what is there now is run."""
    return [sys.executable, *sys.orig_argv[1:]]


def environment_of_successor(ours: Mapping[str, str], pid: int) -> dict[str, str]:
    """The same; what systemd wants of this process by its number is the successor's duty then."""
    is_watched = ours.get("WATCHDOG_PID") == str(pid)
    return {key: value for key, value in ours.items() if key != "WATCHDOG_PID" or not is_watched}


def require_possible(environment: Mapping[str, str], pid: int, parent: int) -> None:
    """Raise CannotUpgrade where the end of this process would be that of a successor, too."""
    if environment.get(PARENT_VARIABLE) == str(parent):
        raise CannotUpgrade(
            "this gateway is run by the router's daemon (attach --gateway), which starts another "
            "one when it ends: to upgrade without a gap, run it on its own ('xdp-routerd gateway')"
        )
    if pid == 1:
        raise CannotUpgrade(
            "this gateway is process 1, and its container ends with it: start another container "
            "that shares its control path and its network namespace, or run it under an init"
        )


class Upgrades:
    """One at a time. ``busy``: one is under way."""

    def __init__(
        self,
        tasks: Tasks,
        require: Callable[[], None],
        reload_lock: asyncio.Lock,
        command: Sequence[str] | None = None,
    ) -> None:
        """``require`` raises XdpRouterError if it cannot be now. ``reload_lock``: held while the
        configuration is read again. ``command``: what a successor is started by; None: as this
        process was."""
        self._tasks = tasks
        self._require = require
        self._reload_lock = reload_lock
        self._command = command
        self._task: asyncio.Task[dict[str, Any]] | None = None
        self._successor: Detached | None = None
        self._taken: asyncio.Future[tuple[int, str]] | None = None
        self._given_up: set[int] = set()
        self._stop = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether one is under way."""
        return self._task is not None and not self._task.done()

    def signalled(self) -> None:
        """SIGUSR2 has come: the log says what becomes of it."""
        self._tasks.spawn(self._say(), "upgrade")

    async def _say(self) -> None:
        with contextlib.suppress(XdpRouterError):  # the log has it
            await self.upgrade()

    async def upgrade(self) -> dict[str, Any]:
        """Return when a successor serves. Raises XdpRouterError: all is as it was."""
        try:
            if self.busy:
                raise CannotUpgrade("an upgrade is under way: wait for what becomes of it")
            require_possible(os.environ, os.getpid(), os.getppid())
            self._require()
            if self._reload_lock.locked():
                raise CannotUpgrade("it is reading its configuration again: wait until it has")
            self._task = asyncio.create_task(self._upgrade(), name="upgrade")
            self._task.add_done_callback(_heard)
            return await asyncio.shield(self._task)  # whoever asked for it may go
        except XdpRouterError as error:
            _log.error("upgrade_failed", reason=str(error), consequence="it goes on")
            raise

    async def cancel(self) -> None:
        """Have a successor end that does not serve yet: we are to stop."""
        self._stop.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def _upgrade(self) -> dict[str, Any]:
        command = self._command if self._command is not None else own_command()
        self._taken = asyncio.get_running_loop().create_future()
        successor = await detached.start(command, environment_of_successor(os.environ, os.getpid()))
        _log.info("successor_started", successor=successor.pid)
        self._successor = successor
        try:
            pid, version = await self._outcome(successor, self._taken)
        except BaseException:
            # Before it is told to end: it may be about to say that it serves.
            self._successor = None
            self._given_up.add(successor.pid)
            await asyncio.shield(successor.end())
            self._given_up.discard(successor.pid)
            raise
        finally:
            successor.close()
        return {"pid": pid, "version": version, "former": os.getpid()}

    async def _outcome(
        self, successor: Detached, taken: asyncio.Future[tuple[int, str]]
    ) -> tuple[int, str]:
        words = asyncio.create_task(successor.last_words())
        stop = asyncio.create_task(self._stop.wait())
        try:
            first: set[asyncio.Future[Any]] = {words, taken, stop}
            await asyncio.wait(first, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
            if taken.done():
                pid, version = taken.result()
                if pid == successor.pid:
                    return pid, version
                raise CannotUpgrade(f"another gateway (process {pid}) has taken over meanwhile")
            if stop.done():
                raise CannotUpgrade("the gateway was told to stop meanwhile, and so was that one")
            if words.done():
                text = words.result() or "it ended without a word: the log may say more"
            else:
                text = f"it did not serve within {LIMIT_S:.0f} s, and was ended"
            raise CannotUpgrade(
                f"the successor (process {successor.pid}) failed: {text}\n"
                f"Nothing has changed: process {os.getpid()} goes on."
            )
        finally:
            words.cancel()
            stop.cancel()

    def taken(self, pid: int, version: str) -> None:
        """A successor serves, if this returns: somebody's, or ours. Raises HandoverError."""
        if pid in self._given_up:
            raise HandoverError("it came too late: it was given up")
        if self._successor is not None and self._successor.pid == pid:
            # In one message: what watches over us must not miss a beat of the successor.
            notify(f"MAINPID={pid}\nWATCHDOG=1")
            # From here on the successor speaks, and systemd would complain of whoever else does.
            os.environ.pop("NOTIFY_SOCKET", None)
        if self._taken is not None and not self._taken.done():
            self._taken.set_result((pid, version))


def _heard(task: asyncio.Task[dict[str, Any]]) -> None:
    """Whoever asked for it may have gone."""
    if not task.cancelled():
        task.exception()
