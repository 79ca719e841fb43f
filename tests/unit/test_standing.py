# SPDX-License-Identifier: Apache-2.0
"""Conversations about backends' health: who may be chosen, who has died, how they come back."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from typing import Any

import pytest

from tests.support.cast import BACKENDS, DEFAULTS, first, service
from tests.support.health_cast import SETTINGS, HealthWorld, S
from tests.support.playbook import MS
from xdp_router.core.commands import (
    Command,
    EndFlows,
    FindReplies,
    HealthNews,
    LogFailOpen,
    LogHealth,
    PublishHashTable,
    SetBackendDead,
    SetBackendDraining,
    SetBackendShare,
    SetBackendUp,
)
from xdp_router.core.events import BackendDrain, BackendState, FlowsEnded, FlowSigns, RepliesFound
from xdp_router.core.model import (
    NO_BACKEND,
    Backend,
    Endpoint,
    Mode,
    Probe,
    ProbeAnswer,
    ProbeKind,
    Service,
    Signs,
)

B1 = BACKENDS[0]
ILL, WELL, DEAD = HealthNews.ILL, HealthNews.WELL, HealthNews.DEAD
SILENT = None


def only(said: list[Command], *kinds: type) -> list[Command]:
    """Those that are about health."""
    return [each for each in said if isinstance(each, kinds)]


# Falling


def test_an_ill_backend_gets_no_new_flows() -> None:
    """Three bad looks, no more and no less; XDP, tables, races: nobody chooses it."""
    world = HealthWorld()
    world.run(S)
    world.answers[1] = ProbeAnswer.RST
    said = world.run(3 * S + 400 * MS)
    assert only(said, LogHealth, SetBackendUp) == []
    said = world.run(200 * MS)
    assert only(said, LogHealth, SetBackendUp) == [
        LogHealth(1, ILL, "refused", "probe", S, 1),
        SetBackendUp(1, False),
    ]
    (table,) = only(said, PublishHashTable)
    assert isinstance(table, PublishHashTable)
    assert set(table.slots) == {2, 3}
    assert world.usable == {2, 3}
    assert 1 not in {world.choose(port) for port in range(30)}
    assert world.engine.counters["backends_ill"] == 1
    assert world.engine.standing.falls == {1: 1}


def test_two_bad_ones_are_not_enough() -> None:
    """A good one between them begins the count anew."""
    world = HealthWorld()
    for _ in range(3):
        world.answers[1] = ProbeAnswer.RST
        world.run(2 * S)
        world.answers[1] = ProbeAnswer.SYNACK
        world.run(S)
    assert world.news() == []


def test_flows_alone_make_it_ill() -> None:
    """Its probes are good, but SYNs of several sources go unanswered."""
    world = HealthWorld()
    world.run(S)
    for _ in range(3):
        world.signs(1, unanswered=5, sources=3)
        world.run(S)
    (said,) = only(world.said, LogHealth)
    assert said == LogHealth(1, ILL, "unanswered", "traffic", S, 1)
    world.run(3 * S)
    assert world.news() == [ILL, WELL], "probes raise it"
    assert DEAD not in world.news()


def test_answers_that_are_bad_and_quick_attract_nobody() -> None:
    """The nearest backend, which answers errors, is not chosen."""
    world = HealthWorld()
    world.fall(1, ProbeAnswer.UNEXPECTED)
    assert 1 not in {world.choose(port) for port in range(20)}
    world.fall(2, ProbeAnswer.RST)
    assert {world.choose(port) for port in range(20, 40)} == {3}


# Coming back


def test_it_is_held_and_then_rises_with_a_part_of_its_share() -> None:
    """Two good looks when its time is served; the share grows to the whole."""
    world = HealthWorld(health=dataclasses.replace(SETTINGS, hold_ns=5 * S))
    world.fall(1)
    fell_ns = world.now_ns
    world.answers[1] = ProbeAnswer.SYNACK
    world.run(5 * S - 200 * MS)
    assert world.news(1) == [ILL]
    world.run(1200 * MS)
    assert world.news(1) == [ILL, WELL]
    assert world.usable == {1, 2, 3}
    share = world.engine.standing.watch.share
    assert 0.1 <= share(1, world.now_ns) < 0.3
    world.run(10 * S)
    assert share(1, world.now_ns) == 1
    assert world.now_ns - fell_ns > 10 * S


def test_one_that_flaps_is_held_ever_longer() -> None:
    """Each time twice as long."""
    world = HealthWorld()
    for _ in range(4):
        world.fall(1)
        world.answers[1] = ProbeAnswer.SYNACK
        world.run(12 * S)
    held = [each for each in world.said if isinstance(each, LogHealth) and each.news is ILL]
    assert [(each.held_ns // S, each.times) for each in held] == [(1, 1), (2, 2), (4, 3), (8, 4)]


@pytest.mark.parametrize("mode", [Mode.RACE, Mode.SNAPSHOT, Mode.INLINE])
def test_slow_start_in_each_mode(mode: Mode) -> None:
    """About a tenth of its share at first, about all of it in the end."""
    chance = random.Random(4)
    slow = dataclasses.replace(SETTINGS, slow_start_ns=1000 * S)
    world = HealthWorld([service(2)], health=slow, draw=chance.randrange, mode=mode)
    world.run(2 * S)
    world.fall(1)
    world.answers[1] = ProbeAnswer.SYNACK
    world.run(8 * S)
    assert world.news(1) == [ILL, WELL]

    def part() -> float:
        """Of first packets, each with a race of its own."""
        found = []
        for port in range(400):
            world.run(10 * MS)
            found.append(world.choose(port))
        return found.count(1) / len(found)

    early = part()
    assert 0 < early < 0.2, early
    world.engine.standing.watch.own[1] = dataclasses.replace(slow, slow_start_ns=0)
    world.run(3 * S)
    late = part()
    assert late > 0.3, late


def test_xdp_has_the_share_in_mode_inline() -> None:
    """From the moment it may be chosen; it grows by looks, and ends as none."""
    world = HealthWorld(mode=Mode.INLINE)
    world.fall(1)
    world.answers[1] = ProbeAnswer.SYNACK
    world.run(20 * S)
    said = only(world.said, SetBackendShare, SetBackendUp)
    up = said.index(SetBackendUp(1, True), 4)
    assert said[up - 1] == SetBackendShare(1, 25)
    shares = [each.share for each in said[up:] if isinstance(each, SetBackendShare)]
    assert shares[-1] == 0
    assert shares[:-1] == sorted(shares[:-1])
    assert 8 <= len(shares) <= 12


# Nobody left


def test_if_all_are_ill_that_is_ignored() -> None:
    """A flow that is tried is better off; it is said; the first that is well ends it."""
    world = HealthWorld([service(2)])
    world.fall(1)
    assert world.usable == {2}
    world.fall(2)
    assert world.usable == {1, 2}
    assert only(world.said, LogFailOpen) == [LogFailOpen(0, True)]
    assert world.choose(1) in (NO_BACKEND, 1, 2)
    world.answers[2] = ProbeAnswer.SYNACK
    world.run(5 * S)
    assert world.usable == {2}
    assert only(world.said, LogFailOpen) == [LogFailOpen(0, True), LogFailOpen(0, False)]


def test_draining_and_paths_go_before_health() -> None:
    """A backend that drains is nobody who is left; one that comes back is ill still."""
    world = HealthWorld([service(2)])
    world.fall(1)
    assert SetBackendDraining(2, True) in world.tell(BackendDrain(2, True))
    assert world.usable == {1}, "better than nobody"
    world.tell(BackendDrain(2, False))
    assert world.usable == {2}
    world.tell(BackendState(1, False))
    assert SetBackendUp(1, True) not in world.tell(BackendState(1, True))
    assert world.usable == {2}
    world.tell(BackendState(2, False))
    assert world.usable == {1}


# Death


def dead(world: HealthWorld, backend: int = 1) -> None:
    """It falls silent until it is found dead."""
    world.fall(backend, SILENT)
    world.run(10 * MS)
    assert world.dead == {backend}


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


def test_thousands_that_fall_at_once() -> None:
    """What follows is found once for a few of them together, not for each: a service of so many
    is gone through no more often than that, and the loop stays free."""
    many = tuple(Backend(n, f"b{n}", Endpoint(0xC6130000 + n, 80), 0) for n in range(500))
    world = HealthWorld([dataclasses.replace(service(1), backends=many)], mode=Mode.INLINE)
    world.run(2 * S)
    changed: list[int] = []
    tables = world.engine.tables
    plain = tables.changed
    tables.changed = lambda service: (changed.append(service), plain(service))[1]  # type: ignore
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


# Changes


def test_health_that_is_turned_off() -> None:
    """Everybody is well at once, and nobody is dead; on again, it begins anew."""
    world = HealthWorld(mode=Mode.INLINE)
    dead(world)
    off = [dataclasses.replace(each, health=None) for each in world.services]
    said = world.obey(world.engine.apply(off, DEFAULTS, world.now_ns))
    assert SetBackendDead(1, False) in said
    assert SetBackendUp(1, True) in said
    assert world.usable == {1, 2, 3}
    world.probed.clear()
    world.run(5 * S)
    assert world.probed == []
    assert world.engine.standing.condition(1) is None
    world.obey(world.engine.apply(world.services, DEFAULTS, world.now_ns))
    world.run(5 * S)
    assert world.news(1)[-2:] == [ILL, DEAD]


def test_a_backend_that_is_removed_while_ill() -> None:
    """Nothing of it is left, and its service is judged by who is left."""
    world = HealthWorld()
    dead(world)
    (web,) = world.services
    fewer = [dataclasses.replace(web, backends=web.backends[1:])]
    said = world.obey(world.engine.apply(fewer, DEFAULTS, world.now_ns))
    assert only(said, SetBackendDead, SetBackendUp, SetBackendShare) == []
    assert world.usable == {2, 3}
    del world.answers[1]
    world.fall(2)
    world.fall(3)
    assert world.usable == {2, 3}
    assert only(world.said, LogFailOpen) == [LogFailOpen(0, True)]
    world.obey(world.engine.apply([], DEFAULTS, world.now_ns))
    assert world.engine.standing.failing_open == frozenset()


@pytest.mark.parametrize("health", [SETTINGS, None])
def test_a_backend_that_is_removed_while_dead_and_added_again(health: Any) -> None:
    """What stands in the maps for its last flows is not what it begins with."""
    world = HealthWorld(mode=Mode.INLINE)
    dead(world)
    (web,) = world.services
    fewer = dataclasses.replace(web, backends=web.backends[1:])
    world.obey(world.engine.apply([fewer], DEFAULTS, world.now_ns))
    assert world.dead == {1}
    world.obey(world.engine.apply([fewer], DEFAULTS, world.now_ns))
    assert world.dead == {1}
    again = [dataclasses.replace(web, health=health)]
    said = world.obey(world.engine.apply(again, DEFAULTS, world.now_ns))
    assert only(said, SetBackendDead) == [SetBackendDead(1, False)]
    world.answers[1] = ProbeAnswer.SYNACK
    world.tell(BackendState(1, True))
    assert world.usable == {1, 2, 3}
    said = world.obey(world.engine.apply(world.services, DEFAULTS, world.now_ns))
    assert only(said, SetBackendDead) == [], "once"


def test_a_backend_that_is_removed_with_a_share_and_added_again() -> None:
    """It does not keep a tenth for ever."""
    world = HealthWorld(mode=Mode.INLINE)
    world.fall(1)
    world.answers[1] = ProbeAnswer.SYNACK
    world.run(3 * S)
    (web,) = world.services
    fewer = [dataclasses.replace(web, backends=web.backends[1:])]
    assert (
        only(world.obey(world.engine.apply(fewer, DEFAULTS, world.now_ns)), SetBackendShare) == []
    )
    said = world.obey(world.engine.apply([web], DEFAULTS, world.now_ns))
    assert only(said, SetBackendShare) == [SetBackendShare(1, 0)]


@pytest.mark.parametrize("at_ms", [0, 20, 50])
def test_a_change_while_much_is_still_to_be_told(at_ms: int) -> None:
    """One server that is 200 backends falls; before all of them were told it is probed otherwise,
    and is well. What was found by the probe of before is nobody's fault any more."""
    many = [
        Service(n, f"s{n}", Endpoint(0xC6130000 + n, 80), (Backend(n, f"a{n}", B1.endpoint, n),))
        for n in range(200)
    ]
    world = HealthWorld(many)
    world.run(S)
    world.answers = dict.fromkeys(world.answers, ProbeAnswer.RST)
    while not world.news():
        world.run(10 * MS)
    world.run(at_ms * MS)
    ping = Probe(ProbeKind.ICMP)
    for number, one in enumerate(world.services):
        (backend,) = one.backends
        backend = dataclasses.replace(backend, probe=ping)
        world.services[number] = dataclasses.replace(one, backends=(backend,))
        world.backends[backend.id] = backend
    world.answers = dict.fromkeys(world.answers, ProbeAnswer.SYNACK)
    world.obey(world.engine.apply(world.services, DEFAULTS, world.now_ns))
    world.said.clear()
    world.run(5 * S)
    assert world.news() == []
    assert world.engine.standing.failing_open == frozenset()


