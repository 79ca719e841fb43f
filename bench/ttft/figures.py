# SPDX-License-Identifier: Apache-2.0
"""From slices to rows: how long first tokens took, what they cost, and whether the race is worth
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.rows import Row, Table, percentile

from .arms import ABOUT, OURS, RACE, ROUND_ROBIN
from .run import PLACES, RATE, SCENARIOS, Results, Scenario, Slice

TIMES_LOWER = 3.0
WASTED = 0.1
BYTES_PER_TOKEN = 4
COLUMNS = (
    *("", "requests", "TTFT p50", "p90", "p99", "wasted tokens", "cancelled"),
    *("prompt cached", "engines busy", "by engine", "CPU/request", "failed"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm in one scenario. ``wasted``: the share of all tokens, of prompts computed and of
    answers, that engines had on requests that were cancelled. A failed request counts as the time
    that it was waited for."""

    arm: str
    first_ms: Sequence[float]
    wasted: float
    wasted_answers: float
    cancelled: float
    cached: float
    busy: float
    shares: Sequence[float]
    cpu_ms: float
    failed: Counter[str]
    rounds_p99: Sequence[float]

    def ms(self, share: float) -> float:
        """A quantile of the time to the first token."""
        return percentile(self.first_ms, share)

    def cells(self) -> tuple[str, ...]:
        """For the table."""
        return (
            self.arm,
            f"{len(self.first_ms):,}",
            *(f"{self.ms(share):.0f} ms" for share in (0.5, 0.9, 0.99)),
            f"{100 * self.wasted:.1f} %",
            f"{100 * self.cancelled:.1f} %",
            f"{100 * self.cached:.0f} %",
            f"{100 * self.busy:.0f} %",
            "/".join(f"{100 * each:.0f}" for each in self.shares),
            f"{self.cpu_ms:.2f} ms",
            str(sum(self.failed.values())),
        )

    def as_json(self) -> dict[str, Any]:
        """For the file; all requests are in it, so that pictures can be drawn again."""
        return {
            "requests": len(self.first_ms),
            "ttft_ms": {name: self.ms(share) for name, share in _QUANTILES.items()},
            "rounds_p99_ms": list(self.rounds_p99),
            "wasted": self.wasted,
            "wasted_answers": self.wasted_answers,
            "cancelled": self.cancelled,
            "cached": self.cached,
            "busy": self.busy,
            "shares": list(self.shares),
            "cpu_ms": self.cpu_ms,
            "failed": dict(self.failed),
            "ttft_us": [round(each * 1e3) for each in self.first_ms],
        }


_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


def _first_ms(one: Slice) -> list[float]:
    return [(each.end_ns if each.error else each.first_ns) / 1e6 for each in one.calls]


def figures_of(slices: Sequence[Slice]) -> Figures:
    """All slices of one arm in one scenario together."""
    calls = [each for one in slices for each in one.calls]

    def total(name: str) -> int:
        return sum(engine[name] for one in slices for engine in one.engines)

    answers, prompts = total("tokens"), total("prefill_bytes") / BYTES_PER_TOKEN
    lost_answers = total("tokens_of_aborted")
    lost_prompts = total("prefill_of_aborted") / BYTES_PER_TOKEN
    engines = len(slices[0].engines)
    each_had = [sum(one.engines[at]["requests"] for one in slices) for at in range(engines)]
    span_ns = sum(one.seconds for one in slices) * 1e9
    return Figures(
        slices[0].arm,
        sorted(ms for one in slices for ms in _first_ms(one)),
        (lost_answers + lost_prompts) / max(1.0, answers + prompts),
        lost_answers / max(1, answers),
        total("aborted") / max(1, len(calls)),
        total("prefix_hits") / max(1, total("prefix_queries")),
        total("busy_ns") / (span_ns * PLACES * engines),
        [had / max(1, sum(each_had)) for had in each_had],
        sum(one.cpu_ns for one in slices) / max(1, len(calls)) / 1e6,
        Counter(each.error for each in calls if each.error),
        [percentile(_first_ms(one), 0.99) for one in slices],
    )


def by_arm(results: Results, scenario: Scenario) -> dict[str, Figures]:
    """Of each arm that was measured in a scenario, in the order of the table."""
    mine = [each for each in results.slices if each.scenario == scenario.name]
    found = {name: [each for each in mine if each.arm == name] for name in ABOUT}
    return {name: figures_of(slices) for name, slices in found.items() if slices}


def rows_of(results: Results, scenarios: Sequence[Scenario] = SCENARIOS) -> list[Row]:
    """A table and the verdicts of each scenario that was measured."""
    rows = []
    for scenario in scenarios:
        figures = by_arm(results, scenario)
        if figures:
            rows.append(_table(scenario, figures, results.missing))
            rows += _judged(scenario, figures)
    return rows


def _table(scenario: Scenario, figures: Mapping[str, Figures], missing: Mapping[str, str]) -> Row:
    lines = [each.cells() for each in figures.values()]
    lines += [(name, *["-"] * (len(COLUMNS) - 1)) for name in ABOUT if name in missing]
    return Row(
        f"ttft, {scenario.name}: {scenario.title}",
        "no goal: beside each other",
        "see the table",
        None,
        f"{RATE:.0f} requests a second of conversations, by a Poisson process, times from when "
        f"each was due; {PLACES} places in each engine, others wait; stalls of {scenario.for_ms} "
        f"to {scenario.most_ms} ms, {scenario.every_ms / 1e3:g} s apart in the mean; arms in turn, "
        "with the same requests and stalls in each round, caches empty at its begin. Wasted: "
        "tokens that engines computed for requests that were cancelled, prompts and answers, of "
        "all that they computed; a cancelled prompt is computed to its end"
        + "".join(f"; no {name}: {why}" for name, why in missing.items()),
        {
            "arms": {name: each.as_json() for name, each in figures.items()},
            "missing": dict(missing),
        },
        Table(COLUMNS, tuple(lines)),
    )


def _judged(scenario: Scenario, figures: Mapping[str, Figures]) -> list[Row]:
    failed = {name: sum(figures[name].failed.values()) for name in OURS if name in figures}
    rows = []
    if failed:
        told = ", ".join(f"{name} {number}" for name, number in failed.items())
        ok = not any(failed.values())
        how = "no answer, or none with status 200, within 30 s"
        rows.append(Row(f"ttft, {scenario.name}: failed requests", "none", told, ok, how))
    race = figures.get(RACE)
    if race is None:
        return rows
    round_robin = figures.get(ROUND_ROBIN)
    if round_robin is not None:
        ratio = round_robin.ms(0.99) / race.ms(0.99)
        rows.append(
            Row(
                f"ttft, {scenario.name}: p99 of the race",
                f">= {TIMES_LOWER:g} x lower than round robin",
                f"{race.ms(0.99):.0f} ms, {ratio:.1f} x lower",
                ratio >= TIMES_LOWER,
                "; ".join(f"{name} {each.ms(0.99):.0f} ms" for name, each in figures.items()),
                {"ratio": ratio},
            )
        )
    rows.append(
        Row(
            f"ttft, {scenario.name}: tokens that the race wastes",
            f"<= {100 * WASTED:.0f} %",
            f"{100 * race.wasted:.1f} %",
            race.wasted <= WASTED,
            f"by the engines' own counters; of answers alone {100 * race.wasted_answers:.2f} %",
            {"wasted": race.wasted},
        )
    )
    return rows
