# SPDX-License-Identifier: Apache-2.0
"""Conversations about backends that die: when, and when not, and who is told."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

import pytest

from tests.support.cast import BACKENDS, DEFAULTS, service
from tests.support.health_cast import SETTINGS, HealthWorld, S, dead, only
from tests.support.playbook import MS
from xdp_router.core.commands import (
    Command,
    EndFlows,
    FindReplies,
    HealthNews,
    SetBackendDead,
    SetBackendUp,
)
from xdp_router.core.events import BackendDrain, BackendState, FlowsEnded, FlowSigns, RepliesFound
from xdp_router.core.model import (
    Backend,
    Endpoint,
    Mode,
    ProbeAnswer,
    Service,
    Signs,
)

ILL, WELL, DEAD = HealthNews.ILL, HealthNews.WELL, HealthNews.DEAD
SILENT = None


def test_a_backend_that_is_silent_in_every_way_is_dead() -> None:
    """As soon as it is ill: marked, its clients told; when it rises the mark goes first."""
    world = HealthWorld()
    world.run(S)
    began_ns = world.now_ns
    dead(world)
    assert world.now_ns - began_ns <= 4 * S + 200 * MS
    find, mark, tell = only(world.said, FindReplies, SetBackendDead, EndFlows)
    assert isinstance(find, FindReplies)
    assert began_ns <= find.since_ns <= began_ns + S + 100 * MS
    assert (mark, tell) == (SetBackendDead(1, True), EndFlows(1))
    assert world.news(1) == [ILL, DEAD]
    assert world.usable == {2, 3}
    assert world.engine.standing.is_dead(1)
    world.run(10 * S)
    assert len(only(world.said, EndFlows)) == 1, "once"
    world.answers[1] = ProbeAnswer.SYNACK
    said = world.run(4 * S)
    assert only(said, SetBackendDead, SetBackendUp) == [
        SetBackendDead(1, False),
        SetBackendUp(1, True),
    ]
    assert not world.engine.standing.is_dead(1)


@pytest.mark.parametrize("answer", [ProbeAnswer.RST, ProbeAnswer.UNEXPECTED])
def test_who_answers_badly_is_not_dead(answer: ProbeAnswer) -> None:
    """A restart closes the listener while old connections are served."""
    world = HealthWorld()
    world.fall(1, answer)
    world.run(30 * S)
    assert only(world.said, FindReplies, EndFlows) == []


def test_who_is_heard_on_a_flow_is_not_dead() -> None:
    """It is asked again, ever less often; when that ends it is dead."""
    world = HealthWorld()
    world.heard.add(1)
    world.fall(1, SILENT)
    world.run(40 * S)
    asked = len(only(world.said, FindReplies))
    assert 4 <= asked <= 7
    assert DEAD not in world.news()
    world.heard.clear()
    world.run(33 * S)
    assert world.dead == {1}


def test_new_flows_that_are_answered_are_a_sign_of_life() -> None:
    """Then nobody even looks."""
    world = HealthWorld()
    world.answers[1] = SILENT
    for _ in range(80):
        world.signs(1, answered=1)
        world.run(100 * MS)
    assert world.news(1) == [ILL]
    assert only(world.said, FindReplies) == []


def test_a_next_hop_that_is_lost_is_silence() -> None:
    """Its probes cannot even be sent: it is dead as soon as one that does not answer."""
    world = HealthWorld()
    world.tell(BackendState(1, False, lost=True))
    world.run(3 * S + 600 * MS)
    assert world.dead == {1}
    world.tell(BackendState(1, True))
    assert world.usable == {2, 3}
    world.run(3 * S)
    assert world.usable == {1, 2, 3}


def test_an_interface_that_is_gone_is_not_the_backends_death() -> None:
    """Nobody could have heard it: flows outlive that."""
    world = HealthWorld()
    world.answers[1] = SILENT
    world.run(2 * S)
    world.tell(BackendState(1, False))
    world.run(20 * S)
    world.answers[1] = ProbeAnswer.SYNACK
    world.tell(BackendState(1, True))
    assert world.usable == {1, 2, 3}
    world.run(5 * S)
    assert world.news() == []


def test_who_wants_no_resets_has_none() -> None:
    """It is ill, and no more; a change of that is taken at once, either way."""
    world = HealthWorld(health=dataclasses.replace(SETTINGS, reset_on_death=False))
    world.fall(1, SILENT)
    world.run(10 * S)
    assert only(world.said, FindReplies, EndFlows) == []
    world.services = [dataclasses.replace(each, health=SETTINGS) for each in world.services]
    world.obey(world.engine.apply(world.services, DEFAULTS, world.now_ns))
    world.run(S)
    assert world.dead == {1}
    off = dataclasses.replace(SETTINGS, reset_on_death=False)
    world.services = [dataclasses.replace(each, health=off) for each in world.services]
    world.obey(world.engine.apply(world.services, DEFAULTS, world.now_ns))
    assert world.dead == set()
    assert world.usable == {2, 3}


def test_all_who_fall_silent_together_are_spared() -> None:
    """It is the way to them: streams wait. When the first is back, the others are dead."""
    world = HealthWorld()
    for backend in (1, 2, 3):
        world.answers[backend] = SILENT
    world.run(20 * S)
    assert world.news().count(ILL) == 3
    assert only(world.said, FindReplies, EndFlows) == []
    assert world.usable == {1, 2, 3}
    world.answers[3] = ProbeAnswer.SYNACK
    world.run(40 * S)
    assert world.dead == {1, 2}


@pytest.mark.parametrize("others", [0, 1, 2])
def test_nobody_dies_if_there_is_nowhere_else_to_go(others: int) -> None:
    """It is the only one, or the others refuse, though they are tried all the same: its
    connections are better off with waiting. When one of the others is back, it is dead."""
    world = HealthWorld([service(1 + others)])
    for backend in range(2, 2 + others):
        world.fall(backend, ProbeAnswer.RST)
    world.answers[1] = SILENT
    world.run(40 * S)
    assert world.news(1) == [ILL]
    assert only(world.said, FindReplies, EndFlows) == []
    assert world.usable == set(range(1, 2 + others))
    if others:
        world.answers[2] = ProbeAnswer.SYNACK
        world.run(40 * S)
        assert world.dead == {1}
    else:
        world.answers[1] = ProbeAnswer.SYNACK
        world.run(5 * S)
        assert world.news() == [ILL, WELL]


def test_who_drains_is_no_refuge() -> None:
    """Nor who has no path: nobody could go there."""
    world = HealthWorld()
    world.tell(BackendDrain(2, True))
    world.tell(BackendState(3, False))
    world.fall(1, SILENT)
    world.run(10 * S)
    assert only(world.said, FindReplies, EndFlows) == []
    world.tell(BackendState(3, True))
    world.run(40 * S)
    assert world.dead == {1}


@pytest.mark.parametrize("fall", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_an_outage_kills_nobody_however_soon_one_is_ill(fall: int, seed: int) -> None:
    """The first one to be looked at finds others that had no turn since; their intervals differ."""
    quick = dataclasses.replace(SETTINGS, fall=fall)
    slow = dataclasses.replace(quick, interval_ns=5 * S)
    shared = Backend(4, "b4", BACKENDS[0].endpoint, 1)
    api = Service(1, "api", Endpoint(0xC6126402, 80), (shared,))
    world = HealthWorld([service(3), api], draw=random.Random(seed).randrange)
    world.services = [
        dataclasses.replace(world.services[0], health=slow),
        dataclasses.replace(world.services[1], health=quick),  # so the first server is quick
    ]
    world.obey(world.engine.apply(world.services, DEFAULTS, world.now_ns))
    world.run(20 * S + seed * 370 * MS)
    world.answers = dict.fromkeys(world.answers, SILENT)
    world.run(60 * S)
    assert world.news().count(ILL) == 4
    assert only(world.said, FindReplies, EndFlows) == []
    world.answers[2] = ProbeAnswer.SYNACK
    world.run(400 * S)
    assert world.dead == {1, 3}, "of api there is nobody else"


def test_nobody_goes_to_one_whose_clients_are_being_told() -> None:
    """The others fall meanwhile: when all are told it is as any other that is ill."""

    class Slow(HealthWorld):
        """Its clients are told later."""

        def obey(self, commands: Iterable[Command]) -> list[Command]:
            commands = list(commands)
            self.said += [each for each in commands if isinstance(each, EndFlows)]
            return super().obey(each for each in commands if not isinstance(each, EndFlows))

    world = Slow([service(2)])
    dead(world)
    assert only(world.said, EndFlows) == [EndFlows(1)]
    world.fall(2)
    world.run(S)
    assert world.dead == {1}
    assert world.usable == {2}
    world.tell(FlowsEnded(1))
    assert world.dead == set()
    assert world.usable == {1, 2}
    world.run(20 * S)
    assert only(world.said, EndFlows) == [EndFlows(1)]


class Asked(HealthWorld):
    """Its tables take a while to be read."""

    def obey(self, commands: Iterable[Command]) -> list[Command]:
        return super().obey(each for each in commands if not isinstance(each, FindReplies))


def test_what_has_changed_while_the_tables_were_read() -> None:
    """No word of a walk that began seconds ago kills one who wants no resets by now, whose
    flows were answered meanwhile, or who has nobody beside it any more."""
    worlds = [Asked([service(2)]) for _ in range(4)]
    for world in worlds:
        world.fall(1, SILENT)
        world.run(10 * MS)
    first_one, wants_none, heard, alone = worlds
    off = dataclasses.replace(SETTINGS, reset_on_death=False)
    wants_none.services = [dataclasses.replace(each, health=off) for each in wants_none.services]
    wants_none.obey(wants_none.engine.apply(wants_none.services, DEFAULTS, wants_none.now_ns))
    heard.signs(1, answered=1)
    alone.fall(2, ProbeAnswer.RST)
    for world in worlds:
        world.tell(RepliesFound(1, False))
    assert first_one.dead == {1}
    assert wants_none.dead == heard.dead == alone.dead == set()


def test_thousands_that_fall_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows is found once for a few of them together, not for each: a service of so many
    is gone through no more often than that, and the loop stays free."""
    many = tuple(Backend(n, f"b{n}", Endpoint(0xC6130000 + n, 80), 0) for n in range(500))
    world = HealthWorld([dataclasses.replace(service(1), backends=many)], mode=Mode.INLINE)
    world.run(2 * S)
    changed: list[int] = []
    plain = world.engine.tables.changed

    def note(number: int) -> None:
        changed.append(number)
        plain(number)

    monkeypatch.setattr(world.engine.tables, "changed", note)
    world.answers |= dict.fromkeys(range(499), SILENT)
    most = 0
    until = world.now_ns + 8 * S
    while world.now_ns < until:
        changed.clear()
        world.obey(world.engine.expire(world.now_ns))
        most = max(most, len(changed))
        world.now_ns += 2 * MS
    assert most == 1, "of 16"
    assert world.usable == {499}
    assert world.dead == set(range(499))


def test_late_words_about_others_are_nothing() -> None:
    """Of backends that are no more, that are well by now, or that nobody asked about."""
    world = HealthWorld()
    for event in (RepliesFound(1, False), RepliesFound(99, False), FlowsEnded(1), FlowsEnded(99)):
        assert world.tell(event) == []
    assert world.tell(FlowSigns(((99, Signs(answered=1)),))) == []
