# SPDX-License-Identifier: Apache-2.0
"""The score: terms, their weights, and what is not measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.playbook import MS, US
from xdp_router.core.model import ScoreWeights
from xdp_router.core.score import Measured, Terms, pick_weights, scores

EVEN = ScoreWeights(0.25, 0.25, 0.25, 0.25)


def test_each_term_by_itself() -> None:
    """The nearest, the quickest, the fullest cache and the emptiest queue have 1."""
    only = Measured(1 * MS, 100 * MS, 0.5, 10)
    other = Measured(4 * MS, 50 * MS, 0.25, 5)
    best, second = scores((only, other), EVEN)
    assert best == Terms((1 + 0.5 + 0.5 + 0) / 4, 1.0, 0.5, 0.5, 0.0)
    assert second == Terms((0.25 + 1 + 0.25 + 0.5) / 4, 0.25, 1.0, 0.25, 0.5)


def test_weights_say_what_counts() -> None:
    """With all of it on the queue nothing else matters."""
    near, idle = scores(
        (Measured(1 * MS, queue=8), Measured(9 * MS, queue=2)), ScoreWeights(0, 0, 0, 1)
    )
    assert (near.score, idle.score) == (0, 0.75)


def test_a_term_without_a_measurement_drops_out() -> None:
    """The weights that are left are rescaled, for each candidate by itself."""
    known, unknown = scores((Measured(2 * MS, cache=0.5), Measured(1 * MS)), EVEN)
    assert known.score == pytest.approx((0.5 + 0.5) / 2)
    assert unknown == Terms(1.0, 1.0)
    assert scores((Measured(),), EVEN) == [Terms(0.0)]


def test_round_trips_within_the_noise_are_equal() -> None:
    """Beyond it the difference to it counts, without a jump."""
    first, second, third = scores(
        (Measured(100 * US), Measured(130 * US), Measured(230 * US)), ScoreWeights(), 30 * US
    )
    assert (first.rtt, second.rtt, third.rtt) == (1.0, 1.0, 0.5)


def test_empty_queues_are_all_good() -> None:
    """Nobody has the longest one."""
    assert [each.queue for each in scores((Measured(queue=0), Measured(queue=0)), EVEN)] == [1, 1]


def test_what_is_known_beside_the_round_trip() -> None:
    """Any of the three, 0 too, is something that was told."""
    assert not Measured(5).is_told
    assert Measured(queue=0).is_told
    assert Measured(cache=0.0).is_told
    assert Measured(ttft_ns=1).is_told


def test_picks_go_by_weight_and_the_square_of_the_score() -> None:
    """Half the score is a quarter of the share; a weight of 2 is twice the share."""
    assert pick_weights((Terms(1.0), Terms(0.5), Terms(1.0)), (1, 1, 2)) == [1.0, 0.25, 2.0]


def test_without_any_score_the_weights_decide() -> None:
    """As when all have the longest queue, and nothing else counts."""
    assert pick_weights((Terms(0.0), Terms(0.0)), (1, 3)) == [1.0, 3.0]


_MAYBE = st.none() | st.floats(0, 1)


@given(
    st.lists(
        st.builds(
            Measured,
            st.none() | st.integers(1, 10**10),
            st.none() | st.integers(1, 10**11),
            _MAYBE,
            st.none() | st.floats(0, 10**6),
        ),
        max_size=8,
    ),
    st.integers(0, MS),
)
def test_scores_are_from_0_to_1(candidates: list[Measured], noise_ns: int) -> None:
    """Whatever is known; so is each term, and what is not known is None."""
    for each, known in zip(scores(candidates, EVEN, noise_ns), candidates, strict=True):
        assert 0 <= each.score <= 1 + 1e-9
        for term, value in (
            (each.rtt, known.rtt_ns),
            (each.ttft, known.ttft_ns),
            (each.cache, known.cache),
            (each.queue, known.queue),
        ):
            assert (term is None) is (value is None)
            assert term is None or 0 <= term <= 1


def test_a_full_cache_counts_only_where_it_has_a_weight() -> None:
    """By default it has none."""
    empty, full = Measured(1 * MS, usage=0.25), Measured(1 * MS, usage=0.75)
    assert [each.score for each in scores((empty, full), ScoreWeights())] == [1.0, 1.0]
    weights = ScoreWeights(0.5, 0, 0, 0, 0.5)
    assert [each.score for each in scores((empty, full), weights)] == [0.875, 0.625]
    assert full.is_told
