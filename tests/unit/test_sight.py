# SPDX-License-Identifier: Apache-2.0
"""What a worker knows of backends: by the board, in this very moment."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xdp_router.core.config import parse_config
from xdp_router.core.listeners import Listener
from xdp_router.daemon.gateway.board import (
    HELD_UNTIL,
    ILL,
    IN_FLIGHT,
    QUEUE,
    RTT,
    RTT_AT,
    STATE,
    TTFT,
    TTFT_AT,
    WELL,
    Board,
)
from xdp_router.daemon.gateway.sight import FRESH_NS, LiveSight
from xdp_router.gateway.candidates import LOOKED_AT, Candidates
from xdp_router.gateway.chooser import Chooser
from xdp_router.gateway.prefix_cache import PrefixCache

MS = 1_000_000
NOW_NS = 100 * FRESH_NS


def many(count: int, keys: str = "") -> Listener:
    """A listener of so many backends."""
    backends = "".join(
        f'[[listener.backend]]\naddress = "198.18.1.{number}:80"\n'
        for number in range(1, count + 1)
    )
    text = f'[[listener]]\ntype = "llm"\naddress = "198.18.0.1:80"\n{keys}\n{backends}'
    (found,) = parse_config(text, "test").gateway.listeners
    return found


@pytest.fixture(scope="module")
def board() -> Iterator[Board]:
    """Of a worker that is alone."""
    fd = Board.create()
    made = Board(fd, 0)
    made.slots_used = 1
    yield made
    made.close()
    os.close(fd)


def sight_of(listener: Listener, board: Board, cache: PrefixCache | None = None) -> LiveSight:
    """Rows in order, empty."""
    count = len(listener.backends)
    for row in range(count):
        board.clear_row(row)
    return LiveSight(listener, board, range(count), lambda: NOW_NS, cache)


def test_what_is_known_is_as_old_as_it_may_be(board: Board) -> None:
    """Round trips and first tokens are forgotten, what is there now counts."""
    sight = sight_of(many(2, 'mode = "snapshot"\nsnapshot_age = "200ms"'), board)
    board.say(1, RTT, 5)
    board.say(1, RTT_AT, NOW_NS - 199 * MS)
    board.set_own(1, TTFT, 7)
    board.set_own(1, TTFT_AT, NOW_NS - FRESH_NS + 1)
    board.set_own(1, IN_FLIGHT, 3)
    board.tell(1, QUEUE, 2_000, NOW_NS - MS)
    (known,) = sight.known((1,), ())
    assert (known.index, known.rtt_ns, known.ttft_ns, known.load) == (1, 5, 7, 5.0)
    assert known.available
    board.say(1, RTT_AT, NOW_NS - 200 * MS)
    board.set_own(1, TTFT_AT, NOW_NS - FRESH_NS)
    board.set_own(1, IN_FLIGHT, -1)  # another process's view of two words at a time
    board.tell(1, QUEUE, 2_000, 1)
    (known,) = sight.known((1,), ())
    assert (known.rtt_ns, known.ttft_ns, known.load) == (None, None, 0.0)


def test_who_is_available(board: Board) -> None:
    """Neither ill nor held off; whose state is not known is."""
    sight = sight_of(many(5), board)
    board.say(0, STATE, ILL)
    board.set_own(1, HELD_UNTIL, NOW_NS + 1)
    board.set_own(2, HELD_UNTIL, NOW_NS)
    board.say(3, STATE, WELL)
    everybody = range(5)
    assert [each.available for each in sight.known(everybody, ())] == [0, 0, 1, 1, 1]
    assert sight.available(everybody, 9) == [2, 3, 4]
    assert sight.available(everybody, 2) == [2, 3]


def test_who_has_a_prompt(board: Board) -> None:
    """By what this worker has sent there."""
    cache = PrefixCache(10, find_holders=True)
    sight = sight_of(many(3), board, cache)
    cache.credit(2, (11, 12))
    assert [each.cache for each in sight.known((0, 2), (11, 12, 13, 14))] == [0.0, 0.5]
    assert sight.holders((11, 12, 13)) == [2]
    assert [each.cache for each in sight.known((0, 2), ())] == [None, None]
    assert list(sight.holders(())) == list(sight_of(many(3), board).holders((11,))) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["race", "snapshot", "inline"]),
    st.sampled_from(["score", "hcl"]),
    st.integers(LOOKED_AT + 1, 60),
    st.lists(st.sampled_from("ihfw"), min_size=1, max_size=40),
    st.integers(0, 1 << 30),
)
def test_the_next_request_knows(
    board: Board, mode: str, policy: str, size: int, steps: str, seed: int
) -> None:
    """Whoever becomes ill or is held off gets nothing from then on, though it was the best one."""
    listener = many(size, f'mode = "{mode}"\npolicy = "{policy}"')
    sight, chooser, candidates = (
        sight_of(listener, board),
        Chooser(listener),
        Candidates(range(size)),
    )
    rng = random.Random(seed)
    out: set[int] = set()
    for step in steps:
        draws = rng.random(), rng.random(), rng.random()
        first = chooser.order(candidates, sight, (), 1.0, draws).first
        assert first not in out or len(out) == size
        if step == "i":
            board.say(first, STATE, ILL)
        elif step == "h":
            board.set_own(first, HELD_UNTIL, NOW_NS + MS)
        elif step == "f":
            board.add_own(first, IN_FLIGHT, 1)
        if step in "ih":
            out.add(first)
        elif step == "w" and out:
            back = out.pop()
            board.say(back, STATE, WELL)
            board.set_own(back, HELD_UNTIL, 0)
