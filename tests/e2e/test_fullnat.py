# SPDX-License-Identifier: Apache-2.0
"""fullnat: backends see an address of the router, wherever they and their clients stand."""

from __future__ import annotations

import ipaddress
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import dial, random_bytes
from tests.support.netns import wait_for
from tests.support.own_service import ADDRESS, PORT, OwnService, own_service
from tests.support.router import Router, calm_config, heartbeat_stale, routed_lab
from xdp_router.adapters import sysctl
from xdp_router.core import abi
from xdp_router.core.model import Endpoint, FlowKey
from xdp_router.lab import BackendSpec, LabSpec
from xdp_router.lab.hash_server import receipt_of
from xdp_router.lab.spec import Family, Topology

pytest_plugins = ("tests.support.netns",)

NAMES = ("b1", "b2", "b3")
NAT_PORTS = range(20_000, 24_096)
SETTINGS = (
    f'nat_ports = "{NAT_PORTS[0]}-{NAT_PORTS[-1]}"\nheartbeat_stale = "300ms"\nprobe_rate = 100_000'
)
EACH_FAMILY = 500
VARIANTS: list[tuple[Topology, str]] = [
    (topology, mode) for topology in ("routed", "segment") for mode in ("native", "generic")
]  # fmt: skip


def spec_of(topology: Topology) -> LabSpec:
    """Three servers that tell what they got, in either family."""
    backends = tuple(BackendSpec(name, kind="hash") for name in NAMES)
    return LabSpec(backends, topology=topology, method="fullnat")


def config(spec: LabSpec) -> str:
    """The lab's service in both families, and one whose backends are the test's own sockets."""
    six = spec.config_toml(deadline="1s", family=6).replace('name = "', 'name = "v6-')
    text = calm_config(spec, SETTINGS) + six.replace('fallback = "', 'fallback = "v6-')
    text += f'[[service]]\nname = "own"\naddress = "{ADDRESS[0]}:{ADDRESS[1]}"\n'
    text += 'forwarding = "fullnat"\ndeadline = "1s"\n'
    for number, (address, _) in enumerate(spec.addresses.backends, 1):
        text += f'[[service.backend]]\nname = "o{number}"\naddress = "{address}:{PORT}"\n'
    return text


@pytest.fixture(scope="module", params=VARIANTS, ids="-".join)
def router(request: pytest.FixtureRequest, private_mounts: Path) -> Iterator[Router]:
    """One-armed, with all at one switch, or between clients and backends; in either mode."""
    topology, mode = request.param
    spec = spec_of(topology)
    with routed_lab(private_mounts, spec, config(spec), "--xdp-mode", mode) as started:
        wait_for(
            lambda: started.ask("status")["backends_up"] == 3 * len(NAMES), 10, "all backends up"
        )
        yield started


@pytest.fixture
def own(router: Router) -> Iterator[OwnService]:
    with own_service(router) as service:
        yield service


def ask(
    router: Router, family: Family, payload: bytes, *, port: int = 0, index: int | None = None
) -> str:
    """Who took the payload, unharmed; ``index``: the backend that is the client."""
    lab = router.lab
    of = lab.spec.addresses_of(family)
    namespace = lab.client if index is None else lab.backends[index]
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with namespace.socket(kind) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        peer.settimeout(5)
        if port:
            peer.bind((of.client, port))
        peer.connect(of.service)
        peer.sendall(payload)
        peer.shutdown(socket.SHUT_WR)
        answer = b""
        while data := peer.recv(1000):
            answer += data
    name = answer.split()[0].decode()
    assert answer == receipt_of(name, payload)
    return name


@pytest.mark.parametrize("family", [4, 6])
def test_many_connections(router: Router, family: Family) -> None:
    """500 connections from a row of ports: each is whole, each backend has some of them."""
    with router.counted() as counted:
        names = {
            ask(router, family, random_bytes(3000, number), port=40_000 + number)
            for number in range(EACH_FAMILY)
        }
        assert counted("promoted") == EACH_FAMILY
        assert counted("refused_by_daemon") == counted("refused_no_backend") == 0
    assert names == set(NAMES)
    ours = {
        ipaddress.ip_address(address)
        for address in (
            *router.lab.spec.addresses_of(family).backend_routers,
            router.lab.spec.addresses_of(family).client_router,
        )
    }
    rows = [row for row in router.json("flows") if (":" in row["client"][:-6]) == (family == 6)]
    taken = set()
    for row in rows:
        if row["service"] == "own":
            continue
        address, _, port = row["source_address"].rpartition(":")
        assert ipaddress.ip_address(address.strip("[]")) in ours, row
        assert int(port) in NAT_PORTS, row
        taken.add((row["backend"], row["source_address"]))
    assert len(taken) == len([row for row in rows if row["service"] != "own"]) >= EACH_FAMILY // 2


