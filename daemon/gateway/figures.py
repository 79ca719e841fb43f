# SPDX-License-Identifier: Apache-2.0
"""What a worker counts for its listeners, in the form that :mod:`.totals` adds up."""

from __future__ import annotations

from collections import defaultdict

from xdp_router.measure.histogram import Buckets

from . import totals
from .board import ROWS

BOUNDS_MS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000,
)  # fmt: skip
"""Upper bounds of the histograms' buckets."""
BOUNDS_NS = tuple(each * 1_000_000 for each in BOUNDS_MS)
LABELS_MOST = 1_000
"""Combinations of labels of one metric: names of models come from requests."""
_OF_BACKENDS = frozenset({"legs", "hedges", "cancelled_legs", "failed_legs", "loser_tokens"})
"""Counters whose labels are the configuration's own: as many as there may be backends."""


class Figures:
    """Counters by name and labels, and histograms of times likewise."""

    def __init__(self) -> None:
        self._counters: defaultdict[str, dict[tuple[str, ...], int]] = defaultdict(dict)
        self._times: defaultdict[str, dict[tuple[str, ...], Buckets]] = defaultdict(dict)

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter; its name is that of the metric without ``_total``. Without its last
        label, if there are too many."""
        rows = self._counters[name]
        before = rows.get(labels)
        if before is None:
            if len(rows) >= (ROWS if name in _OF_BACKENDS else LABELS_MOST):
                labels = (*labels[:-1], "")
            before = rows.get(labels, 0)
        rows[labels] = before + by

    def time(self, name: str, value_ns: int, *labels: str) -> None:
        """Take in a time of a histogram; without its label, the last one, if those are too many."""
        rows = self._times[name]
        buckets = rows.get(labels)
        if buckets is None:
            if len(rows) >= LABELS_MOST:
                labels = (*labels[:-1], "")
            buckets = rows.setdefault(labels, Buckets(BOUNDS_NS))
        buckets.add(value_ns)

    def plain(self) -> totals.Figures:
        """As JSON can have it."""
        told: totals.Figures = {
            f"{name}_total": [[list(labels), value] for labels, value in rows.items()]
            for name, rows in self._counters.items()
        }
        for name, times in self._times.items():
            told[f"{name}_seconds"] = [
                [
                    list(labels),
                    {"bounds": list(each.bounds), "counts": list(each.counts), "total": each.total},
                ]
                for labels, each in times.items()
            ]
        return told
