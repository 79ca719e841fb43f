# SPDX-License-Identifier: Apache-2.0
"""At whom of many backends a request looks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.gateway.candidates import KEPT, LOOKED_AT, Candidates


def test_nobody_is_no_candidate() -> None:
    """It would be a choice of none."""
    with pytest.raises(ValueError, match="one or more"):
        Candidates(())


def test_few_are_all_looked_at() -> None:
    """Up to a number."""
    assert Candidates(range(LOOKED_AT)).are_few
    assert not Candidates(range(LOOKED_AT + 1)).are_few


@pytest.mark.parametrize("size", [17, 24, 100, 1000])
def test_the_walk_comes_by_everybody(size: int) -> None:
    """As often, within so many requests; those that were kept are looked at each time."""
    candidates = Candidates(range(100, 100 + size))
    first, alone = candidates.chosen(0.5, ())
    assert (len(set(first)), alone) == (LOOKED_AT, 0)
    kept = first[:KEPT]
    candidates.keep([*kept, *first[KEPT:]])
    seen = set(first)
    for _ in range(-(-size // (LOOKED_AT - KEPT))):
        found, alone = candidates.chosen(0.0, ())
        assert found[:alone] == kept
        assert len(found) == len(set(found)) == LOOKED_AT
        seen.update(found)
    assert seen == set(candidates.indices)


def test_who_has_the_prompt_is_looked_at() -> None:
    """Unless it is no candidate; it stands for itself alone."""
    candidates = Candidates(range(0, 200, 2))
    found, alone = candidates.chosen(0.0, (44, 45, 46))
    assert found[:alone] == [44, 46]
    assert 45 not in found
    assert len(found) == LOOKED_AT + 2


@given(
    st.integers(LOOKED_AT + 1, 60),
    st.data(),
)
def test_whoever_is_left_is_found(size: int, data: st.DataObject) -> None:
    """However many have their places already; nobody comes twice."""
    candidates = Candidates(range(size))
    of = st.sampled_from(range(size))
    candidates.keep(data.draw(st.lists(of, unique=True, max_size=KEPT)))
    without = data.draw(st.lists(of, unique=True, max_size=size - 1))
    holders = data.draw(st.lists(of, unique=True, max_size=4))
    found, alone = candidates.chosen(data.draw(st.floats(0, 0.999)), holders, without)
    assert found
    assert alone <= len(found) == len(set(found)) <= LOOKED_AT + len(holders)
    assert not set(found) & set(without)
    assert set(candidates.walk()) == set(range(size))


@pytest.mark.parametrize("size", [1, 3, 16, 40])
def test_turns_go_round(size: int) -> None:
    """From anywhere, each once."""
    candidates = Candidates(range(size))
    firsts = []
    for _ in range(size):
        found = candidates.in_turn(0.7)
        assert len(set(found)) == len(found) == min(size, LOOKED_AT)
        assert list(candidates.all_in_turn())[: len(found)] == list(found)
        firsts.append(found[0])
        candidates.had_turn(found[0])
    assert sorted(firsts) == list(range(size))
    assert firsts[0] == int(0.7 * size)
