# SPDX-License-Identifier: Apache-2.0
"""Each kind of backend answers over the path of each method, both families, without a router."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

import pytest

from tests.support.backend_paths import path_to
from tests.support.clients import random_bytes
from tests.support.iperf import iperf
from tests.support.netns import unique_prefix
from tests.support.quic_client import ask_by_quic
from tests.support.receipts import ask_by_stun, ask_by_tcp, ask_by_udp, datagram_socket
from tests.support.wide_lab import wide_lab, wide_spec
from xdp_router.lab import Lab, links
from xdp_router.lab.spec import Family, Kind, Method, Topology

pytest_plugins = ("tests.support.netns",)

METHODS: list[tuple[Method, Topology, int | None]] = [
    ("nat", "routed", None),
    ("nat", "routed", 7),
    ("fullnat", "segment", None),
    ("dsr", "segment", None),
    ("dsr", "segment", 7),
    ("dsr", "routed", None),
    ("ipip", "segment", None),
    ("ipip", "segment", 7),
    ("ipip", "routed", None),
]
FAMILIES: tuple[Family, ...] = get_args(Family)
TUNNELS: list[tuple[Family, Family]] = [(inner, outer) for inner in FAMILIES for outer in FAMILIES]
FRAGMENTED = 3000


@pytest.fixture(params=METHODS, ids=lambda value: "-".join(map(str, value)))
def plan(request: pytest.FixtureRequest) -> tuple[Method, Topology, int | None]:
    """Method, topology and tag of all but the switch."""
    chosen: tuple[Method, Topology, int | None] = request.param
    return chosen


def lab_of(plan: tuple[Method, Topology, int | None], kind: Kind) -> Lab:
    """A lab of two backends, not built yet."""
    method, topology, vlan = plan
    spec = wide_spec(
        method=method, topology=topology, vlan=vlan, client_vlan=vlan, kind=kind, backends=2
    )
    return Lab(spec, prefix=unique_prefix())


def paths(lab: Lab) -> Iterator[tuple[Family, Family | None]]:
    """Families of packet and of outer header."""
    if lab.spec.method == "ipip":
        yield from TUNNELS
    else:
        yield from ((family, None) for family in FAMILIES)


def test_hash(plan: tuple[Method, Topology, int | None]) -> None:
    """Datagrams and streams arrive whole at the backend that the path leads to."""
    with lab_of(plan, "hash") as lab:
        for family, outer in paths(lab):
            for index in (1, 0):
                with path_to(lab, index, family=family, outer=outer) as target:
                    name = lab.spec.backends[index].name
                    for size in (0, 1, 1400 - 40):
                        assert ask_by_udp(lab.client, target, random_bytes(size)) == name
                    assert ask_by_tcp(lab.client, target, random_bytes(300_000)) == name


def test_stun(plan: tuple[Method, Topology, int | None]) -> None:
    """A binding request tells the client's own address and port: nobody has changed them."""
    with lab_of(plan, "stun") as lab:
        for family, outer in paths(lab):
            source = (lab.addresses_of(family).client, 40_000)
            with path_to(lab, 0, family=family, outer=outer) as target:
                assert ask_by_stun(lab.client, target, source=source) == ("b1", source)


def test_quic(plan: tuple[Method, Topology, int | None]) -> None:
    """A handshake whose hello takes two datagrams succeeds, and a stream arrives whole."""
    with lab_of(plan, "quic") as lab:
        for family, outer in paths(lab):
            with path_to(lab, 1, family=family, outer=outer) as target:
                assert ask_by_quic(lab.client, target, random_bytes(50_000)) == "b2"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["nat", "dsr", "ipip"])
def test_iperf(family: Family, method: Method) -> None:
    """iperf3 measures TCP and UDP, both ways, and nothing is lost at a modest rate."""
    with wide_lab(method=method, kind="iperf3", family=family) as wide:
        with path_to(wide.lab, 0, family=family) as target:
            tcp = iperf(wide.client, target, "--bitrate=20M")
            assert tcp["sum_received"]["bytes"] > 100_000
            udp = iperf(wide.client, target, "--reverse", udp=True)
            assert udp["sum"]["packets"] > 10
            assert udp["sum"]["lost_packets"] == 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["dsr", "ipip"])
