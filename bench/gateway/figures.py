# SPDX-License-Identifier: Apache-2.0
"""From slices to rows: what each proxy adds, and how ours stands beside the others."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.rows import Row, Table, percentile, summary

from .answers import Call
from .place import DIRECT
from .run import SCENARIOS, Results, Scenario, Slice

OURS = "xdp-router"
NEAR_MS = 0.1
"""How far the median may be above the faster one of nginx and HAProxy."""
AHEAD = {"Envoy": 2.0, "LiteLLM": 50.0}
"""How many times less than theirs our added median has to be."""
_HEAD = (
    "",
    "requests",
    "TTFT p50",
    "added",
    "p99",
    "added",
    "token p50 added",
    "p99 added",
    "CPU/request",
    "failed",
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm in one scenario, in ms. ``on_way``: tokens after the first, from engine to client
    (empty where the proxy takes out the engine's mark)."""

    arm: str
    first: Sequence[float]
    on_way: Sequence[float]
    gaps: Sequence[float]
    cpu_ms: float | None
    failed: Counter[str]

    def first_ms(self, share: float) -> float:
        """A quantile of the time to the first token."""
        return percentile(self.first, share) if self.first else float("nan")

    def on_way_ms(self, share: float) -> float:
        """A quantile of the tokens' time on their way."""
        return percentile(self.on_way, share) if self.on_way else float("nan")


def _good(calls: Sequence[Call]) -> list[Call]:
    return [each for each in calls if not each.error]


def figures_of(slices: Sequence[Slice], scenario: str) -> dict[str, Figures]:
    """Of each arm, all its slices together."""
    found = {}
    mine = [each for each in slices if each.scenario == scenario]
    for arm in dict.fromkeys(each.arm for each in mine):
        parts = [each for each in mine if each.arm == arm]
        calls = list(itertools.chain.from_iterable(each.calls for each in parts))
        good = _good(calls)
        served, used_ns = sum(each.served for each in parts), sum(each.cpu_ns for each in parts)
        found[arm] = Figures(
            arm,
            [each.first_ns / 1e6 for each in good],
            [ns / 1e6 for each in good for ns in each.transit_ns[1:]],
            [ns / 1e6 for each in good for ns in each.gaps_ns],
            used_ns / served / 1e6 if used_ns else None,
            Counter(each.error for each in calls if each.error),
        )
    return found


def rows_of(results: Results) -> list[Row]:
    """A row with a table for each scenario, and the goals judged."""
    rows: list[Row] = []
    for scenario in SCENARIOS:
        figures = figures_of(results.slices, scenario.name)
        if DIRECT in figures:
            rows.append(_row(scenario, figures))
            if scenario.name == "sse":
                rows += _judged(figures)
    return rows


def _line(each: Figures, direct: Figures) -> tuple[str, ...]:
    def added(value: float, base: float) -> str:
        return "" if each is direct or value != value else f"{value - base:+.2f}"

    return (
        each.arm,
        str(len(each.first)),
        f"{each.first_ms(0.5):.2f}",
        added(each.first_ms(0.5), direct.first_ms(0.5)),
        f"{each.first_ms(0.99):.2f}",
        added(each.first_ms(0.99), direct.first_ms(0.99)),
        added(each.on_way_ms(0.5), direct.on_way_ms(0.5)),
        added(each.on_way_ms(0.99), direct.on_way_ms(0.99)),
        "" if each.cpu_ms is None else f"{each.cpu_ms:.2f}",
        str(sum(each.failed.values())),
    )


def _row(scenario: Scenario, figures: dict[str, Figures]) -> Row:
    direct = figures[DIRECT]
    values: dict[str, Any] = {
        name: {
            "first_ms": summary(each.first),
            "on_way_ms": summary(each.on_way),
            "gaps_ms": summary(each.gaps),
            "cpu_ms": each.cpu_ms,
            "failed": dict(each.failed),
        }
        for name, each in figures.items()
    }
    return Row(
        f"gateway: {scenario.name}",
        "no goal: beside each other",
        scenario.title,
        None,
        f"{scenario.rate:.0f} requests a second at random instants (LiteLLM at most 15), ms from "
        "when each was due; three mock engines that answer at once; "
        f"{scenario.workers} worker{'s' * (scenario.workers > 1)} of each proxy; "
        "CPU of the proxy's processes alone. A token's way is by the engine's own mark in it",
        values,
        Table(_HEAD, tuple(_line(each, direct) for each in figures.values())),
    )


def added_ms(figures: dict[str, Figures], arm: str, share: float = 0.5) -> float:
    """What an arm adds to a quantile of the time to the first token."""
    return figures[arm].first_ms(share) - figures[DIRECT].first_ms(share)


def _judged(figures: dict[str, Figures]) -> list[Row]:
    if OURS not in figures:
        return []
    ours = added_ms(figures, OURS)
    how = "median of all requests of the scenario 'sse', less that of the way without a proxy"
    rows = []
    near = {name: added_ms(figures, name) for name in ("nginx", "HAProxy") if name in figures}
    if near:
        best = min(near, key=near.__getitem__)
        measured = f"{ours:+.2f} ms, {best} {near[best]:+.2f} ms"
        ok = ours - near[best] <= NEAR_MS
        goal = f"at most {NEAR_MS} ms above the better one of nginx and HAProxy"
        rows.append(Row("gateway: added TTFT", goal, measured, ok, how))
    for name, times in AHEAD.items():
        if name in figures:
            theirs = added_ms(figures, name)
            ok = theirs >= times * max(ours, 0.001)
            measured = f"{ours:+.2f} ms, {name} {theirs:+.2f} ms"
            rows.append(
                Row(f"gateway: beside {name}", f"{times:.0f} times less", measured, ok, how)
            )
    return rows
