# SPDX-License-Identifier: Apache-2.0
"""What tables and their words are made of.

Colours only on a terminal; 100 columns where the width is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .output import stdout

Row = Mapping[str, Any]

_WIDTH = 100
_MAX_WIDTH = 200
"""For tables of addresses, where the width is unknown: an IPv6 endpoint has up to 47 columns, and
one in two pieces can neither be copied nor searched for."""
NONE = "-"


def make_console(width: int = _WIDTH) -> Console:
    """Standard output; ``width``: where there is no terminal, which has its own."""
    file = stdout()
    terminal = file.isatty()
    return Console(
        file=file,
        width=None if terminal else width,
        no_color=None if terminal else True,
        highlight=False,
        emoji=False,
        markup=False,
    )


def count(value: float | None) -> str:
    """``999``, ``1.2k``, ``34M``."""
    if value is None:
        return NONE
    units = ["T", "G", "M", "k", ""]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop()
    unit = units[-1]
    exact = value >= 10 or value == int(value)
    return f"{value:.0f}{unit}" if exact else f"{value:.1f}{unit}"


def micros(value: float | None) -> str:
    """Microseconds as ``0.5 µs``, ``850 µs``, ``1.2 ms`` or ``3.0 s``."""
    if value is None:
        return NONE
    if value < 1000:
        exact = value >= 10 or value == int(value)
        return f"{value:.0f} µs" if exact else f"{value:.1f} µs"
    if value < 1_000_000:
        return f"{value / 1000:.1f} ms"
    return f"{value / 1_000_000:.1f} s"


def rtt(value: float | None) -> str:
    """A round trip time; 0 and None mean that there was no answer."""
    return micros(value) if value else NONE


def seconds(value: float | None) -> str:
    """A duration in seconds as ``4s``, ``3m``, ``2h`` or ``5d``."""
    if value is None:
        return NONE
    for limit, unit, size in ((100, "s", 1), (6000, "m", 60), (172_800, "h", 3600)):
        if value < limit:
            return f"{value / size:.0f}{unit}"
    return f"{value / 86400:.0f}d"


def words(name: str | None) -> str:
    """``race_won`` as ``race won``."""
    return (name or NONE).replace("_", " ")


def percent(value: float | None) -> str:
    """A part of 1 as ``33 %``, ``0.4 %``."""
    if value is None:
        return NONE
    return f"{value:.0%}" if value >= 0.1 or not value else f"{value:.1%}"


def fraction(value: float | None) -> str:
    """With two decimals."""
    return NONE if value is None else f"{value:.2f}"


def make_table(*columns: str, gap: int = 2) -> Table:
    """A table; a column whose title begins with ``>`` is aligned right."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for column in columns:
        right = column.startswith(">")
        # Folded rather than cut: an address without its end is worth nothing.
        table.add_column(column.lstrip(">"), justify="right" if right else "left", overflow="fold")
    return table


def show(table: Table, empty: str) -> None:
    """Print a table, or a sentence where it has no row."""
    make_console().print(table if table.row_count else Text(empty))


def show_addresses(table: Table, empty: str) -> None:
    """The same of a table whose rows are long."""
    make_console(_MAX_WIDTH).print(table if table.row_count else Text(empty))


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """The same of plain values."""
    table = make_table(*columns)
    for row in rows:
        table.add_row(*map(str, row))
    show_addresses(table, empty)


def pairs(rows: Iterable[tuple[str, str | Text]]) -> None:
    """Print names with their values."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    make_console().print(table)


def coloured(up: bool, yes: str, no: str) -> Text:
    """One of two words: green for ``yes``, red for ``no``."""
    return Text(yes, style="green") if up else Text(no, style="red")
