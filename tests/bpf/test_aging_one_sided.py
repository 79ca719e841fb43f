# SPDX-License-Identifier: Apache-2.0
"""Aging of flows whose replies do not come through here: one entry each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.cast import key
from tests.support.small_router import SETTINGS, SmallRouter, flow_entries, put_flow, small_router
from xdp_router.core import abi
from xdp_router.core.events import FlowClosed
from xdp_router.daemon.aging import HALF_CLOSED_NS, Ager

S = 1_000_000_000
NOW = 10_000 * S
IDLE = NOW - SETTINGS.flow_idle_ns - 1
LINGERED = NOW - SETTINGS.closed_linger_ns - 1
CLOSING = abi.TcpState.CLOSING


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def sweep(
    router: SmallRouter, on_closed: Callable[[FlowClosed], None] = lambda _event: None
) -> Ager:
    """One sweep at the instant NOW."""
    ager = Ager(router.maps.flow_table, router.maps.pending_flows, SETTINGS, on_closed, lambda: NOW)
    asyncio.run(ager.sweep())
    return ager


def left(router: SmallRouter) -> int:
    """How many entries ``flow_table`` still has."""
    return sum(batch.count for batch in router.maps.flow_table.batches(100))


def put_one_sided(router: SmallRouter, seen_ns: int, flags: int = 0, **change: Any) -> None:
    """The one entry of a flow whose replies do not come through here."""
    (there, entry), *_ = (
        (k, v) for k, v in flow_entries(1, seen_ns).items() if v.direction is abi.Direction.FORWARD
    )
    service = abi.flow_key_from_bytes(there)
    change |= {"new_daddr": service.service_addr, "new_dport": service.service_port}
    entry = replace(entry, flags=abi.FLOW_ONE_SIDED | flags, **change)
    assert router.maps.flow_table.insert_noexist(there, abi.pack_flow_entry(entry)) == 0


@pytest.mark.parametrize(("seen_ns", "entries"), [(IDLE, 0), (IDLE + 1, 1)])
def test_a_one_sided_flow_is_idle_by_itself(
    router: SmallRouter, seen_ns: int, entries: int
) -> None:
    """It has one entry, counts as one flow, and is told when it goes."""
    put_one_sided(router, seen_ns)
    closed: list[FlowClosed] = []
    ager = sweep(router, closed.append)
    assert left(router) == entries
    assert (ager.entries, ager.flows) == (1, 1)
    assert [event.key for event in closed] == [key(1)] * (1 - entries)


HALF_CLOSED = NOW - HALF_CLOSED_NS - 1


@pytest.mark.parametrize(
    ("flags", "seen_ns", "entries"),
    [
        (abi.FLOW_RST, LINGERED, 0),
        (abi.FLOW_RST, LINGERED + 1, 1),
        (abi.FLOW_FIN, LINGERED, 1),
        (abi.FLOW_FIN, HALF_CLOSED, 0),
        (abi.FLOW_FIN, HALF_CLOSED + 1, 1),
        (abi.FLOW_FIN | abi.FLOW_RST, LINGERED, 0),
    ],
)
def test_a_one_sided_flow_lingers_behind_a_fin(
    router: SmallRouter, flags: int, seen_ns: int, entries: int
) -> None:
    """The backend may still answer, and cannot be seen; behind a RST nobody does."""
    put_one_sided(router, seen_ns, flags, state=CLOSING)
    sweep(router)
    assert left(router) == entries


def test_flows_of_both_kinds_are_counted(router: SmallRouter) -> None:
    """Two entries of one flow, one of the other."""
    put_one_sided(router, NOW)
    put_flow(router.maps, flow_entries(2, NOW))
    ager = sweep(router)
    assert (ager.entries, ager.flows) == (3, 2)
