# SPDX-License-Identifier: Apache-2.0
"""What works with which forwarding method: the table of docs/operations.md, as the tests read it.

The tests run every cell that says yes, so the manual promises nothing that was not tried.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from xdp_router.lab.spec import Method

MANUAL = Path(__file__).parents[2] / "docs" / "operations.md"
METHODS: tuple[Method, ...] = get_args(Method)
WORKS = ""

_TITLE = "## What works with which method"


def read_table(text: str) -> dict[str, dict[Method, str]]:
    """By the names of row and method: ``WORKS``, or why not. Raises ValueError if it is unclear."""
    section = text.partition(f"{_TITLE}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    if not lines:
        raise ValueError(f"no table below {_TITLE!r}")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header = [cell.strip("`") for cell in rows[0]]
    if tuple(header[1:]) != METHODS:
        raise ValueError(f"the table's methods are {header[1:]}, those of the lab {METHODS}")
    table: dict[str, dict[Method, str]] = {}
    for name, *cells in rows[2:]:
        if len(cells) != len(METHODS) or name in table:
            raise ValueError(f"row {name!r} stands twice, or has not {len(METHODS)} cells")
        table[name] = {
            method: _verdict(name, cell) for method, cell in zip(METHODS, cells, strict=True)
        }
    return table


def _verdict(name: str, cell: str) -> str:
    found = re.fullmatch(r"yes|no: (.+)", cell)
    if found is None:
        raise ValueError(f"row {name!r}: {cell!r} is neither 'yes' nor 'no: REASON'")
    return found[1] or WORKS


TABLE = read_table(MANUAL.read_text("utf-8"))


def works(row: str, method: Method) -> bool:
    """Whether the manual says so. Raises KeyError for a row that it does not have."""
    return TABLE[row][method] == WORKS
