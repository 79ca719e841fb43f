# SPDX-License-Identifier: Apache-2.0
"""Pick tables: shares, the order of slots, and when a new one is worth to be written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.abi import PICK_SLOTS
from xdp_router.core.pick_table import EMPTY_PICKS, differs, lay_out, slot_counts


def test_shares_follow_the_weights() -> None:
    """To the slot, where they fit."""
    assert slot_counts([1, 1, 2]) == [64, 64, 128]
    assert slot_counts([1, 1, 1]) == [86, 85, 85]
    assert slot_counts([5]) == [PICK_SLOTS]


def test_next_to_nothing_is_nothing() -> None:
    """A backend 20 ms away beside one at 0.1 ms."""
    assert slot_counts([1, 1, 0.00003]) == [128, 128, 0]


def test_nobody_gets_no_slot() -> None:
    """And the table names nobody."""
    assert slot_counts([]) == []
    assert slot_counts([0, 0]) == [0, 0]
    assert lay_out([7, 8], [0, 0]) == EMPTY_PICKS


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=300))
def test_all_slots_are_given_and_nobody_is_off_by_one(weights: list[float]) -> None:
    """Largest remainders: each is within one slot of its exact share."""
    counts = slot_counts(weights)
    total = sum(weights)
    if total <= 0:
        assert not any(counts)
        return
    assert sum(counts) == PICK_SLOTS
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - PICK_SLOTS * weight / total) < 1 + 1e-6


def test_slots_of_a_backend_are_spread() -> None:
    """Of two equals every other one; a small share is never in a row."""
    assert lay_out([7, 8], [128, 128])[:4] == (7, 8, 7, 8)
    table = lay_out([1, 2, 3], [200, 28, 28])
    assert sorted(table) == [1] * 200 + [2] * 28 + [3] * 28
    assert all(table[at : at + 2] != (2, 2) for at in range(PICK_SLOTS))


@pytest.mark.parametrize(
    ("before", "after", "worth"),
    [
        ((128, 128), (128, 128), False),
        ((128, 128), (130, 126), False),
        ((128, 128), (112, 144), False),
        ((128, 128), (100, 156), True),
        ((256, 0), (255, 1), True),
        ((255, 1), (256, 0), True),
        ((254, 2), (252, 4), False),
        ((254, 2), (251, 5), True),
        ((256,), (128, 128), True),
    ],
)
def test_noise_writes_no_table(
    before: tuple[int, ...], after: tuple[int, ...], worth: bool
) -> None:
    """A backend that comes, or goes, does; so does a share that changes beyond an eighth."""
    assert differs(before, after) is worth
