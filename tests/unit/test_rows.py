# SPDX-License-Identifier: Apache-2.0
"""Rows of the board: a backend keeps its own, whatever configurations come and go."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from xdp_router.core.config import parse_config
from xdp_router.daemon.gateway.board import ROWS, RTT, Board
from xdp_router.daemon.gateway.rows import NoRow, Rows, addresses


@pytest.fixture
def board() -> Iterator[Board]:
    """A board."""
    fd = Board.create()
    made = Board(fd)
    yield made
    made.close()
    os.close(fd)


def test_addresses() -> None:
    """Each once, of all listeners."""
    backend = '[[listener.backend]]\naddress = "127.0.0.1:{}"\n'
    text = "".join(
        f'[[listener]]\naddress = "127.0.0.1:{port}"\ntype = "tls"\n{backend.format(8000)}'
        f"{backend.format(port + 1)}"
        for port in (1, 5)
    )
    assert addresses(parse_config(text, "x").gateway) == [
        *("127.0.0.1:8000", "127.0.0.1:2", "127.0.0.1:6")
    ]


def test_a_backend_keeps_its_row(board: Board) -> None:
    """Also when others go, and over a hand-over."""
    rows = Rows(board)
    assert rows.assign(["a", "b"], []) == {"a": 0, "b": 1}
    assert rows.assign(["c", "b"], []) == {"c": 2, "b": 1}
    assert rows.assign(["a"], []) == {"a": 0}
    assert Rows(board, rows.all).assign(["d", "a"], []) == {"d": 3, "a": 0}


def test_when_all_are_given_away(board: Board) -> None:
    """Those that nobody has any more are given away, empty; what workers still have is not."""
    rows = Rows(board)
    many = [f"x{number}" for number in range(ROWS)]
    assert rows.assign(many, []) == {name: number for number, name in enumerate(many)}
    board.say(7, RTT, 5)
    with pytest.raises(NoRow, match=f"expected at most {ROWS}"):
        rows.assign(["new"], many)
    assert "new" not in rows.all
    in_use = [name for name in many if name != "x7"]
    assert rows.assign(["new"], in_use) == {"new": 7}
    assert board.common(7, RTT) == 0
