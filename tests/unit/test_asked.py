# SPDX-License-Identifier: Apache-2.0
"""What a worker says of the backends it has asked, and what is expected of them by that."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from xdp_router.daemon.gateway.asked import LATE_NS, Asked, expected_ns
from xdp_router.daemon.gateway.board import (
    IN_FLIGHT,
    LATE,
    LATE_AT,
    SILENT_SINCE,
    TTFT,
    TTFT_AT,
    Board,
)

MS = 1_000_000
S = 1_000 * MS
NOW = 100 * S


@pytest.fixture
def board() -> Iterator[Board]:
    """Of one worker."""
    fd = Board.create()
    made = Board(fd, 0)
    made.slots_used = 1
    yield made
    made.close()
    os.close(fd)


def test_the_oldest_request_without_a_token_is_told(board: Board) -> None:
    """Until it has one or is given up; who has nothing to say yet is none."""
    asked = Asked(board)
    one, two, three = object(), object(), object()
    asked.begin(3, one, 10, owes=True)
    asked.begin(3, two, 20, owes=True)
    asked.begin(3, three, 5, owes=False)
    asked.begin(4, three, 30, owes=True)
    assert (board.own(3, SILENT_SINCE), board.own(4, SILENT_SINCE)) == (10, 30)
    asked.answered(3, one)
    assert board.own(3, SILENT_SINCE) == 20
    asked.end(3, two)
    asked.end(3, one)
    asked.end(3, three)
    assert (board.own(3, SILENT_SINCE), board.own(3, IN_FLIGHT)) == (0, 0)
    assert (board.own(4, SILENT_SINCE), board.own(4, IN_FLIGHT)) == (30, 1)


def test_silence_is_a_time_to_a_first_token() -> None:
    """As soon as it is longer than what is usual there, and as long as it lasts."""
    assert expected_ns(60 * MS, 0, 0, 0, NOW) == 60 * MS
    assert expected_ns(60 * MS, 0, 0, NOW - 20 * MS, NOW) == 60 * MS
    assert expected_ns(60 * MS, 0, 0, NOW - 300 * MS, NOW) == 300 * MS
    assert expected_ns(None, 0, 0, NOW - 300 * MS, NOW) is None


def test_what_was_late_is_believed_for_a_while() -> None:
    """Less and less."""
    said = [expected_ns(60 * MS, 400 * MS, NOW, 0, NOW + part * LATE_NS // 4) for part in range(5)]
    assert said == [400 * MS, 300 * MS, 200 * MS, 100 * MS, 60 * MS]
    assert expected_ns(None, 400 * MS, NOW, 0, NOW + LATE_NS) is None


def test_a_stall_is_no_mean(board: Board) -> None:
    """One sample that is far away moves the mean a little, and is told as late."""
    asked = Asked(board)
    asked.took(0, 60 * MS, NOW)
    assert (board.own(0, TTFT), board.own(0, TTFT_AT), board.own(0, LATE_AT)) == (60 * MS, NOW, 0)
    asked.took(0, 100 * MS, NOW + 1)
    assert board.own(0, TTFT) == 70 * MS
    asked.took(0, 900 * MS, NOW + 2)
    assert board.own(0, TTFT) < 90 * MS
    assert (board.own(0, LATE), board.own(0, LATE_AT)) == (900 * MS, NOW + 2)
    for number in range(40):  # but if that is how it is from now on, it is the mean
        asked.took(0, 900 * MS, NOW + 3 + number)
    assert board.own(0, TTFT) > 700 * MS


def test_who_lost_is_late(board: Board) -> None:
    """The worst counts, as long as it is believed; the mean stays unless there is none."""
    asked = Asked(board)
    asked.took(0, 60 * MS, NOW)
    asked.lost(0, 300 * MS, NOW, 10 * S)
    asked.lost(0, 100 * MS, NOW + 1, 10 * S)
    assert (board.own(0, LATE), board.own(0, TTFT)) == (300 * MS, 60 * MS)
    asked.lost(0, 100 * MS, NOW + LATE_NS, 10 * S)
    assert (board.own(0, LATE), board.own(0, LATE_AT)) == (100 * MS, NOW + LATE_NS)
    asked.lost(1, 200 * MS, NOW, 10 * S)  # who never wins
    assert (board.own(1, TTFT), board.own(1, TTFT_AT)) == (200 * MS, NOW)
    asked.lost(0, 500 * MS, NOW + 20 * S, 10 * S)
    assert board.own(0, TTFT) == 500 * MS
