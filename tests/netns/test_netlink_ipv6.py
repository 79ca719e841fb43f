# SPDX-License-Identifier: Apache-2.0
"""Watched paths of IPv6 backends: neighbour discovery, routes and addresses as the kernel tells."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pyroute2 import IPRoute

from tests.support.fresh_netns import Wire, in_fresh_netns, make_wire
from tests.support.path_watch import Watch, do, until, watch_wire
from xdp_router.adapters.host import Rtnl, mac_bytes
from xdp_router.core.address import parse_addr

NEAR, FAR = "2001:db8:1::1", "2001:db8:1::2"
FAR_INT = parse_addr(FAR)
FAR_MAC, OTHER_MAC = "02:00:00:00:01:02", "02:00:00:00:01:99"
REACHABLE, DELAY, PROBE = 0x02, 0x08, 0x10


def _wire(ipr: IPRoute) -> Wire:
    wire = make_wire(ipr, "be1", NEAR, FAR)
    wire.far_link(address=FAR_MAC)
    return wire


def _run(conversation: Callable[[Wire, Watch], Awaitable[None]], watch: Watch) -> None:
    watch_wire(_wire, FAR_INT, conversation, watch)


def _neighbour_is(wire: Wire, *states: int, mac: str = FAR_MAC) -> Callable[[], bool]:
    def look() -> bool:
        with Rtnl() as rtnl:
            entry = rtnl.neighbour(wire.near, FAR_INT)
        return entry is not None and entry.mac == mac_bytes(mac) and entry.state in states

    return look


@in_fresh_netns
def test_changed_mac_of_ipv6_backend_is_reported() -> None:
    """Another MAC, told by an unsolicited advertisement, changes the path without a gap."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        await do(lambda _: wire.at_far(_announce_itself(wire)))
        await until(
            lambda: watch.path is not None and watch.path.dmac == mac_bytes(OTHER_MAC), "new MAC"
        )
        assert all(path is not None for _, path, _ in watch.changes)

    _run(conversation, Watch())


def _announce_itself(wire: Wire) -> Callable[[IPRoute], object]:
    def change(far: IPRoute) -> None:
        with open("/proc/sys/net/ipv6/conf/be1p/ndisc_notify", "w", encoding="ascii") as file:
            file.write("1")
        far.link("set", index=wire.far, address=OTHER_MAC)

    return change


@in_fresh_netns
def test_flushed_ipv6_neighbour_is_found_again() -> None:
    """A flushed entry is asked for anew; nothing is reported, the backend stays up."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        await do(lambda ipr: ipr.neigh("del", dst=FAR, ifindex=wire.near, family=10))
        await until(_neighbour_is(wire, 0x02, 0x04, 0x08, 0x10), "neighbour entry back")
        await asyncio.sleep(0.4)
        assert len(watch.changes) == 1

    _run(conversation, Watch())


@in_fresh_netns
def test_ipv6_backend_that_stops_answering_is_lost_and_comes_back() -> None:
    """Past the grace time a silent neighbour is reported, and again when it answers."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        def far_address(what: str) -> Callable[[IPRoute], None]:
            return lambda _: wire.at_far(
                lambda far: far.addr(what, index=wire.far, address=FAR, prefixlen=64)
            )

        await do(far_address("del"))
        await do(lambda ipr: ipr.neigh("del", dst=FAR, ifindex=wire.near, family=10))
        await until(lambda: watch.path is None, "loss")
        assert watch.reason == f"no neighbour advertisement from {FAR} on be1"
        await do(far_address("add"))
        await until(lambda: watch.path is not None, "return")

    _run(conversation, Watch(refresh_ns=200_000_000))


@in_fresh_netns
def test_stale_ipv6_neighbour_is_confirmed() -> None:
    """A stale entry is put to use, so the kernel asks for it and a dead one is found out."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        await do(
            lambda ipr: ipr.neigh(
                "set", dst=FAR, lladdr=FAR_MAC, ifindex=wire.near, state="stale", family=10
            )
        )
        await until(_neighbour_is(wire, REACHABLE, DELAY, PROBE), "delay, probe or reachable")
        assert len(watch.changes) == 1

    _run(conversation, Watch(refresh_ns=100_000_000))


@in_fresh_netns
def test_ipv6_route_change_moves_the_path() -> None:
    """A host route by a link-local gateway of another wire takes it there; back when it goes."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        second = await do(
            lambda ipr: make_wire(ipr, "be2", "2001:db8:2::1", "2001:db8:2::2", wire.far_ns)
        )
        await do(
            lambda _: wire.at_far(
                lambda far: far.addr("add", index=second.far, address="fe80::1", prefixlen=64)
            )
        )
        route = {"dst": f"{FAR}/128", "gateway": "fe80::1", "oif": second.near}
        await do(lambda ipr: ipr.route("add", **route))
        await until(lambda: watch.path is not None and watch.path.ifindex == second.near, "be2")
        await do(lambda ipr: ipr.route("del", **route))
        await until(lambda: watch.path is not None and watch.path.ifindex == wire.near, "be1")

    _run(conversation, Watch(refresh_ns=60_000_000_000))


