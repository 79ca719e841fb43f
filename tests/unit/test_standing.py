# SPDX-License-Identifier: Apache-2.0
"""Conversations about backends' health: who may be chosen, who has died, how they come back."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from tests.support.cast import BACKENDS, DEFAULTS, first, service
from tests.support.health_cast import SETTINGS, HealthWorld, S, dead, only
from tests.support.playbook import MS
from xdp_router.core.commands import (
    HealthNews,
    LogFailOpen,
    LogHealth,
    PublishHashTable,
    SetBackendDead,
    SetBackendDraining,
    SetBackendShare,
    SetBackendUp,
)
from xdp_router.core.events import BackendDrain, BackendState
from xdp_router.core.health import Ill
from xdp_router.core.model import (
    NO_BACKEND,
    Backend,
    Endpoint,
    Mode,
    Probe,
    ProbeAnswer,
    ProbeKind,
    Service,
)

B1 = BACKENDS[0]
ILL, WELL, DEAD = HealthNews.ILL, HealthNews.WELL, HealthNews.DEAD
SILENT = None


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
    and is well. Whoever was said to be ill is said to be well."""
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
    world.run(5 * S)
    assert {tuple(world.news(each)) for each in world.backends} == {(ILL, WELL)}
    assert world.engine.standing.failing_open == frozenset()
    assert world.usable == world.backends.keys()


def test_an_ill_backend_that_is_probed_otherwise_is_ill_until_it_is_well() -> None:
    """By the new probe: that is not known to be at fault, and its clients would be. It is not
    held for what the old one has found; what its connections have shown counts as ever."""
    for by_traffic in (False, True):
        world = HealthWorld(
            health=dataclasses.replace(SETTINGS, hold_ns=30 * S, reset_on_death=False)
        )
        if by_traffic:
            world.run(S)
            for _ in range(3):
                world.signs(1, unanswered=5, sources=3)
                world.run(S)
        else:
            world.fall(1)
        assert world.news(1) == [ILL]
        (web,) = world.services
        ping = Probe(ProbeKind.ICMP)
        others = [dataclasses.replace(each, probe=ping) for each in web.backends]
        world.backends = {each.id: each for each in others}
        asked = dataclasses.replace(web, backends=tuple(others))
        world.answers = dict.fromkeys(world.answers, ProbeAnswer.ECHO)
        world.answers[1] = ProbeAnswer.UNREACHABLE
        said = world.obey(world.engine.apply([asked], DEFAULTS, world.now_ns))
        assert only(said, SetBackendUp) == []
        assert world.usable == {2, 3}
        world.run(10 * S)
        assert world.news(1) == [ILL]
        assert world.usable == {2, 3}
        world.answers[1] = ProbeAnswer.ECHO
        world.run(4 * S)
        assert world.news(1) == ([ILL] if by_traffic else [ILL, WELL])
        world.run(20 * S)
        assert world.news(1) == [ILL, WELL]
        assert world.usable == {1, 2, 3}


# At the start


def restarted(ill: set[int], up: set[int] | None = None, **change: Any) -> HealthWorld:
    """A router that begins where these were ill."""
    world = HealthWorld(begin=False, **change)
    up = {1, 2, 3} if up is None else up
    world.obey(world.engine.begin(up, (), ill, world.now_ns))
    world.obey(world.engine.start())
    return world


def test_who_was_ill_before_a_restart_is_so_until_it_is_well() -> None:
    """Nobody goes there meanwhile, and XDP is not told that anybody may; it rises as any other."""
    world = restarted({1})
    assert only(world.said, SetBackendUp, LogHealth, LogFailOpen) == []
    (table,) = only(world.said, PublishHashTable)
    assert isinstance(table, PublishHashTable)
    assert set(table.slots) == {2, 3}
    world.answers[1] = ProbeAnswer.RST
    world.run(10 * S)
    assert world.usable == {2, 3}
    assert 1 not in {world.choose(port) for port in range(20)}
    condition = world.engine.standing.condition(1)
    assert condition is not None
    assert (condition.well, condition.why) == (False, Ill.BEFORE)
    assert condition.source is not None
    assert world.news() == []
    world.answers[1] = ProbeAnswer.SYNACK
    world.run(3 * S)
    assert world.news() == [WELL]
    assert only(world.said, SetBackendUp) == [SetBackendUp(1, True)]
    assert world.usable == {1, 2, 3}
    assert world.engine.standing.watch.share(1, world.now_ns) < 1


def test_a_service_of_whom_all_were_ill_begins_open() -> None:
    """As the rest of it was taken away; XDP is told that they may be chosen."""
    world = restarted({1, 2, 3})
    assert only(world.said, SetBackendUp, LogFailOpen) == [
        LogFailOpen(0, True),
        *(SetBackendUp(each, True) for each in (1, 2, 3)),
    ]
    assert world.usable == {1, 2, 3}
    world.run(4 * S)
    assert world.news() == [WELL] * 3
    assert world.engine.standing.failing_open == frozenset()


def test_who_was_ill_is_up_where_health_is_not_looked_at() -> None:
    """It was turned off meanwhile."""
    world = restarted({1, 99}, health=None)
    assert only(world.said, SetBackendUp) == [SetBackendUp(1, True)]
    assert world.usable == {1, 2, 3}


def test_who_was_ill_and_has_no_way_yet_is_ill_when_it_has() -> None:
    """Its neighbour answers later."""
    world = restarted({1}, up={2, 3})
    world.answers[1] = ProbeAnswer.RST
    world.tell(BackendState(1, True))
    world.run(5 * S)
    assert only(world.said, SetBackendUp) == []
    assert world.usable == {2, 3}


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
