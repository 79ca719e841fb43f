# SPDX-License-Identifier: Apache-2.0
"""Races among some of many backends, ties by score, and room for those who have tied."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from tests.support.cast import engine
from tests.support.playbook import MS, US
from tests.unit.test_race import BACKENDS, SERVICE, T0, first, probe, reply, sent, sequence
from xdp_router.core.commands import SendProbe, WriteBinding
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.events import BackendState, ProbeReply
from xdp_router.core.model import (
    Backend,
    Endpoint,
    Mode,
    Probe,
    ProbeAnswer,
    ProbeKind,
    Reason,
    Service,
)
from xdp_router.core.score_inputs import ScoreInputs
from xdp_router.core.selection import build_table
from xdp_router.core.strategy.base import ProbeSettings, Verdict
from xdp_router.core.strategy.probing import Servers, Shared
from xdp_router.core.strategy.race import RaceStrategy

SETTINGS = ProbeSettings(coalesce_window_ns=0, probe_rate=1_000_000, probe_burst=10_000)
MANY = Service(
    0,
    "web",
    Endpoint(0xC6126401, 80),
    tuple(Backend(number, f"b{number}", Endpoint(number, 80), 0) for number in range(1, 33)),
    candidates=4,
)


def race_of(service: Service, inputs: ScoreInputs | None = None) -> RaceStrategy:
    """All of its backends are up."""
    shared = Shared(Servers(SETTINGS), inputs or ScoreInputs(), random.Random(7).randrange)
    return RaceStrategy(
        (service,), {each.id for each in service.backends}, SETTINGS, sequence, shared
    )


def winner(
    race: RaceStrategy, service: Service, number: int, rtts_ns: dict[int, int]
) -> tuple[int, Reason]:
    """Who wins when all answers are looked at together."""
    at = T0 + number * 100 * MS
    _, steps = race.admit(service, first(number, at), at)
    answers = []
    for step in steps:
        assert isinstance(step, SendProbe)
        race.probe_sent(sent(step, at), at)
        answers.append(reply(step, at + rtts_ns[step.backend]))
    (verdict,) = race.probe_replies(answers, at + MS)
    assert isinstance(verdict, Verdict)
    return verdict.backend, verdict.reason


def test_some_of_many_take_part() -> None:
    """Others each time; all of them sooner or later."""
    race = race_of(MANY)
    seen: Counter[int] = Counter()
    for number in range(200):
        at = T0 + number * 100 * MS
        _, steps = race.admit(MANY, first(number, at), at)
        asked = [step.backend for step in steps if isinstance(step, SendProbe)]
        assert len(set(asked)) == len(steps) == 4
        seen.update(asked)
        race.expire(at + 60 * MS)
    assert len(seen) == 32


def test_refused_by_all_that_were_asked_is_not_refused_by_all() -> None:
    """The flow goes to one that was not asked; where all were, it is refused."""
    made = Engine([MANY], EngineSettings(), sequence_of_many, build_table)
    for backend in MANY.backends:
        made.handle(BackendState(backend.id, True), T0 - 1)
    steps = made.handle(first(1, T0), T0)
    asked = [step for step in steps if isinstance(step, SendProbe)]
    assert len(asked) == 4
    out = []
    for each in asked:
        made.handle(sent(each, T0), T0)
        event = ProbeReply(each.backend, 80, each.probe_port, each.seq, ProbeAnswer.RST, T0 + 9)
        out += made.handle(event, T0 + 10)
    (binding,) = out
    assert isinstance(binding, WriteBinding)
    assert (binding.mode, binding.reason) == (Mode.HASH, Reason.ALL_REFUSED)
    assert binding.backend not in {each.backend for each in asked}


def sequence_of_many(backend: Backend, port: int, nonce: int) -> int:
    """As ``sequence``."""
    return backend.id * 100_000 + port


def test_where_all_were_asked_a_refusal_by_all_is_one() -> None:
    """``candidates`` of a service that has no more changes nothing."""
    small = replace(SERVICE, candidates=4)
    made = Engine([small], EngineSettings(), sequence, build_table)
    for backend in small.backends:
        made.handle(BackendState(backend.id, True), T0 - 1)
    made.handle(first(1, T0), T0)
    out = []
    for number in (1, 2, 3):
        made.handle(sent(probe(number), T0), T0)
        out += made.handle(reply(probe(number), T0 + 9, ProbeAnswer.RST), T0 + 10)
    (binding,) = out
    assert isinstance(binding, WriteBinding)
    assert (binding.mode, binding.reason) == (Mode.REFUSED, Reason.ALL_REFUSED)
    assert engine(1).roster.mode_of(0) is Mode.RACE


def test_a_tie_goes_by_score_where_there_is_one() -> None:
    """The longer queue wins less often, in turns; what was told too long ago does not count."""
    inputs = ScoreInputs()
    service = replace(SERVICE, backends=BACKENDS[:2], score_age_ns=15_000 * MS)
    race = race_of(service, inputs)
    rtts = {1: 50 * US, 2: 55 * US}
    inputs.tell(1, {"queue": 10}, T0)
    inputs.tell(2, {"queue": 0}, T0)
    found = [winner(race, service, number, rtts) for number in range(130)]
    assert {reason for _, reason in found} == {Reason.TIE}
    # rtt 0.4 and queue 0.2, rescaled: 2/3 against 1, squared 4 to 9.
    assert Counter(backend for backend, _ in found) == {1: 40, 2: 90}
    late = [winner(race, service, number, rtts)[0] for number in range(200, 300)]
    assert 49 <= Counter(late)[1] <= 51


def test_those_who_tied_are_given_room() -> None:
    """At the edge of the window a tie stays one, up to twice the window, and then needs it anew."""
    service = replace(SERVICE, backends=BACKENDS[:2])
    race = race_of(service)
    rows = [
        (40, Reason.RACE_WON),
        (29, Reason.TIE),
        (40, Reason.TIE),
        (59, Reason.TIE),
        (61, Reason.RACE_WON),
        (40, Reason.RACE_WON),
        (30, Reason.TIE),
    ]
    for number, (apart, reason) in enumerate(rows):
        rtts = {1: 100 * US, 2: (100 + apart) * US}
        assert winner(race, service, number, rtts)[1] is reason, number
    race.apply((), SETTINGS)
    race.apply((service,), SETTINGS)
    assert winner(race, service, 99, {1: 100 * US, 2: 140 * US})[1] is Reason.RACE_WON


def test_what_another_kind_of_probe_took_is_forgotten() -> None:
    """Its round trip is no measurement of who is asked otherwise; what is counted goes on."""
    service = replace(SERVICE, backends=BACKENDS[:2])
    race = race_of(service)
    winner(race, service, 0, {1: 100 * US, 2: 900 * US})
    before = {number: race.stats(number) for number in (1, 2)}
    assert [each.last_rtt_ns for each in before.values() if each] == [100 * US, 900 * US]
    otherwise = replace(BACKENDS[1], probe=Probe(ProbeKind.ICMP))
    race.apply((replace(service, backends=(BACKENDS[0], otherwise)),), SETTINGS)
    found = race.stats(2)
    assert found is not None
    assert (found.last_rtt_ns, found.answers) == (0, 1)
    same = race.stats(1)
    assert same is not None
    assert same.last_rtt_ns == 100 * US
    tagged = replace(BACKENDS[0], vlan=7)
    race.apply((replace(service, backends=(tagged, otherwise)),), SETTINGS)
    moved = race.stats(1)
    assert moved is not None
    assert moved.last_rtt_ns == 0
