# SPDX-License-Identifier: Apache-2.0
"""A service of many backends: what follows for all of them does not hold the event loop."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.cast import DEFAULTS
from tests.support.health_cast import HealthWorld, S
from tests.support.playbook import MS
from xdp_router.core.commands import SetBackendUp
from xdp_router.core.events import BackendState
from xdp_router.core.model import Backend, Endpoint, ProbeAnswer, Service
from xdp_router.core.standing import SETTLED_AT_ONCE

MANY = 5 * SETTLED_AT_ONCE
LAST = MANY - 1


def world_of_many() -> HealthWorld:
    """All are ill but the last one."""
    backends = tuple(Backend(n, f"b{n}", Endpoint(0xC6130000 + n, 80), 0) for n in range(MANY))
    world = HealthWorld([Service(0, "web", Endpoint(0xC6126401, 80), backends)])
    world.answers = dict.fromkeys(world.backends, ProbeAnswer.RST)
    world.answers[LAST] = ProbeAnswer.SYNACK
    run(world, lambda: world.usable == {LAST})
    return world


def run(world: HealthWorld, until: Callable[[], bool]) -> int:
    """Returns of how many backends the maps were told in one turn of the loop, at most."""
    most = 0
    for _ in range(6000):
        if until():
            return most
        due = world.engine.deadline()
        if due is not None and due <= world.now_ns:
            said = world.obey(world.engine.expire(world.now_ns))
            most = max(most, sum(isinstance(each, SetBackendUp) for each in said))
        world.now_ns += 5 * MS
    raise AssertionError("it was never so")


def test_the_last_one_that_falls_and_the_first_one_that_rises() -> None:
    """All others may be chosen, and may not any more, in pieces; some of them at once."""
    world = world_of_many()
    standing = world.engine.standing
    world.answers[LAST] = ProbeAnswer.RST
    run(world, lambda: bool(standing.failing_open))
    assert SETTLED_AT_ONCE <= len(world.usable) < MANY
    begin_ns = world.now_ns
    assert run(world, lambda: len(world.usable) == MANY) == SETTLED_AT_ONCE
    assert world.now_ns - begin_ns < S // 2
    world.answers[LAST] = ProbeAnswer.SYNACK
    most = run(world, lambda: world.usable == {LAST})
    assert most == SETTLED_AT_ONCE


def test_what_changes_meanwhile_counts() -> None:
    """A way that is lost, a service that is taken away, another configuration: that is settled at
    once."""
    world = world_of_many()
    world.answers[LAST] = ProbeAnswer.RST
    run(world, lambda: bool(world.engine.standing.failing_open))
    world.tell(BackendState(LAST - 1, False))
    world.obey(world.engine.apply(world.services, DEFAULTS, world.now_ns))
    assert world.usable == set(range(MANY)) - {LAST - 1}
    world = world_of_many()
    world.answers[LAST] = ProbeAnswer.RST
    run(world, lambda: bool(world.engine.standing.failing_open))
    world.obey(world.engine.apply((), DEFAULTS, world.now_ns))
    world.run(S)
    assert world.usable == frozenset()
