# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.readme FILE``: the README's figures, from a results file of a whole run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .report import table_lines
from .rows import Table
from .traffic import NAT

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN = "<!-- figures: python -m bench.readme bench-results/FILE.json -->"
END = "<!-- end of figures -->"

HOT = "bound-flow path, one hot flow"
RANDOM = "bound-flow path, 512k flows at random"
BESIDE = "IPv4 with and without IPv6 in the configuration"
FIRST = "first packets inside the XDP program"
FORWARDING = "forwarding against a bare XDP redirect, by method"
NFTABLES = "forwarding against kernel forwarding + nftables DNAT, {}"
COUNTS = ("1 flow", "1,000 flows", "100,000 flows")
RATE = "first packets decided a second, one core, coalescing"
RACE = "race leaders: FPPL minus the winner's RTT, 1,000 conn/s"
STALL = "first-byte p99 with one of three backends stalling"
PROBES = "probe traffic, 3 candidates, 64 kB a connection"
MEMORY = "daemon memory, object loader, 500,000 flows in the kernel"
LOAD = "program load + attach, by families"
FLOOD = "what a flood of forged first packets does"
ROWS = (
    *(HOT, RANDOM, BESIDE, FIRST, FORWARDING),
    *(NFTABLES.format(count) for count in COUNTS),
    *(RATE, RACE, STALL, PROBES, MEMORY, LOAD, FLOOD),
)
"""What has to be in the file; other rows are for ``docs/measurement.md`` and for builders."""


class NotFit(Exception):
    """The results are no figures for a README; the text says why."""


class Results:
    """A results file. Raises NotFit for a quick run, or one that lacks a row."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.conditions: Mapping[str, Any] = raw["conditions"]
        self._rows: dict[str, Mapping[str, Any]] = {row["name"]: row for row in raw["rows"]}
        if self.conditions["quick"]:
            raise NotFit("a quick run only shows that all works: run make bench without --quick")
        missing = [name for name in ROWS if name not in self._rows]
        if missing:
            raise NotFit(f"no row of: {'; '.join(missing)}: run make bench without names")

    def values(self, name: str) -> Mapping[str, Any]:
        """A row's numbers."""
        found: Mapping[str, Any] = self._rows[name]["values"]
        return found

    def measured(self, name: str) -> str:
        """What a row says, without what it says in brackets."""
        return str(self._rows[name]["measured"]).partition(" (")[0]

    def table(self, name: str) -> Table:
        """A row's table."""
        lines: Sequence[Mapping[str, str]] = self._rows[name]["table"]
        return Table(tuple(lines[0]), tuple(tuple(line.values()) for line in lines))

    def cells(self, name: str, line: str) -> tuple[str, ...]:
        """One line of a row's table, without its head."""
        return next(each[1:] for each in self.table(name).lines if each[0] == line)


def _halves(cells: Sequence[str]) -> str:
    """IPv4's cells, then IPv6's."""
    middle = len(cells) // 2
    return f"IPv4 {' / '.join(cells[:middle])}, IPv6 {' / '.join(cells[middle:])}"


