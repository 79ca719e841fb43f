# SPDX-License-Identifier: Apache-2.0
"""The benchmark's own parts that a wrong figure could come from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.frames import FRAME_64, SYN, fold, sum16, tcp_frame
from bench.report import as_json, table_lines, written
from bench.rows import Row, Table, interval, paired, percentile, summary, take_turns

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("length", [FRAME_64, 61, 1514])
def test_frames_have_right_checksums(length: int) -> None:
    """IP header and TCP segment with its pseudo header both sum up to all ones."""
    frame = tcp_frame(bytes(6), bytes(6), (0xC6120002, 9), (0xC6126401, 80), SYN, length=length)
    assert len(frame) == length
    ip, segment = frame[14:34], frame[34:]
    assert fold(sum16(ip)) == 0xFFFF
    pseudo = ip[12:20] + b"\0\x06" + len(segment).to_bytes(2, "big")
    assert fold(sum16(pseudo) + sum16(segment)) == 0xFFFF


def test_arms_take_turns() -> None:
    """Each arm is measured once a round, in the same order."""
    order: list[str] = []

    def arm(name: str) -> float:
        order.append(name)
        return float(len(order))

    samples = take_turns({"a": lambda: arm("a"), "b": lambda: arm("b")}, 3)
    assert order == ["a", "b"] * 3
    assert samples == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}


def test_statistics() -> None:
    """Nearest-rank percentiles, ratios round by round, an interval that holds the median."""
    values = [float(n) for n in range(1, 101)]
    assert percentile(values, 0.99) == 99.0
    assert percentile([], 0.5) == 0.0
    assert paired([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    low, high = interval(values)
    assert low < 50.5 < high
    assert summary(values)["samples"] == 100
    assert summary([]) == {"samples": 0}


def test_a_row_becomes_json() -> None:
    """A row keeps its verdict and its values."""
    row = Row("what", "<= 1", "2", False, "so", {"median": 2})
    assert as_json("name", row) == {
        "benchmark": "name",
        "name": "what",
        "goal": "<= 1",
        "measured": "2",
        "ok": False,
        "how": "so",
        "values": {"median": 2},
        "table": None,
    }


def test_a_table_becomes_json() -> None:
    """Each of its lines is a mapping from the columns' names."""
    table = Table(("case", "ns"), (("a", "1"), ("b", "2")))
    row = Row("what", "reported", "see the table", None, "so", table=table)
    assert as_json("name", row)["table"] == [{"case": "a", "ns": "1"}, {"case": "b", "ns": "2"}]


@pytest.mark.parametrize(
    ("benchmark", "quick", "ending"),
    [
        ("", False, ""),
        ("", True, "-quick"),
        ("gateway", False, "-gateway"),
        ("gateway", True, "-gateway-quick"),
    ],
)  # fmt: skip - one line each would say less
def test_a_run_is_written_under_its_name(
    tmp_path: Path, benchmark: str, quick: bool, ending: str
) -> None:
    """Its time first; the folder is made."""
    raw = {"conditions": {"quick": quick}, "rows": [], "failures": {}}
    path = written(raw, tmp_path / "new", benchmark)
    day, _, rest = path.stem.partition("-")
    assert (len(day), rest[6:], path.parent) == (8, ending, tmp_path / "new")
    assert json.loads(path.read_text(encoding="utf-8")) == raw


def test_every_benchmark_writes_by_that() -> None:
    """A form of its own would be one more that readers of results have to know."""
    own = [
        each.relative_to(ROOT)
        for each in (ROOT / "bench").rglob("*.py")
        if "%Y%m%d" in each.read_text(encoding="utf-8") and each.name != "report.py"
    ]
    assert own == []


def test_a_table_is_printed_as_markdown() -> None:
    """Columns are in line: cases to the left, numbers to the right."""
    assert table_lines(Table(("case", "time"), (("longer", "1 ns"), ("b", "-")))) == [
        "| case   | time |",
        "| :----- | ---: |",
        "| longer | 1 ns |",
        "| b      |    - |",
    ]


def test_a_line_with_a_missing_cell_is_refused() -> None:
    """Else a number would stand under another column's name."""
    with pytest.raises(ValueError, match="1 cells in .*, expected 2"):
        Table(("case", "ns"), (("a",),))


def test_names_are_listed_and_unknown_ones_refused() -> None:
    """``--list`` names the benchmarks; another name is a usage error before anything runs."""
    call = [sys.executable, "-m", "bench"]
    listed = subprocess.run([*call, "--list"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert listed.returncode == 0
    assert {"bound-hot", "forwarding", "race", "ageing"} <= set(listed.stdout.split())
    refused = subprocess.run([*call, "none"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "no benchmark none" in refused.stderr
