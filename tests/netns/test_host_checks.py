# SPDX-License-Identifier: Apache-2.0
"""Findings on real interfaces, and that they are true: what is warned of does break."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from pathlib import Path

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from tests.support.fresh_netns import Wire, in_fresh_netns, make_wire, wait_for_ipv6
from xdp_router.adapters.host import Rtnl, link_info
from xdp_router.adapters.host_checks import (
    NATIVE_MTU_MAX,
    HostWarning,
    check_interface,
    check_service,
)
from xdp_router.adapters.xdp_link import AttachFailed, AttachMode, attach
from xdp_router.core.address import parse_addr, parse_endpoint
from xdp_router.lab import xdp_stub
from xdp_router.linux.ethtool import Offload, set_offload


def pair() -> None:
    """A veth pair v0 and v1 in this namespace, set as the router wants it."""
    with IPRoute() as netlink:
        netlink.link("add", ifname="v0", kind="veth", peer={"ifname": "v1"})
    set_offload("v1", Offload.TX_CHECKSUM, False)
    set_offload("v1", Offload.GRO, True)


def change(name: str, **values: object) -> None:
    """Change a link by netlink."""
    with IPRoute() as netlink:
        netlink.link("set", index=socket.if_nametoindex(name), **values)


def codes(name: str, *, native: bool = True) -> list[str]:
    """Codes of the findings about an interface."""
    return [each.code for each in check_interface(link_info(name), native=native)]


@in_fresh_netns
def test_a_good_veth_pair() -> None:
    """A pair with TX checksums off and GRO on at the far end gives no finding."""
    pair()
    assert codes("v0") == []


@in_fresh_netns
def test_checksum_offload_at_the_other_end() -> None:
    """The kernel's default, TX checksum offload on, is found, and only about the other end."""
    pair()
    set_offload("v0", Offload.TX_CHECKSUM, True)
    assert codes("v0") == []
    set_offload("v1", Offload.TX_CHECKSUM, True)
    assert codes("v0") == ["veth_peer_checksum_offload"]


@in_fresh_netns
def test_gro_at_the_other_end() -> None:
    """GRO off there is found; a native XDP program there does as well, for it runs NAPI."""
    pair()
    set_offload("v1", Offload.GRO, False)
    assert codes("v0") == ["veth_peer_gro_off"]
    assert codes("v0", native=False) == []
    program = xdp_stub.load_constant(xdp_stub.XDP_PASS)
    change("v1", xdp_fd=program)
    os.close(program)
    assert link_info("v1").xdp_mode == "native"
    set_offload("v1", Offload.GRO, False)  # some kernels switch it on with the program
    assert codes("v0") == []


@in_fresh_netns
def test_gro_of_a_bridges_port() -> None:
    """It is found while it is on, for the bridge that the port belongs to and no other."""
    pair()
    with IPRoute() as netlink:
        for name in ("br0", "br1"):
            netlink.link("add", ifname=name, kind="bridge")
    set_offload("v0", Offload.GRO, True)
    assert codes("br0") == []
    change("v0", master=socket.if_nametoindex("br0"))
    assert codes("br0") == ["gro_below"]
    assert codes("br1") == []
    set_offload("v0", Offload.GRO, False)
    assert codes("br0") == []


@in_fresh_netns
def test_other_end_in_another_namespace() -> None:
    """There is one finding, and it is uncertain, even if the number there means another veth here.

    A veth's other end is known by its number only, which counts in its own namespace.
    """
    with IPRoute() as netlink:
        wire = make_wire(netlink, "v0", None, None)
        if wire.far not in {link["index"] for link in netlink.link("dump")}:
            netlink.link("add", ifname="w0", index=wire.far, kind="veth", peer={"ifname": "w1"})
    (found,) = check_interface(link_info("v0"))
    assert (found.code, found.certain) == ("veth_peer_unseen", False)


@pytest.mark.parametrize(("mtu", "refused"), [(NATIVE_MTU_MAX, False), (9000, True)])
@in_fresh_netns
def test_mtu_for_native(mtu: int, refused: bool) -> None:
    """What is warned of is refused by the driver in native mode, and at the limit it is not."""
    pair()
    change("v1", mtu=mtu)
    assert codes("v0") == (["mtu_too_large"] if refused else [])
    program = xdp_stub.load_constant(xdp_stub.XDP_PASS)
    outcome = pytest.raises(AttachFailed) if refused else contextlib.nullcontext()
    try:
        with outcome:
            attach(program, "v0", socket.if_nametoindex("v0"), AttachMode.NATIVE).close()
    finally:
        os.close(program)


def service_findings(address: str) -> list[HostWarning]:
    """Findings about a service at ``address`` while v0 is attached."""
    return check_service(parse_endpoint(f"{address}:80"), [link_info("v0")])


