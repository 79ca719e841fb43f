# SPDX-License-Identifier: Apache-2.0
"""What XDP is told of the shares of backends that have come back."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.health_cast import SETTINGS, HealthWorld, S
from xdp_router.core.commands import SetBackendShare
from xdp_router.core.model import Mode, ProbeAnswer
from xdp_router.core.slow_start import WHOLE_SHARE


def shares(world: HealthWorld) -> list[int]:
    """What was said of the first backend's."""
    found = [each for each in world.said if isinstance(each, SetBackendShare)]
    assert {each.backend for each in found} <= {1}
    return [each.share for each in found]


@pytest.mark.parametrize("mode", [Mode.INLINE, Mode.SNAPSHOT])
def test_a_share_grows_and_is_whole_in_the_end(mode: Mode) -> None:
    """XDP hears each step, and that it is over; in other modes it has no part in it."""
    world = HealthWorld(mode=mode)
    world.fall(1)
    world.answers[1] = ProbeAnswer.SYNACK
    world.run(20 * S)
    if mode is not Mode.INLINE:
        assert shares(world) == []
        return
    said = shares(world)
    assert said[0] < WHOLE_SHARE // 5
    assert said[-1] == 0
    assert said[:-1] == sorted(said[:-1])
    assert len(said) > 5


def test_who_falls_again_is_not_told_of() -> None:
    """It is down; when it is back its share begins anew."""
    world = HealthWorld(mode=Mode.INLINE, health=dataclasses.replace(SETTINGS, hold_ns=0))
    for _ in range(2):
        world.fall(1)
        world.answers[1] = ProbeAnswer.SYNACK
        world.run(5 * S)
    assert shares(world)[-1] < WHOLE_SHARE
