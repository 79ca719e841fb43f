# SPDX-License-Identifier: Apache-2.0
"""The estimate of a server's round trip: average, windowed minimum, unanswered probes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.playbook import MS, US
from xdp_router.core.estimator import KEPT, RttEstimator


def measured(*rtts_ns: int, every_ns: int = 10 * MS) -> tuple[RttEstimator, int]:
    """An estimator whose probes, one each interval, took so long; and the next instant."""
    estimator, now = RttEstimator(), 1_000 * MS
    for rtt in rtts_ns:
        estimator.sent(now)
        assert estimator.answered(now, rtt)
        now += every_ns
    return estimator, now


def test_nothing_is_known_before_the_first_answer() -> None:
    """Neither a round trip nor, without a probe, a silence."""
    estimator = RttEstimator()
    assert (estimator.rtt_ns(5), estimator.silent_ns(5)) == (0, 0)
    estimator.sent(5)
    assert estimator.rtt_ns(50 * MS) == 0
    assert estimator.silent_ns(50 * MS) == 50 * MS - 5


def test_the_first_answer_is_the_estimate() -> None:
    """There is nothing to smooth it with."""
    estimator, now = measured(120 * US)
    assert estimator.rtt_ns(now) == 120 * US


def test_one_slow_answer_changes_nothing() -> None:
    """It is not the least of the newest ones."""
    estimator, now = measured(100 * US, 100 * US, 5 * MS, 100 * US)
    assert estimator.rtt_ns(now) == 100 * US


def test_answers_that_stay_slow_raise_it_step_by_step() -> None:
    """From the third on, by a quarter of the difference each."""
    estimator, now = measured(*[1 * MS] * 3, *[21 * MS] * 2)
    assert estimator.rtt_ns(now) == 1 * MS
    estimator, now = measured(*[1 * MS] * 3, *[21 * MS] * 3)
    assert estimator.rtt_ns(now) == 6 * MS
    estimator, now = measured(*[1 * MS] * 3, *[21 * MS] * 20)
    assert 20 * MS < estimator.rtt_ns(now) <= 21 * MS


def test_it_falls_faster_than_it_rises() -> None:
    """Five intervals after a stall of 50 ms it is back to where it was, nearly."""
    estimator, now = measured(*[50 * MS] * 10, *[100 * US] * 5)
    assert estimator.rtt_ns(now) < 200 * US


def test_an_unanswered_probe_counts_at_once_by_its_age() -> None:
    """The estimate grows with it, from when it is older than the estimate on."""
    estimator, now = measured(*[100 * US] * 3)
    estimator.sent(now)
    assert estimator.rtt_ns(now + 50 * US) == 100 * US
    assert estimator.rtt_ns(now + 7 * MS) == 7 * MS
    estimator.sent(now + 10 * MS)
    assert estimator.rtt_ns(now + 12 * MS) == 12 * MS


def test_an_answer_to_a_later_probe_ends_the_silence() -> None:
    """What an earlier one brings then, or never brings, says nothing of the present."""
    estimator, now = measured(*[100 * US] * 3)
    estimator.sent(now)
    estimator.sent(now + 10 * MS)
    assert estimator.answered(now + 10 * MS, 100 * US)
    assert estimator.rtt_ns(now + 40 * MS) == 100 * US
    assert not estimator.answered(now, 50 * MS)
    assert estimator.rtt_ns(now + 50 * MS) == 100 * US


def test_an_answer_to_an_earlier_probe_leaves_the_later_ones_unanswered() -> None:
    """The silence is as old as the oldest of those."""
    estimator, now = measured(*[100 * US] * 3)
    for number in range(4):
        estimator.sent(now + number * 10 * MS)
    assert estimator.answered(now + 10 * MS, 20 * MS)
    assert estimator.silent_ns(now + 31 * MS) == 11 * MS


def test_a_lost_probe_counts_as_a_slow_one() -> None:
    """By a quarter of what it took; the next answers take most of that away."""
    estimator, now = measured(*[100 * US] * 3)
    estimator.lost(1_000 * MS)
    assert estimator.rtt_ns(now) == 100 * US + (999_900 * US >> 2)


def test_a_server_that_says_nothing_for_long_is_remembered_by_its_oldest_probe() -> None:
    """However many are sent, no more than a few hundred are kept."""
    estimator, now = measured(100 * US)
    for number in range(10 * KEPT):
        estimator.sent(now + number * MS)
    assert estimator.silent_ns(now + 10 * KEPT * MS) == 10 * KEPT * MS
    estimator.answered(now + (10 * KEPT - 1) * MS, 100 * US)
    assert estimator.silent_ns(now + 10 * KEPT * MS) == 0


def test_forgetting_and_abandoning() -> None:
    """The one begins anew, the other keeps the average and waits for nothing."""
    estimator, now = measured(*[100 * US] * 3)
    estimator.sent(now)
    estimator.abandon()
    assert estimator.rtt_ns(now + 50 * MS) == estimator.average_ns == 100 * US
    estimator.forget()
    assert estimator.rtt_ns(now) == 0


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10**9), st.booleans()), max_size=60))
def test_the_estimate_is_never_below_the_oldest_unanswered_probe(
    steps: list[tuple[int, int, bool]],
) -> None:
    """Whatever is answered in whatever order; nor above all that was ever seen."""
    estimator, now = RttEstimator(), 10**9
    open_: list[int] = []
    seen = [0]
    for which, rtt, answers in steps:
        now += 10 * MS
        if answers and open_:
            sent = open_.pop(which % len(open_))
            if estimator.answered(sent, rtt):
                seen.append(rtt)
                open_ = [each for each in open_ if each > sent]
        else:
            estimator.sent(now)
            open_.append(now)
        silent = now - open_[0] if open_ else 0
        assert estimator.silent_ns(now) == silent
        assert estimator.rtt_ns(now) <= max(*seen, silent, 0)
        if estimator.average_ns:
            assert estimator.rtt_ns(now) >= silent
