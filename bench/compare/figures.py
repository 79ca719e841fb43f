# SPDX-License-Identifier: Apache-2.0
"""What the connections say: figures of each arm, and whether the router's modes are as good as
they are to be."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.rows import Row, Table, percentile

from . import arms as of
from .client import Connection
from .run import Results, Slice
from .scenarios import FLAT, RATE, SCENARIOS, Scenario, alone

COUNTED_AS = {
    of.HASH: "XDP budget_service",
    of.RACE: "engine decided_race",
    of.SNAPSHOT: "XDP decided_snapshot",
    of.INLINE: "XDP decided_inline",
}
"""The router's own count of the connections that an arm's way has decided."""
SLOW_MS = 10.0
TIMES_LOWER = 20
SLOW_PART = 0.01
RACE_US = 150.0
AT_ONCE_US = 30.0
COLUMNS = (
    *("arm", "connect p50", "connect p99", "first byte p50", "first byte p99"),
    *("slower than 10 ms", "failed", "CPU"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm in one scenario. Milliseconds; ``busy`` is the part of all CPUs that was used."""

    connect_ms: tuple[float, ...]
    first_ms: tuple[float, ...]
    failed: Mapping[str, int]
    backends: Mapping[str, int]
    late_us: float
    busy: float

    @property
    def slow(self) -> float:
        """Part of the connections whose first byte took longer than 10 ms, or never came."""
        return sum(each > SLOW_MS for each in self.first_ms) / max(1, len(self.first_ms))

    @property
    def p99_ms(self) -> float:
        """Of the first byte."""
        return percentile(self.first_ms, 0.99)

    def cells(self) -> tuple[str, ...]:
        """For the table, behind the name."""
        connect, first = _p50_p99(self.connect_ms), _p50_p99(self.first_ms)
        return (
            *(f"{each:.2f} ms" for each in (*connect.values(), *first.values())),
            f"{100 * self.slow:.1f} %",
            f"{sum(self.failed.values())}",
            f"{100 * self.busy:.0f} %",
        )

    def as_json(self) -> dict[str, Any]:
        """For the file; all connections are in it, so that pictures can be drawn again."""
        return {
            "connections": len(self.first_ms),
            "failed": dict(self.failed),
            "backends": dict(sorted(self.backends.items())),
            "connect_ms": _p50_p99(self.connect_ms),
            "first_byte_ms": _p50_p99(self.first_ms),
            "slower_than_10ms": self.slow,
            "cpu": self.busy,
            "client_late_p99_us": self.late_us,
            "connect_us": _microseconds(self.connect_ms),
            "first_byte_us": _microseconds(self.first_ms),
        }


def _p50_p99(values: Sequence[float]) -> dict[str, float]:
    return {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99)}


def _microseconds(values: Iterable[float]) -> list[int]:
    return [round(each * 1e3) for each in values]


def figures_of(slices: Sequence[Slice]) -> Figures:
    """All slices of one arm in one scenario together."""
    every = [each for one in slices for each in one.connections]
    return Figures(
        tuple(sorted(each.connect_ms for each in every)),
        tuple(sorted(each.first_ms for each in every)),
        Counter(each.result for each in every if each.failed),
        Counter(each.answer for each in every if not each.failed),
        percentile([each.late_ns / 1e3 for each in every], 0.99),
        statistics.fmean(one.busy for one in slices),
    )


def by_arm(results: Results, scenario: Scenario) -> dict[str, list[Slice]]:
    """The slices of a scenario, by arm, in the order of the arms and then of the rounds."""
    found = {
        name: [s for s in results.slices if (s.scenario, s.arm) == (scenario.name, name)]
        for name in of.ARMS
    }
    return {name: slices for name, slices in found.items() if slices}


def rows_of(results: Results, scenarios: Sequence[Scenario] = SCENARIOS) -> list[Row]:
    """A table and the verdicts of each scenario that was measured."""
    rows = []
    for scenario in scenarios:
        slices = by_arm(results, scenario)
        if not slices:
            continue
        figures = {name: figures_of(each) for name, each in slices.items()}
        rows.append(_table_row(scenario, figures, results))
        rows.append(_failures(scenario, figures))
        rows.append(_decided(scenario, figures, results.router.get(scenario.name, {})))
        if scenario is FLAT:
            rows += _flat(slices)
        else:
            rows += [_race(scenario, figures), _snapshot(scenario, figures)]
    return rows


def _table_row(scenario: Scenario, figures: Mapping[str, Figures], results: Results) -> Row:
    lines = [(name, *each.cells()) for name, each in figures.items()]
    lines += [(name, *["-"] * (len(COLUMNS) - 1)) for name in of.ARMS if name in results.missing]
    without = "".join(f"; no {name}: {why}" for name, why in results.missing.items())
    number = min(len(each.first_ms) for each in figures.values())
    late = max(each.late_us for each in figures.values())
    return Row(
        f"connections, {scenario.name}: {scenario.title}",
        "reported",
        "see the table",
        None,
        f"{number:,} connections of each arm, {RATE} a second, open loop, arms in turn, equal "
        "arrivals and stalls for all; times from when a connection was to begin; clients, servers "
        "and wires are processes of this machine, of real-time priority; clients were late by "
        f"{late:.0f} us (p99, in the times){without}",
        {
            "arms": {name: each.as_json() for name, each in figures.items()},
            "missing": dict(results.missing),
            "router": results.router.get(scenario.name, {}),
        },
        Table(COLUMNS, tuple(lines)),
    )


