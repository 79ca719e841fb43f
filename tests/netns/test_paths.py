# SPDX-License-Identifier: Apache-2.0
"""Paths looked at once, of both families, against the real kernel in namespaces of their own."""

from __future__ import annotations

import os
import time

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import Wire, in_fresh_netns, make_wire, wait_for_ipv6
from xdp_router.adapters.host import mac_bytes
from xdp_router.adapters.netlink import BackendRouteError, Path, require_attached, resolve_paths
from xdp_router.core.address import parse_addr

NEAR = "198.18.1.1"
FAR = "198.18.1.2"
FAR_INT = parse_addr(FAR)
NEAR_MAC = "02:00:00:00:01:01"
FAR_MAC = "02:00:00:00:01:02"
NEAR6, FAR6 = "2001:db8:1::1", "2001:db8:1::2"
FAR6_INT = parse_addr(FAR6)
MASK64 = (1 << 128) - (1 << 64)
SUBNET6 = (parse_addr(NEAR6) & MASK64, MASK64)


def _wire(ipr: IPRoute, near: str | None = NEAR, far: str | None = FAR) -> Wire:
    wire = make_wire(ipr, "be1", near, far)
    ipr.link("set", index=wire.near, address=NEAR_MAC)
    wire.far_link(address=FAR_MAC)
    return wire


@in_fresh_netns
def test_direct_backend_is_resolved() -> None:
    """A backend on the link gets its MAC, ours, and our address as probe source."""
    with IPRoute() as ipr:
        wire = _wire(ipr)
        found = resolve_paths([FAR_INT])[FAR_INT]
        os.close(wire.far_ns)
    subnet = (parse_addr(NEAR) & 0xFFFFFF00, 0xFFFFFF00)  # whose hosts it answers directly
    macs = mac_bytes(FAR_MAC), mac_bytes(NEAR_MAC)
    assert found.path == Path(wire.near, *macs, parse_addr(NEAR), (subnet,))
    assert (found.interface, found.next_hop) == ("be1", FAR_INT)


@in_fresh_netns
def test_backend_behind_gateway_gets_the_gateways_mac() -> None:
    """A routed backend is reached by the MAC of its gateway."""
    remote = parse_addr("198.19.7.7")
    with IPRoute() as ipr:
        wire = _wire(ipr)
        ipr.route("add", dst="198.19.7.0/24", gateway=FAR)
        found = resolve_paths([remote])[remote]
        os.close(wire.far_ns)
    assert found.path is not None
    assert found.path.dmac == mac_bytes(FAR_MAC)
    assert found.next_hop == FAR_INT


@in_fresh_netns
def test_one_shot_reports_what_it_could_not_resolve() -> None:
    """No route and no ARP answer are told apart, and the wait is bounded."""
    absent, unrouted = parse_addr("198.18.1.77"), parse_addr("198.19.9.9")
    with IPRoute() as ipr:
        wire = _wire(ipr)
        began = time.monotonic()
        found = resolve_paths([absent, unrouted], timeout_ns=200_000_000)
        took_s = time.monotonic() - began
        os.close(wire.far_ns)
    assert found[absent].path is None
    assert found[absent].reason == "no ARP answer from 198.18.1.77 on be1"
    assert found[absent].interface == "be1"
    assert found[unrouted].reason == "no route to 198.19.9.9"
    assert 0.2 <= took_s < 1.0


@in_fresh_netns
def test_route_by_unattached_interface_is_refused_with_the_mend() -> None:
    """attach learns which backend leaves by which interface, and what to type."""
    with IPRoute() as ipr:
        wire = _wire(ipr)
        found = resolve_paths([FAR_INT])
        os.close(wire.far_ns)
    require_attached(found.values(), {wire.near}, {FAR_INT: "b1"})
    with pytest.raises(BackendRouteError) as refusal:
        require_attached(found.values(), {wire.near + 1}, {FAR_INT: "b1"})
    assert "backend b1 (198.18.1.2): its route leaves by be1" in str(refusal.value)
    assert str(refusal.value).endswith("add be1 to the attach command")


@in_fresh_netns
def test_backend_on_this_host_is_refused() -> None:
    """A backend that is the router itself can't work with nat, and is said to be so."""
    with IPRoute() as ipr:
        wire = _wire(ipr)
        ipr.link("set", index=1, state="up")
        found = resolve_paths([parse_addr(NEAR)])
        os.close(wire.far_ns)
    with pytest.raises(BackendRouteError, match=r"b1 \(198.18.1.1\) is an address of this host"):
        require_attached(found.values(), {wire.near}, {parse_addr(NEAR): "b1"})


@in_fresh_netns
def test_direct_ipv6_backend_is_resolved() -> None:
    """Neighbour discovery gives its MAC; probes come from our address of its subnet."""
    with IPRoute() as ipr:
        wire = _wire(ipr, NEAR6, FAR6)
        found = resolve_paths([FAR6_INT])[FAR6_INT]
        os.close(wire.far_ns)
    macs = mac_bytes(FAR_MAC), mac_bytes(NEAR_MAC)
    assert found.path == Path(wire.near, *macs, parse_addr(NEAR6), (SUBNET6,))
    assert (found.interface, found.next_hop) == ("be1", FAR6_INT)


