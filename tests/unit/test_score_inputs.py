# SPDX-License-Identifier: Apache-2.0
"""What is told of backends: kept with its instant, and forgotten by age."""

from __future__ import annotations

import pytest

from xdp_router.core.score import Measured
from xdp_router.core.score_inputs import SCRAPE, ScoreInputs, Told

S = 10**9


def test_nothing_was_told() -> None:
    """The round trip alone is known."""
    assert ScoreInputs().measured(1, 500, 10 * S, 0) == Measured(500)
    assert ScoreInputs().told(1) == {}


def test_each_value_has_an_age_of_its_own() -> None:
    """What was told later holds longer; what is told again holds anew."""
    inputs = ScoreInputs()
    inputs.tell(1, {"queue": 4, "cache": 0.5}, 100 * S)
    inputs.tell(1, {"ttft_ns": 2e8, "queue": 6}, 105 * S)
    assert inputs.measured(1, None, 10 * S, 109 * S) == Measured(None, 200_000_000, 0.5, 6)
    assert inputs.measured(1, None, 10 * S, 110 * S) == Measured(None, 200_000_000, None, 6)
    assert inputs.measured(1, None, 10 * S, 115 * S) == Measured(None)
    assert inputs.told(1)["queue"] == Told(6, 105 * S)


def test_backends_are_told_apart_and_can_be_forgotten() -> None:
    """What is said of one says nothing of another."""
    inputs = ScoreInputs()
    inputs.tell(1, {"queue": 4}, 0)
    assert inputs.measured(2, None, S, 0) == Measured()
    inputs.forget(1)
    inputs.forget(1)
    assert inputs.measured(1, None, S, 0) == Measured()


def test_an_unknown_input_is_refused_as_a_whole() -> None:
    """By name, and nothing of what came with it is kept."""
    inputs = ScoreInputs()
    with pytest.raises(ValueError, match="'load' is no input of a score: use ttft_ns"):
        inputs.tell(1, {"queue": 4, "load": 1}, 0)
    assert inputs.told(1) == {}


def test_the_newest_word_counts_whoever_has_it() -> None:
    """And it is known whose it was; who told what is too old is nobody."""
    inputs = ScoreInputs()
    inputs.tell(1, {"queue": 4, "usage": 0.5}, 100 * S, SCRAPE)
    inputs.tell(1, {"queue": 9}, 101 * S)
    found = inputs.measured(1, None, 10 * S, 102 * S)
    assert (found.queue, found.usage) == (9, 0.5)
    assert found.sources == (("queue", "push"), ("usage", "scrape"))
    inputs.tell(1, {"queue": 5}, 103 * S, SCRAPE)
    assert inputs.measured(1, None, 10 * S, 111 * S).sources == (("queue", "scrape"),)
