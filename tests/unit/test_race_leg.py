# SPDX-License-Identifier: Apache-2.0
"""One leg of a race: its table of states, and which refusal is the best."""

from __future__ import annotations

import itertools

import pytest

from xdp_router.gateway.race_commands import Reason
from xdp_router.gateway.race_leg import (
    LEG_TABLE,
    LIVE,
    IllegalTransition,
    Leg,
    LegInput,
    LegState,
    best_refusal,
    least_retry_after,
)

ARROWS = {
    ("asked", "connect", "connected"),
    ("asked", "head", "headed"),
    ("asked", "fail", "failed"),
    ("asked", "cancel", "cancelled"),
    ("connected", "head", "headed"),
    ("connected", "fail", "failed"),
    ("connected", "cancel", "cancelled"),
    ("headed", "token", "winner"),
    ("headed", "fail", "failed"),
    ("headed", "end", "ended"),
    ("headed", "cancel", "cancelled"),
    ("winner", "token", "winner"),
    ("winner", "fail", "failed"),
    ("winner", "end", "ended"),
    ("winner", "cancel", "cancelled"),
}


def test_the_table_has_the_arrows_of_the_design_and_no_others() -> None:
    """And a cancelled leg stays cancelled, whatever still comes of it."""
    late = {
        ("cancelled", given.value, "cancelled") for given in LegInput if given.value != "cancel"
    }
    assert {
        (state.value, given.value, after.value)
        for state, row in LEG_TABLE.items()
        for given, after in row.items()
    } == ARROWS | late


@pytest.mark.parametrize(("state", "given"), list(itertools.product(LegState, LegInput)))
def test_every_pair_either_moves_or_raises_and_stays(state: LegState, given: LegInput) -> None:
    """Input that the table does not have raises, says why, and leaves the state as it was."""
    leg = Leg(0, 1, state=state)
    after = LEG_TABLE[state].get(given)
    if after is not None:
        assert leg.check(given) is leg
        assert leg.state is state
        assert leg.apply(given).state is after
        return
    for attempt in (leg.check, leg.apply):
        with pytest.raises(IllegalTransition, match=f"{state.value} cannot {given.value}; it acc"):
            attempt(given)
        assert leg.state is state


def test_whoever_is_live_can_be_cancelled() -> None:
    """And whoever has won; nobody else."""
    can = {state for state, row in LEG_TABLE.items() if LegInput.CANCEL in row}
    assert can == LIVE | {LegState.WINNER}


def refused(status: int, retry_after_ns: int | None = None) -> Leg:
    """A leg that refused."""
    return Leg(0, 1, status=status, retry_after_ns=retry_after_ns, reason=Reason.REFUSED)


BEST = {
    "none": ([], None),
    "nobody refused": ([Leg(0, 1, status=503, reason=Reason.LOST)], None),
    "the only one": ([refused(500)], 0),
    "busy before broken": ([refused(500, 1), refused(429, 9), refused(502)], 1),
    "sooner before later": ([refused(429, 9), refused(503, 3), refused(429, 5)], 1),
    "who says when before who does not": ([refused(429, 9), refused(429)], 0),
    "the newest of equals": ([refused(429), refused(503)], 1),
}


@pytest.mark.parametrize(("legs", "best"), BEST.values(), ids=BEST)
def test_the_best_refusal(legs: list[Leg], best: int | None) -> None:
    """What a client can do most with."""
    assert best_refusal(legs) is (None if best is None else legs[best])


def test_the_least_time_of_all_is_what_a_client_is_told() -> None:
    """By then somebody may have room again."""
    assert least_retry_after([refused(429, 9), refused(500), refused(503, 3)]) == 3
    assert least_retry_after([refused(429)]) is None
