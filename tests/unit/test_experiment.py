# SPDX-License-Identifier: Apache-2.0
"""Differences of quantiles, and intervals that hold as often as they say."""

from __future__ import annotations

import math
import random

import pytest

from xdp_router.measure.experiment import gain, quantile_interval, rank_bounds
from xdp_router.measure.histogram import Histogram


def of(values: list[float]) -> Histogram:
    made = Histogram()
    for value in values:
        made.add(round(value * 1e6))
    return made


def binomial_cdf(most: int, count: int, chance: float) -> float:
    logs = [math.lgamma(each + 1) for each in range(count + 1)]
    return math.fsum(
        math.exp(
            logs[count]
            - logs[each]
            - logs[count - each]
            + each * math.log(chance)
            + (count - each) * math.log1p(-chance)
        )
        for each in range(most + 1)
    )


@pytest.mark.parametrize(("count", "share"), [(500, 0.99), (1000, 0.99), (100, 0.5), (40, 0.9)])
def test_ranks_bracket_the_quantile_and_no_wider_than_needed(count: int, share: float) -> None:
    """Each side is missed with at most half the error, and one rank nearer would be more."""
    low, high = rank_bounds(count, share, 0.95)
    assert low is not None
    assert high is not None
    assert binomial_cdf(low - 1, count, share) <= 0.025 < binomial_cdf(low, count, share)
    assert 1 - binomial_cdf(high - 1, count, share) <= 0.025
    assert 1 - binomial_cdf(high - 2, count, share) > 0.025


def test_few_values_have_no_upper_bound() -> None:
    """Of 367 values even the largest may be below the true p99 more often than that."""
    assert rank_bounds(367, 0.99, 0.95)[1] is None
    assert rank_bounds(368, 0.99, 0.95)[1] == 368
    assert rank_bounds(1, 0.99, 0.95) == (1, None)
    assert rank_bounds(1, 0.5, 0.95) == (None, None)


def test_many_values_are_reckoned_at_once() -> None:
    """By the normal distribution, which says what the binomial one does."""
    low, high = rank_bounds(20_100, 0.99, 0.95)
    assert low is not None
    assert high is not None
    assert 0.015 <= binomial_cdf(low - 1, 20_100, 0.99) <= 0.027
    assert 0.015 <= 1 - binomial_cdf(high - 1, 20_100, 0.99) <= 0.027


def test_the_interval_holds_as_often_as_it_says() -> None:
    """400 experiments with a long tail: the true difference is outside in fewer than 5 of 100."""
    dice = random.Random(20260914)
    true = math.log(100) * (10 - 4)
    missed = 0
    for _ in range(400):
        treated = of([dice.expovariate(1 / 4) for _ in range(600)])
        control = of([dice.expovariate(1 / 10) for _ in range(600)])
        found = gain(treated, control)
        assert found is not None
        low, high = found.difference.low, found.difference.high
        assert low is not None
        assert high is not None
        missed += not low <= true * 1e6 <= high
    assert missed <= 400 * 0.05


def test_gain_is_a_difference_and_a_ratio() -> None:
    """Positive where the arm of interest is faster; bounds lie around the estimate."""
    treated = of([1.0] * 1000)
    control = of([20.0] * 900 + [30.0] * 100)
    found = gain(treated, control)
    assert found is not None
    assert found.difference.estimate == pytest.approx(29e6, rel=0.02)
    assert found.ratio == pytest.approx(30, rel=0.02)
    assert found.difference.low is not None
    assert found.difference.low > 0
    assert found.ratio_low is not None
    assert found.ratio_high is not None
    assert found.ratio_low <= found.ratio <= found.ratio_high


def test_too_little_to_compare() -> None:
    """An arm without flows: nothing is said. With a few: an estimate, but no bounds."""
    assert gain(of([1.0]), of([])) is None
    found = gain(of([1.0, 2.0]), of([3.0]))
    assert found is not None
    assert (found.difference.low, found.difference.high) == (None, None)
    assert found.ratio_low is found.ratio_high is None
    with pytest.raises(ValueError, match="no values"):
        quantile_interval(of([]))