def test_a_large_transfer(router: Router) -> None:
    """Five megabytes arrive whole."""
    assert ask(router, 4, random_bytes(5_000_000)) in NAMES
    assert ask(router, 6, random_bytes(5_000_000)) in NAMES


def test_backends_see_the_router(router: Router, own: OwnService) -> None:
    """The other end of a backend's socket is our address and port, as ``flows`` says."""
    with own.connection() as (client, server):
        client.sendall(b"over")
        assert server.recv(4) == b"over"
        server.sendall(b"and back")
        assert client.recv(8) == b"and back"
        address, port = server.getpeername()
        assert address != client.getsockname()[0]
        assert port in NAT_PORTS
        flow = router.flow(client.getsockname())
        assert flow is not None
        assert flow["source_address"] == f"{address}:{port}"
        told = router.cli("flows")
        assert "SOURCE" in told.stdout, told.stderr
        host, number = client.getsockname()
        assert f", as {address}:{port} " in router.cli("explain", f"{host}:{number}").stdout


def test_a_port_that_is_used_again_gets_another_one(router: Router, own: OwnService) -> None:
    """The former one rests: its backend may have the old connection in TIME_WAIT."""
    source = (router.lab.addresses.client, 45_678)
    ports = set()
    for _ in range(20):
        with own.connection(source) as (client, server):
            client.sendall(b"x")
            assert server.recv(1) == b"x"
            ports.add((server.getsockname(), server.getpeername()))
            # The backend closes first: TIME_WAIT is there.
            server.close()
            assert client.recv(1) == b""
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert len(ports) == 20


def test_a_backend_as_a_client_of_itself(router: Router) -> None:
    """It gets any backend, itself too, for its own packets come back by the router."""
    for family in (4, 6):
        with router.counted() as counted:
            names = {ask(router, family, b"mine %d" % number, index=0) for number in range(60)}
            assert counted("client_is_backend") == 0
        assert "b1" in names


def test_a_backend_lets_go_of_what_the_router_has_lost(router: Router, own: OwnService) -> None:
    """What it sends to a port without a flow is answered by a RST."""
    with own.connection() as (client, server), router.counted() as counted:
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        (host, port), (address, nat_port) = client.getsockname(), server.getpeername()
        number = {each: int(ipaddress.ip_address(each)) for each in (host, address, ADDRESS[0])}
        flow = FlowKey(number[host], port, number[ADDRESS[0]], ADDRESS[1])
        backend = Endpoint(int(ipaddress.ip_address(server.getsockname()[0])), PORT)
        ours = Endpoint(number[address], nat_port)
        router.maps_read(
            lambda maps: [
                maps.flow_table.delete(abi.pack_flow_key(flow)),
                maps.flow_table.delete(abi.pack_reply_key(backend, flow, 0, ours)),
                *(
                    maps.pending_flows.delete(key)
                    for key in (
                        abi.pack_reply_key(backend, flow, abi.Kind.REPLY, ours),
                        abi.pack_flow_key(flow, abi.Kind.FORWARD),
                        abi.pack_flow_key(flow, abi.Kind.SEEN),
                    )
                ),
            ]
        )
        server.sendall(b"anybody?")
        with pytest.raises(ConnectionResetError):
            server.recv(1)
        assert counted("nat_reply_unknown") == 1


def test_ports_are_reserved(router: Router) -> None:
    """No connection of the router's own gets one of them."""
    reserved = router.lab.router.run(lambda: sysctl.parse_ports(sysctl.read(sysctl.RESERVED_PORTS)))
    assert reserved >= set(NAT_PORTS)


def test_zz_connections_survive_the_daemon(router: Router, own: OwnService) -> None:
    """After SIGKILL old connections go on, XDP gives new ones ports; then all are freed."""
    with own.connection() as (client, server):
        router.stop(signal.SIGKILL)
        heartbeat_stale()
        client.sendall(b"still")
        assert server.recv(5) == b"still"
        with router.counted() as counted:
            for family in (4, 6):
                for number in range(20):
                    ask(router, family, b"new %d" % number)
            assert counted("decided_fallback") + counted("decided_hash") == 40
        with dial(router.lab.client, ADDRESS) as another:
            wait_for(lambda: bool(own.accepted()), 5, "the backend has the connection")
            another.close()
    router.close()
    reserved = router.lab.router.run(lambda: sysctl.parse_ports(sysctl.read(sysctl.RESERVED_PORTS)))
    assert not reserved & set(NAT_PORTS)