def test_a_race_that_began_in_another_mode_does_not_win_for_one_who_is_gone() -> None:
    """Whoever probes a backend gets to know that it may not be chosen any more."""
    world = HealthWorld([service(1)])
    world.answers[1] = SILENT
    world.tell(first(1, world.now_ns))
    snapshot = [dataclasses.replace(each, mode=Mode.SNAPSHOT) for each in world.services]
    world.obey(world.engine.apply(snapshot, DEFAULTS, world.now_ns))
    world.tell(BackendState(1, False))
    assert world.engine.counters["probes_backend_down"] >= 1


def test_a_server_of_thousands_of_services() -> None:
    """Is probed as any other; what it has come to is told in pieces, and all of them get it."""
    many = [
        Service(n, f"s{n}", Endpoint(0xC6130000 + n, 80), (
            Backend(2 * n, f"a{n}", BACKENDS[0].endpoint, n),
            Backend(2 * n + 1, f"b{n}", BACKENDS[1].endpoint, n),
        ))
        for n in range(2000)
    ]  # fmt: skip
    world = HealthWorld(many, mode=Mode.INLINE)
    world.run(S)
    assert len(world.probed) == 2
    for n in range(2000):
        world.answers[2 * n] = ProbeAnswer.RST
    most = 0
    until = world.now_ns + 12 * S
    while world.now_ns < until:
        before = len(world.said)
        world.obey(world.engine.expire(world.now_ns))
        most = max(most, len(world.said) - before)
        world.now_ns += 2 * MS
    assert world.usable == {2 * n + 1 for n in range(2000)}
    assert most < 100, "at one moment"
