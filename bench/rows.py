# SPDX-License-Identifier: Apache-2.0
"""What a benchmark says: one row a question, and the statistics behind it."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xdp_router.core.quantile import percentile as percentile

_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Options:
    """How thorough to be. ``directory``: a place of this run's own, gone afterwards."""

    quick: bool
    directory: Path

    def pick(self, quick: int, full: int) -> int:
        """The smaller number in a quick run."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Table:
    """What one row has to say about many cases: ``head`` names the columns, the first of them the
    cases. Raises ValueError for a line of another length."""

    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for line in self.lines:
            if len(line) != len(self.head):
                raise ValueError(f"{len(line)} cells in {line[:1]}, expected {len(self.head)}")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``ok`` None: reported, and judged by nobody.

    ``how`` says how it was measured and what it leaves out; ``values`` goes to the JSON file.
    """

    name: str
    goal: str
    measured: str
    ok: bool | None
    how: str
    values: Mapping[str, Any] = field(default_factory=dict)
    table: Table | None = None


def take_turns(arms: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """A/B/A/B: each arm once a round, so that a slow moment of the machine meets all of them."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, measure in arms.items():
            samples[name].append(measure())
    return samples


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median, by bootstrap with a fixed seed."""
    if len(values) < 2:
        return (values[0], values[0]) if values else (0.0, 0.0)
    source = random.Random(1)
    medians = [statistics.median(source.choices(values, k=len(values))) for _ in range(_RESAMPLES)]
    return percentile(medians, 0.025), percentile(medians, 0.975)


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Number, median with its interval, p99 and extremes, for the JSON file."""
    if not values:
        return {"samples": 0}
    low, high = interval(values[:: max(1, len(values) // 500)])
    return {
        "samples": len(values),
        "median": statistics.median(values),
        "median_95": [low, high],
        "p99": percentile(values, 0.99),
        "min": min(values),
        "max": max(values),
    }


def paired(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Ratio of each round's two samples, ``first`` over ``second``."""
    return [a / b for a, b in zip(first, second, strict=True) if b]


median = statistics.median
