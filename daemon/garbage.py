# SPDX-License-Identifier: Apache-2.0
"""Keeps Python's cycle collector from holding the event loop.

Nearly everything here dies by its reference count. A collection of everything, which Python
starts by itself, walks all open and kept decisions for nothing: 25 ms with 20,000 of the one and
10,000 of the other. So the young generations alone run by themselves; what has survived is
looked at once, while little is under way, and then set aside for good. It still dies by its
reference count. Only a cycle that was set aside alive would stay: connections leave such ones
behind (asyncio's transports), hence the waiting for a moment without any.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator

EVERY_S = 0.5
PATIENCE = 120
"""So many times a busy moment is passed over; then it is done all the same."""

_YOUNG, _MIDDLE = 700, 10
_MANY = 50_000
_NEVER = 1 << 30


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """No collections of everything within, and few others: what a large configuration makes is
    all there to stay.

    They would double the time of a start with 160,000 backends. The young are looked at, because
    netlink's messages are cycles.
    """
    before = gc.get_threshold()
    gc.set_threshold(_MANY, _MIDDLE, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class GarbageKeeper:
    """Sets the collector up for a process with one event loop.

    ``is_quiet`` says whether there are few objects of short life just now.
    """

    def __init__(self, is_quiet: Callable[[], bool]) -> None:
        self._is_quiet = is_quiet
        self._passed_over = 0

    async def run(self) -> None:
        """Look after the collector until cancelled."""
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
        while True:
            self.step()
            await asyncio.sleep(EVERY_S)

    def step(self) -> None:
        """If it is quiet, collect what has come since the last time, and set it aside.

        1 us when nothing has come, 0.3 ms for a thousand decisions.
        """
        if not self._is_quiet() and self._passed_over < PATIENCE:
            self._passed_over += 1
            return
        self._passed_over = 0
        gc.collect()
        gc.freeze()
