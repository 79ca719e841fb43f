# SPDX-License-Identifier: Apache-2.0
"""Backends that only flows have: their health is looked at as that of any other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tests.support.cast import DEFAULTS
from tests.support.health_cast import SETTINGS, HealthWorld, S, dead, only
from tests.support.playbook import MS
from xdp_router.core.commands import (
    Command,
    EndFlows,
    HealthNews,
    SetBackendDead,
    SetBackendShare,
    SetBackendUp,
)
from xdp_router.core.events import BackendDrain, BackendState
from xdp_router.core.model import Mode, Probe, ProbeAnswer, ProbeKind, Service

ILL, WELL, DEAD = HealthNews.ILL, HealthNews.WELL, HealthNews.DEAD


def bring(world: HealthWorld, services: Sequence[Service], *retired: int) -> list[Command]:
    """Have these services; flows have those that are retired."""
    return world.obey(world.engine.apply(services, DEFAULTS, world.now_ns, retired))


def without(world: HealthWorld, backend: int = 1) -> list[Service]:
    """The service as it is when that one was taken away."""
    (web,) = world.services
    return [dataclasses.replace(web, backends=tuple(x for x in web.backends if x.id != backend))]


def test_one_that_was_silent_when_it_was_taken_away_dies() -> None:
    """Its clients are told, and go to the others. Nothing else follows of its health."""
    world = HealthWorld()
    world.answers[1] = None
    world.run(1500 * MS)
    assert world.news() == []
    bring(world, without(world), 1)
    begin = len(world.said)
    world.run(6 * S)
    assert world.news(1) == [ILL, DEAD]
    assert world.dead == {1}
    said = world.said[begin:]
    assert only(said, SetBackendUp, EndFlows) == [EndFlows(1)]
    assert world.usable == {2, 3}
    probes = world.probed.count(1)
    world.run(3 * S)
    assert world.probed.count(1) > probes, "it may come back"


def test_one_that_falls_silent_later_dies() -> None:
    """However often the configuration is changed meanwhile."""
    world = HealthWorld()
    world.run(S)
    bring(world, without(world), 1)
    world.run(S)
    slower = dataclasses.replace(SETTINGS, fall=5)
    bring(world, [dataclasses.replace(each, health=slower) for each in without(world)], 1)
    world.answers[1] = None
    world.run(4 * S)
    assert world.news(1) == []
    world.run(4 * S)
    assert world.news(1) == [ILL, DEAD]


def test_it_is_watched_until_its_last_flow_is_gone() -> None:
    """Then nobody asks it any more, and nothing is left of it."""
    for is_dead in (False, True):
        world = HealthWorld()
        world.run(S)
        bring(world, without(world), 1)
        if is_dead:
            dead(world)
        standing = world.engine.standing
        assert standing.retired == {1}
        standing.forget_retired(1)
        world.probed.clear()
        begin = len(world.said)
        world.run(5 * S)
        assert 1 not in world.probed
        assert only(world.said[begin:], SetBackendDead, EndFlows) == []
        assert standing.retired == standing.dead == frozenset()
        assert standing.condition(1) is None
        standing.forget_retired(1)


def test_its_way_is_told() -> None:
    """While there is none because of this host it is not probed, and does not die; whoever is
    unknown is counted as such."""
    world = HealthWorld()
    world.run(S)
    bring(world, without(world), 1)
    world.tell(BackendState(1, False))
    world.tell(BackendDrain(1, True))
    assert world.engine.counters["backend_unknown"] == 0
    world.probed.clear()
    world.answers[1] = None
    world.run(10 * S)
    assert 1 not in world.probed
    assert world.news() == []
    world.tell(BackendState(1, False, lost=True))
    world.run(5 * S)
    assert world.news(1) == [ILL, DEAD], "its next hop answers no more"
    world.tell(BackendState(77, True))
    assert world.engine.counters["backend_unknown"] == 1


def test_one_that_comes_back_is_as_ill_as_it_was() -> None:
    """It gets no new flows, and its dead ones stay so, until probes are good."""
    for probe in (Probe(), Probe(ProbeKind.ICMP)):
        world = HealthWorld()
        dead(world)
        begin = len(world.said)
        bring(world, without(world), 1)
        (web,) = world.services
        backends = tuple(
            dataclasses.replace(each, probe=probe) if each.id == 1 else each
            for each in web.backends
        )
        bring(world, [dataclasses.replace(web, backends=backends)])
        world.backends[1] = backends[0]
        world.tell(BackendState(1, True))
        assert world.usable == {2, 3}
        assert world.dead == {1}
        assert only(world.said[begin:], SetBackendUp, SetBackendDead) == []
        world.answers[1] = ProbeAnswer.ECHO if probe.kind is ProbeKind.ICMP else ProbeAnswer.SYNACK
        world.run(4 * S)
        assert world.usable == {1, 2, 3}
        assert world.dead == set()
        assert world.engine.standing.retired == frozenset()


def test_one_that_is_well_again_lets_its_flows_go_on() -> None:
    """In mode ``inline``, too, where it has a share no more."""
    world = HealthWorld(mode=Mode.INLINE)
    dead(world)
    bring(world, without(world), 1)
    begin = len(world.said)
    world.answers[1] = ProbeAnswer.SYNACK
    world.run(5 * S)
    assert world.news(1) == [ILL, DEAD, WELL]
    assert world.dead == set()
    assert only(world.said[begin:], SetBackendUp, SetBackendShare) == []


def test_what_its_service_wants_holds_for_it() -> None:
    """Health that is turned off, or resets that nobody wants."""
    world = HealthWorld()
    world.answers[1] = None
    world.run(S)
    bring(world, without(world), 1)
    bring(world, [dataclasses.replace(each, health=None) for each in without(world)], 1)
    world.run(10 * S)
    assert world.news() == []
    world = HealthWorld()
    dead(world)
    keep = dataclasses.replace(SETTINGS, reset_on_death=False)
    said = bring(world, [dataclasses.replace(each, health=keep) for each in without(world)], 1)
    assert only(said, SetBackendDead) == [SetBackendDead(1, False)]


def test_with_its_service_everything_has_gone() -> None:
    """Its clients would be told to come back to nobody: they wait, as where all others are ill."""
    world = HealthWorld()
    world.answers[1] = None
    world.run(S)
    bring(world, [], 1, 2, 3)
    world.run(10 * S)
    assert world.news() == [ILL]
    assert world.dead == set()
    world.answers[1] = ProbeAnswer.SYNACK
    world.run(5 * S)
    assert world.news() == [ILL, WELL]
    for each in (1, 2, 3):
        world.engine.standing.forget_retired(each)
    assert world.engine.standing.watch.next_turn(world.now_ns + 10 * S) is None
