# SPDX-License-Identifier: Apache-2.0
"""Turns by weight."""

from __future__ import annotations

from collections import Counter

from xdp_router.core.model import Backend, Endpoint
from xdp_router.core.strategy.turns import Turns


def members(*weights: int) -> list[Backend]:
    return [
        Backend(number, f"b{number}", Endpoint(number + 1, 80), 0, weight)
        for number, weight in enumerate(weights)
    ]


def test_equals_take_turns() -> None:
    """One after the other, in the order in which they are given."""
    turns = Turns()
    assert [turns.take(members(1, 1, 1)) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_weights_are_kept_in_every_round_and_spread() -> None:
    """Of any 5 turns in a row each has what its weight says, not all in one go."""
    turns = Turns()
    found = [turns.take(members(1, 3, 1)) for _ in range(40)]
    for start in range(36):
        assert Counter(found[start : start + 5]) == {0: 1, 1: 3, 2: 1}
    assert "1111" not in "".join(map(str, found))


def test_who_is_not_there_owes_nothing() -> None:
    """Turns among some leave the others' as they were, and who returns has no backlog."""
    turns = Turns()
    some = members(1, 1, 1)
    for _ in range(100):
        turns.take(some[:2])
    assert [turns.take(some) for _ in range(3)] == [0, 1, 2]
