# SPDX-License-Identifier: Apache-2.0
"""Aging of UDP: silence is its only end, established or not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.cast import BACKENDS, first, key
from tests.support.small_router import SETTINGS, SmallRouter, flow_entries, put_flow, small_router
from xdp_router.core import abi
from xdp_router.core.events import FlowClosed
from xdp_router.core.held import UDP
from xdp_router.core.model import Mode, Reason
from xdp_router.daemon.aging import Ager

S = 1_000_000_000
NOW = 10_000 * S
LIMITS = replace(SETTINGS, udp_idle_ns=60 * S, flow_idle_ns=3600 * S, pending_idle_ns=10 * S)
KEY = replace(key(1), proto=UDP)


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def sweep(router: SmallRouter, closed: list[FlowClosed] | None = None) -> None:
    """One sweep at the instant NOW."""
    told = closed if closed is not None else []
    ager = Ager(router.maps.flow_table, router.maps.pending_flows, LIMITS, told.append, lambda: NOW)
    asyncio.run(ager.sweep())


def as_udp(raw: bytes) -> bytes:
    """The key of the same tuple over UDP."""
    return raw[:12] + bytes([UDP]) + raw[13:]


def established(router: SmallRouter, seen_ns: int, reply_seen_ns: int) -> None:
    """A flow of each protocol with one tuple."""
    entries = flow_entries(1, seen_ns, reply_seen_ns=reply_seen_ns)
    put_flow(router.maps, entries)
    put_flow(router.maps, {as_udp(raw): entry for raw, entry in entries.items()})


def left(router: SmallRouter) -> list[int]:
    """The protocols of what ``flow_table`` still has."""
    return sorted(raw[12] for batch in router.maps.flow_table.batches(64) for raw, _ in batch)


@pytest.mark.parametrize(
    ("forward_s", "reply_s", "protocols"),
    [
        (61, 61, [6, 6]),
        (61, 59, [6, 6, 17, 17]),
        (59, 61, [6, 6, 17, 17]),
        (3601, 3601, []),
    ],
)
def test_established(
    router: SmallRouter, forward_s: int, reply_s: int, protocols: list[int]
) -> None:
    """After ``udp_idle`` without traffic either way; TCP's beside it has its own time."""
    established(router, NOW - forward_s * S, NOW - reply_s * S)
    closed: list[FlowClosed] = []
    sweep(router, closed)
    assert left(router) == protocols
    assert (KEY in [event.key for event in closed]) is (17 not in protocols)


@pytest.mark.parametrize("flags", [0, abi.PENDING_PROVEN])
@pytest.mark.parametrize(("idle_s", "entries"), [(59, 2), (61, 0)])
def test_pending(router: SmallRouter, flags: int, idle_s: int, entries: int) -> None:
    """One that was never established stays as long, whether there was room for it or not."""
    held = replace(first(1), key=KEY, frame=bytes(14), seen_ns=NOW - idle_s * S)
    pending = router.maps.pending_flows
    packed = [
        abi.pack_reply_pending(held, BACKENDS[0], Mode.RACE, Reason.RACE_WON),
        abi.pack_forward_pending(held, BACKENDS[0], Mode.RACE, Reason.RACE_WON, 1),
    ]
    for raw, value in packed:
        entry = replace(abi.unpack_pending(value), flags=flags)
        assert pending.insert_noexist(raw, abi.pack_pending(entry)) == 0
    sweep(router)
    assert sum(batch.count for batch in pending.batches(64)) == entries


@pytest.mark.parametrize(("forward_s", "reply_s"), [(61, 59), (59, 61)])
@pytest.mark.parametrize("kept_back", [False, True])
def test_one_direction_speaks_alone(
    router: SmallRouter, forward_s: int, reply_s: int, kept_back: bool
) -> None:
    """A backend that streams after one question, or a client that nobody answers: the flow lives.

    Not by a port of ours that rests: that REPLY is nobody's.
    """
    held = replace(first(1), key=KEY, frame=bytes(14))
    pending = router.maps.pending_flows
    flags = abi.PENDING_FULLNAT | abi.PENDING_CLOSED if kept_back else 0
    packed = {
        reply_s: abi.pack_reply_pending(held, BACKENDS[0], Mode.RACE, Reason.RACE_WON),
        forward_s: abi.pack_forward_pending(held, BACKENDS[0], Mode.RACE, Reason.RACE_WON, 1),
    }
    for idle_s, (raw, value) in packed.items():
        entry = replace(abi.unpack_pending(value), last_seen_ns=NOW - idle_s * S)
        entry = replace(entry, flags=flags if abi.key_kind(raw) is abi.Kind.REPLY else 0)
        assert pending.insert_noexist(raw, abi.pack_pending(entry)) == 0
    sweep(router)
    assert sum(batch.count for batch in pending.batches(64)) == (1 if kept_back else 2)


def test_protocols_of_both_families() -> None:
    """The byte is found in keys of either length."""
    other = replace(KEY, client_addr=1 << 100, service_addr=1 << 101)
    for family, one in ((4, KEY), (6, other)):
        keys = abi.pack_flow_key(one) + abi.pack_flow_key(replace(one, proto=6))
        assert list(abi.protocols(keys, family)) == [17, 6]
