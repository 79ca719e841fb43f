# SPDX-License-Identifier: Apache-2.0
"""The README's figures come out of a results file, or it is said why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import readme
from bench.forwarding import FLOWS
from bench.readme import BEGIN, END, ROWS, NotFit, Results, figures, replaced
from bench.report import as_json
from bench.rows import Row, Table
from bench.syn_flood import COLUMNS

FAMILY_CELLS = ("IPv4 a", "IPv4 b", "IPv6 a", "IPv6 b")
STAGES = tuple(f"IPv{family} {what}" for family in (4, 6) for what in ("one", "random", "two"))
SHARES = tuple(f"IPv{family}, {count}" for family in (4, 6) for count in FLOWS)


def row(name: str, measured: str = "", table: Table | None = None, **values: object) -> Row:
    return Row(name, "", measured, None, "", values, table)


def results(**conditions: Any) -> dict[str, Any]:
    """What a whole run writes, as far as the README needs it."""
    hot = Table(("method", *FAMILY_CELLS), (("nat, tcp", "68 ns", "67 ns", "71 ns", "70 ns"),))
    random = Table(
        ("method", *FAMILY_CELLS),
        (("nat, tcp", "+36 (400) ns", "+30 (410) ns", "+40 (500) ns", "+41 (510) ns"),),
    )
    first = Table(
        ("first packet", *STAGES),
        (
            ("over-budget SYN, stateless", "90 ns", "1 ns", "2 ns", "95 ns", "3 ns", "4 ns"),
            ("over-budget SYN", "91 ns", "5 ns", "6 ns", "96 ns", "7 ns", "8 ns"),
        ),
    )
    shares = Table(("method", *SHARES), (("nat, tcp", *(f"{n} %" for n in range(81, 87))),))
    flood = Table(COLUMNS, (("SYNs", *(str(n) for n in range(1, len(COLUMNS)))),))
    stalls: dict[str, Any] = {
        "race": {"p99": 4.71},
        "nftables round robin": {"p99": 101.8},
        "haproxy leastconn": {"p99": 102.3},
    }
    bare: dict[str, Any] = {"nat tcp IPv4, 1 flows": {"bare": {"median": 4e6}}}
    rows = [
        row(readme.HOT, table=hot, empty={"median": 21.0}),
        row(readme.RANDOM, table=random),
        row(readme.BESIDE, "equal: at most +0.4 ns"),
        row(readme.FIRST, table=first),
        row(readme.FORWARDING, table=shares, **bare),
        *(row(readme.NFTABLES.format(count), f"{count[0]}.5 x") for count in readme.COUNTS),
        row(readme.RATE, "31,100 (10k offered: 10.0k, cpu 50%)"),
        row(readme.RACE, fppl_minus_rtt_us={"median": 155.2, "p99": 444.0}),
        row(readme.STALL, **stalls),
        row(readme.PROBES, share=0.0025),
        row(readme.MEMORY, peak_bytes=71_400_000),
        row(
            readme.LOAD,
            table=Table(("loader, services", "maps there", "with maps"), (("object", "1", "2"),)),
        ),
        row(readme.FLOOD, table=flood),
    ]
    machine = {"cpu": "A CPU", "cpus": 2, "kernel": "6.18.4-local", "quick": False}
    return {
        "conditions": {**machine, **conditions},
        "rows": [as_json("benchmark", each) for each in rows],
    }


def test_every_figure_has_its_place() -> None:
    """Families stand apart, both ends of a flow and all numbers of flows beside each other."""
    text = figures(Results(results()))
    for told in (
        "One run on A CPU, 2 CPUs, Linux 6.18; a bare XDP redirect takes 250 ns a packet there",
        "(an empty program: 21 ns): to backend / to client | IPv4 68 ns / 67 ns, IPv6 71 ns / 70",
        "| IPv4 +36 (400) ns / +30 (410) ns, IPv6 +40 (500) ns / +41 (510) ns |",
        "| equal: at most +0.4 ns |",
        "| IPv4 81 % / 82 % / 83 %, IPv6 84 % / 85 % / 86 % |",
        "| 1.5 x / 1.5 x / 1.5 x |",
        "| over-budget SYN, stateless, one tuple / random sources / two random misses | IPv4 90 ns",
        "| IPv4 91 ns / 5 ns / 6 ns, IPv6 96 ns / 7 ns / 8 ns |",
        "| 31,100 |",
        "| p50 155 µs, p99 444 µs |",
        "| 4.7 ms |",
        "| 101.8 / 102.3 ms |",
        "| 0.25 % of the bytes |",
        "| 71 MB |",
        "| from files to a program on an interface, object: maps there / with maps | 1 / 2 |",
        "| SYNs  |         1 |",
    ):
        assert told in text


def test_a_quick_run_is_no_figure() -> None:
    """It only shows that everything works."""
    with pytest.raises(NotFit, match="without --quick"):
        Results(results(quick=True))


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_lacks_is_named(name: str) -> None:
    """Else the README would silently tell less."""
    raw = results()
    raw["rows"] = [each for each in raw["rows"] if each["name"] != name]
    with pytest.raises(NotFit) as caught:
        Results(raw)
    assert str(caught.value) == f"no row of: {name}: run make bench without names"


def test_only_what_is_between_the_marks_changes() -> None:
    """And it can be done again."""
    document = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = replaced(document, "new")
    assert once == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert replaced(once, "new") == once
    with pytest.raises(NotFit, match="no lines <!-- figures"):
        replaced("without marks", "new")


def test_the_readme_has_its_marks() -> None:
    """Around the figures that are there."""
    assert replaced(readme.README.read_text(encoding="utf-8"), "new")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures into a document; a file that is not fit for it leaves it as it was."""
    document, good, quick = (tmp_path / name for name in ("doc.md", "good.json", "quick.json"))
    document.write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    quick.write_text(json.dumps(results(quick=True)), encoding="utf-8")
    good.write_text(json.dumps(results()), encoding="utf-8")
    assert readme.main([str(quick), "--document", str(document)]) == 1
    assert "quick.json: a quick run" in capsys.readouterr().err
    assert document.read_text(encoding="utf-8") == f"{BEGIN}\n{END}\n"
    assert readme.main([str(tmp_path / "none.json"), "--document", str(document)]) == 1
    assert "none.json" in capsys.readouterr().err
    assert readme.main([str(good), "--document", str(document)]) == 0
    assert "| 71 MB |" in document.read_text(encoding="utf-8")
