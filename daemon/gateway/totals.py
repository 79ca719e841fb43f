# SPDX-License-Identifier: Apache-2.0
"""Sums over workers of what each has counted, those included that have ended.

Figures are plain JSON: by a metric's name, a list of ``[label values, value]``; a value is a
number, or ``{"bounds": [...], "counts": [...], "total": N}`` of a histogram: how many values were
at most each bound and more than the one before, the last count those beyond; and their sum. Where
quantiles are wanted it is ``{"spread": {BUCKET: COUNT}}``, as
:class:`xdp_router.measure.histogram.Histogram` has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from xdp_router.measure.histogram import Histogram

Figures = dict[str, list[list[Any]]]


def spread_of(times: Histogram) -> dict[str, Any]:
    """A histogram in that form."""
    return {"spread": {str(bucket): count for bucket, count in times.counts.items()}}


def histogram_of(value: Mapping[str, Any]) -> Histogram:
    """The other way."""
    return Histogram.of({int(bucket): count for bucket, count in value["spread"].items()})


def merge(several: Iterable[Figures]) -> Figures:
    """The sum of figures, value by value."""
    sums: dict[str, dict[tuple[str, ...], Any]] = {}
    for figures in several:
        for name, rows in figures.items():
            values = sums.setdefault(name, {})
            for labels, value in rows:
                key = tuple(labels)
                values[key] = _sum(values[key], value) if key in values else value
    return {
        name: [[list(key), value] for key, value in values.items()] for name, values in sums.items()
    }


def _sum(one: Any, other: Any) -> Any:
    if not isinstance(one, dict):
        return one + other
    if "spread" in one:
        counts: Counter[str] = Counter(one["spread"])
        counts.update(other["spread"])
        return {"spread": dict(counts)}
    if one["bounds"] != other["bounds"]:  # of another version: the newer one counts on its own
        return other
    return {
        "bounds": one["bounds"],
        "counts": [a + b for a, b in zip(one["counts"], other["counts"], strict=True)],
        "total": one["total"] + other["total"],
    }


class Totals:
    """``passing``: names of those that are no counters: with a worker they go."""

    def __init__(self, passing: Collection[str]) -> None:
        self._passing = frozenset(passing)
        self._kept: Figures = {}
        self.inherited: Figures = {}
        """What a former gateway had counted that has handed over, and its workers still do."""
        self.deaths = 0
        """Workers that have ended without being told to."""

    def keep(self, figures: Figures) -> None:
        """A worker has ended that had counted so much."""
        lasting = {name: rows for name, rows in figures.items() if name not in self._passing}
        self._kept = merge((self._kept, lasting))

    def sum(self, living: Sequence[Figures], only: Collection[str] | None = None) -> Figures:
        """Of all workers that there were and are. ``only``: figures of these names."""
        several = (self._kept, *living)
        if only is None:
            return merge(several)
        return merge({name: each[name] for name in only if name in each} for each in several)