@in_fresh_netns
def test_ipv6_backend_behind_a_link_local_gateway() -> None:
    """``via fe80::1`` is resolved on its interface; the link's subnets are the gateway's too."""
    remote = parse_addr("2001:db8:7::7")
    with IPRoute() as ipr:
        wire = _wire(ipr, NEAR6, None)
        wire.at_far(lambda far: far.addr("add", index=wire.far, address="fe80::1", prefixlen=64))
        ipr.route("add", dst="2001:db8:7::/64", gateway="fe80::1", oif=wire.near)
        found = resolve_paths([remote])[remote]
        os.close(wire.far_ns)
    macs = mac_bytes(FAR_MAC), mac_bytes(NEAR_MAC)
    gateway = parse_addr("fe80::1")
    assert found.path == Path(wire.near, *macs, parse_addr(NEAR6), (SUBNET6,), gateway)
    assert found.next_hop == parse_addr("fe80::1")


@in_fresh_netns
def test_ipv4_backend_behind_an_ipv6_gateway() -> None:
    """A route of RFC 5549 leads to the MAC of that gateway."""
    remote = parse_addr("198.19.7.7")
    with IPRoute() as ipr:
        wire = _wire(ipr, NEAR, FAR6)
        ipr.addr("add", index=wire.near, address=NEAR6, prefixlen=64)
        wait_for_ipv6(ipr, wire.near)
        via = {"family": 10, "addr": FAR6}
        ipr.route("add", dst="198.19.7.0/24", via=via, oif=wire.near)
        found = resolve_paths([remote])[remote]
        os.close(wire.far_ns)
    assert found.path is not None
    assert found.path.dmac == mac_bytes(FAR_MAC)
    assert found.path.source_addr == parse_addr(NEAR)
    assert found.next_hop == FAR6_INT


@in_fresh_netns
def test_ipv6_reasons() -> None:
    """No route, a blackhole, no answer, our own address, and no address to probe from."""
    absent, unrouted = parse_addr("2001:db8:1::77"), parse_addr("2001:db8:9::9")
    hole, own, behind = (parse_addr(f"2001:db8:{end}") for end in ("8::8", "1::1", "6::6"))
    with IPRoute() as ipr:
        ipr.link("set", index=1, state="up")
        wire = _wire(ipr, NEAR6, FAR6)
        ipr.route("add", dst="2001:db8:8::/64", type="blackhole", family=10)
        found = resolve_paths([absent, unrouted, hole, own], timeout_ns=200_000_000)
        ipr.addr("del", index=wire.near, address=NEAR6, prefixlen=64)
        wire.at_far(lambda far: far.addr("add", index=wire.far, address="fe80::1", prefixlen=64))
        ipr.route("add", dst="2001:db8:6::/64", gateway="fe80::1", oif=wire.near)
        found |= resolve_paths([behind], timeout_ns=200_000_000)
        os.close(wire.far_ns)
    assert {addr: found[addr].reason for addr in found} == {
        absent: "no neighbour advertisement from 2001:db8:1::77 on be1",
        unrouted: "no route to 2001:db8:9::9",
        hole: "no route to 2001:db8:8::8",
        own: "2001:db8:1::1 is an address of this host",
        behind: "interface be1 has no global IPv6 address to probe from",
    }
    with pytest.raises(BackendRouteError, match=r"b1 \(2001:db8:1::1\) is an address of this host"):
        require_attached([found[own]], {wire.near}, {own: "b1"})
    with pytest.raises(BackendRouteError, match=r"b1 \(2001:db8:1::77\): its route leaves by be1"):
        require_attached([found[absent]], {wire.near + 1}, {absent: "b1"})


@in_fresh_netns
def test_both_families_at_once() -> None:
    """An interface with both has the subnets of each for its own."""
    with IPRoute() as ipr:
        wire = _wire(ipr)
        ipr.addr("add", index=wire.near, address=NEAR6, prefixlen=64)
        wait_for_ipv6(ipr, wire.near)
        wire.at_far(lambda far: far.addr("add", index=wire.far, address=FAR6, prefixlen=64))
        found = resolve_paths([FAR_INT, FAR6_INT])
        os.close(wire.far_ns)
    paths = [found[addr].path for addr in (FAR_INT, FAR6_INT)]
    assert [path and path.subnets for path in paths] == [
        ((FAR_INT & 0xFFFFFF00, 0xFFFFFF00),),
        (SUBNET6,),
    ]


@in_fresh_netns
@pytest.mark.parametrize("preferred", [0, 0xFFFFFFFF])
def test_probes_do_not_come_from_a_service(preferred: int) -> None:
    """A service's address that is nearer to the backend's would be taken for the source, but not
    as the mend of ``service_not_answered_for`` adds it."""
    service = "2001:db8:1::3"
    with IPRoute() as ipr:
        wire = _wire(ipr, NEAR6, FAR6)
        forever = 0xFFFFFFFF
        ipr.addr(
            *("add",), index=wire.near, address=service, prefixlen=128,
            preferred=preferred, valid=forever,
        )  # fmt: skip
        wait_for_ipv6(ipr, wire.near)
        found = resolve_paths([FAR6_INT])[FAR6_INT]
        os.close(wire.far_ns)
    assert found.path is not None
    assert found.path.source_addr == parse_addr(service if preferred else NEAR6)