def summary_lines(results: Results) -> list[tuple[str, str]]:
    """What was measured, and how much it is."""
    race, stall = results.values(RACE)["fppl_minus_rtt_us"], results.values(STALL)
    empty = results.values(HOT)["empty"]["median"]
    first = {mode: results.cells(FIRST, mode) for mode in ("over-budget SYN, stateless",
                                                           "over-budget SYN")}  # fmt: skip
    return [
        (
            f"bound flow, one hot flow, program alone (an empty program: {empty:.0f} ns): to "
            "backend / to client",
            _halves(results.cells(HOT, "nat, tcp")),
        ),
        (
            "bound flow, random over 524,288 flows: beyond a bare lookup and one atomic in the "
            "same table (all of it)",
            _halves(results.cells(RANDOM, "nat, tcp")),
        ),
        ("IPv4's packets beside a service of IPv6, against without", results.measured(BESIDE)),
        (
            "forwarding against a bare XDP redirect: 1 / 1,000 / 100,000 flows",
            _halves(results.cells(FORWARDING, "nat, tcp")),
        ),
        (
            "the same against kernel forwarding with nftables DNAT",
            " / ".join(results.measured(NFTABLES.format(count)) for count in COUNTS),
        ),
        *(
            (f"{mode}, one tuple / random sources / two random misses", _halves(cells))
            for mode, cells in first.items()
        ),
        ("first packets decided per second, one core (races shared)", results.measured(RATE)),
        (
            "a race of its own for each of 1,000 connections/s: FPPL beyond the winner's round "
            "trip",
            f"p50 {race['median']:.0f} µs, p99 {race['p99']:.0f} µs",
        ),
        (
            "first byte, p99, while one of three backends stalls 50 ms at random: race",
            f"{stall['race']['p99']:.1f} ms",
        ),
        (
            "… round robin (nftables) / HAProxy leastconn",
            f"{stall['nftables round robin']['p99']:.1f} / "
            f"{stall['haproxy leastconn']['p99']:.1f} ms",
        ),
        (
            "probes, 3 candidates, 1,000 connections/s of 64 kB",
            f"{100 * results.values(PROBES)['share']:.2f} % of the bytes",
        ),
        (
            "daemon's memory with 500,000 flows",
            f"{results.values(MEMORY)['peak_bytes'] / 1e6:.0f} MB",
        ),
        *(
            (f"from files to a program on an interface, {line[0]}: {' / '.join(head)}",
             " / ".join(line[1:]))
            for head in (results.table(LOAD).head[1:],)
            for line in results.table(LOAD).lines
        ),
    ]  # fmt: skip


def figures(results: Results) -> str:
    """The README's lines between the marks."""
    machine = results.conditions
    kernel = ".".join(machine["kernel"].split(".")[:2])  # the rest says whose build it is
    bare = results.values(FORWARDING)[f"{NAT.name}, 1 flows"]["bare"]["median"]
    summary = Table(("what", "measured"), tuple(summary_lines(results)))
    return "\n".join(
        [
            f"One run on {machine['cpu']}, {machine['cpus']} CPUs, Linux {kernel}; a "
            f"bare XDP redirect takes {1e9 / bare:.0f} ns a packet there, generator and receiver "
            "included. `nat` with TCP where nothing else is said:",
            "",
            *_left(summary),
            "",
            "Forwarding, 64-byte frames, against a bare XDP redirect, by method, family and flows:",
            "",
            *table_lines(results.table(FORWARDING)),
            "",
            "A million forged first packets a second offered, 110 established streams, 120 new "
            "connections a second, all on the same two CPUs:",
            "",
            *table_lines(results.table(FLOOD)),
        ]
    )


def _left(table: Table) -> list[str]:
    """Text in each cell: no column's width is kept."""
    lines = [f"| {' | '.join(line)} |" for line in (table.head, *table.lines)]
    return [lines[0], "|---|---|", *lines[1:]]


def replaced(text: str, new: str, begin: str = BEGIN, end: str = END) -> str:
    """A document with other lines between two marks. Raises NotFit if it has no marks."""
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise NotFit(f"no lines {begin} and {end} in the document")
    return f"{before}{begin}\n\n{new}\n\n{end}{after}"


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when the document has the figures, 1 when they are not fit for it."""
    parser = argparse.ArgumentParser(prog="bench.readme", description=__doc__)
    parser.add_argument("results", type=Path, help="a file that make bench has written")
    parser.add_argument("--document", type=Path, default=README, help="default: README.md")
    options = parser.parse_args(argv)
    try:
        new = figures(Results(json.loads(options.results.read_text(encoding="utf-8"))))
        text = replaced(options.document.read_text(encoding="utf-8"), new)
    except (NotFit, OSError, json.JSONDecodeError) as error:
        print(f"{options.results}: {error}", file=sys.stderr)
        return 1
    options.document.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
