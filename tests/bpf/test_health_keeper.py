# SPDX-License-Identifier: Apache-2.0
"""What the engine wants to know of backends' flows, out of the real tables, and what is logged."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tests.bpf.corpus.direct import established as one_sided
from tests.bpf.corpus.flows import established
from tests.bpf.corpus.world import B1, B2, World
from tests.support.cast import service
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.core import abi
from xdp_router.core.commands import (
    EndFlows,
    FindReplies,
    HealthCommand,
    HealthNews,
    LogFailOpen,
    LogHealth,
)
from xdp_router.core.config import RouterConfig
from xdp_router.core.events import Event, FlowsEnded, FlowSigns, RepliesFound
from xdp_router.core.model import HealthSettings, Signs
from xdp_router.daemon import health_keeper
from xdp_router.daemon.flow_ends import FlowEnds
from xdp_router.daemon.health_keeper import HealthKeeper

pytest_plugins = ("tests.support.worlds",)

CONFIG = RouterConfig((replace(service(2), health=HealthSettings(interval_ns=10_000_000)),))


class Ends:
    """Takes down who is ended. ``fails``: with what, one after the other, before it works."""

    def __init__(self) -> None:
        self.told = 0
        self.dead: list[set[int]] = []
        self.fails: list[Exception] = []

    async def tell(self, dead: Collection[int]) -> int:
        if self.fails:
            raise self.fails.pop(0)
        self.dead.append(set(dead))
        self.told += 1
        return 1


class Stage:
    """A keeper over the world's maps, and what it tells the engine."""

    def __init__(self, maps: Maps, config: RouterConfig = CONFIG) -> None:
        self.ends = Ends()
        self.told: list[Event] = []
        ends = cast(FlowEnds, self.ends)
        self.keeper = HealthKeeper(config, maps, ends, self.told.append, lambda: self.lost)
        self.lost = False

    def after(self, *commands: HealthCommand) -> list[Event]:
        """What comes of them."""
        for command in commands:
            self.keeper.obey(command)
        self.told.clear()
        asyncio.run(self.keeper.step())
        return self.told


def test_who_has_said_something_since_then(world: World) -> None:
    """A reply counts; what the client says does not, unless replies do not come by at all."""
    world.reset()
    before_ns, then_ns = world.now_ns - 20, world.now_ns - 10
    established({"last_seen_ns": world.now_ns}, {"last_seen_ns": then_ns})(world)
    stage = Stage(world.maps)
    assert stage.after(FindReplies(B1.id, before_ns), FindReplies(B2.id, 0)) == [
        RepliesFound(B1.id, True),
        RepliesFound(B2.id, False),
    ]
    assert stage.after(FindReplies(B1.id, then_ns)) == [RepliesFound(B1.id, False)]
    assert stage.after() == []
    world.reset()
    one_sided(last_seen_ns=world.now_ns)(world)
    assert stage.after(FindReplies(B1.id, then_ns)) == [RepliesFound(B1.id, True)]


def test_all_who_have_died_are_ended_together(world: World) -> None:
    """In one walk; the engine gets to know of each."""
    world.reset()
    stage = Stage(world.maps)
    assert stage.after(EndFlows(1), EndFlows(2)) == [FlowsEnded(1), FlowsEnded(2)]
    assert stage.ends.dead == [{1, 2}]
    assert stage.keeper.flows_ended == 1


NO_MEMORY = BpfError(12, "out of memory")
NO_TABLES = cast(Maps, SimpleNamespace(by_family={}, backend_signs=None))


