# SPDX-License-Identifier: Apache-2.0
"""The race for the first token: failures, refusals, and requests that are no race."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.race_playbook import play
from xdp_router.gateway.race_commands import (
    NS_PER_S,
    CancelLeg,
    GiveUp,
    HoldOff,
    RaceSettings,
    Reason,
    StartLeg,
    Win,
)
from xdp_router.gateway.ttft_race import RaceState, TtftRace

MS = 1_000_000
T0 = 7 * NS_PER_S

HEDGED = RaceSettings(width=2, hedge_ns=50 * MS, first_token_ns=10 * NS_PER_S)
AT_ONCE = RaceSettings(width=2, hedge_ns=0, first_token_ns=10 * NS_PER_S)
SINGLE = RaceSettings(width=1, first_token_ns=10 * NS_PER_S)
HEAD = RaceSettings(width=1, on_head=True, refusals=frozenset({429, 503}))
ONCE = RaceSettings(width=1, on_head=True, replayable=False)


def at(ms: float) -> int:
    """An instant of the test."""
    return T0 + int(ms * MS)


# Failures before the first token.


@pytest.mark.parametrize("settings", [SINGLE, HEDGED])
def test_who_cannot_be_connected_to_is_replaced(settings: RaceSettings) -> None:
    """By the next one, at once."""
    play(
        TtftRace(2, settings),
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1), "fail 0 CONNECT", [StartLeg(1, 1)]),
        (at(9), "head 1 200", []),
        (at(9), "token 1", [Win(1)]),
    )


def test_the_delay_begins_anew_with_a_replacement() -> None:
    """It had no time yet to be slow."""
    race = TtftRace(3, HEDGED)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(40), "fail 0 CRASH", [StartLeg(1, 1)]),
        (at(89), "expire", []),
        (at(90), "expire", [StartLeg(2, 2, hedge=True)]),
    )


def test_a_crash_before_the_first_token_is_not_seen_by_the_client() -> None:
    """Head and role had come already."""
    play(
        TtftRace(2, SINGLE),
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1), "connected 0", []),
        (at(8), "head 0 200", []),
        (at(20), "fail 0 CRASH", [StartLeg(1, 1)]),
    )


@pytest.mark.parametrize("reason", [Reason.ERROR, Reason.BAD_ANSWER])
def test_an_error_in_a_200_is_cancelled_and_replaced(reason: Reason) -> None:
    """Its connection still stands, so it has to be closed."""
    play(
        TtftRace(2, SINGLE),
        (at(0), "start", [StartLeg(0, 0)]),
        (at(8), "head 0 200", []),
        (at(9), f"fail 0 {reason.name}", [CancelLeg(0, reason), StartLeg(1, 1)]),
    )


def test_an_answer_without_a_token_is_replaced() -> None:
    """It is at its end, so there is nothing to cancel."""
    race = TtftRace(2, SINGLE)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(8), "head 0 200", []),
        (at(9), "end 0", [StartLeg(1, 1)]),
        (at(10), "head 1 200", []),
        (at(11), "end 1", [GiveUp(502, Reason.EMPTY)]),
    )
    assert race.state is RaceState.OVER


def test_who_does_not_connect_in_time_is_replaced() -> None:
    """A host that is gone says nothing at all."""
    race = TtftRace(2, SINGLE)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(999), "expire", []),
        (at(1000), "expire", [CancelLeg(0, Reason.CONNECT_TIMEOUT), StartLeg(1, 1)]),
        (
            at(2000),
            "expire",
            [
                CancelLeg(1, Reason.CONNECT_TIMEOUT),
                GiveUp(504, Reason.CONNECT_TIMEOUT),
            ],
        ),
    )


def test_replacements_are_bounded() -> None:
    """A request that kills engines does not kill them all."""
    race = TtftRace(9, SINGLE)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1), "fail 0 CRASH", [StartLeg(1, 1)]),
        (at(2), "fail 1 CRASH", [StartLeg(2, 2)]),
        (at(3), "fail 2 CRASH", [GiveUp(502, Reason.CRASH)]),
    )
    assert race.retries == 2


def test_a_failure_beside_a_leg_that_lives_gives_up_nothing() -> None:
    """While anybody is under way there may be an answer."""
    play(
        TtftRace(2, AT_ONCE),
        (at(0), "start", [StartLeg(0, 0), StartLeg(1, 1, hedge=True)]),
        (at(1), "fail 0 CRASH", []),
        (at(8), "head 1 200", []),
        (at(9), "token 1", [Win(1)]),
    )


def test_nobody_to_ask() -> None:
    """The client is told at once."""
    race = TtftRace(0, HEDGED)
    play(race, (at(0), "start", [GiveUp(503, Reason.NO_CANDIDATE)]))
    assert race.state is RaceState.OVER


def test_a_kept_connection_that_was_closed_is_no_failure_of_the_backend() -> None:
    """It is asked again by a fresh one, once, and that is no retry."""
    race = TtftRace(2, SINGLE)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(0), "connected 0", []),
        (at(1), "fail 0 STALE", [StartLeg(1, 0, fresh=True)]),
        (at(1), "connected 1", []),
        (at(2), "fail 1 STALE", [StartLeg(2, 1)]),
    )
    assert race.retries == 1


# Refusals.


def test_who_refuses_is_held_off_and_replaced() -> None:
    """Nobody asks it again before the time that it has said."""
    play(
        TtftRace(2, SINGLE),
        (at(0), "start", [StartLeg(0, 0)]),
        (
            at(5),
            "head 0 429 3",
            [
                HoldOff(0, at(5) + 3 * NS_PER_S),
                CancelLeg(0, Reason.REFUSED),
                StartLeg(1, 1),
            ],
        ),
    )


def test_no_backend_can_ask_to_be_left_alone_for_long() -> None:
    """A date of next year would be an outage."""
    play(
        TtftRace(2, SINGLE),
        (at(0), "start", [StartLeg(0, 0)]),
        (
            at(5),
            "head 0 503 86400",
            [
                HoldOff(0, at(5) + 60 * NS_PER_S),
                CancelLeg(0, Reason.REFUSED),
                StartLeg(1, 1),
            ],
        ),
    )


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_refusal_without_a_time_is_replaced(status: int) -> None:
    """A broken engine is the fastest one: its error does not win."""
    play(
        TtftRace(2, AT_ONCE),
        (at(0), "start", [StartLeg(0, 0), StartLeg(1, 1, hedge=True)]),
        (at(1), f"head 0 {status}", [CancelLeg(0, Reason.REFUSED)]),
        (at(8), "head 1 200", []),
        (at(9), "token 1", [Win(1)]),
    )


def test_if_all_refuse_the_last_answer_is_passed_on() -> None:
    """As it is, but for the time: the least that anybody has said."""
    race = TtftRace(2, SINGLE)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (
            at(1),
            "head 0 503 5",
            [
                HoldOff(0, at(1) + 5 * NS_PER_S),
                CancelLeg(0, Reason.REFUSED),
                StartLeg(1, 1),
            ],
        ),
        (
            at(2),
            "head 1 429 5",
            [
                HoldOff(1, at(2) + 5 * NS_PER_S),
                Win(1, refused=True, retry_after_ns=5 * NS_PER_S),
            ],
        ),
        (at(3), "end 1", []),
    )
    assert race.winner == 1
    assert race.state is RaceState.OVER


def test_the_best_refusal_is_told_if_the_last_one_is_worse() -> None:
    """To be busy is better than to be broken, and sooner is better than later."""
    play(
        TtftRace(2, SINGLE),
        (at(0), "start", [StartLeg(0, 0)]),
        (
            at(1),
            "head 0 429 2",
            [
                HoldOff(0, at(1) + 2 * NS_PER_S),
                CancelLeg(0, Reason.REFUSED),
                StartLeg(1, 1),
            ],
        ),
        (
            at(2),
            "head 1 500",
            [
                CancelLeg(1, Reason.REFUSED),
                GiveUp(429, Reason.REFUSED, 2 * NS_PER_S),
            ],
        ),
    )


def test_a_refusal_is_told_if_the_others_crashed() -> None:
    """It is the one thing that the client can act on."""
    play(
        TtftRace(2, AT_ONCE),
        (at(0), "start", [StartLeg(0, 0), StartLeg(1, 1, hedge=True)]),
        (at(1), "head 0 503", [CancelLeg(0, Reason.REFUSED)]),
        (at(2), "fail 1 CRASH", [GiveUp(503, Reason.REFUSED)]),
    )


def test_the_only_backend_says_itself_that_it_is_busy() -> None:
    """Its page passes untouched."""
    play(
        TtftRace(1, HEAD),
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1), "head 0 503", [Win(0, refused=True)]),
    )


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_what_is_the_clients_fault_is_an_answer(status: int) -> None:
    """Nobody else would say anything else."""
    play(
        TtftRace(2, AT_ONCE),
        (at(0), "start", [StartLeg(0, 0), StartLeg(1, 1, hedge=True)]),
        (at(1), f"head 0 {status}", [Win(0), CancelLeg(1, Reason.LOST)]),
    )


# Plain requests.


def test_where_the_head_decides() -> None:
    """Any status but a refusal; the first bytes of the body are timed all the same."""
    race = TtftRace(2, HEAD)
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1), "connected 0", []),
        (at(8), "head 0 500", [Win(0)]),
        (at(9), "token 0", []),
        (at(9), "end 0", []),
    )
    assert race.legs[0].token_ns == at(9)


def test_what_must_not_be_done_twice_is_not_asked_twice() -> None:
    """Once connected, a failure may come after the work was done."""
    play(
        TtftRace(3, ONCE),
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1), "fail 0 CONNECT", [StartLeg(1, 1)]),
        (at(2), "connected 1", []),
        (at(3), "fail 1 CRASH", [GiveUp(502, Reason.CRASH)]),
    )


def test_what_must_not_be_done_twice_is_not_asked_again_by_a_fresh_connection() -> None:
    """The kept one may have been closed after the work was done."""
    play(
        TtftRace(3, ONCE),
        (at(0), "start", [StartLeg(0, 0)]),
        (at(0), "connected 0", []),
        (at(3), "fail 0 STALE", [GiveUp(502, Reason.STALE)]),
    )


def test_a_refusal_was_not_done() -> None:
    """So another one may be asked even then."""
    play(
        TtftRace(3, ONCE),
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1), "connected 0", []),
        (at(3), "head 0 503", [CancelLeg(0, Reason.REFUSED), StartLeg(1, 1)]),
    )


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("fail 0 CRASH", [GiveUp(502, Reason.CRASH)]),
        ("fail 0 STALE", [GiveUp(502, Reason.STALE)]),
        ("head 0 503", [Win(0, refused=True)]),
        ("expire", []),
    ],
)
def test_a_request_that_is_not_kept_cannot_be_sent_again(said: str, answer: list[Any]) -> None:
    """A long body goes through; what is gone is gone."""
    race = TtftRace(3, RaceSettings(width=2, hedge_ns=50 * MS))
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1), "connected 0", []),
        (at(2), "freeze", []),
        (at(60), said, answer),
    )


def test_a_frozen_request_has_no_hedge_and_no_timer_for_one() -> None:
    """Whenever it was frozen."""
    race = TtftRace(3, HEDGED)
    play(race, (at(0), "start", [StartLeg(0, 0)]), (at(1), "connected 0", []))
    race.freeze()
    assert race.deadline() == at(10_000)
    before = TtftRace(3, AT_ONCE)
    play(before, (at(0), "freeze", []), (at(0), "start", [StartLeg(0, 0)]))
    assert before.hedges_denied == 0


def test_who_has_sent_a_head_was_connected() -> None:
    """Also if nobody has said so: it may have done its work."""
    race = TtftRace(3, RaceSettings(width=1, replayable=False))
    play(
        race,
        (at(0), "start", [StartLeg(0, 0)]),
        (at(3), "head 0 200", []),
        (at(4), "fail 0 CRASH", [GiveUp(502, Reason.CRASH)]),
    )
    assert race.legs[0].connected_ns == at(3)


def test_whoever_was_connected_may_have_begun() -> None:
    """Whatever its failure is called."""
    play(
        TtftRace(3, ONCE),
        (at(0), "start", [StartLeg(0, 0)]),
        (at(1), "connected 0", []),
        (at(2), "fail 0 CONNECT", [GiveUp(502, Reason.CONNECT)]),
    )
