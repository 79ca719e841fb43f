# SPDX-License-Identifier: Apache-2.0
"""Aging while flows are still in the table of before a change of size."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator

import pytest

from tests.support.small_router import SETTINGS, SmallRouter, flow_entries, small_router
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.flow_tables import PreviousTable
from xdp_router.core import abi
from xdp_router.core.events import FlowClosed
from xdp_router.daemon.aging import Ager
from xdp_router.daemon.flow_mover import FlowMover
from xdp_router.daemon.traffic_keeper import TrafficKeeper
from xdp_router.daemon.usage_keeper import UsageKeeper

NOW = 10_000_000_000_000
IDLE, RECENT = NOW - SETTINGS.flow_idle_ns - 1, NOW - 1


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    """With flows 1 (idle) and 2 in the table of before."""
    with small_router() as made:
        fd = bpf.map_create(bpf.MapType.HASH, "before", abi.FLOW_KEY_SIZE, abi.FLOW_ENTRY_SIZE, 100)
        made.maps.flow_table.previous = PreviousTable(fd)
        for port, seen_ns in ((1, IDLE), (2, RECENT)):
            for key, value in flow_entries(port, seen_ns).items():
                bpf.BpfMap(fd).write(key, abi.pack_flow_entry(value))
        yield made
        os.close(fd)


class _Full(FlowMover):
    """Finds no room."""

    async def run(self) -> None:
        self.left = 1


def ager(router: SmallRouter, mover: FlowMover, closed: list[FlowClosed]) -> Ager:
    """At the instant NOW."""
    return Ager(
        router.maps.flow_table,
        router.maps.pending_flows,
        SETTINGS,
        closed.append,
        lambda: NOW,
        usage=UsageKeeper(router.maps.usage),
        mover=mover,
    )


def test_moved_first_then_looked_at(router: SmallRouter) -> None:
    """A sweep sees each flow once, in the table that it is in now."""
    closed: list[FlowClosed] = []
    mover = FlowMover.of(router.maps, lambda _table: None, lambda: False)
    assert mover.by_programs() == router.maps.counters.read()["flow_moved"]
    made = ager(router, mover, closed)
    asyncio.run(made.sweep())
    assert [each.key.client_port for each in closed] == [1]
    assert made.entries_of[4] == 4, "those that it met"
    assert set(flow_entries(2, 0)) == {
        key for batch in router.maps.flow_table.own_batches(64) for key, _ in batch
    }
    assert router.maps.usage.open(0) == 1, "the audit has counted"


@pytest.mark.parametrize("moving", [False, True])
def test_what_stays_there_ages_there(router: SmallRouter, moving: bool) -> None:
    """Without room in the new table flows of the one of before are counted, and go in their time.

    Nothing is corrected by what is met while programs move flows.
    """
    closed: list[FlowClosed] = []
    moved = itertools.count(7, moving)
    tables = [router.maps.by_family[4]]
    made = ager(router, _Full(tables, lambda _table: None, flow_moved=lambda: next(moved)), closed)
    asyncio.run(made.sweep())
    assert [each.key.client_port for each in closed] == [1]
    assert made.entries_of[4] == 4
    previous = router.maps.flow_table.previous
    assert previous is not None
    assert sorted(k for batch in previous.batches(64) for k, _ in batch) == sorted(
        flow_entries(2, 0)
    )
    assert router.maps.usage.read(0)[:2] == (0, 0)
    assert router.maps.usage.open(0) == (0 if moving else 1), "the other one is there"


class _Moved(_Full):
    """XDP moves a flow right after the first walk of a sweep has begun."""

    def __init__(self, router: SmallRouter) -> None:
        super().__init__([router.maps.by_family[4]], lambda _table: None)
        self._flows = router.maps.flow_table

    def move(self, port: int) -> None:
        previous = self._flows.previous
        assert previous is not None
        for key in flow_entries(port, 0):
            value = previous.read(key)
            assert value is not None
            assert self._flows.insert_noexist(key, value) == previous.delete(key) == 0


def test_the_first_sweep_misses_no_traffic(router: SmallRouter) -> None:
    """A flow that is moved while it is under way is counted: totals must not go back."""
    mover = _Moved(router)

    class Keeper(TrafficKeeper):
        moves = True

        def flows(self, values: bytes, family: int) -> None:
            super().flows(values, family)
            if family == 4 and self.moves:  # behind the first walk of two
                self.moves = False
                mover.move(2)

    keeper = Keeper(router.maps.traffic)
    made = Ager(
        router.maps.flow_table,
        router.maps.pending_flows,
        SETTINGS,
        lambda _event: None,
        lambda: NOW,
        traffic=keeper,
        mover=mover,
    )
    asyncio.run(made.sweep())
    assert sum(keeper.live.values()) >= 2
    asyncio.run(made.sweep())
    assert sum(keeper.live.values()) == 2, "each once"
