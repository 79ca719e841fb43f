# SPDX-License-Identifier: Apache-2.0
"""Hot or cold, then by latency: the rule by which candidates are put in order.

Source: Wydrowski et al., "Load is not what you should balance: Introducing Prequal", NSDI '24,
section 4 (HCL). A candidate with more requests in flight than a quantile of what was seen lately
is hot, and comes behind all that are not; the hot are ordered by requests in flight, the cold by
latency. A sum of both terms lost to it there: no latency makes up for a queue that grows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from xdp_router.core.quantile import percentile

DEFAULT_QUANTILE = 0.84

# Of so few counts a quantile says nothing; nobody is hot until there are more.
LEAST_COUNTS = 8


@dataclass(frozen=True, slots=True)
class Load:
    """One candidate: its requests in flight, and its newest latency (None: never measured)."""

    in_flight: int
    latency_ns: int | None = None


class InFlightWindow:
    """Requests in flight of whoever was a candidate lately: what "many" means at present."""

    __slots__ = ("_counts", "_line", "_noted", "_quantile")

    def __init__(self, quantile: float = DEFAULT_QUANTILE, window: int = 256) -> None:
        """Raise ValueError for a quantile outside of 0 to 1, or a window of less than 8."""
        if not 0.0 <= quantile <= 1.0:
            raise ValueError(f"quantile: expected 0 to 1, found {quantile}")
        if window < LEAST_COUNTS:
            raise ValueError(f"window: expected {LEAST_COUNTS} or more, found {window}")
        self._quantile = quantile
        self._counts: deque[int] = deque(maxlen=window)
        self._noted = 0
        self._line: int | None = None

    def note(self, candidates: Sequence[Load]) -> None:
        """Candidates as a request has met them."""
        self._counts.extend(each.in_flight for each in candidates)
        self._noted += len(candidates)
        # Sorting costs more than what one request changes is worth.
        if self._line is None or self._noted >= 32:
            self._noted = 0
            if len(self._counts) >= LEAST_COUNTS:
                self._line = percentile(self._counts, self._quantile)

    @property
    def line(self) -> int | None:
        """Whoever has more in flight is hot; None: too little is known."""
        return self._line


def hcl(candidates: Sequence[Load], line: int | None) -> list[int]:
    """The indexes of the candidates, best first.

    ``line`` as of :class:`InFlightWindow`; None: nobody is hot. A candidate without a latency is
    the first of the cold while it has nothing in flight, so that it gets one; else their last.
    Equals stay in the order given.
    """
    return sorted(range(len(candidates)), key=lambda index: _rank(candidates[index], line))


def _rank(load: Load, line: int | None) -> tuple[int, int, int]:
    if line is not None and load.in_flight > line:
        return 3, load.in_flight, load.latency_ns or 0
    if load.latency_ns is None:
        return (2 if load.in_flight else 0), load.in_flight, 0
    return 1, load.latency_ns, load.in_flight
