# SPDX-License-Identifier: Apache-2.0
"""Who seems to have died, and who is given time."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.health_cast import SETTINGS, HealthWorld, S
from xdp_router.core.model import ProbeAnswer
from xdp_router.core.silence import SPARED_MOST, Silences


def silent(**settings: Any) -> tuple[HealthWorld, Silences]:
    """The first of three has not answered for ten seconds, and has not died by any word."""
    world = HealthWorld(health=dataclasses.replace(SETTINGS, **settings))
    world.heard = set(world.backends)
    world.answers[1] = None
    world.run(10 * S)
    return world, Silences(world.engine.standing.watch, world.engine.backends)


def since(world: HealthWorld, silences: Silences, backend: int = 1, ill: bool = True) -> int | None:
    """From when on it was silent."""
    (web,) = world.services
    return silences.since(web, backend, {backend} if ill else set(), world.now_ns)


def test_who_is_ill_and_silent_seems_to_have_died() -> None:
    """Since its first probe that was not answered, or the last looks; nobody else does."""
    world, silences = silent()
    found = since(world, silences)
    assert found is not None
    assert world.now_ns - 4 * S < found < world.now_ns
    assert since(world, silences, ill=False) is None
    assert since(world, silences, backend=2) is None
    assert since(world, silences, backend=99) is None
    world, silences = silent(reset_on_death=False)
    assert since(world, silences) is None
    world, silences = silent(fall=30)
    assert since(world, silences) is None


def test_who_is_spared_is_looked_at_later_and_ever_later() -> None:
    """Until it is heard, or leaves."""
    world, silences = silent()
    server = world.engine.standing.watch.server_of(1)
    assert server is not None
    for later in (1, 2, 4, 8, 16, SPARED_MOST, SPARED_MOST):
        silences.spare(server, 1)
        before = server.silences
        while since(world, silences) is None:
            world.run(S)
            assert server.silences - before <= later
        assert server.silences - before == later
    silences.give_time(1)
    assert since(world, silences) is None
    silences.forget(1)
    assert since(world, silences) is not None


@pytest.mark.parametrize("answer", [None, ProbeAnswer.SYNACK])
def test_who_has_nowhere_to_go_is_spared(answer: ProbeAnswer | None) -> None:
    """As long as nobody else of its service answers."""
    world, silences = silent()
    for other in (2, 3):
        world.answers[other] = answer
    world.run(10 * S)
    assert (since(world, silences) is None) is (answer is None)
