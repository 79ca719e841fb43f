# SPDX-License-Identifier: Apache-2.0
"""What a gateway that has handed over tells its successor, until its last worker has ended: what it
has counted, so that counters do not go back, and the records of requests.

    {"figures": {...}}     all of it so far; each time instead of what was told before
    {"records": [[PID, ID, TIME, TEXT]...]}      beside what was told before
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from xdp_router.measure.catalogue import Kind, Metric
from xdp_router.measure.catalogue_gateway import GATEWAY_METRICS

from .figures import BOUNDS_NS
from .kept import Remembered
from .totals import Figures

PREFIX: Final = "gateway_"
RECORDS_AT_ONCE: Final = 500
_BY_NAME: Final = {name.removeprefix(PREFIX): each for name, each in GATEWAY_METRICS.items()}


def lasting(figures: Figures) -> Figures:
    """Those that only grow: counters and histograms of the catalogue."""
    return {name: rows for name, rows in figures.items() if _grows(_BY_NAME.get(name))}


def _grows(metric: Metric | None) -> bool:
    return metric is not None and metric.kind is not Kind.GAUGE


def understood(told: object) -> Figures:
    """Of figures that another version may have told, what has a meaning here.

    Names that are not in our catalogue are dropped, and so are rows whose labels or buckets are
    others than ours: what is served must be of one form. What was not told begins at zero.
    """
    if not isinstance(told, dict):
        return {}
    return {
        name: [row for row in rows if _is_row(_BY_NAME[name], row)]
        for name, rows in told.items()
        if _grows(_BY_NAME.get(name)) and isinstance(rows, list)
    }


def _is_row(metric: Metric, row: object) -> bool:
    if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], list)):
        return False
    labels, value = row
    if len(labels) != len(metric.labels) or not all(isinstance(each, str) for each in labels):
        return False
    if metric.kind is not Kind.HISTOGRAM:
        return _is_number(value)
    return (
        isinstance(value, dict)
        and value.get("bounds") == list(BOUNDS_NS)
        and isinstance(counts := value.get("counts"), list)
        and len(counts) == len(BOUNDS_NS) + 1
        and all(map(_is_number, (*counts, value.get("total"))))
    )


def _is_record(row: object) -> bool:
    kinds = int, str, int | float, str
    return (
        isinstance(row, list)
        and len(row) == len(kinds)
        and all(isinstance(each, kind) for each, kind in zip(row, kinds, strict=True))
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


class Estate:
    """The former gateway's side. ``counted`` is asked for all that it has counted."""

    def __init__(self, counted: Callable[[], Figures], remembered: Remembered) -> None:
        self._counted = counted
        self._remembered = remembered
        self._told = -1
        self._settled: Figures = {}

    def settle(self, names: Collection[str]) -> None:
        """Figures of these names stay as they are now: the one who counted them stops."""
        self._settled = {name: each for name, each in self._counted().items() if name in names}

    def figures(self) -> dict[str, Any]:
        """What has been counted by now."""
        return {"figures": lasting({**self._counted(), **self._settled})}

    def lines(self) -> Iterator[dict[str, Any]]:
        """What is to be told now."""
        yield self.figures()
        rows = iter(self._remembered.since(self._told))
        while some := list(itertools.islice(rows, RECORDS_AT_ONCE)):
            self._told = max(self._told, *(number for number, _ in some))
            yield {"records": [row for _, row in some]}


def hear(line: Mapping[str, Any], remembered: Remembered) -> Figures | None:
    """The successor's side: take in a line; the figures, if it has some."""
    records = line.get("records")
    for row in records if isinstance(records, list) else ():
        if _is_record(row):
            remembered.add(row[0], [row[1:]])
    return understood(line["figures"]) if "figures" in line else None
