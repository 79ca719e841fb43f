# SPDX-License-Identifier: Apache-2.0
"""``set_mode`` and ``push``, over a real engine, maps and the state that is written to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import cast as actors
from tests.support.cast import T0
from tests.support.small_router import SmallRouter, small_router
from xdp_router.adapters.control import CommandError
from xdp_router.core.commands import Command, PublishPickTable, SetServiceMode
from xdp_router.core.config_edit import Edit, Verb
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.model import Mode, Service
from xdp_router.daemon.app import Router
from xdp_router.daemon.mode_commands import ModeCommands


class Stage:
    """A router as the commands see it; what the engine says is done at once."""

    def __init__(self, small: SmallRouter) -> None:
        self.small = small
        self.engine = actors.engine(1, 2)
        self.edits: list[Edit] = []
        self.refuses = ""
        self.router = SimpleNamespace(
            config=small.config,
            engine=self.engine,
            loop=self,
            state=small.state,
            reconfiguration=self,
        )
        self.acted = 0
        self.commands = ModeCommands(cast(Router, self.router))

    def obey(self, commands: Iterable[Command]) -> None:
        self.acted += 1
        for command in commands:
            if isinstance(command, SetServiceMode):
                self.small.state.set_mode(command.service, command.mode)
            elif isinstance(command, PublishPickTable):
                tables = self.small.maps.pick_tables
                tables.publish(command.service, command.slots, command.made_ns)

    async def edit(self, edit: Edit) -> None:
        if self.refuses:
            raise XdpRouterError(self.refuses)
        self.edits.append(edit)

    def mode_in_xdp(self) -> Mode:
        """What the program finds."""
        service: Service = self.small.config.services[0]
        value = self.small.maps.services.read(service.endpoint)
        assert value is not None
        return Mode(value.mode)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with small_router() as small:
        small.state.open_services()
        yield Stage(small)


def test_a_mode_is_changed_as_by_an_edit(stage: Stage) -> None:
    """Of the running configuration, so that later edits know of it; a refusal is told."""
    answer = asyncio.run(stage.commands.set_mode({"service": "web", "mode": "inline"}))
    assert answer == {"service": "web", "mode": "inline", "before": "race"}
    assert stage.edits == [Edit("service", Verb.SET, "web", {"mode": "inline"}, ())]
    stage.refuses = "the router is not ready yet"
    with pytest.raises(CommandError, match="not ready yet"):
        asyncio.run(stage.commands.set_mode({"service": "web", "mode": "inline"}))


def test_xdp_has_a_mode_when_the_engine_says_so(stage: Stage) -> None:
    """With the table that is there by then; who has lost the maps writes nothing."""
    stage.obey([PublishPickTable(0, (1, 2) * 128, T0), SetServiceMode(0, Mode.SNAPSHOT)])
    assert stage.mode_in_xdp() is Mode.SNAPSHOT
    assert stage.small.maps.pick_tables.read(0) == (T0, (1, 2) * 128)
    stage.small.state.is_lost = lambda: True
    stage.obey([SetServiceMode(0, Mode.INLINE)])
    assert stage.mode_in_xdp() is Mode.SNAPSHOT


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"service": "shop", "mode": "race"}, "there is no service 'shop'; there are: web"),
        ({"mode": "race"}, "there is no service None"),
        ({"service": "web", "mode": "fast"}, "mode 'fast': expected one of race, snapshot, inline"),
        ({"service": "web", "mode": ["race"]}, "mode ['race']: expected one of"),
    ],
)
def test_a_wrong_mode_or_service(stage: Stage, args: dict[str, Any], words: str) -> None:
    """What it should be is in the message; nothing changes."""
    with pytest.raises(CommandError) as caught:
        asyncio.run(stage.commands.set_mode(args))
    assert words in str(caught.value)
    assert not stage.edits


def test_what_is_pushed_is_kept_for_the_score(stage: Stage) -> None:
    """In the score's units; the answer says for how long, and the loop is woken."""
    answer = stage.commands.push({"backend": "b1", "queue": 4, "ttft_ms": 120.5})
    assert answer == {
        "backend": "b1",
        "told": {"queue": 4.0, "ttft_ms": 120.5},
        "holds_s": 10.0,
        "mode": "race",
    }
    told = stage.engine.roster.inputs.told(stage.small.config.services[0].backends[0].id)
    assert {name: each.value for name, each in told.items()} == {
        "queue": 4.0,
        "ttft_ns": 120_500_000.0,
    }
    assert stage.acted == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"backend": "b9", "queue": 1}, "there is no backend 'b9'; there are: b1, b2"),
        ({"backend": "b1"}, "nothing is told of b1: expected ttft_ms, cache_hit, queue"),
        ({"backend": "b1", "load": 1}, "load: expected one of ttft_ms, cache_hit, queue"),
        ({"backend": "b1", "queue": 10**400}, "queue: found 1000"),
        ({"backend": "b1", "queue": float("nan")}, "queue: found nan, expected a number from 0"),
        ({"backend": "b1", "queue": "1"}, "queue: found '1', expected a number from 0 to 1e+09"),
        ({"backend": "b1", "queue": True}, "queue: found True"),
        ({"backend": "b1", "cache_hit": 1.01}, "cache_hit: found 1.01, expected a number from 0"),
        ({"backend": "b1", "ttft_ms": float("nan")}, "ttft_ms: found nan"),
    ],
)
def test_a_wrong_push(stage: Stage, args: dict[str, Any], words: str) -> None:
    """Nothing of it is kept."""
    with pytest.raises(CommandError) as caught:
        stage.commands.push(args)
    assert words in str(caught.value)
    assert not any(stage.engine.roster.inputs.told(number) for number in (0, 1, 2))
