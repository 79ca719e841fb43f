# SPDX-License-Identifier: Apache-2.0
"""How a backend is, in one row, and in the table of the command."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.cast import BACKENDS, service
from tests.support.cli_samples import BACKENDS as ROWS
from tests.support.cli_samples import WELL
from tests.support.health_cast import HealthWorld, S
from xdp_router.cli import render
from xdp_router.core.model import ProbeAnswer
from xdp_router.daemon.app import Router
from xdp_router.daemon.health_view import health_totals, health_view

B1 = BACKENDS[0]


def view(world: HealthWorld) -> dict[str, Any]:
    return health_view(world.engine, B1, world.now_ns)


def test_a_whole_life() -> None:
    """Well, ill, dead, back with a part of its share."""
    world = HealthWorld()
    assert view(world) == WELL
    world.fall(1, ProbeAnswer.RST)
    ill = view(world)
    assert (ill["state"], ill["why"], ill["source"]) == ("ill", "refused", "probe")
    assert (ill["times"], ill["falls"], ill["share"]) == (1, 1, 0.0)
    assert 0 < ill["held_s"] <= 1
    world.answers[1] = ProbeAnswer.SYNACK
    world.run(5 * S)
    back = view(world)
    assert (back["state"], back["why"], back["times"], back["held_s"]) == ("well", "refused", 1, 0)
    assert 0.1 <= back["share"] < 0.6
    assert back["since_s"] < 5
    world.fall(1, None)
    world.run(S)
    assert view(world)["state"] == "dead"
    assert view(world)["falls"] == 2
    router = SimpleNamespace(engine=world.engine, health=SimpleNamespace(flows_ended=7))
    assert health_totals(cast(Router, router)) == {
        "backends_ill": 1,
        "backends_dead": 1,
        "flows_ended": 7,
    }


def test_off_and_ignored() -> None:
    """Nobody looks; or nobody else is left."""
    assert view(HealthWorld(health=None)) == {**WELL, "state": "off"}
    world = HealthWorld([service(1)])
    world.fall(1, ProbeAnswer.RST)
    assert view(world)["ignored"]


@pytest.mark.parametrize(
    ("health", "state", "line"),
    [
        (WELL, "up", ""),
        (
            {"state": "ill", "why": "refused", "source": "probe", "since_s": 4.2, "held_s": 1.5},
            "ill",
            "has been ill for 4s: refused, says the probe, held for another 2s",
        ),
        (
            {"state": "dead", "why": "unanswered", "source": "traffic", "since_s": 4, "times": 3},
            "dead",
            "has been dead for 4s: unanswered, says its traffic, for the 3rd time",
        ),
        (
            {"state": "ill", "why": "refused", "source": "probe", "ignored": True},
            "ill",
            "so that it is tried all the same",
        ),
        ({"share": 0.25, "times": 2}, "up", "come back: its weight counts 25% so far, for the 2nd"),
    ],
)
def test_the_table(
    capsys: pytest.CaptureFixture[str], health: dict[str, Any], state: str, line: str
) -> None:
    """The state, and why below it."""
    row = {**ROWS[0], "up": True, "draining": False, "health": {**WELL, **health}}
    render.backends([row])
    out = capsys.readouterr().out
    assert f" {state} " in out
    assert line in " ".join(out.split())
