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


@given(st.integers(0, 2**32), st.integers(0, 1_000), st.integers(1, 5))
def test_of_those_that_share_a_seed_one_stalls_at_a_time(
    seed: int, period: int, count: int
) -> None:
    """In each period just one does, and what it holds at the end is out before the next period."""
    windows = []
    for number in range(count):
        stall = Stall(50, 200, 500, seed, one_of=count, number=number)
        windows.append((*StallSchedule(stall, START).window(period), stall))
    stalling = [(begin, end, stall) for begin, end, stall in windows if end > begin]
    assert len(stalling) == 1
    ((begin, end, stall),) = stalling
    assert end - begin == 200
    assert begin >= START + period * 500
    if count > 1:
        assert end + stall.extra_ns <= START + (period + 1) * 500


def test_turns_are_drawn() -> None:
    """Each of three has about a third of the periods."""
    own = []
    for number in range(3):
        schedule = StallSchedule(Stall(50, 200, 500, one_of=3, number=number), START)
        windows = [schedule.window(period) for period in range(300)]
        own.append(sum(end > begin for begin, end in windows))
    assert sum(own) == 300
    assert all(70 < each < 130 for each in own)


def test_nothing_stalls_before_the_start() -> None:
    """A start may lie ahead: lines that are told one after the other begin together."""
    schedule = StallSchedule(Stall(7, 500, 500), START)
    assert schedule.extra_ns(START - 1) == 0
    assert schedule.extra_ns(START) == 7


@pytest.mark.parametrize("values", [{"one_of": 2, "number": 2}, {"number": -1}, {"one_of": 0}])
def test_numbers_are_below_the_count(values: dict[str, int]) -> None:
    """A backend that is not one of them would never stall."""
    with pytest.raises(LabError, match="count from 0"):
        Stall(**values)


def test_shared_stalls_fit_into_their_period() -> None:
    """Else two of them could stall at once."""
    assert Stall(50, 450, 500).slack_ns == 50
    with pytest.raises(LabError, match="window and extra must fit"):
        Stall(51, 450, 500, one_of=2)


@pytest.mark.parametrize("values", [(-1, 1, 1), (1, 0, 1), (1, 2, 1)])
def test_impossible_stalls_are_refused(values: tuple[int, int, int]) -> None:
    """A negative extra and a window outside its period are errors."""
    with pytest.raises(LabError, match="window must be"):
        Stall(*values)
