# SPDX-License-Identifier: Apache-2.0
"""Stall windows: one in each period, at a place drawn from the seed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.lab import LabError, Stall
from xdp_router.lab.stall import StallSchedule

START = 1_000


@given(st.integers(0, 10_000), st.integers(1, 100), st.integers(0, 100), st.integers(0, 2**32))
def test_each_window_lies_in_its_period(period: int, window: int, slack: int, seed: int) -> None:
    """A window has its full length and does not leave its period."""
    stall = Stall(5, window, window + slack, seed)
    begin, end = StallSchedule(stall, START).window(period)
    assert end - begin == window
    assert START + period * stall.period_ns <= begin
    assert end <= START + (period + 1) * stall.period_ns


def test_stalled_share_is_exact() -> None:
    """Over whole periods, window ÷ period of all instants are stalled, and by the extra."""
    stall = Stall(extra_ns=7, window_ns=20, period_ns=50, seed=3)
    schedule = StallSchedule(stall, START)
    extras = [schedule.extra_ns(START + now) for now in range(100 * 50)]
    assert extras.count(7) == 100 * 20
    assert extras.count(0) == 100 * 30


def test_places_vary_and_repeat_with_the_seed() -> None:
    """Windows move from period to period; the same seed gives the same ones."""
    stall = Stall(seed=3)
    first, second = StallSchedule(stall, START), StallSchedule(stall, START)
    windows = [first.window(n) for n in range(20)]
    assert windows == [second.window(n) for n in range(20)]
    assert len({begin % stall.period_ns for begin, _ in windows}) > 10
    assert windows != [StallSchedule(Stall(seed=4), START).window(n) for n in range(20)]


def test_instants_may_skip_periods() -> None:
    """An idle line asks again much later; the answer is that period's."""
    stall = Stall(seed=1)
    begin, end = StallSchedule(stall, START).window(77)
    schedule = StallSchedule(stall, START)
    assert schedule.extra_ns(begin) == stall.extra_ns
    assert schedule.extra_ns(end) == 0


@pytest.mark.parametrize("values", [(-1, 1, 1), (1, 0, 1), (1, 2, 1)])
def test_impossible_stalls_are_refused(values: tuple[int, int, int]) -> None:
    """A negative extra and a window outside its period are errors."""
    with pytest.raises(LabError, match="window must be"):
        Stall(*values)
