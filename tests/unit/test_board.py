# SPDX-License-Identifier: Apache-2.0
"""Memory that workers share: one writer for each word, slots that come and go."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from xdp_router.daemon.gateway.board import (
    CACHE,
    HELD_UNTIL,
    IN_FLIGHT,
    LATE,
    LATE_AT,
    QUEUE,
    ROWS,
    RTT,
    SILENT_SINCE,
    SLOTS,
    STATE,
    TOLD_AT,
    TOLD_TTFT,
    TTFT,
    TTFT_AT,
    USAGE,
    WELL,
    Board,
    NoSlot,
)


@pytest.fixture
def fd() -> Iterator[int]:
    """New memory."""
    made = Board.create()
    yield made
    os.close(made)


def ended_pid() -> int:
    """Of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_one_view_of_all_workers(fd: int) -> None:
    """What two workers say adds up, or the newest counts; the supervisor's word is all's."""
    supervisor = Board(fd)
    one = Board(fd, supervisor.claim(fd, os.getpid()))
    two = Board(fd, supervisor.claim(fd, os.getppid()))
    assert (one.slot, two.slot, supervisor.slots_used) == (0, 1, 2)
    for row in (0, ROWS - 1):
        one.add_own(row, IN_FLIGHT, 3)
        two.add_own(row, IN_FLIGHT, 2)
        two.add_own(row, IN_FLIGHT, -1)
        one.set_own(row, TTFT, 70)
        one.set_own(row, TTFT_AT, 1_000)
        two.set_own(row, TTFT, 80)
        two.set_own(row, TTFT_AT, 2_000)
        two.set_own(row, HELD_UNTIL, 5_000)
        supervisor.say(row, RTT, 7)
        supervisor.say(row, STATE, WELL)
        assert supervisor.in_flight(row) == one.in_flight(row) == 4
        assert (one.ttft_ns(row, 0), one.ttft_ns(row, 1_999)) == (80, 80)
        assert one.ttft_ns(row, 2_000) is None
        assert one.held_until_ns(row) == 5_000
        assert one.look(row, 0) == (4, 80, 5_000, 0, 0, 0)
        assert one.look(row, 2_000)[1] is None
        one.set_own(row, SILENT_SINCE, 900)
        two.set_own(row, SILENT_SINCE, 800)
        one.set_own(row, LATE, 33)
        one.set_own(row, LATE_AT, 700)
        two.set_own(row, LATE, 44)
        two.set_own(row, LATE_AT, 600)
        assert supervisor.look(row, 0)[3:] == (33, 700, 800)
        assert (two.common(row, RTT), two.common(row, STATE)) == (7, WELL)
        assert (one.own(row, IN_FLIGHT), two.own(row, IN_FLIGHT)) == (3, 1)
    assert one.in_flight(5) == 0
    assert one.ttft_ns(5, 0) is None
    for each in (supervisor, one, two):
        each.close()


def test_a_slot_that_is_left_is_empty(fd: int) -> None:
    """What a worker had is no more when it has ended, or when its slot is claimed."""
    board = Board(fd)
    dead = Board(fd, board.claim(fd, ended_pid()))
    alive = Board(fd, board.claim(fd, os.getpid()))
    assert (dead.slot, alive.slot) == (0, 0)  # nobody lives there: it is taken at once
    other = Board(fd, board.claim(fd, os.getpid()))
    assert other.slot == 1
    alive.add_own(3, IN_FLIGHT, 1)
    other.add_own(3, IN_FLIGHT, 1)
    board.release(fd, 0)
    assert (board.in_flight(3), board.slots_used) == (1, 2)
    board.release(fd, 1)
    assert (board.in_flight(3), board.slots_used) == (0, 0)
    for each in (board, dead, alive, other):
        each.close()


def test_slots_have_an_end(fd: int) -> None:
    """The one that is too many is told so."""
    board = Board(fd)
    assert [board.claim(fd, os.getpid()) for _ in range(SLOTS)] == list(range(SLOTS))
    with pytest.raises(NoSlot, match=f"{SLOTS} workers"):
        board.claim(fd, os.getpid())
    board.close()


def test_a_row_that_is_anothers(fd: int) -> None:
    """Nothing of the former backend is left, whoever said it."""
    board = Board(fd)
    worker = Board(fd, board.claim(fd, os.getpid()))
    board.say(4, RTT, 9)
    worker.set_own(4, TTFT_AT, 9)
    board.say(5, RTT, 9)
    board.clear_row(4)
    assert (board.common(4, RTT), worker.own(4, TTFT_AT), board.common(5, RTT)) == (0, 0, 9)
    board.close()
    worker.close()


def test_what_others_say_has_its_age(fd: int) -> None:
    """Each value its own; a zero that was told is one."""
    board = Board(fd)
    assert board.told(ROWS - 1, QUEUE, 0) is None
    board.tell(ROWS - 1, QUEUE, 0, 1_000)
    board.tell(ROWS - 1, TOLD_TTFT, 5, 2_000)
    assert board.common(ROWS - 1, TOLD_AT) == 2_000
    assert [board.told(ROWS - 1, word, 999) for word in (QUEUE, USAGE, CACHE, TOLD_TTFT)] == [
        *(0, None, None, 5)
    ]
    assert board.told(ROWS - 1, QUEUE, 1_000) is None
    board.clear_row(ROWS - 1)
    assert board.told(ROWS - 1, TOLD_TTFT, 0) is None
    board.close()
