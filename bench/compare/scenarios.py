# SPDX-License-Identifier: Apache-2.0
"""What happens to the backends, and when connections come: the same for each arm, from seeds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from xdp_router.lab import Stall

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
BACKENDS = 3
FARTHER_NS = 20 * NS_PER_MS
STALL = Stall(extra_ns=50 * NS_PER_MS, window_ns=200 * NS_PER_MS, period_ns=500 * NS_PER_MS)

RATE = 200
"""Connections a second: with fewer, leastconn would meet a stalled backend more often in a window
of the same length, since it knows no more than its own open connections."""
SLICE_NS = 2_500 * NS_PER_MS
"""One turn of one arm: whole periods of the stall."""
WARM_NS = 500 * NS_PER_MS


@dataclass(frozen=True, slots=True)
class Scenario:
    """``delays_ns``: how much longer each backend's round trip is than the wires make it.
    ``stalls``: one of the backends at a time, at random."""

    name: str
    title: str
    delays_ns: tuple[int, ...]
    stalls: bool = False

    def delayed(self, number: int) -> bool:
        """Whether what a backend gets, counted from 0, is ever late."""
        return self.stalls or self.delays_ns[number] > 0

    def stall(self, number: int, seed: int) -> Stall | None:
        """How a backend, counted from 0, stalls in a slice."""
        if not self.stalls:
            return None
        return Stall(
            STALL.extra_ns,
            STALL.window_ns,
            STALL.period_ns,
            seed,
            one_of=len(self.delays_ns),
            number=number,
        )


_NEAR = (0,) * BACKENDS
FLAT = Scenario("flat", "all three backends equally near", _NEAR)
FARTHER = Scenario("farther", "one of three backends 20 ms farther away", (0, FARTHER_NS, 0))
STALLS = Scenario(
    "stalls", "one of three backends at a time stalls: 50 ms, in 200 of each 500 ms", _NEAR, True
)
SCENARIOS = (FLAT, FARTHER, STALLS)


def arrivals(seed: int, rate: int = RATE, length_ns: int = SLICE_NS) -> list[int]:
    """When the connections of a slice begin: so many independent instants, in order.

    Their number is the same for every seed; gaps are as those of independent clients.
    """
    source = random.Random(seed)
    return sorted(source.randrange(length_ns) for _ in range(rate * length_ns // NS_PER_S))


def turns(arms: Sequence[str], round_number: int) -> list[str]:
    """The arms of a round: each once, and in each round another one begins."""
    first = round_number % len(arms)
    return [*arms[first:], *arms[:first]]


def alone(starts_ns: Sequence[int], gap_ns: int = 5 * NS_PER_MS) -> list[bool]:
    """Which connections begin so long after the one before that they can join no race of others."""
    gaps = [after - before for before, after in itertools.pairwise(starts_ns)]
    return [True, *(gap >= gap_ns for gap in gaps)][: len(starts_ns)]
