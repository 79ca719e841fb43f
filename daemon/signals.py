# SPDX-License-Identifier: Apache-2.0
"""Signals that stop the daemon: from the first moment to the last.

The event loop's own handlers begin late and end early, and what comes outside of them would
cut a start or a shutdown short.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from xdp_router.core.errors import XdpRouterError

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(XdpRouterError):
    """It was to stop before it was ready."""


class Signals:
    """SIGINT and SIGTERM set an event; SIGHUP calls a function. ``number``: the first that came."""

    def __init__(self) -> None:
        self.number = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._on_hangup: Callable[[], object] = _nothing

    def install(self) -> None:
        """Begin, before there is an event loop. Main thread only."""
        for number in STOPPING:
            signal.signal(number, self._stopped)
        signal.signal(signal.SIGHUP, self._hung_up)

    def connect(self, stop: asyncio.Event, on_hangup: Callable[[], object]) -> None:
        """Tell the running event loop from now on, and of what has come already."""
        self._loop, self._stop, self._on_hangup = asyncio.get_running_loop(), stop, on_hangup
        if self.number:
            stop.set()

    def ignore(self) -> None:
        """The process ends anyway: nothing may cut that short any more."""
        for number in (*STOPPING, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    # These run between any two steps of the main thread, so they do as little as can be.

    def _stopped(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        if self._stop is not None:
            self._stop.set()
        self._wake(_nothing)

    def _hung_up(self, _number: int, _frame: FrameType | None) -> None:
        self._wake(self._on_hangup)

    def _wake(self, then: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed by now
                self._loop.call_soon_threadsafe(then)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Signals of the calling thread wait meanwhile: the kernel gives up verifying for one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOPPING, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing() -> None:
    pass
