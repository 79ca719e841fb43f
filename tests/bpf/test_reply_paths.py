# SPDX-License-Identifier: Apache-2.0
"""Flows whose client is behind an interface that was made anew, on the real program."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from tests.support.cast import BACKENDS
from tests.support.fresh_netns import in_fresh_netns
from tests.support.small_router import CLIENT_MAC, WiredRouter, flow_entries, put_flow, wired_router
from xdp_router.adapters.host import LinkInfo
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core import abi
from xdp_router.daemon.reply_paths import AT_ONCE, ReplyPaths

FORMER = 77
"""The number that the clients' interface had."""


def put(wired: WiredRouter, port: int, ifindex: int = FORMER) -> tuple[bytes, bytes]:
    """An established flow whose client came in by ``ifindex``."""
    change: dict[str, Any] = {
        "ifindex": ifindex,
        "dmac": CLIENT_MAC,
        "smac": b"\2\0\0\0\0\x99",
        "seq_next": 5000,
        "ack": 9000,
        "window": 1 << 20,
        "wscale": 7,
    }
    made = flow_entries(port, 1, backend=BACKENDS[0].endpoint)
    entries = {key: dataclasses.replace(value, **change) for key, value in made.items()}
    return put_flow(wired.router.maps, entries)


def entry(wired: WiredRouter, key: bytes) -> abi.FlowEntryValue:
    raw = wired.router.maps.flow_table.read(key)
    assert raw is not None
    return abi.unpack_flow_entry(raw)


def paths_of(wired: WiredRouter) -> ReplyPaths:
    program = Reinjector(wired.router.plane.entry, wired.router.state.reinject_mark ^ 1)
    return ReplyPaths(wired.router.maps.by_family.values(), program)


def lead(wired: WiredRouter, link: LinkInfo, former: set[int]) -> int:
    paths = paths_of(wired)
    asyncio.run(paths.lead(link, former))
    return paths.led


@in_fresh_netns
def test_both_entries_name_the_new_interface() -> None:
    """Number and our MAC are the new one's; nothing that is tracked has moved."""
    with wired_router() as wired:
        wired.bring_up(wired.router.backends[0])
        forward, reply = put(wired, 1)
        before = entry(wired, forward), entry(wired, reply)
        assert lead(wired, wired.client, {FORMER}) == 1
        after = entry(wired, forward), entry(wired, reply)
        for old, new in zip(before, after, strict=True):
            assert new.ifindex == wired.client.ifindex
            for name in ("seq_next", "ack", "window", "state", "flags", "dmac"):
                assert getattr(new, name) == getattr(old, name), name
        assert after[1].smac == wired.client.mac
        assert (after[0].packets, after[1].packets) == (before[0].packets + 1, before[1].packets)


@in_fresh_netns
def test_replies_keep_the_tag_of_the_client() -> None:
    """A client behind a VLAN tag, and a backend with another: its replies go out as before."""
    with wired_router() as wired:
        wired.bring_up(wired.router.backends[0])
        state = wired.router.state
        number = wired.router.backends[0].id
        state._put_backend(
            number,
            dataclasses.replace(
                state.backend_value(number),
                flags=state.backend_value(number).flags | abi.BACKEND_STAGE,
                vlan=abi.VLAN_TAG | 20,
            ),
        )
        tag = abi.VLAN_TAG | 100
        forward, reply = put(wired, 1)
        table = wired.router.maps.flow_table
        for key in (forward, reply):
            made = entry(wired, key)
            table.delete(key)
            made = dataclasses.replace(
                made, flags=made.flags | abi.FLOW_STAGE, vlan=tag if key == reply else 0
            )
            table.insert_noexist(key, abi.pack_flow_entry(made))
        assert lead(wired, wired.client, {FORMER}) == 1
        assert entry(wired, reply).vlan == tag


@in_fresh_netns
def test_other_flows_are_left_alone() -> None:
    """Those of other interfaces, and those that were led already."""
    with wired_router() as wired:
        wired.bring_up(wired.router.backends[0])
        other, _ = put(wired, 1, ifindex=FORMER + 1)
        before = entry(wired, other)
        assert lead(wired, wired.client, {FORMER}) == 0
        assert entry(wired, other) == before
        put(wired, 2)
        assert lead(wired, wired.client, {FORMER}) == 1
        assert lead(wired, wired.client, {FORMER}) == 0


@in_fresh_netns
def test_more_than_one_batch_of_them() -> None:
    """All are led; the loop has its turn meanwhile."""
    with wired_router() as wired:
        wired.bring_up(wired.router.backends[0])
        count = 2 * AT_ONCE + 5
        for port in range(1, count + 1):
            put(wired, port)
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def main() -> int:
            ticking = asyncio.create_task(tick())
            paths = paths_of(wired)
            await paths.lead(wired.client, {FORMER})
            ticking.cancel()
            return paths.led

        assert asyncio.run(main()) == count
        assert turns >= 2


@in_fresh_netns
def test_half_a_flow_and_an_interface_that_is_gone_again() -> None:
    """Nothing is led, and nothing fails."""
    with wired_router() as wired:
        wired.bring_up(wired.router.backends[0])
        _, reply = put(wired, 1)
        gone = dataclasses.replace(wired.client, ifindex=9999)
        assert lead(wired, gone, {FORMER}) == 0
        wired.router.maps.flow_table.delete(reply)
        assert lead(wired, wired.client, {FORMER}) == 0
