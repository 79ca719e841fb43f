# SPDX-License-Identifier: Apache-2.0
"""The daemon's sign of life, which is also the clock that flows are aged by.

XDP notes the newest heartbeat as an established flow's ``last_seen`` (its own clock would cost
each packet more). So ``last_seen`` stands still with the heartbeat: a flow that was used while
the daemon was frozen looks as if it had been silent since the last beat before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

GONE_NS = 1_000_000_000
"""A daemon without a sign of life for so long is taken for gone by everybody."""

PAUSES_KEPT = 256
"""Older pauses are forgotten: a flow's idle time is then too long by one of them at most."""


class Heartbeat:
    """Writes the heartbeat and remembers its pauses.

    ``write`` gets the instant of the beat and the end of the newest pause (at first: the start).
    A pause is a distance between two beats of more than ``stale_ns``. Instants are
    CLOCK_MONOTONIC nanoseconds.
    """

    def __init__(
        self, write: Callable[[int, int], None], stale_ns: int, former_ns: int = 0
    ) -> None:
        """``former_ns``: last beat of the daemon that the flows were taken over from."""
        self._write = write
        self._stale_ns = stale_ns
        self._last_ns = former_ns
        self._resumed_ns = 0
        self._pauses: deque[tuple[int, int]] = deque(maxlen=PAUSES_KEPT)

    def change(self, stale_ns: int) -> None:
        """Another distance between two beats is a pause from now on."""
        self._stale_ns = stale_ns

    def beat(self, now_ns: int) -> None:
        """Give a sign of life. Raises what ``write`` raises; the beat is then missed."""
        resumed_ns = self._resumed_ns
        if now_ns - self._last_ns > self._stale_ns or not resumed_ns:
            resumed_ns = now_ns
        self._write(now_ns, resumed_ns)
        if resumed_ns == now_ns and self._last_ns:
            self._pauses.append((self._last_ns, now_ns))
        self._last_ns, self._resumed_ns = now_ns, resumed_ns

    def last(self, now_ns: int) -> None:
        """Say that there will be none for now: XDP need not wait until it is stale."""
        if self._resumed_ns:
            self._write(now_ns - max(self._stale_ns, GONE_NS) - 1, self._resumed_ns)

    def pauses(self, now_ns: int) -> Mapping[int, int]:
        """Until when the traffic of a flow may have gone on, by its ``last_seen``.

        Has the last beat before each pause; one that lasts still ends now.
        """
        pauses = dict(self._pauses)
        if now_ns - self._last_ns > self._stale_ns:
            pauses[self._last_ns] = now_ns
        return pauses
