# SPDX-License-Identifier: Apache-2.0
"""Clients of a dead backend's connections are told, those that are silent, too."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tests.bpf.corpus import udp_flows
from tests.bpf.corpus.degrade import down, rst_to_client
from tests.bpf.corpus.flows import established, flow_keys, read_flow
from tests.bpf.corpus.world import B1, B2, MARK, SERVER_ISN, World
from tests.support.frames import RST
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_maps import FlowTables
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core import abi
from xdp_router.daemon.flow_ends import FlowEnds

pytest_plugins = ("tests.support.worlds",)


def tell(world: World, *dead: int) -> list[tuple[int, bytes]]:
    """What is sent to clients."""
    sent: list[tuple[int, bytes]] = []
    ends = FlowEnds(
        world.maps.by_family.values(),
        Reinjector(world.program.plane.entry, MARK),
        lambda ifindex, frame: sent.append((ifindex, frame)),
    )
    assert asyncio.run(ends.tell(dead)) == ends.told == len(sent)
    return sent


def test_a_silent_client_is_told(world: World) -> None:
    """By a RST at what it has acknowledged; both directions are killed; nobody is told twice."""
    world.reset()
    established()(world)
    down(B1, abi.BACKEND_DEAD)(world)
    reset = world.native(rst_to_client(SERVER_ISN + 1, 0, RST))
    assert tell(world, B1.id) == [(world.wires.client, reset)]
    for key in flow_keys():
        entry = read_flow(world, key)
        assert entry is not None
        assert entry.flags == abi.FLOW_KILLED | abi.FLOW_RST
        assert entry.state == abi.TcpState.CLOSING
    assert tell(world, B1.id) == []


def test_a_table_that_cannot_be_read() -> None:
    """Is no end: it is said, and whoever asked gets to know."""

    def fails(*_args: object) -> Any:
        raise BpfError(12, "out of memory")

    tables = cast(FlowTables, SimpleNamespace(family=4, flows=SimpleNamespace(batches=fails)))
    ends = FlowEnds([tables], cast(Reinjector, None), lambda _ifindex, _frame: None)
    with capture_logs() as lines, pytest.raises(BpfError, match="out of memory"):
        asyncio.run(ends.tell({1}))
    assert [line["event"] for line in lines] == ["flows_not_ended"]


def test_others_are_not_told(world: World) -> None:
    """Another backend's flows, those of UDP, that are over, and of a backend that is back."""
    world.reset()
    over = {"state": abi.TcpState.CLOSING}
    established(over, over)(world)
    down(B1, abi.BACKEND_DEAD)(world)
    assert tell(world, B1.id) == []
    world.reset()
    established()(world)
    assert tell(world, B2.id) == tell(world) == []
    assert tell(world, B1.id) == []  # it is not marked
    world.reset()
    udp_flows.established()(world)
    down(B1, abi.BACKEND_DEAD)(world)
    assert tell(world, B1.id) == []
    entry = read_flow(world, abi.pack_flow_key(udp_flows.key()))
    assert entry is not None
    assert not entry.flags & abi.FLOW_KILLED
