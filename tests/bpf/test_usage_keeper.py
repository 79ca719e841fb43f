# SPDX-License-Identifier: Apache-2.0
"""The kept number of flows against the real tables."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator

import pytest

from tests.support.small_router import SETTINGS, SmallRouter, small_router
from xdp_router.core import abi
from xdp_router.daemon.aging import Ager
from xdp_router.daemon.usage_keeper import UsageKeeper

SOON = dataclasses.replace(SETTINGS, flow_idle_ns=60_000_000_000)
"""What was seen last when the machine began to run is idle, however short that is ago."""
KEY = abi.pack_flow_key(abi.flow_key_from_bytes(bytes(16)))


SOON = dataclasses.replace(SETTINGS, flow_idle_ns=20_000_000_000)
"""An entry of the machine's first moment is idle, on one that was just started, too."""


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def put(router: SmallRouter, port: int, last_seen_ns: int) -> None:
    """A FORWARD entry of the service."""
    value = bytearray(abi.FLOW_ENTRY_SIZE)
    value[:8] = last_seen_ns.to_bytes(8, "little")
    value[36] = abi.TcpState.ESTABLISHED
    assert not router.maps.flow_table.insert_noexist(bytes([port]) * 13 + KEY[13:], bytes(value))


def sweep(router: SmallRouter, keeper: UsageKeeper) -> None:
    """One sweep of an ager."""
    maps = router.maps
    ager = Ager(maps.flow_table, maps.pending_flows, SOON, lambda _closed: None, usage=keeper)
    asyncio.run(ager.sweep())


def test_what_a_killed_daemon_did_not_count_is_corrected(router: SmallRouter) -> None:
    """In the first sweep; and what the ager removes from then on it counts itself."""
    keeper = UsageKeeper(router.maps.usage)
    now_ns = time.monotonic_ns()
    put(router, 1, now_ns)
    put(router, 2, now_ns)
    sweep(router, keeper)
    assert router.maps.usage.open(0) == 2
    put(router, 3, 1)
    router.maps.usage.age(0, -1)
    sweep(router, keeper)
    assert router.maps.usage.open(0) == 2


def test_without_a_map_nothing_is_kept(router: SmallRouter) -> None:
    """Sweeps go on."""
    put(router, 1, 1)
    sweep(router, UsageKeeper())
    assert router.maps.usage.totals() == {}


def put_open(router: SmallRouter, port: int, last_seen_ns: int, *, is_open: bool = True) -> None:
    """A FORWARD entry of backend 2, counted as open or not."""
    value = bytearray(abi.FLOW_ENTRY_SIZE)
    value[:8] = last_seen_ns.to_bytes(8, "little")
    value[36] = abi.TcpState.ESTABLISHED if is_open else abi.TcpState.CLOSING
    value[56:60] = (2).to_bytes(4, "little")
    value[103] = is_open
    assert abi.unpack_flow_entry(bytes(value)).open == is_open
    assert not router.maps.flow_table.insert_noexist(bytes([port]) * 13 + KEY[13:], bytes(value))


def test_what_is_aged_out_while_open_is_not_open_any_more(router: SmallRouter) -> None:
    """And what was over before is not counted twice."""
    loads = router.maps.backend_loads
    keeper = UsageKeeper(router.maps.usage, loads)
    now_ns = time.monotonic_ns()
    put_open(router, 1, now_ns)
    put_open(router, 2, 1)
    put_open(router, 3, 1, is_open=False)
    loads.write(2, abi.LoadValue(opened=3, closed=1))
    sweep(router, keeper)
    assert loads.open(2) == 1
    assert loads.totals()[2] == (3, 2)
    sweep(router, keeper)
    assert loads.open(2) == 1


@pytest.mark.parametrize("kept", [0, 1, 7])
def test_open_flows_that_were_counted_wrongly_are_corrected(router: SmallRouter, kept: int) -> None:
    """By the first walk: a daemon that was killed between a removal and its count, either way."""
    loads = router.maps.backend_loads
    now_ns = time.monotonic_ns()
    for port in (1, 2):
        put_open(router, port, now_ns)
    put_open(router, 3, now_ns, is_open=False)
    loads.write(2, abi.LoadValue(opened=kept))
    sweep(router, UsageKeeper(router.maps.usage, loads))
    assert loads.open(2) == 2