def test_what_fails_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is told that flows have ended which have not; the engine asks only once. What comes
    meanwhile is done with it."""
    monkeypatch.setattr(health_keeper, "AGAIN_S", 0.01)
    stage = Stage(NO_TABLES)
    stage.ends.fails = [NO_MEMORY, NO_MEMORY]

    async def live() -> None:
        stage.keeper.obey(EndFlows(1))
        working = asyncio.ensure_future(stage.keeper.work())
        await asyncio.sleep(0)
        assert stage.told == []
        stage.keeper.obey(EndFlows(2))
        stage.keeper.obey(FindReplies(3, 0))
        for _ in range(500):
            await asyncio.sleep(0.01)
            if len(stage.told) == 3:
                break
        working.cancel()

    asyncio.run(live())
    assert stage.told == [RepliesFound(3, False), FlowsEnded(1), FlowsEnded(2)]
    assert stage.ends.dead == [{1, 2}]


def test_an_error_of_another_kind_loses_nothing() -> None:
    """Whoever runs it begins again, and finds what was wanted, but for what was told by then."""
    stage = Stage(NO_TABLES)
    plain, broken = stage.told.append, [FlowsEnded(2), RepliesFound(1, False)]

    def handle(event: Event) -> None:
        plain(event)
        if event in broken:
            broken.remove(cast(Any, event))
            raise RuntimeError("broken")

    ends = cast(FlowEnds, stage.ends)
    stage.keeper = HealthKeeper(CONFIG, NO_TABLES, ends, handle)
    stage.ends.fails = [RuntimeError("walk")]
    for command in (FindReplies(1, 0), FindReplies(2, 0), EndFlows(1), EndFlows(2), EndFlows(3)):
        stage.keeper.obey(command)

    async def live() -> None:
        working = asyncio.ensure_future(stage.keeper.work())
        await asyncio.wait([working], timeout=30)
        assert isinstance(working.exception(), RuntimeError)

    for _ in range(3):
        asyncio.run(live())
    assert not broken
    asyncio.run(stage.keeper.step())
    finds = [RepliesFound(1, False), RepliesFound(2, False)]
    assert stage.told == [*finds, FlowsEnded(1), FlowsEnded(2), FlowsEnded(3)]
    assert stage.ends.dead == [{1, 2, 3}, {3}]


def test_a_table_that_cannot_be_read_kills_nobody() -> None:
    """It is said, and counts as if everybody had been heard."""

    def fails(*_args: object) -> Any:
        raise BpfError(12, "out of memory")

    tables = SimpleNamespace(family=4, flows=SimpleNamespace(batches=fails))
    signs = SimpleNamespace(news=fails)
    stage = Stage(cast(Maps, SimpleNamespace(by_family={4: tables}, backend_signs=signs)))
    with capture_logs() as lines:
        assert stage.after(FindReplies(1, 0)) == [RepliesFound(1, True)]
        asyncio.run(stage.keeper.look())
    assert [line["event"] for line in lines] == ["replies_not_found", "flows_not_looked_at"]


def test_signs_are_told_each_interval(world: World) -> None:
    """By the shortest interval that some service has, as long as the maps are ours."""
    world.reset()
    stage = Stage(world.maps)

    async def live(within_s: float) -> None:
        watching = asyncio.ensure_future(stage.keeper.watch())
        await asyncio.sleep(0.2)
        table = bpf.BpfMap(world.program.plane.maps["backend_signs"])
        value = abi.pack_backend_signs(Signs(answered=1 << 40))
        table.write((1).to_bytes(4, sys.byteorder), value)
        for _ in range(round(within_s / 0.01)):
            await asyncio.sleep(0.01)
            if stage.told:
                break
        watching.cancel()

    asyncio.run(live(5))
    world.maps.backend_signs.reset(1)
    (told,) = stage.told
    assert isinstance(told, FlowSigns)
    ((backend, news),) = told.news
    assert backend == 1
    assert news.answered > 0
    stage.told.clear()
    stage.lost = True
    asyncio.run(live(0.5))  # several intervals
    world.maps.backend_signs.reset(1)
    assert stage.told == []


def test_what_is_logged(world: World) -> None:
    """By names, also of those that a reload has taken away."""
    stage = Stage(world.maps)
    stage.keeper.change(RouterConfig(()))
    with capture_logs() as lines:
        for command in (
            LogHealth(1, HealthNews.ILL, "refused", "probe", 1_500_000_000, 2),
            LogHealth(1, HealthNews.DEAD),
            LogHealth(2, HealthNews.WELL, times=1),
            LogFailOpen(0, True),
            LogFailOpen(0, False),
        ):
            stage.keeper.obey(command)
    ill, dead, well, begins, ends = lines
    assert (ill["event"], ill["backend"], ill["reason"]) == ("backend_ill", "b1", "refused")
    assert (ill["source"], ill["held_s"], ill["times"]) == ("probe", 1.5, 2)
    assert (dead["event"], dead["backend"], dead["log_level"]) == ("backend_dead", "b1", "warning")
    assert (well["event"], well["backend"]) == ("backend_well", "b2")
    assert (begins["event"], begins["service"]) == ("health_ignored", "web")
    assert (ends["event"], ends["service"]) == ("health_followed", "web")
