# SPDX-License-Identifier: Apache-2.0
"""The race for the first token, as conversations."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest

from tests.support.race_playbook import play, tell
from xdp_router.gateway.race_commands import (
    NS_PER_S,
    BreakOff,
    CancelLeg,
    GiveUp,
    RaceSettings,
    Reason,
    StartLeg,
    Win,
)
from xdp_router.gateway.race_leg import IllegalTransition, LegState
from xdp_router.gateway.ttft_race import RACE_TABLE, RaceInput, RaceState, TtftRace

MS = 1_000_000
T0 = 7 * NS_PER_S

HEDGED = RaceSettings(width=2, hedge_ns=50 * MS, first_token_ns=10 * NS_PER_S)
AT_ONCE = RaceSettings(width=2, hedge_ns=0, first_token_ns=10 * NS_PER_S)
SINGLE = RaceSettings(width=1, first_token_ns=10 * NS_PER_S)
HEAD = RaceSettings(width=1, on_head=True, refusals=frozenset({429, 503}))
ONCE = RaceSettings(width=1, on_head=True, replayable=False)

ARROWS = {
    ("ready", "start", "racing"),
    ("ready", "leave", "over"),
    ("racing", "win", "won"),
    ("racing", "give up", "over"),
    ("racing", "leave", "over"),
    ("won", "finish", "over"),
    ("won", "leave", "over"),
}


def at(ms: float) -> int:
    """An instant of the test."""
    return T0 + int(ms * MS)


def test_the_table_has_the_arrows_of_the_design_and_no_others() -> None:
    """READY → RACING → WON → OVER, and the short cuts to the end."""
    assert {
        (state.value, given.value, after.value)
        for state, row in RACE_TABLE.items()
        for given, after in row.items()
    } == ARROWS


# The race.


def test_a_hedge_loses() -> None:
    """The second candidate is asked after the delay, and cancelled when the first one speaks."""
    race = TtftRace(3, HEDGED)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1), "connected 0", []),
        (at(8), "head 0 200", []),
        (at(49), "expire", []),
        (at(50), "expire", [StartLeg(1, 1, hedge=True)]),
        (at(51), "connected 1", []),
        (at(60), "head 1 200", []),
        (at(86), "token 0", [Win(0), CancelLeg(1, Reason.LOST)]),
        (at(90), "token 0", []),
        (at(99), "end 0", []),
    )
    assert race.state is RaceState.OVER
    assert (race.winner, race.hedges, race.retries) == (0, 1, 0)
    assert race.legs[0].token_ns == at(86)


def test_a_hedge_wins() -> None:
    """Heads do not decide: the first one to have one loses."""
    race = TtftRace(2, HEDGED)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(8), "head 0 200", []),
        (at(50), "expire", [StartLeg(1, 1, hedge=True)]),
        (at(60), "head 1 200", []),
        (at(70), "token 1", [Win(1), CancelLeg(0, Reason.LOST)]),
    )
    assert race.deadline() is None


def test_a_finish_without_content_wins() -> None:
    """An answer that is empty is an answer."""
    race = TtftRace(1, SINGLE)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(8), "head 0 200", []),
        (at(9), "token 0", [Win(0)]),
        (at(9), "end 0", []),
    )
    assert race.winner == 0


def test_without_a_delay_all_are_asked_at_once() -> None:
    """Up to the width, best first."""
    race = TtftRace(3, AT_ONCE)
    play(race, (at(0), "start", [StartLeg(0, 0), StartLeg(1, 1, hedge=True)]))
    assert race.deadline() == at(1000)


def test_three_are_asked_one_after_the_other() -> None:
    """Each hedge starts the delay anew, until the width is reached."""
    race = TtftRace(9, RaceSettings(width=3, hedge_ns=50 * MS))
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(50), "expire", [StartLeg(1, 1, hedge=True)]),
        (at(99), "expire", []),
        (at(100), "expire", [StartLeg(2, 2, hedge=True)]),
        (at(500), "expire", []),
    )


def test_whom_the_budget_denies_is_not_a_hedge() -> None:
    """The next one that may be had is taken; if none may, the request stays with its first."""
    asked: list[int] = []

    def only_2(candidate: int) -> bool:
        asked.append(candidate)
        return candidate == 2

    play(
        TtftRace(3, HEDGED, only_2),
        (at(0), "start", [StartLeg(0, 0)]),
        (at(50), "expire", [StartLeg(1, 2, hedge=True)]),
        # Who was passed over as a hedge is still there as a replacement.
        (at(51), "fail 0 CRASH", [StartLeg(2, 1)]),
    )
    assert asked == [1, 2]
    denied = TtftRace(2, HEDGED, lambda _: False)
    play(
        denied,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(50), "expire", []),
        (at(60), "expire", []),
    )
    assert (denied.hedges, denied.hedges_denied) == (0, 1)


def test_a_denied_budget_leaves_one_when_all_are_asked_at_once() -> None:
    """The first leg is never denied."""
    race = TtftRace(3, AT_ONCE, lambda _: False)
    play(race, (at(0), "start", [StartLeg(0, 0)]))
    assert race.hedges_denied == 1


def test_one_candidate_is_no_race() -> None:
    """There is nobody to ask beside it, and no timer for it."""
    race = TtftRace(1, HEDGED)
    play(race, (at(0), "start", [StartLeg(0, 0)]), (at(1), "connected 0", []))
    assert race.deadline() == at(10_000)


def test_what_comes_of_a_cancelled_leg_changes_nothing() -> None:
    """It was on its way when the connection was closed."""
    race = TtftRace(2, AT_ONCE)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0), StartLeg(1, 1, hedge=True)]),
        (at(8), "head 0 200", []),
        (at(9), "token 0", [Win(0), CancelLeg(1, Reason.LOST)]),
        (at(9), "connected 1", []),
        (at(9), "head 1 503 9", []),
        (at(9), "token 1", []),
        (at(9), "fail 1 ERROR", []),
        (at(9), "end 1", []),
    )
    assert race.legs[1].reason is Reason.LOST


# Time.


def test_the_first_token_has_a_deadline() -> None:
    """All are cancelled, and the client is told 504."""
    race = TtftRace(2, HEDGED)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1), "connected 0", []),
        (at(50), "expire", [StartLeg(1, 1, hedge=True)]),
        (at(51), "connected 1", []),
        (at(52), "head 1 200", []),
        (at(9999), "expire", []),
        (
            at(10_000),
            "expire",
            [
                CancelLeg(0, Reason.DEADLINE),
                CancelLeg(1, Reason.DEADLINE),
                GiveUp(504, Reason.DEADLINE),
            ],
        ),
        (at(10_001), "expire", []),
    )


def test_the_timer_is_for_what_comes_next() -> None:
    """The hedge, then a connection, then the first token; none when there is nothing to do."""
    race = TtftRace(2, HEDGED)
    assert race.deadline() is None
    race.start(at(0))
    assert race.deadline() == at(50)
    race.expire(at(50))
    assert race.deadline() == at(1000)
    race.leg_connected(0, at(51))
    assert race.deadline() == at(1050)
    race.leg_connected(1, at(52))
    assert race.deadline() == at(10_000)
    race.leg_head(0, 200, at(53))
    race.leg_token(0, at(54))
    assert race.deadline() is None


def test_a_late_timer_does_all_that_is_due() -> None:
    """The loop was busy: a replacement, and the hedge with it."""
    play(
        TtftRace(3, RaceSettings(width=2, hedge_ns=1500 * MS)),
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1600), "expire", [CancelLeg(0, Reason.CONNECT_TIMEOUT), StartLeg(1, 1)]),
        (at(2600), "expire", [CancelLeg(1, Reason.CONNECT_TIMEOUT), StartLeg(2, 2)]),
    )


def test_a_hedge_that_is_due_when_all_is_over_is_not_made() -> None:
    """The last leg was given up at the same moment."""
    play(
        TtftRace(2, RaceSettings(width=2, hedge_ns=1000 * MS, retries=0)),
        (at(0), "start", [StartLeg(0, 0)]),
        (
            at(1000),
            "expire",
            [CancelLeg(0, Reason.CONNECT_TIMEOUT), GiveUp(504, Reason.CONNECT_TIMEOUT)],
        ),
    )


# After the first byte.


def test_a_crash_after_the_first_byte_is_told_and_not_mended() -> None:
    """Another answer cannot go on where this one broke."""
    race = TtftRace(3, SINGLE)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(8), "head 0 200", []),
        (at(9), "token 0", [Win(0)]),
        (at(20), "fail 0 CRASH", [BreakOff(0, Reason.CRASH)]),
    )
    assert race.state is RaceState.OVER
    assert race.legs[0].reason is Reason.CRASH


def test_an_answer_that_cannot_be_read_any_more_is_cancelled_too() -> None:
    """Its connection still stands."""
    play(
        TtftRace(3, SINGLE),
        (at(0), "start", [StartLeg(0, 0)]),
        (at(8), "head 0 200", []),
        (at(9), "token 0", [Win(0)]),
        (
            at(20),
            "fail 0 BAD_ANSWER",
            [BreakOff(0, Reason.BAD_ANSWER), CancelLeg(0, Reason.BAD_ANSWER)],
        ),
    )


@pytest.mark.parametrize("won", [False, True])
def test_a_client_that_goes_ends_all(won: bool) -> None:
    """Before the first token and after it."""
    race = TtftRace(2, AT_ONCE)
    play(race, (at(0), "start", [StartLeg(0, 0), StartLeg(1, 1, hedge=True)]))
    play(race, (at(8), "head 0 200", []))
    cancelled = [CancelLeg(0, Reason.CLIENT_GONE)]
    if won:
        play(race, (at(9), "token 0", [Win(0), CancelLeg(1, Reason.LOST)]))
    else:
        cancelled.append(CancelLeg(1, Reason.CLIENT_GONE))
    play(race, (at(20), "gone", cancelled))
    assert race.state is RaceState.OVER


def test_a_client_may_go_before_anything_was_asked() -> None:
    """Its request was waiting for its turn."""
    play(TtftRace(2, HEDGED), (at(0), "gone", []))


# The caller's mistakes.

READY: list[str] = []
RACING = ["start"]
HEADED = ["start", "head 0 200"]
WON = ["start", "head 0 200", "token 0"]
OVER = ["start", "head 0 200", "token 0", "end 0"]
GIVEN_UP = ["start", "fail 0 CONNECT"]

LEGAL = {
    "start": [READY],
    "gone": [READY, RACING, HEADED, WON],
    "connected 0": [RACING],
    "head 0 200": [RACING],
    "token 0": [HEADED, WON],
    "fail 0 CRASH": [RACING, HEADED, WON],
    "end 0": [HEADED, WON],
    "connected 7": [],
    "token -1": [],
    "expire": [READY, RACING, HEADED, WON, OVER, GIVEN_UP],
    "freeze": [READY, RACING, HEADED, WON, OVER, GIVEN_UP],
}


def all_of(race: TtftRace) -> dict[str, Any]:
    """Everything that a race remembers."""
    return {name: copy.deepcopy(getattr(race, name)) for name in race.__slots__}


@pytest.mark.parametrize(
    ("before", "said"),
    list(itertools.product([READY, RACING, HEADED, WON, OVER, GIVEN_UP], LEGAL)),
)
def test_illegal_input_raises_and_changes_nothing(before: list[str], said: str) -> None:
    """Every input in every state either has its arrow or is refused with what is legal."""
    race = TtftRace(1, SINGLE)
    for step, each in enumerate(before):
        tell(race, each, at(step))
    if before in LEGAL[said]:
        tell(race, said, at(9))
        return
    remembered = all_of(race)
    with pytest.raises(IllegalTransition, match="it accepts"):
        tell(race, said, at(9))
    assert all_of(race) == remembered


@pytest.mark.parametrize("state", [LegState.HEADED, LegState.CANCELLED])
def test_a_reason_that_is_none_of_the_callers_is_refused(state: LegState) -> None:
    """Whether a leg was slow or lost, the race says itself."""
    race = TtftRace(1, SINGLE)
    race.start(at(0))
    race.legs[0].state = state
    remembered = all_of(race)
    with pytest.raises(ValueError, match="CRASH.*not by LOST"):
        race.leg_failed(0, Reason.LOST, at(1))
    assert all_of(race) == remembered


def test_every_input_of_the_race_is_used() -> None:
    """No row is there for nothing."""
    used = {given for row in RACE_TABLE.values() for given in row}
    assert used == set(RaceInput)
