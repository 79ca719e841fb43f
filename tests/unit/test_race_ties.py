# SPDX-License-Identifier: Apache-2.0
"""Weights in a race: whose turn it is to be asked first, and who wins among equals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.support.playbook import MS, US
from tests.unit.test_race import BACKENDS, SERVICE, T0, first, probe, race_of, reply, sent
from xdp_router.core.commands import SendProbe
from xdp_router.core.model import NO_BACKEND, Endpoint, ProbeAnswer, Reason, Service
from xdp_router.core.strategy.base import BackendStats, ProbeSettings, Step, Verdict
from xdp_router.core.strategy.race import RaceStrategy

WEIGHED = tuple(
    replace(backend, weight=weight) for backend, weight in zip(BACKENDS, (1, 3, 1), strict=True)
)
WEIGHED_SERVICE = replace(SERVICE, backends=WEIGHED)


def weighed_race() -> RaceStrategy:
    """Candidates 1 and 2, of weights 1 and 3; the budget does not matter."""
    settings = ProbeSettings(coalesce_window_ns=0, probe_rate=1_000_000, probe_burst=1000)
    return race_of(1, 2, services=(WEIGHED_SERVICE,), settings=settings)[0]


def raced(race: RaceStrategy, number: int, rtts_ns: dict[int, int], together: bool) -> int:
    """Who wins when each is probed 5 us after the other, and answers come one by one, or
    are looked at when all of them are there."""
    at = T0 + number * MS
    before = race.counters["races_tied"]
    _, steps = race.admit(WEIGHED_SERVICE, first(number, at), at)
    answers = []
    for index, step in enumerate(steps):
        assert isinstance(step, SendProbe)
        sent_ns = at + index * 5 * US
        race.probe_sent(sent(step, sent_ns), sent_ns)
        answers.append(reply(step, sent_ns + rtts_ns[step.backend]))
    answers.sort(key=lambda each: each.received_ns)
    batches = [answers] if together else [[each] for each in answers]
    verdicts: list[Step] = []
    for batch in batches:
        verdicts += race.probe_replies(batch, batch[-1].received_ns)
    (verdict,) = verdicts
    assert isinstance(verdict, Verdict)
    tied = race.counters["races_tied"] > before
    assert verdict.reason is (Reason.TIE if tied else Reason.RACE_WON)
    return verdict.backend


@pytest.mark.parametrize("together", [False, True])
def test_equals_win_by_weight(together: bool) -> None:
    """As fast as each other, weights 1 and 3: 25 % and 75 %, by the head start or by the tie."""
    race = weighed_race()
    won = Counter(raced(race, number, {1: 40 * US, 2: 40 * US}, together) for number in range(400))
    assert won == {1: 100, 2: 300}
    assert race.counters["races_tied"] == (400 if together else 0)


@pytest.mark.parametrize("together", [False, True])
def test_a_faster_one_wins_whatever_its_weight(together: bool) -> None:
    """Beyond the noise the round trip alone counts."""
    race = weighed_race()
    won = Counter(raced(race, number, {1: 40 * US, 2: 71 * US}, together) for number in range(100))
    assert won == {1: 100}
    assert race.counters["races_tied"] == 0


def test_of_answers_that_are_there_together_the_shortest_round_trip_wins() -> None:
    """Not the one that was asked, and so came, first."""
    race, _ = race_of(1, 2)
    evidence, _ = race.admit(SERVICE, first(1, T0), T0)
    race.probe_sent(sent(probe(1), T0), T0)
    race.probe_sent(sent(probe(2), T0 + 100 * US), T0 + 100 * US)
    both = (reply(probe(1), T0 + 110 * US), reply(probe(2), T0 + 120 * US))
    (verdict,) = race.probe_replies(both, T0 + 130 * US)
    assert isinstance(verdict, Verdict)
    assert verdict.backend == 2
    assert evidence.answered == [1, 2]
    assert [record.tied for record in evidence.records] == [False, False]
    assert race.stats(2) == BackendStats(wins=1, answers=1, last_rtt_ns=20 * US)
    assert race.stats(1) == BackendStats(answers=1, last_rtt_ns=110 * US)
    assert race.counters["probe_answers_late"] == 0


def test_a_tie_is_noted_with_those_that_it_was_between() -> None:
    """Without the slower one; a later answer, however fast, is none of it."""
    race, _ = race_of(1, 2, 3)
    evidence, _ = race.admit(SERVICE, first(1, T0), T0)
    for number in (1, 2, 3):
        race.probe_sent(sent(probe(number), T0 + number), T0 + number)
    race.probe_replies((reply(probe(3), T0 + 50 * US), reply(probe(1), T0 + 69 * US)), T0 + 80 * US)
    assert race.probe_reply(reply(probe(2), T0 + 51 * US), T0 + 90 * US) == ()
    assert [record.tied for record in evidence.records] == [True, False, True]


def test_refusals_among_answers_that_are_there_together() -> None:
    """They lose, tie or not; and when all are refusals, the race ends once."""
    race, _ = race_of(1, 2)
    leader = first(1, T0)
    race.admit(SERVICE, leader, T0)
    mixed = (reply(probe(1), T0 + 1, ProbeAnswer.RST), reply(probe(2), T0 + 2))
    assert race.probe_replies(mixed, T0 + 3) == [Verdict(leader, 2, Reason.RACE_WON)]
    other, _ = race_of(1, 2)
    other.admit(SERVICE, leader, T0)
    refused = tuple(reply(probe(number), T0 + 1, ProbeAnswer.RST) for number in (1, 2))
    assert other.probe_replies(refused, T0 + 3) == [Verdict(leader, NO_BACKEND, Reason.ALL_REFUSED)]
    assert other.open_races == 0


def test_answers_of_two_races_that_are_there_together() -> None:
    """Each is decided by its own."""
    second = Service(1, "second", Endpoint(0xC6126402, 80), BACKENDS[1:2])
    race, _ = race_of(1, 2, services=(SERVICE, second))
    one, two = first(1, T0), first(2, T0, 1)
    race.admit(SERVICE, one, T0)
    race.admit(second, two, T0)
    answers = (reply(probe(2, 61_001), T0 + 1), reply(probe(1), T0 + 2))
    assert race.probe_replies(answers, T0 + 3) == [
        Verdict(two, 2, Reason.RACE_WON),
        Verdict(one, 1, Reason.RACE_WON),
    ]


def test_a_service_s_turns_are_its_own() -> None:
    """Races of another service do not move them."""
    other = Service(1, "other", Endpoint(0xC6126402, 80), (replace(BACKENDS[2], service=1),))
    race, _ = race_of(1, 2, 3, services=(replace(SERVICE, backends=BACKENDS[:2]), other))
    asked = []
    for number in range(4):
        at = T0 + number * 100 * MS
        _, steps = race.admit(replace(SERVICE, backends=BACKENDS[:2]), first(number, at), at)
        asked += [step.backend for step in steps[:1] if isinstance(step, SendProbe)]
        race.admit(other, first(number + 10, at, 1), at)
        race.expire(at + 60 * MS)
    assert asked == [1, 2, 1, 2]
