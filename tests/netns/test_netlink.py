# SPDX-License-Identifier: Apache-2.0
"""Watched paths and link events against the real kernel, in namespaces of their own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import Wire, in_fresh_netns, make_wire
from tests.support.path_watch import Watch, do, until, watch_wire
from xdp_router.adapters.host import Rtnl, mac_bytes
from xdp_router.adapters.netlink import (
    REFRESH_AT_ONCE,
    NoSuchInterface,
    PathWatcher,
    link_info,
)
from xdp_router.core.address import parse_addr

NEAR = "198.18.1.1"
FAR = "198.18.1.2"
FAR_INT = parse_addr(FAR)
NEAR_MAC = "02:00:00:00:01:01"
FAR_MAC = "02:00:00:00:01:02"
OTHER_MAC = "02:00:00:00:01:99"


def _wire(ipr: IPRoute) -> Wire:
    wire = make_wire(ipr, "be1", NEAR, FAR)
    ipr.link("set", index=wire.near, address=NEAR_MAC)
    wire.far_link(address=FAR_MAC)
    return wire


def _run(conversation: Callable[[Wire, Watch], Awaitable[None]], watch: Watch) -> None:
    watch_wire(_wire, FAR_INT, conversation, watch)


@in_fresh_netns
def test_link_info_tells_what_the_kernel_says() -> None:
    """An interface's number, MAC, MTU, kind and state are those of the kernel; no XDP yet."""
    with IPRoute() as ipr:
        wire = _wire(ipr)
        link = link_info("be1")
        os.close(wire.far_ns)
    assert link.ifindex == wire.near
    assert link.mac == mac_bytes(NEAR_MAC)
    assert (link.mtu, link.up, link.kind, link.ethernet) == (1500, True, "veth", True)
    assert link.addr == parse_addr(NEAR)
    assert (link.xdp_prog_id, link.xdp_mode) == (0, "none")


@pytest.mark.parametrize("name", ["eth9", "a-name-that-is-far-too-long-for-linux"])
@in_fresh_netns
def test_missing_interface_is_named_with_those_that_exist(name: str) -> None:
    """A wrong interface name is answered with the name and the existing interfaces."""
    with pytest.raises(NoSuchInterface, match=rf"{name} does not exist.*existing: .*lo"):
        link_info(name)


@in_fresh_netns
def test_subnets_are_those_that_the_next_hop_is_in() -> None:
    """A second subnet of the interface is another matter, as long as it is one; changes tell."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        first = (parse_addr(NEAR) & 0xFFFFFF00, 0xFFFFFF00)
        assert watch.path is not None
        assert watch.path.subnets == (first,)

        def add(ipr: IPRoute) -> None:
            ipr.addr("add", index=wire.near, address="198.19.7.1", prefixlen=24)
            ipr.addr("add", index=wire.near, address="198.18.1.3", prefixlen=16)

        await do(add)
        both = {first, (parse_addr(NEAR) & 0xFFFF0000, 0xFFFF0000)}
        await until(
            lambda: watch.path is not None and set(watch.path.subnets) == both, "both subnets"
        )

    _run(conversation, Watch())


@in_fresh_netns
def test_changed_mac_of_backend_is_reported() -> None:
    """A neighbour that comes back with another MAC changes the path, without a gap."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        await do(
            lambda ipr: ipr.neigh(
                "set", dst=FAR, lladdr=OTHER_MAC, ifindex=wire.near, state="reachable"
            )
        )
        await until(
            lambda: watch.path is not None and watch.path.dmac == mac_bytes(OTHER_MAC), "new MAC"
        )
        assert all(path is not None for _, path, _ in watch.changes)

    _run(conversation, Watch())


@in_fresh_netns
def test_flushed_neighbour_is_found_again_without_losing_the_path() -> None:
    """A flushed ARP entry is resolved anew; nothing is reported, the backend stays up."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        await do(lambda ipr: ipr.neigh("del", dst=FAR, lladdr=FAR_MAC, ifindex=wire.near))

        def back() -> bool:
            with Rtnl() as rtnl:
                entry = rtnl.neighbour(wire.near, FAR_INT)
            return entry is not None and entry.mac == mac_bytes(FAR_MAC)

        await until(back, "neighbour entry back")
        await asyncio.sleep(0.4)
        assert len(watch.changes) == 1

    _run(conversation, Watch())


@in_fresh_netns
def test_backend_that_stops_answering_arp_is_lost_and_comes_back() -> None:
    """Past the grace time a silent neighbour is reported, and again when it answers."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        await do(
            lambda _: wire.at_far(
                lambda far: far.addr("del", index=wire.far, address=FAR, prefixlen=24)
            )
        )
        await do(lambda ipr: ipr.neigh("del", dst=FAR, lladdr=FAR_MAC, ifindex=wire.near))
        await until(lambda: watch.path is None, "loss")
        assert watch.reason == "no ARP answer from 198.18.1.2 on be1"
        await do(
            lambda _: wire.at_far(
                lambda far: far.addr("add", index=wire.far, address=FAR, prefixlen=24)
            )
        )
        await until(lambda: watch.path is not None, "return")

    _run(conversation, Watch(refresh_ns=200_000_000))


