# SPDX-License-Identifier: Apache-2.0
"""What an event costs, how much may wait, and which CPU has which part of the rate."""

from __future__ import annotations

import random

import pytest

from xdp_router.core import abi
from xdp_router.core.event_budget import EventShares, deep_ring, price

S, MS = 1_000_000_000, 1_000_000
RATE = 50_000


def parts(scales: list[int]) -> list[float]:
    """Which part of the rate each scale gives."""
    return [abi.SHARE_ONE / scale for scale in scales]


def test_a_price_is_the_whole_rates() -> None:
    """An event costs the rate's interval, a burst is so many of them; 0 is no limit."""
    assert price(50_000, 2_000) == (20_000, 40 * MS)
    assert price(1, 1) == (S, S)
    assert price(0, 2_000) == (0, 0)


@pytest.mark.parametrize(
    ("deadlines_ms", "records"),
    [([50], 360), ([50, 8], 72), ([10_000], 360), ([1], 32)],
    ids=["10 ms", "a quarter of the shortest deadline", "10 ms at most", "32 records at least"],
)
def test_what_may_wait_is_answered_in_time(deadlines_ms: list[int], records: int) -> None:
    """A part of the shortest deadline, at 36,000 records a second."""
    assert deep_ring([each * MS for each in deadlines_ms]) == records * 336


def test_shares_start_even() -> None:
    """All CPUs that run have the same part; what is possible and does not run has little."""
    assert parts(EventShares([0, 1], 2, RATE).scales()) == pytest.approx([0.5, 0.5])
    running = parts(EventShares([0, 2], 4, RATE).scales())
    assert running == pytest.approx([0.475, 0.025, 0.475, 0.025], rel=0.01)


def test_where_all_syns_arrive_is_nearly_all_of_the_rate() -> None:
    """After two seconds one hot CPU has more than 90 %, and the others something still."""
    shares = EventShares(range(4), 4, RATE)
    shares.begin([7, 7, 7, 7])
    shares.update([7, 7, 7 + RATE, 7], S)
    after = parts(shares.update([7, 7, 7 + 2 * RATE, 7], S))
    assert after[2] > 0.9
    assert min(after) > 0.02


def test_shares_follow_a_flood_that_moves() -> None:
    """Three seconds after it arrives on another CPU, that one has most of the rate."""
    shares = EventShares(range(2), 2, RATE)
    asked = [0, 0]
    shares.begin(list(asked))
    for cpu, seconds in ((0, 20), (1, 3)):
        for _ in range(seconds):
            asked[cpu] += 400_000
            scales = shares.update(list(asked), S)
    assert parts(scales)[1] > 0.8


def test_a_few_syns_move_little() -> None:
    """A trickle on one CPU leaves the other ones ready for theirs."""
    shares = EventShares(range(2), 2, RATE)
    shares.begin([0, 0])
    assert min(parts(shares.update([10, 0], S))) > 0.4


def test_counts_that_fall_are_no_arrivals() -> None:
    """Somebody has reset the buckets: nothing is known of this second."""
    shares = EventShares(range(2), 2, RATE)
    shares.begin([1_000_000, 0])
    assert parts(shares.update([0, 0], S)) == pytest.approx([0.5, 0.5])


def test_the_first_look_only_begins() -> None:
    """What was asked for before anybody looked says nothing about the last second."""
    assert parts(EventShares(range(2), 2, RATE).update([10**9, 0], S)) == pytest.approx([0.5, 0.5])


def test_all_shares_together_are_the_rate() -> None:
    """Whatever arrives wherever, the parts never add up to more than one, nor to much less."""
    rng = random.Random(3)
    for cpus in (1, 2, 5, 128):
        shares = EventShares(range(cpus), cpus, RATE)
        asked = [0] * cpus
        shares.begin(list(asked))
        for _ in range(20):
            asked = [each + rng.choice((0, 10, 10**6)) for each in asked]
            total = sum(parts(shares.update(list(asked), rng.randint(1, 3 * S))))
            assert 0.99 < total <= 1.0000001
