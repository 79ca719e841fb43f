# SPDX-License-Identifier: Apache-2.0
"""Both topologies, both families: who reaches whom, and what stays quiet."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from typing import get_args

import pytest

from tests.netns.test_links import COUNT, ETHERTYPE, redirected
from tests.support.netns import LabFactory
from tests.support.receipts import ask_by_tcp, ask_by_udp
from tests.support.wide_lab import wide_spec
from xdp_router.lab import links, xdp_stub
from xdp_router.lab.spec import Family, Method, Topology

pytest_plugins = ("tests.support.netns",)

AF_INET6 = socket.AF_INET6
IFA_F_TENTATIVE = 0x40
FAMILIES = get_args(Family)
TOPOLOGIES = get_args(Topology)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_client_reaches_every_backend(
    make_lab: LabFactory, family: Family, topology: Topology
) -> None:
    """Each backend answers at its own address, at once, from every address of the client."""
    lab = make_lab(wide_spec(backends=3, topology=topology, client_addresses=2))
    of = lab.addresses_of(family)
    for client in of.clients:
        found = [ask_by_udp(lab.client, to, b"who?", source=(client, 0)) for to in of.backends]
        assert found == ["b1", "b2", "b3"]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_no_address_is_tentative(make_lab: LabFactory, topology: Topology) -> None:
    """No duplicate address detection: each address can be used as soon as the lab is built."""
    lab = make_lab(wide_spec(backends=2, topology=topology, method="dsr"))
    for namespace in (lab.client, lab.router, *lab.backends):
        found = links.with_netlink(namespace, lambda net: list(net.get_addr(family=AF_INET6)))
        assert len(found) >= 2
        assert not [entry for entry in found if entry["flags"] & IFA_F_TENTATIVE]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_idle_lab_is_quiet(make_lab: LabFactory, topology: Topology) -> None:
    """Nothing is on the router's wires that nobody sent: no discovery, no queries, no reports."""
    lab = make_lab(wide_spec(backends=2, topology=topology, delays_ms=(1,)))
    with lab.router.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
        assert not select.select([tap], [], [], 1.5)[0]


def test_segment_has_one_router_interface(make_lab: LabFactory) -> None:
    """On a segment the router has the one interface lan0, with the MAC that clients know."""
    lab = make_lab(wide_spec(method="dsr"))
    assert lab.router_interfaces == ("lan0",)
    (link,) = links.with_netlink(lab.router, lambda netlink: netlink.link("get", ifname="lan0"))
    assert link.get_attr("IFLA_ADDRESS") == links.mac(0, 0, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_segment_is_one_ethernet(make_lab: LabFactory, family: Family) -> None:
    """Client and backend talk past the router, also through a delay line."""
    lab = make_lab(wide_spec(topology="segment", backends=2, delays_ms=(5,)))
    links.set_up(lab.router, "lan0", False)
    for name, target in zip(("b1", "b2"), lab.addresses_of(family).backends, strict=True):
        started = time.monotonic()
        assert ask_by_tcp(lab.client, target, bytes(100_000)) == name
        assert name == "b2" or time.monotonic() - started >= 0.005


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_link_that_was_down_is_as_before(make_lab: LabFactory, topology: Topology) -> None:
    """Addresses of both families survive a link that was down, and the routes come back."""
    lab = make_lab(wide_spec(topology=topology))
    lab.down_backend(0)
    lab.up_backend(0)
    for family in FAMILIES:
        assert ask_by_udp(lab.client, lab.addresses_of(family).backends[0], b"x") == "b1"


def test_delay_line_carries_ipv6(make_lab: LabFactory) -> None:
    """The delay holds for both families."""
    lab = make_lab(wide_spec(delays_ms=(20,)))
    for family in FAMILIES:
        target = lab.addresses_of(family).backends[0]
        ask_by_udp(lab.client, target, b"neighbours")
        started = time.monotonic()
        ask_by_udp(lab.client, target, b"x")
        assert time.monotonic() - started >= 0.02


@pytest.mark.parametrize("method", ["nat", "ipip"])
def test_redirected_frames_arrive(make_lab: LabFactory, method: Method) -> None:
    """A backend takes frames that native XDP redirects, also where it takes headers off."""
    lab = make_lab(wide_spec(method=method, topology="routed"))
    assert redirected(lab, 0) == COUNT


@pytest.mark.parametrize("method", ["fullnat", "dsr", "ipip"])
def test_frames_redirected_on_the_segment_arrive(make_lab: LabFactory, method: Method) -> None:
    """What XDP sends back by the router's one interface reaches the backends through the switch."""
    lab = make_lab(wide_spec(method=method, topology="segment"))
    program = xdp_stub.load_redirect(links.ifindex(lab.router, "lan0"))
    links.attach_xdp(lab.router, "lan0", program)
    os.close(program)
    with (
        lab.client.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sender,
        lab.backends[0].socket(
            socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE)
        ) as receiver,
    ):
        sender.bind(("eth0", 0))
        client = bytes.fromhex(links.mac(0, 0, 2).replace(":", ""))
        for _ in range(10):
            sender.send(b"\xff" * 6 + client + struct.pack("!H", ETHERTYPE) + bytes(50))
            time.sleep(0.001)
        seen = 0
        while select.select([receiver], [], [], 0.3)[0]:
            receiver.recv(2000)
            seen += 1
    assert seen == 20  # each once from the client, and once from the router
