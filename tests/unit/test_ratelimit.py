# SPDX-License-Identifier: Apache-2.0
"""The token bucket never gives out more than its rate and burst allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.ratelimit import NS_PER_S, TokenBucket


def test_starts_full_and_runs_dry() -> None:
    """The burst is available at once, and not one token more."""
    bucket = TokenBucket(1000, 3, now_ns=5_000)
    assert [bucket.take(5_000) for _ in range(4)] == [True, True, True, False]


def test_earns_one_token_per_interval_to_the_nanosecond() -> None:
    """At 1,000 tokens/s the next one is there after exactly 1 ms."""
    bucket = TokenBucket(1000, 1)
    assert bucket.take(0)
    assert not bucket.take(999_999)
    assert bucket.take(1_000_000)


def test_a_rate_that_does_not_divide_a_second_loses_nothing() -> None:
    """3 tokens/s, asked each 10 ms, are 30 in 10 s: no fraction is rounded away."""
    bucket = TokenBucket(3, 2)
    assert bucket.take(0)
    assert bucket.take(0)
    taken = sum(bucket.take(tick * 10_000_000) for tick in range(1, 1001))
    assert taken == 30


def test_idle_time_is_worth_the_burst_at_most() -> None:
    """An hour of silence does not pay for more than the burst."""
    bucket = TokenBucket(1000, 5)
    assert bucket.available(3600 * NS_PER_S) == 5


def test_time_that_goes_back_earns_nothing_and_is_not_paid_twice() -> None:
    """Events of two CPUs may come out of order; that must not create tokens."""
    bucket = TokenBucket(1000, 2, now_ns=10_000_000)
    assert bucket.take(5_000_000)
    assert bucket.take(10_000_000)
    assert not bucket.take(5_000_000)
    assert not bucket.take(10_999_999)
    assert bucket.take(11_000_000)


def test_rate_zero_is_the_burst_and_nothing_more() -> None:
    """A rate of 0 is legal: the bucket is never filled again."""
    bucket = TokenBucket(0, 1)
    assert bucket.take(0)
    assert not bucket.take(10**18)


@pytest.mark.parametrize(("rate", "burst"), [(-1, 1), (1, 0)])
def test_impossible_limits_are_refused(rate: int, burst: int) -> None:
    """A negative rate or an empty bucket is a mistake of the caller."""
    with pytest.raises(ValueError, match="expected rate >= 0, burst >= 1"):
        TokenBucket(rate, burst)


@given(
    rate=st.integers(0, 5_000),
    burst=st.integers(1, 50),
    gaps=st.lists(st.integers(0, 20_000_000), max_size=150),
)
def test_no_span_of_time_exceeds_rate_and_burst(rate: int, burst: int, gaps: list[int]) -> None:
    """Between any two instants: tokens <= burst + rate * elapsed."""
    bucket = TokenBucket(rate, burst)
    now = 0
    taken: list[int] = []
    for gap in gaps:
        now += gap
        if bucket.take(now):
            taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            elapsed = taken[last] - taken[first]
            assert last - first + 1 <= burst + rate * elapsed / NS_PER_S + 1e-9