@in_fresh_netns
def test_stale_neighbour_is_confirmed() -> None:
    """A stale entry is put to use again, so that it neither expires nor misleads."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        await do(
            lambda ipr: ipr.neigh("set", dst=FAR, lladdr=FAR_MAC, ifindex=wire.near, state="stale")
        )

        def confirmed() -> bool:
            with Rtnl() as rtnl:
                entry = rtnl.neighbour(wire.near, FAR_INT)
            return entry is not None and entry.state in (0x02, 0x08, 0x10)

        await until(confirmed, "delay, probe or reachable")
        assert len(watch.changes) == 1

    _run(conversation, Watch(refresh_ns=100_000_000))


@in_fresh_netns
def test_flap_and_mac_change_of_interface_are_reported() -> None:
    """Interface down takes the path, up gives it back, a new MAC becomes the source MAC."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        await do(lambda ipr: ipr.link("set", index=wire.near, state="down"))
        await until(lambda: watch.saw("down", "be1") and watch.path is None, "down")
        await do(lambda ipr: ipr.link("set", index=wire.near, state="up"))
        await until(lambda: watch.saw("up", "be1") and watch.path is not None, "up")
        await do(lambda ipr: ipr.link("set", index=wire.near, address=OTHER_MAC))
        await until(lambda: watch.saw("mac", "be1"), "mac event")
        await until(
            lambda: watch.path is not None and watch.path.smac == mac_bytes(OTHER_MAC), "new MAC"
        )

    _run(conversation, Watch())


@in_fresh_netns
def test_address_and_mtu_of_interface_are_followed() -> None:
    """An address that goes or comes, and a new MTU, are reported with the value they leave."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        host, prefix, other = NEAR, 24, "198.19.77.1"

        def address() -> int:
            return watch.watcher.links()[wire.near].addr

        await do(lambda ipr: ipr.addr("add", index=wire.near, address=other, prefixlen=24))
        await do(lambda ipr: ipr.addr("delete", index=wire.near, address=host, prefixlen=prefix))
        await until(lambda: address() == parse_addr(other), "the other address")
        assert watch.saw("address", "be1")
        await do(lambda ipr: ipr.addr("delete", index=wire.near, address=other, prefixlen=24))
        await until(lambda: not address(), "no address")
        await do(lambda ipr: ipr.addr("add", index=wire.near, address=host, prefixlen=prefix))
        await until(lambda: address() == parse_addr(host), "the address again")
        await do(lambda ipr: ipr.link("set", index=wire.near, mtu=1280))
        await until(lambda: watch.saw("mtu", "be1"), "mtu event")
        assert watch.links[-1].link.mtu == 1280
        assert watch.links[-1].link.addr == parse_addr(host)

    _run(conversation, Watch())


@in_fresh_netns
def test_deleted_and_recreated_interface_is_reported() -> None:
    """A deleted interface takes the path; one of the same name gives it back, renumbered."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        await do(lambda ipr: ipr.link("del", index=wire.near))
        await until(lambda: watch.saw("deleted", "be1") and watch.path is None, "deletion")
        assert watch.reason
        again = await do(lambda ipr: make_wire(ipr, "be1", NEAR, FAR, wire.far_ns))
        await until(lambda: watch.saw("created", "be1"), "creation")
        await until(lambda: watch.path is not None, "path")
        assert watch.path is not None
        assert watch.path.ifindex == again.near

    _run(conversation, Watch())


@in_fresh_netns
def test_route_change_moves_the_path() -> None:
    """A more specific route by another interface moves the path there, and back when it goes."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        second = await do(
            lambda ipr: make_wire(ipr, "be2", "198.18.2.1", "198.18.2.2", wire.far_ns)
        )
        await do(lambda ipr: ipr.route("add", dst=f"{FAR}/32", gateway="198.18.2.2"))
        await until(lambda: watch.path is not None and watch.path.ifindex == second.near, "be2")
        await do(lambda ipr: ipr.route("del", dst=f"{FAR}/32", gateway="198.18.2.2"))
        await until(lambda: watch.path is not None and watch.path.ifindex == wire.near, "be1")

    _run(conversation, Watch())


@in_fresh_netns
def test_lost_kernel_events_are_made_up_for() -> None:
    """After an overrun of the event socket the watcher has the kernel's state all the same."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        watch.watcher._events.setsockopt(1, 8, 2048)  # SO_RCVBUF

        def burst(ipr: IPRoute) -> None:
            for last in range(100, 130):
                ipr.addr("add", index=wire.near, address=f"198.18.1.{last}", prefixlen=24)
            ipr.link("set", index=wire.near, state="down")

        burst_thread = threading.Thread(target=lambda: burst(IPRoute()))
        burst_thread.start()
        burst_thread.join()  # blocks the loop, so that nobody reads
        await until(lambda: watch.watcher.overruns > 0, "overrun")
        await until(lambda: watch.saw("down", "be1") and watch.path is None, "down")

    _run(conversation, Watch(refresh_ns=60_000_000_000))


@in_fresh_netns
def test_many_addresses_are_refreshed_in_rounds() -> None:
    """A look takes time: REFRESH_AT_ONCE of them, then the next ones, each once a round."""
    addrs = range(parse_addr("198.18.64.0"), parse_addr("198.18.64.0") + 2 * REFRESH_AT_ONCE + 5)
    known: set[int] = set()

    async def main() -> None:
        watcher = PathWatcher(lambda addr, _path, _reason: known.add(addr), refresh_ns=3600 * 10**9)
        watcher.start(addrs)
        try:
            await until(lambda: len(known) == len(addrs), "first look", 30)
            rounds = []
            for _ in range(3):
                watcher._refresh()
                rounds.append(set(watcher._dirty))
                await until(lambda: not watcher._dirty, "refreshed", 30)
            assert [len(each) for each in rounds] == [REFRESH_AT_ONCE, REFRESH_AT_ONCE, 5]
            assert set().union(*rounds) == set(addrs)
        finally:
            watcher.close()

    asyncio.run(main())
