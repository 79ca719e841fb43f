# SPDX-License-Identifier: Apache-2.0
"""How long to wait for a first token before somebody else is asked, too."""

from __future__ import annotations

import random
from typing import Any

import pytest

from xdp_router.gateway.hedge_delay import LEAST_SAMPLES, MAX_MODELS, HedgeDelay

MS = 1_000_000


def filled(delay: HedgeDelay, model: str, samples: list[int], size: int = 0) -> HedgeDelay:
    """The same, with samples noted."""
    for sample in samples:
        delay.note(model, sample, size)
    return delay


def test_the_initial_delay_holds_until_enough_is_known() -> None:
    """A quantile of a few is chance."""
    delay = HedgeDelay(0.5, initial_ns=70 * MS)
    filled(delay, "m", [5 * MS] * (LEAST_SAMPLES - 1))
    assert delay.delay_ns("m") == 70 * MS
    delay.note("m", 5 * MS)
    assert delay.delay_ns("m") == 5 * MS


def test_the_delay_is_a_quantile_of_the_newest() -> None:
    """What was is forgotten when as many new ones have come."""
    delay = filled(HedgeDelay(0.9, window=20), "m", [each * MS for each in range(1, 21)])
    assert delay.delay_ns("m") == 18 * MS
    filled(delay, "m", [500 * MS] * 20)
    assert delay.delay_ns("m") == 500 * MS


def test_the_quantile_is_not_made_anew_for_each_request() -> None:
    """It may be eight samples old."""
    delay = filled(HedgeDelay(0.5, window=16), "m", [5 * MS] * 16)
    assert delay.delay_ns("m") == 5 * MS
    filled(delay, "m", [9 * MS] * 7)
    assert delay.delay_ns("m") == 5 * MS
    filled(delay, "m", [9 * MS] * 9)
    assert delay.delay_ns("m") == 9 * MS


def test_each_model_has_its_own() -> None:
    """A large one is slow by nature."""
    delay = HedgeDelay(0.5, initial_ns=70 * MS)
    filled(delay, "small", [5 * MS] * 20)
    filled(delay, "large", [900 * MS] * 20)
    assert [delay.delay_ns(name) for name in ("small", "large", "other")] == [
        5 * MS,
        900 * MS,
        70 * MS,
    ]


def test_long_prompts_have_their_own() -> None:
    """Until there are enough of a length, all lengths speak for it."""
    delay = HedgeDelay(0.5)
    filled(delay, "m", [5 * MS] * 40, size=500)
    assert delay.delay_ns("m", 100_000) == 5 * MS
    filled(delay, "m", [900 * MS] * 16, size=100_000)
    assert delay.delay_ns("m", 90_000) == 900 * MS
    assert delay.delay_ns("m", 400) == 5 * MS


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 1 << 40])
def test_any_length_has_a_class(size: int) -> None:
    """The largest ones share one."""
    delay = filled(HedgeDelay(0.5), "m", [5 * MS] * 16, size)
    assert delay.delay_ns("m", size) == 5 * MS


def test_a_delay_has_bounds() -> None:
    """Neither all at once by chance, nor never."""
    delay = HedgeDelay(0.5, least_ns=2 * MS, most_ns=9 * MS, initial_ns=70 * MS)
    assert delay.delay_ns("m") == 9 * MS
    assert filled(delay, "m", [1] * 20).delay_ns("m") == 2 * MS


def test_no_quantile_is_no_delay() -> None:
    """Everybody is asked at once, whatever was measured."""
    delay = filled(HedgeDelay(0.0), "m", [5 * MS] * 20)
    assert delay.delay_ns("m") == delay.delay_ns("other") == 0


def test_names_that_clients_make_up_do_not_pile_up() -> None:
    """Who is asked for now and then stays."""
    delay = HedgeDelay(0.5)
    filled(delay, "m", [5 * MS] * 16)
    for number in range(3 * MAX_MODELS):
        delay.note(f"made up {number}", MS)
        delay.note("m", 5 * MS)
    assert len(delay) == MAX_MODELS
    assert delay.delay_ns("m") == 5 * MS


def test_cancelled_first_legs_keep_the_delay_where_it_is(rng: random.Random) -> None:
    """One request in twenty is hedged, also when what would have been slow is cut short."""
    delay = HedgeDelay(0.95, window=256)
    hedged = 0
    rounds = 4000
    for number in range(rounds):
        took_ns = int(rng.lognormvariate(4, 0.5) * MS)
        wait_ns = delay.delay_ns("m")
        if took_ns > wait_ns:
            # The hedge has its token soon, and the first leg is cancelled.
            took_ns = min(took_ns, wait_ns + 20 * MS)
            hedged += number >= 256
        delay.note("m", took_ns)
    assert 0.03 < hedged / (rounds - 256) < 0.08


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"quantile": 1.0}, "quantile: expected 0 to below 1, found 1.0"),
        ({"window": 15}, "window: expected 16 or more, found 15"),
        ({"least_ns": 0}, "expected 0 < least <= most"),
        ({"least_ns": 9, "most_ns": 8}, "delays of 9 to 8 ns"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    """With what was expected."""
    with pytest.raises(ValueError, match=said):
        HedgeDelay(**given)
