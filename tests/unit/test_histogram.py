# SPDX-License-Identifier: Apache-2.0
"""Distributions of times: quantiles within the stated error, merging, fixed bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.quantile import percentile
from xdp_router.measure.histogram import RELATIVE_ERROR, Buckets, Histogram

times = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)


def of(values: list[int]) -> Histogram:
    made = Histogram()
    for value in values:
        made.add(value)
    return made


@given(times, st.sampled_from([0.0, 0.01, 0.07, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_within_the_stated_error(values: list[int], share: float) -> None:
    """Of the value that sorting them all gives."""
    exact = percentile(values, share)
    told = of(values).quantile(share)
    assert abs(told - exact) <= exact * RELATIVE_ERROR + 1


@given(times, times)
def test_merging_loses_nothing(first: list[int], second: list[int]) -> None:
    """Two merged are as one that had all values; the second one stays as it was."""
    merged, other = of(first), of(second)
    merged.merge(other)
    whole = of(first + second)
    assert (merged.count, merged.total) == (whole.count, whole.total)
    ranks = range(1, whole.count + 1)
    assert [merged.at_rank(rank) for rank in ranks] == [whole.at_rank(rank) for rank in ranks]
    assert other.count == len(second)


def test_small_values_are_exact_and_odd_ones_have_a_place() -> None:
    """Below 128 each has a bucket of its own; less than 0 is 0, and days are days."""
    made = of([0, 1, 127, -5, 1 << 60])
    assert [made.at_rank(rank) for rank in range(1, 5)] == [0, 0, 1, 127]
    assert made.at_rank(5) == pytest.approx(1 << 48, rel=RELATIVE_ERROR)


def test_what_is_asked_of_none() -> None:
    """No quantile of nothing; a rank that is not there is a mistake."""
    assert Histogram().quantile(0.99) == 0
    with pytest.raises(IndexError, match="rank 2 of 1"):
        of([5]).at_rank(2)


def test_a_value_may_be_added_many_times() -> None:
    """As if it had come one by one, also after it was asked for."""
    made = of([7])
    assert made.quantile(0.5) == 7
    made.add(9, 3)
    assert (made.count, made.total, made.quantile(0.5)) == (4, 34, 9)


def test_buckets_count_what_is_at_most_their_bound() -> None:
    """A value that is a bound belongs to it; above the last one it is in the sum only."""
    made = Buckets((10, 20))
    for value in (5, 10, 11, 21):
        made.add(value)
    assert list(made.cumulative()) == [(10, 2), (20, 3)]
    assert (made.count, made.total) == (4, 47)


def test_counts_of_another_place() -> None:
    """By bucket they make the same quantiles again, and what came since is their difference."""
    values = Histogram()
    for each in (5, 900, 1_000_000, 1_000_000, 70_000_000):
        values.add(each)
    again = Histogram.of(values.counts)
    assert (again.count, again.quantile(0.5)) == (5, values.quantile(0.5))
    assert abs(again.total - values.total) <= RELATIVE_ERROR * values.total
    earlier = Histogram.of(values.counts)
    values.add(3, 4)
    since = values.less(earlier)
    assert (since.count, since.quantile(0.99)) == (4, 3)
    assert earlier.less(values).count == 0
