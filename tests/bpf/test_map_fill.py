# SPDX-License-Identifier: Apache-2.0
"""The fill of maps against the real ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.support.small_router import SmallRouter, small_router
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.map_specs import MAP_SPECS
from xdp_router.daemon.map_fill import NAMES, MapFill


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def test_entries_are_counted(router: SmallRouter) -> None:
    """Those that come and those that go, also where they are more than a batch."""
    fill = MapFill(router.plane.maps)
    asyncio.run(fill.count())
    assert set(fill.entries) == set(NAMES)
    assert fill.entries["affinity"] == 0
    assert fill.entries["backend_index"] > 0
    now_ns = time.monotonic_ns()
    for addr in range(1500):
        router.maps.affinity.write(0xC6120000 + addr, 0, now_ns, 1)
    asyncio.run(fill.count())
    assert fill.entries["affinity"] == 1500
    table = bpf.BpfMap(router.plane.maps["affinity"])
    for key in list(table.each_key())[:1499]:
        table.delete(key)
    asyncio.run(fill.count())
    assert fill.entries["affinity"] == 1


def test_no_hash_map_is_left_out() -> None:
    """Each one is counted here, or is a table of flows."""
    hashes = {
        spec.name for spec in MAP_SPECS if spec.type in (bpf.MapType.HASH, bpf.MapType.LRU_HASH)
    }
    of_flows = {
        name for name in hashes if "flow_table" in name or name.rstrip("6").endswith("flows")
    }
    assert set(NAMES) == hashes - of_flows