def _failures(scenario: Scenario, figures: Mapping[str, Figures]) -> Row:
    failed = {name: sum(figures[name].failed.values()) for name in of.OURS}
    return Row(
        f"{scenario.name}: failed connections of the three modes",
        "none",
        ", ".join(f"{name} {number}" for name, number in failed.items()),
        not any(failed.values()),
        f"no answer within 5 s, refused, reset or closed; others: "
        f"{sum(sum(e.failed.values()) for n, e in figures.items() if n not in of.OURS)}",
    )


def _decided(scenario: Scenario, figures: Mapping[str, Figures], counts: Mapping[str, int]) -> Row:
    """Whether arms are what they are called: a race that is too late is decided otherwise."""
    told = {
        name: (counts.get(counter, 0), len(figures[name].first_ms))
        for name, counter in COUNTED_AS.items()
    }
    return Row(
        f"{scenario.name}: connections decided by what the arm is named for",
        "all",
        ", ".join(f"{name} {done:,} of {every:,}" for name, (done, every) in told.items()),
        all(done >= every for done, every in told.values()),
        "as the router counts them; the others went down the degrade chain",
    )


def _flat(slices: Mapping[str, Sequence[Slice]]) -> list[Row]:
    """How much later than direct connections; by rounds, whose slices lie near each other."""
    pairs = list(zip(slices[of.RACE], slices[of.DIRECT], strict=True))
    later = [_later_us(race, direct, leaders=True) for race, direct in pairs]
    beyond = [more - _rtt_us(direct) for more, (_, direct) in zip(later, pairs, strict=True)]
    waited = statistics.median(percentile(race.rtts_us, 0.5) for race, _ in pairs)
    rows = [
        Row(
            "flat: first byte of race, p50, beyond direct and one round trip",
            f"<= {RACE_US:.0f} us",
            f"{statistics.median(beyond):+.0f} us",
            statistics.median(beyond) <= RACE_US,
            "connections that had a race of their own, 5 ms or more after the one before, against "
            "the same ones of direct; the round trip is that of direct's connect, p50; median of "
            f"{len(pairs)} rounds. Beyond direct alone it is {statistics.median(later):+.0f} us; "
            f"the winner's round trip as the router sees it, without hosts: {waited:.0f} us",
            {"rounds_us": beyond, "beyond_direct_us": later, "probe_rtt_us": waited},
        )
    ]
    for name in (of.SNAPSHOT, of.INLINE):
        rounds = [
            _later_us(ours, direct)
            for ours, direct in zip(slices[name], slices[of.DIRECT], strict=True)
        ]
        at_once = statistics.median(rounds)
        rows.append(
            Row(
                f"flat: first byte of {name}, p50, beyond direct",
                f"<= {AT_ONCE_US:.0f} us",
                f"{at_once:+.0f} us",
                at_once <= AT_ONCE_US,
                f"median of {len(rounds)} rounds",
                {"rounds_us": rounds},
            )
        )
    return rows


def _later_us(ours: Slice, direct: Slice, *, leaders: bool = False) -> float:
    kept = alone(ours.starts_ns) if leaders else [True] * len(ours.connections)
    p50 = [
        percentile([e.first_ms for e, keep in zip(s.connections, kept, strict=True) if keep], 0.5)
        for s in (ours, direct)
    ]
    return (p50[0] - p50[1]) * 1e3


def _rtt_us(direct: Slice) -> float:
    connections: Sequence[Connection] = direct.connections
    return percentile([each.connect_ms for each in connections], 0.5) * 1e3


def _race(scenario: Scenario, figures: Mapping[str, Figures]) -> Row:
    own = figures[of.RACE].p99_ms
    others = {n: figures[n].p99_ms for n in (of.NFTABLES, of.LEASTCONN) if n in figures}
    ratios = {name: p99 / own for name, p99 in others.items()}
    told = ", ".join(f"{ratio:.0f} x lower than {name}" for name, ratio in ratios.items())
    missing = [name for name in (of.NFTABLES, of.LEASTCONN) if name not in figures]
    worst = min(ratios.values(), default=0.0)
    return Row(
        f"{scenario.name}: first byte of race, p99",
        f">= {TIMES_LOWER} x lower than round robin and HAProxy leastconn",
        f"{own:.2f} ms, {told}" + "".join(f"; {name} is missing" for name in missing),
        worst >= TIMES_LOWER if not missing else None,
        "; ".join(f"{name} {p99:.1f} ms" for name, p99 in others.items()),
        {"ratios": ratios},
    )


def _snapshot(scenario: Scenario, figures: Mapping[str, Figures]) -> Row:
    slow = figures[of.SNAPSHOT].slow
    others = (name for name in figures if name != of.SNAPSHOT)
    return Row(
        f"{scenario.name}: connections of snapshot slower than 10 ms",
        f"<= {100 * SLOW_PART:.0f} %",
        f"{100 * slow:.2f} %",
        slow <= SLOW_PART,
        "; ".join(f"{name} {100 * figures[name].slow:.1f} %" for name in others),
        {"slow": slow},
    )
