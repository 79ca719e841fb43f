# SPDX-License-Identifier: Apache-2.0
"""What one way of choosing gains over another, and how sure that is.

Two arms of flows that differ in nothing but how their backends are chosen; of each the
distribution of one time is known. Compared are high quantiles (p99), for which intervals by
order statistics hold whatever the distribution: the number of values below the true quantile is
binomial, so two ranks bracket it with a probability that is known. Both arms' intervals are taken
at half the error, so what is said of the difference holds at least as often as it says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .histogram import Histogram

CONFIDENCE = 0.95
SHARE = 0.99
_NORMAL_FROM = 200.0
"""So many values above the quantile make the normal approximation good to a rank or two."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its bounds; None: there are too few values for that bound."""

    estimate: int
    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class Gain:
    """How much shorter the arm of interest's quantile is: ``control`` minus ``treated``.

    ``ratio`` is ``control`` over ``treated``. Bounds as in Interval.
    """

    difference: Interval
    ratio: float
    ratio_low: float | None
    ratio_high: float | None


def rank_bounds(count: int, share: float, confidence: float) -> tuple[int | None, int | None]:
    """Ranks of ``count`` sorted values between which the true quantile is, so surely.

    None: with so few values there is no such bound.
    """
    above = 1 - share
    tail = (1 - confidence) / 2
    if count * min(above, share) > _NORMAL_FROM:
        spread = _z(tail) * math.sqrt(count * above * share)
        few = math.floor(count * above - spread - 0.5)
        many = math.ceil(count * above + spread + 0.5)
    else:
        few, many = _binomial_tails(count, above, tail)
    high = count - few if few >= 0 else None
    low = count - many + 1
    return (low if low >= 1 else None), high


def _binomial_tails(count: int, above: float, tail: float) -> tuple[int, int]:
    """The most that are above it in the lower tail (-1: none), the least in the upper one."""
    below_log = math.log1p(-above)
    few, many, reached = -1, count + 1, 0.0
    for number in range(count + 1):
        chance = math.exp(
            math.lgamma(count + 1)
            - math.lgamma(number + 1)
            - math.lgamma(count - number + 1)
            + number * math.log(above)
            + (count - number) * below_log
        )
        if 1 - reached <= tail:
            return few, number
        reached += chance
        if reached <= tail:
            few = number
    return few, many


def _z(tail: float) -> float:
    """The normal distribution's point that ``tail`` is above of."""
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        if math.erfc(middle / math.sqrt(2)) / 2 > tail:
            low = middle
        else:
            high = middle
    return high


def quantile_interval(
    values: Histogram, share: float = SHARE, confidence: float = CONFIDENCE
) -> Interval:
    """A quantile and its bounds. Raises ValueError if there are no values."""
    if not values.count:
        raise ValueError("a quantile of no values")
    low, high = rank_bounds(values.count, share, confidence)
    return Interval(
        values.quantile(share),
        values.at_rank(low) if low is not None else None,
        values.at_rank(high) if high is not None else None,
    )


def gain(
    treated: Histogram, control: Histogram, share: float = SHARE, confidence: float = CONFIDENCE
) -> Gain | None:
    """What ``treated`` gains over ``control``; None if one of them has no values."""
    if not treated.count or not control.count:
        return None
    each = 1 - (1 - confidence) / 2
    ours = quantile_interval(treated, share, each)
    theirs = quantile_interval(control, share, each)
    return Gain(
        Interval(
            theirs.estimate - ours.estimate,
            _minus(theirs.low, ours.high),
            _minus(theirs.high, ours.low),
        ),
        _over(theirs.estimate, ours.estimate) or 1.0,
        _over(theirs.low, ours.high),
        _over(theirs.high, ours.low),
    )


def _minus(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first - second


def _over(first: int | None, second: int | None) -> float | None:
    return None if first is None or not second else first / second
