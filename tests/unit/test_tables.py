# SPDX-License-Identifier: Apache-2.0
"""What tables are made of: short numbers, columns."""

from __future__ import annotations

import pytest

from xdp_router.cli import tables

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0"), (999, "999"), (1000, "1k"), (1234, "1.2k"), (34_000, "34k"),
        (999_499, "999k"), (999_999, "1.0M"), (5_500_000, "5.5M"),
        (7_100_000_000_000_000, "7100T"),
    ],
)  # fmt: skip
def test_counts_are_short(value: int | None, text: str) -> None:
    """Counts take at most five characters up to the trillions."""
    assert tables.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0 µs"),
        (0.53, "0.5 µs"),
        (850.4, "850 µs"),
        (1234, "1.2 ms"),
        (2_500_000, "2.5 s"),
    ],
)
def test_microseconds_choose_their_unit(value: float | None, text: str) -> None:
    """Latencies are read without counting digits."""
    assert tables.micros(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (4.2, "4s"), (99, "99s"), (180, "3m"), (7200, "2h"), (432_000, "5d")],
)
def test_durations_choose_their_unit(value: float | None, text: str) -> None:
    """Ages are short."""
    assert tables.seconds(value) == text


def test_parts_of_one() -> None:
    """Small ones have a digit more; nothing known is no zero."""
    shown = [tables.percent(value) for value in (None, 0.0, 0.004, 0.5)]
    assert shown == ["-", "0%", "0.4%", "50%"]
    assert [tables.fraction(value) for value in (None, 0.251)] == ["-", "0.25"]


def test_a_table_or_a_sentence(capsys: Capture) -> None:
    """Columns that begin with ``>`` are aligned right."""
    table = tables.make_table("NAME", ">COUNT")
    tables.show(table, "None.")
    table.add_row("a", "7")
    tables.show_addresses(table, "None.")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["None.", "NAME  COUNT", "a         7"]