@in_fresh_netns
def test_service_in_a_connected_subnet() -> None:
    """An address that clients ask for by ARP in vain is found; the mend ends it."""
    with IPRoute() as netlink:
        make_wire(netlink, "v0", "198.18.0.1", "198.18.0.2")
        (found,) = service_findings("198.18.0.9")
        assert (found.code, found.interface) == ("service_not_answered_for", "v0")
        assert "198.18.0.9:80" in found.text
        assert "ip addr add 198.18.0.9/32 dev v0" in found.mend
        netlink.addr("add", index=netlink.link_lookup(ifname="v0")[0], address="198.18.0.9/32")
        assert service_findings("198.18.0.9") == []


@in_fresh_netns
def test_service_elsewhere() -> None:
    """No finding: without a route, behind a gateway, on an interface that is not attached."""
    with IPRoute() as netlink:
        make_wire(netlink, "v0", "198.18.0.1", "198.18.0.2")
        make_wire(netlink, "v9", "198.19.0.1", "198.19.0.2")
        assert service_findings("198.18.100.1") == []
        assert service_findings("198.18.0.1") == []
        assert service_findings("198.19.0.9") == []
        netlink.route("add", dst="default", gateway="198.18.0.2")
        assert service_findings("198.18.100.1") == []


@in_fresh_netns
def test_arp_is_answered_by_proxy() -> None:
    """proxy_arp_pvlan answers for addresses of the own subnet: no finding."""
    with IPRoute() as netlink:
        make_wire(netlink, "v0", "198.18.0.1", "198.18.0.2")
    with open("/proc/sys/net/ipv4/conf/v0/proxy_arp_pvlan", "w", encoding="ascii") as file:
        file.write("1\n")
    assert service_findings("198.18.0.9") == []


ON_SUBNET = "2001:db8:1::9"


def service6_findings(address: str = ON_SUBNET) -> list[HostWarning]:
    return check_service(parse_endpoint(f"[{address}]:80"), [link_info("v0")])


@in_fresh_netns
def test_ipv6_service_in_a_connected_subnet() -> None:
    """An address that nobody answers neighbour solicitations for; the mend ends it."""
    with IPRoute() as netlink:
        wire = make_wire(netlink, "v0", "2001:db8:1::1", "2001:db8:1::2")
        assert not resolves(wire)
        (found,) = service6_findings()
        assert (found.code, found.interface) == ("service_not_answered_for", "v0")
        assert "[2001:db8:1::9]:80" in found.text
        assert "nobody answers neighbour solicitations for it" in found.text
        assert found.mend.startswith(
            "ip addr add 2001:db8:1::9/128 dev v0 nodad preferred_lft 0; or"
        )
        assert service6_findings("2001:db8:1::1") == []
        assert service6_findings("2001:db8:100::1") == []
        index = netlink.link_lookup(ifname="v0")[0]
        netlink.addr(
            "add", index=index, address=ON_SUBNET, prefixlen=128, preferred=0, valid=FOREVER
        )
        wait_for_ipv6(netlink, index)
        assert service6_findings() == []
        assert resolves(wire)


@in_fresh_netns
def test_neighbour_discovery_by_proxy() -> None:
    """What is told of the proxy is so: the other end resolves the address exactly when nothing
    is found. It takes proxy_ndp, forwarding and an entry."""
    with IPRoute() as netlink:
        wire = make_wire(netlink, "v0", "2001:db8:1::1", "2001:db8:1::2")
        conf = Path("/proc/sys/net/ipv6/conf/v0")
        # Its answers by proxy are delayed by up to 0.8 s else.
        Path("/proc/sys/net/ipv6/neigh/v0/proxy_delay").write_text("0")
        for entry in (False, True):
            if entry:
                netlink.neigh(
                    "add", dst=ON_SUBNET, ifindex=wire.near, flags=NTF_PROXY, family=10, state=0
                )
            for proxy, forwarding in itertools.product((0, 1), repeat=2):
                (conf / "proxy_ndp").write_text(str(proxy))
                (conf / "forwarding").write_text(str(forwarding))
                assert (service6_findings() == []) == resolves(wire), (entry, proxy, forwarding)
        assert resolves(wire)


NTF_PROXY = 0x08
FOREVER = 0xFFFFFFFF


def resolves(wire: Wire) -> bool:
    """Whether the far end gets an answer for ON_SUBNET, asked anew."""
    answers: list[bool] = []
    addr = parse_addr(ON_SUBNET)

    def ask(ipr: IPRoute) -> None:
        with contextlib.suppress(NetlinkError):
            ipr.neigh("del", dst=ON_SUBNET, ifindex=wire.far, family=10)
        with Rtnl() as rtnl:
            rtnl.use_neighbour(wire.far, addr)
            for _ in range(30):
                found = rtnl.neighbour(wire.far, addr)
                if found is not None and found.mac:
                    break
                time.sleep(0.01)
            answers.append(found is not None and bool(found.mac))

    wire.at_far(ask)
    return answers[0]
