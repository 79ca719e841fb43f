# SPDX-License-Identifier: Apache-2.0
"""Signals that stop the daemon: from the first moment to the last.

The event loop's own handlers begin late and end early, and what comes outside of them would
cut a start or a shutdown short.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from xdp_router.core.errors import XdpRouterError

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(XdpRouterError):
    """It was to stop before it was ready."""


class Signals:
    """SIGINT and SIGTERM set an event; SIGHUP and SIGUSR2 call a function.

    ``number``: the first one that stops.
    """

    def __init__(self) -> None:
        self.number = 0
        self.hangups = 0
        """How many SIGHUPs have come, those included that nobody was called for."""
        self.on_upgrade: Callable[[], object] = _nothing
        """Called for each SIGUSR2 in the event loop."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._on_hangup: Callable[[], object] = _nothing
        self._on_again: Callable[[], object] = _nothing

    def install(self) -> None:
        """Begin, before there is an event loop. Main thread only."""
        for number in STOPPING:
            signal.signal(number, self._stopped)
        signal.signal(signal.SIGHUP, self._hung_up)
        signal.signal(signal.SIGUSR2, self._upgraded)

    def connect(
        self,
        stop: asyncio.Event,
        on_hangup: Callable[[], object],
        on_again: Callable[[], object] | None = None,
    ) -> None:
        """Tell the running event loop from now on, and of what has come already. ``on_again`` is
        called for each further signal that stops: somebody does not want to wait."""
        self._loop, self._stop, self._on_hangup = asyncio.get_running_loop(), stop, on_hangup
        self._on_again = on_again or _nothing
        if self.number:
            stop.set()

    def ignore(self) -> None:
        """The process ends anyway: nothing may cut that short any more."""
        for number in (*STOPPING, signal.SIGHUP, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)

    # These run between any two steps of the main thread, so they do as little as can be.

    def _stopped(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            self._wake(self._on_again)
        self.number = self.number or number
        if self._stop is not None:
            self._stop.set()
        self._wake(self._rouse)

    def _rouse(self) -> None:
        """Set it once more, in the event loop: who was about to wait when the handler ran had
        seen that it is not set, and was not among those that are told.
        """
        if self._stop is not None:
            self._stop.clear()
            self._stop.set()

    def _hung_up(self, _number: int, _frame: FrameType | None) -> None:
        self.hangups += 1
        self._wake(self._on_hangup)

    def _upgraded(self, _number: int, _frame: FrameType | None) -> None:
        self._wake(self.on_upgrade)

    def _wake(self, then: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed by now
                self._loop.call_soon_threadsafe(then)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Signals wait meanwhile, in whatever thread they arrive.

    The kernel gives up verifying when the thread that loads has one, so this thread does not take
    them, nor do those that it starts meanwhile. Another one does, and Python would run the handler
    here at once: it is only noted, and comes afterwards. Handlers run in the main thread
    alone, so what another one calls is not interrupted by them, and they stay as they are.
    """
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        noted.append(number)

    numbers = (*STOPPING, signal.SIGHUP, signal.SIGUSR2)
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in numbers} if is_main else {}
    for number in handlers:
        signal.signal(number, note)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for each in dict.fromkeys(noted):
            signal.raise_signal(each)


def _nothing() -> None:
    pass


def go_on(stop: asyncio.Event, adopted: bool) -> None:
    """Raise Interrupted if it is to stop. ``adopted``: it has taken over another's data plane."""
    if stop.is_set():
        left = "the data plane that was there goes on" if adopted else "nothing is left attached"
        raise Interrupted(f"stopped before it was ready; {left}")
