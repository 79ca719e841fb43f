# SPDX-License-Identifier: Apache-2.0
"""Budgets of first-packet events: their prices, and which part of them each CPU has.

XDP keeps its buckets per CPU, which costs no lock. What a CPU's bucket may give is set anew each
second by where SYNs arrive: a network card may hand all of a flood, or all of the honest
traffic, to one CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from . import abi

NS_PER_S = 1_000_000_000
SPREAD = 0.1
"""This part is spread evenly: a CPU where nothing has arrived can answer its first SYNs."""

_NEWEST = 0.5
"""Weight of the last second against those before it."""

_CALM = 0.01
"""Arrivals of this part of the rate are taken to come from everywhere: few SYNs say nothing."""

DECISIONS_PER_S = 36_000
"""What the daemon decides on one core (``make bench``, row ``rate``)."""

_BACKLOG_MAX_NS = 10_000_000
_BACKLOG_PART = 4
_RECORD_BYTES = abi.RECORD_SMALL + 8
_RECORDS_MIN = 32
"""As many connections of one moment may always wait, however short the deadline is."""


def price(rate: int, burst: int) -> tuple[int, int]:
    """``(interval_ns, burst_ns)`` of a budget, where all of it is one CPU's. 0, 0: no limit."""
    if not rate:
        return 0, 0
    interval_ns = NS_PER_S // rate
    return interval_ns, burst * interval_ns


def deep_ring(deadlines_ns: Collection[int]) -> int:
    """Bytes in the ring from which on the daemon would answer too late.

    What waits takes a part of the shortest deadline, and 10 ms at most: probe replies come by
    the same ring.
    """
    wait_ns = min(_BACKLOG_MAX_NS, min(deadlines_ns) // _BACKLOG_PART)
    return max(_RECORDS_MIN, wait_ns * DECISIONS_PER_S // NS_PER_S) * _RECORD_BYTES


class EventShares:
    """Which part of the event budgets each CPU has. The parts add up to no more than one."""

    def __init__(self, online: Collection[int], possible: int, rate: int) -> None:
        """``online``: CPUs that run, of numbers below ``possible``. ``rate``: events a second."""
        self._online = frozenset(online)
        self._arrivals = [0.0] * possible
        self.change(rate)
        self._before: Sequence[int] | None = None

    def change(self, rate: int) -> None:
        """``rate`` events a second from now on."""
        self._calm = max(1.0, rate * _CALM) / len(self._online)

    def begin(self, asked: Sequence[int]) -> None:
        """Count from here on. ``asked``: how often each CPU has wanted a token so far."""
        self._before = asked

    def update(self, asked: Sequence[int], elapsed_ns: int) -> list[int]:
        """Each CPU's scale, after another look at how often it has wanted a token."""
        before, self._before = self._before, asked
        if before is not None and elapsed_ns > 0:
            for cpu, (now, then) in enumerate(zip(asked, before, strict=True)):
                arrived = max(0, now - then) * NS_PER_S / elapsed_ns
                self._arrivals[cpu] += (arrived - self._arrivals[cpu]) * _NEWEST
        return self.scales()

    def scales(self) -> list[int]:
        """Factor of each CPU's interval, in parts of ``abi.SHARE_ONE``; even at the start."""
        weights = [
            arrived + (self._calm if cpu in self._online else 0.0)
            for cpu, arrived in enumerate(self._arrivals)
        ]
        total, even = sum(weights), SPREAD / len(weights)
        parts = [even + (1 - SPREAD) * weight / total for weight in weights]
        return [-int(-abi.SHARE_ONE // part) for part in parts]