@in_fresh_netns
def test_neighbour_that_is_a_link_local_gateway_changes() -> None:
    """Also of a next hop that is known by its link-local address a new MAC is seen."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        await do(
            lambda _: wire.at_far(
                lambda far: far.addr("add", index=wire.far, address="fe80::1", prefixlen=64)
            )
        )
        route = {"dst": f"{FAR}/128", "gateway": "fe80::1", "oif": wire.near}
        await do(lambda ipr: ipr.route("add", **route))

        def by_gateway() -> bool:
            found = watch.watcher.resolution(FAR_INT)
            return found is not None and found.next_hop == parse_addr("fe80::1")

        await until(by_gateway, "by the gateway")
        await until(lambda: watch.path is not None, "a path")
        await do(
            lambda ipr: ipr.neigh(
                *("set",), dst="fe80::1", lladdr=OTHER_MAC, ifindex=wire.near, state="reachable"
            )
        )
        await until(
            lambda: watch.path is not None and watch.path.dmac == mac_bytes(OTHER_MAC), "new MAC"
        )

    _run(conversation, Watch(refresh_ns=60_000_000_000))


@in_fresh_netns
def test_ipv6_rule_change_is_noticed() -> None:
    """A policy rule that leads nowhere takes the path; it comes back with the rule's end."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        rule = {"family": 10, "dst": FAR, "dst_len": 128, "action": 6, "priority": 10}
        await do(lambda ipr: ipr.rule("add", **rule))
        await until(lambda: watch.path is None, "no route")
        assert watch.reason == f"no route to {FAR}"
        await do(lambda ipr: ipr.rule("del", **rule))
        await until(lambda: watch.path is not None, "path")

    _run(conversation, Watch(refresh_ns=60_000_000_000))


@in_fresh_netns
def test_interface_without_its_ipv6_address() -> None:
    """The address goes: no path, nothing to send ICMP errors from; it comes: both are back."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        def addr6() -> int:
            return watch.watcher.links()[wire.near].addr6

        assert addr6() == parse_addr(NEAR)
        near = {"index": wire.near, "address": NEAR, "prefixlen": 64}
        await do(lambda ipr: ipr.addr("del", **near))
        await until(lambda: not addr6() and watch.path is None, "no address")
        assert watch.saw("address", "be1")
        await do(lambda ipr: ipr.addr("add", **near))
        await until(lambda: addr6() == parse_addr(NEAR) and watch.path is not None, "path")

    _run(conversation, Watch(refresh_ns=60_000_000_000))


@in_fresh_netns
def test_flap_of_an_interface_with_ipv6() -> None:
    """Down takes address and path, as the kernel does; a new address gives them back."""

    async def conversation(wire: Wire, watch: Watch) -> None:
        await do(lambda ipr: ipr.link("set", index=wire.near, state="down"))
        await until(lambda: watch.saw("down", "be1") and watch.path is None, "down")
        await until(lambda: not watch.watcher.links()[wire.near].addr6, "no address")
        await do(lambda ipr: ipr.link("set", index=wire.near, state="up"))
        await do(lambda ipr: ipr.addr("add", index=wire.near, address=NEAR, prefixlen=64))
        await until(lambda: watch.path is not None, "path")
        await until(lambda: watch.watcher.links()[wire.near].addr6 == parse_addr(NEAR), "address")

    _run(conversation, Watch())


@in_fresh_netns
def test_addresses_that_are_still_tentative() -> None:
    """As after a boot: detection of duplicates is under way, and the path comes when it is over."""

    def lay(ipr: IPRoute) -> Wire:
        wire = make_wire(ipr, "be1", None, FAR)
        ipr.link("set", index=wire.near, state="down")
        with open("/proc/sys/net/ipv6/conf/be1/accept_dad", "w", encoding="ascii") as file:
            file.write("1")
        ipr.link("set", index=wire.near, state="up")
        ipr.addr("add", index=wire.near, address=NEAR, prefixlen=64)
        return wire

    async def conversation(_wire: Wire, watch: Watch) -> None:
        assert watch.changes[0][1] is None
        assert (
            "has no global IPv6 address" in watch.changes[0][2]
            or "no route" in (watch.changes[0][2])
        )
        assert watch.path is not None
        assert watch.path.source_addr == parse_addr(NEAR)

    watch_wire(lay, FAR_INT, conversation, Watch(refresh_ns=500_000_000))