def test_answers_go_straight_to_the_client(family: Family, method: Method) -> None:
    """On a segment the router sees what the client sends, and nothing that backends answer."""
    with wide_lab(method=method, family=family) as wide:
        with (
            path_to(wide.lab, 0, family=family) as target,
            wide.lab.router.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap,
        ):
            ask_by_tcp(wide.client, target, random_bytes(10_000))
            macs = set()
            while select.select([tap], [], [], 0.2)[0]:
                frame, (ifname, *_) = tap.recvfrom(2000)
                is_ip = frame[12:14] in (b"\x08\x00", b"\x86\xdd")
                if ifname == "lan0" and is_ip and frame[20 if family == 6 else 23] == 6:
                    macs.add(frame[6:12].hex(":"))
            backend = links.mac(1, 1, 2)
            assert links.mac(0, 0, 2) in macs
            assert backend not in macs


@pytest.mark.parametrize("family", FAMILIES)
def test_service_address_is_kept_secret(family: Family) -> None:
    """Nobody on the segment answers who has the service's address, though all backends do."""
    with wide_lab(method="dsr", family=family, backends=3) as wide:
        length = 128 if family == 6 else 32
        dst = f"{wide.service[0]}/{length}"
        index = links.ifindex(wide.client, "eth0")
        links.with_netlink(wide.client, lambda net: net.route("add", dst=dst, oif=index))
        with datagram_socket(wide.client, wide.service, timeout=0.5) as peer:
            peer.send(b"who has it?")
            with pytest.raises(OSError):  # noqa: PT011 - time-out, or the own kernel gave up
                peer.recv(100)


@pytest.mark.parametrize("method", ["dsr", "ipip"])
@pytest.mark.parametrize("trouble", ["down", "silence"])
def test_backend_recovers_from_trouble(method: Method, trouble: str) -> None:
    """After its link was down, or it was silent, a backend answers over its path as before."""
    with wide_lab(method=method) as wide:
        getattr(wide.lab, f"{trouble}_backend")(0)
        getattr(wide.lab, {"down": "up_backend", "silence": "unsilence_backend"}[trouble])(0)
        for family in FAMILIES:
            with path_to(wide.lab, 0, family=family) as target:
                assert ask_by_udp(wide.client, target, b"again") == "b1"
                assert ask_by_tcp(wide.client, target, b"again") == "b1"


@pytest.mark.parametrize("family", FAMILIES)
def test_fragments_arrive(family: Family) -> None:
    """A datagram that the client sends in fragments is put together by the backend."""
    with wide_lab(family=family) as wide:
        target = wide.addresses.backends[0]
        assert ask_by_udp(wide.client, target, random_bytes(FRAGMENTED)) == "b1"


def test_tunnel_needs_its_header() -> None:
    """With ``ipip`` a backend answers from the service's address; without the tunnel's path
    nobody reaches it there.
    """
    with wide_lab(method="ipip") as wide:
        with datagram_socket(wide.client, wide.service, timeout=0.3) as peer:
            peer.send(b"x")
            with pytest.raises(OSError):  # noqa: PT011 - time-out, or the router's ICMP
                peer.recv(100)


def test_router_of_another_vlan_knows_its_neighbours() -> None:
    """On a segment with the backends behind another tag, router and backend know each other."""
    with wide_lab(method="fullnat", vlan=20, client_vlan=10) as wide:
        for family in FAMILIES:
            of = wide.lab.addresses_of(family)
            for namespace, host, mac in (
                (wide.lab.router, of.backends[0][0], links.mac(1, 1, 2)),
                (wide.lab.backends[0], of.client_router, links.mac(0, 0, 1)),
            ):
                ask = partial(neighbours, host=host)
                assert links.with_netlink(namespace, ask) == [mac]


def neighbours(netlink: Any, host: str) -> list[str]:
    """The MACs that a kernel has for an address."""
    return [entry.get_attr("NDA_LLADDR") for entry in netlink.get_neighbours(dst=host)]
