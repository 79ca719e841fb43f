# SPDX-License-Identifier: Apache-2.0
"""What a worker counts for its listeners, in a form that can be added up over workers."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import Any

BOUNDS_MS = (
    1,
    2,
    5,
    10,
    20,
    50,
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    30_000,
    60_000,
)  # fmt: skip - one line each would say less
"""Upper bounds of the histograms' buckets."""
_BOUNDS_NS = tuple(each * 1_000_000 for each in BOUNDS_MS)

Labels = tuple[str, ...]


class Figures:
    """Counters by name and labels, and histograms of times likewise."""

    def __init__(self) -> None:
        self.counters: defaultdict[tuple[str, Labels], int] = defaultdict(int)
        self.histograms: dict[tuple[str, Labels], list[int]] = {}

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter."""
        self.counters[name, labels] += by

    def time(self, name: str, value_ns: int, *labels: str) -> None:
        """Take in a time. The list has a number for each bound, then beyond, then the sum in ns."""
        key = name, labels
        buckets = self.histograms.get(key)
        if buckets is None:
            buckets = self.histograms[key] = [0] * (len(_BOUNDS_NS) + 2)
        buckets[bisect_left(_BOUNDS_NS, value_ns)] += 1
        buckets[-1] += value_ns

    def plain(self) -> dict[str, Any]:
        """As JSON can have it: lists of name, labels and value."""
        return {
            "counters": [[name, list(labels), n] for (name, labels), n in self.counters.items()],
            "histograms": [
                [name, list(labels), list(n)] for (name, labels), n in self.histograms.items()
            ],
        }
