# SPDX-License-Identifier: Apache-2.0
"""What links and hops on the way say, by every method and both families: path MTU, lost ways.

One lab for either side: a long path lies behind the client, or behind the backend.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.clients import dial, echo_intact, random_bytes
from tests.support.every_method import FAMILIES, Way
from tests.support.long_path import EchoServer, LongPath, long_path, narrow_edge, set_mtu
from tests.support.method_errors import error_of, tell_errors
from tests.support.method_table import works
from tests.support.netns import running_lab, wait_for
from tests.support.receipts import datagram_socket
from tests.support.router import Router, router_in
from tests.support.udp_servers import UdpServer, echo
from xdp_router.lab import BackendSpec, LabSpec, Namespace, decapsulation, links
from xdp_router.lab.spec import Family, endpoint_text

pytest_plugins = ("tests.support.netns",)

PORT, TALK_PORT, NEAR_PORT = 80, 81, 82
OWN_LINK, MIDDLE_CLIENT, MIDDLE_BACKEND = 1400, 1280, 1340
"""MTU of the router's own link; of a hop's links. A tunnel leaves 1,280 of the last."""
SIZE = 300_000
HANGS_S = 20.0

PATH_MTU = "path MTU discovery"
LOST_CLIENT, LOST_BACKEND = "errors of hops before clients", "errors of hops before backends"
WAYS = (
    Way("nat", "nat", "routed", 1),
    Way("fullnat", "fullnat", "routed", 2),
    Way("dsr", "dsr", "routed", 4),
    Way("ipip", "ipip", "routed", 5),
    Way("ipip-other", "ipip", "routed", 6, other=True),
)
MODES = ("native", "generic")


def _ways(row: str, *left_out: str) -> pytest.MarkDecorator:
    found = [way for way in WAYS if works(row, way.method) and way.name not in left_out]
    return pytest.mark.parametrize("way", found, ids=lambda way: way.name)


def host(way: Way, family: Family) -> str:
    """The address of a service."""
    return f"198.18.100.{way.number}" if family == 4 else f"2001:db8:100::{way.number}"


def config(servers: dict[Family, str], *left_out: str) -> str:
    """A service by each way, for connections at ``PORT`` and ``TALK_PORT``, and for datagrams."""
    lines = ["[router]", 'heartbeat_stale = "5s"']
    for way in (each for each in WAYS if each.name not in left_out):
        for family in FAMILIES:
            for port, protocol in ((PORT, "tcp"), (TALK_PORT, "tcp"), (PORT, "udp")):
                name = f"{way.name}-{family}-{port}-{protocol}"
                end = servers[way.outer(family)]
                at = endpoint_text(end, port) if way.replies_pass_router else end
                lines += ["[[service]]", f'name = "{name}"', f'forwarding = "{way.method}"']
                lines += [f'address = "{endpoint_text(host(way, family), port)}"']
                lines += [f'protocol = "{protocol}"', 'probe = "icmp"', 'deadline = "2s"']
                lines += ["[[service.backend]]", f'name = "{name}-1"', f'address = "{at}"']
    return "\n".join(lines) + "\n"


def _started(router: Router, text: str, mode: str) -> Router:
    router.start(text, "--xdp-mode", mode)
    count = text.count("[[service.backend]]")
    wait_for(lambda: router.ask("status")["backends_up"] == count, 30, "all backends are up")
    return router


def _services_on(namespace: Namespace) -> None:
    links.add_to_loopback(namespace, [host(way, each) for way in WAYS for each in FAMILIES])


# Behind the client


@pytest.fixture(scope="module", params=MODES)
def near(request: pytest.FixtureRequest, private_mounts: Path) -> Iterator[tuple[Router, LongPath]]:
    """A backend that any method reaches, by a narrow link; another one lies behind the client.

    Kernels remember what a path takes: each mode has a lab of its own.
    """
    spec = LabSpec((BackendSpec("b1", port=PORT),), method="ipip", service_port=PORT)
    with running_lab(spec) as lab, long_path(lab, "client", MIDDLE_CLIENT) as path:
        _services_on(lab.backends[0])
        set_mtu(lab.router, "be1", OWN_LINK)
        set_mtu(lab.backends[0], "eth0", OWN_LINK)
        servers = {each: lab.addresses_of(each).backends[0][0] for each in FAMILIES}
        with router_in(lab, private_mounts) as router:
            yield _started(router, config(servers), request.param), path


@pytest.mark.parametrize("family", FAMILIES)
@_ways(PATH_MTU)
def test_a_hop_before_the_client(near: tuple[Router, LongPath], way: Way, family: Family) -> None:
    """It says to the service what it takes, and so to the backend; all arrives both ways."""
    router, path = near
    with router.counted() as counted:
        source = path.another(family)
        with dial(path.far, (host(way, family), PORT), source=source, timeout=HANGS_S) as peer:
            assert echo_intact(peer, random_bytes(SIZE))
        assert counted("icmp_translated") >= 1
        assert counted("too_big_dropped") == 0


@pytest.mark.parametrize("family", FAMILIES)
@_ways(PATH_MTU)
def test_the_link_to_the_backend(near: tuple[Router, LongPath], way: Way, family: Family) -> None:
    """The client hears from the router what the link, or what a tunnel leaves of it, takes."""
    router, _ = near
    with router.counted() as counted:
        with dial(router.lab.client, (host(way, family), PORT), timeout=HANGS_S) as peer:
            assert echo_intact(peer, random_bytes(SIZE))
        assert counted("icmp_too_big") >= 1
        assert counted("too_big_dropped") == 0


@pytest.mark.parametrize("family", FAMILIES)
@_ways(LOST_CLIENT)
def test_a_client_that_is_lost(near: tuple[Router, LongPath], way: Way, family: Family) -> None:
    """A hop's error about what the backend sends is one of the backend's own socket."""
    router, path = near
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(router.lab.backends[0].socket(kind))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("" if family == 4 else "::", TALK_PORT))
        listener.listen()
        listener.settimeout(HANGS_S)
        source = (path.addresses[family], 0)  # it has more of them, see another()
        client = undo.enter_context(
            dial(path.far, (host(way, family), TALK_PORT), source=source, timeout=HANGS_S)
        )
        server = undo.enter_context(listener.accept()[0])
        server.settimeout(HANGS_S)
        tell_errors(server, family)
        client.sendall(b"here")
        assert server.recv(4) == b"here"
        with router.counted() as counted:
            path.unreachable(True)
            undo.callback(path.unreachable, False)
            server.sendall(b"are you there?")
            with pytest.raises(OSError, match=_lost(family)):
                server.recv(1)
            assert counted("icmp_translated") >= 1


def _lost(family: Family) -> str:
    """What a host says who has no way: of IPv6 that there is no route."""
    return os.strerror(errno.EHOSTUNREACH if family == 4 else errno.ENETUNREACH)


# Behind the backend's host


@dataclass(frozen=True)
class Beyond:
    """A router between two long ways."""

    router: Router
    path: LongPath
    """Behind the backend."""
    clients: LongPath


@pytest.fixture(scope="module", params=MODES)
def beyond(request: pytest.FixtureRequest, private_mounts: Path) -> Iterator[Beyond]:
    """A server, and a tunnel's end, behind the backend's host and a narrow link.

    ``dsr`` has no way beyond a neighbour. On the other side the router's own link is narrow.
    """
    spec = LabSpec((BackendSpec("b1"),))
    with contextlib.ExitStack() as undo:
        lab = undo.enter_context(running_lab(spec))
        clients = undo.enter_context(long_path(lab, "client"))
        narrow_edge(lab, "client", OWN_LINK)
        path = undo.enter_context(long_path(lab, "backend", MIDDLE_BACKEND))
        _services_on(path.far)
        program = decapsulation.load(path.addresses[4], path.addresses[6])
        try:
            links.attach_xdp(path.far, "eth0", program)
        finally:
            os.close(program)
        undo.callback(EchoServer(path.far, PORT).close)
        for kind in (socket.AF_INET, socket.AF_INET6):
            sock = path.far.socket(kind, socket.SOCK_DGRAM)
            sock.bind((path.addresses[4 if kind == socket.AF_INET else 6], PORT))
            undo.enter_context(UdpServer(sock, echo))
        router = undo.enter_context(router_in(lab, private_mounts))
        text = config(path.addresses, "dsr") + near_config(lab.spec)
        yield Beyond(_started(router, text, request.param), path, clients)


def near_config(spec: LabSpec) -> str:
    """Services at ``NEAR_PORT`` of a backend that is a neighbour; its answers pass the router."""
    lines = []
    for way in (each for each in WAYS if each.replies_pass_router):
        for family in FAMILIES:
            name, end = f"{way.name}-{family}-near", spec.addresses_of(family).backends[0]
            lines += ["[[service]]", f'name = "{name}"', f'forwarding = "{way.method}"']
            lines += [f'address = "{endpoint_text(host(way, family), NEAR_PORT)}"']
            lines += ["[[service.backend]]", f'name = "{name}-1"']
            lines += [f'address = "{endpoint_text(*end)}"']
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("family", FAMILIES)
@_ways(PATH_MTU, "dsr", "ipip", "ipip-other")
def test_the_link_to_the_client(beyond: Beyond, way: Way, family: Family) -> None:
    """The backend hears from the router what it takes, where its answers pass the router."""
    with beyond.router.counted() as counted:
        with dial(beyond.clients.far, (host(way, family), NEAR_PORT), timeout=HANGS_S) as peer:
            assert echo_intact(peer, random_bytes(SIZE))
        assert counted("icmp_too_big") >= 1
        assert counted("too_big_dropped") == 0


@pytest.mark.parametrize("family", FAMILIES)
@_ways(PATH_MTU, "dsr")
def test_a_hop_before_the_backend(beyond: Beyond, way: Way, family: Family) -> None:
    """What it takes is told to the client: as the hop says it, or, within a tunnel, by us."""
    router = beyond.router
    with router.counted() as counted:
        with dial(router.lab.client, (host(way, family), PORT), timeout=HANGS_S) as peer:
            assert echo_intact(peer, random_bytes(SIZE))
        if way.replies_pass_router:
            assert counted("icmp_translated") >= 1
        else:
            assert counted("tunnel_too_big") + counted("icmp_too_big") >= 1
        assert counted("too_big_dropped") == 0


@pytest.mark.parametrize("family", FAMILIES)
@_ways(LOST_BACKEND)
def test_a_backend_that_is_lost(beyond: Beyond, way: Way, family: Family) -> None:
    """A hop's error about a flow is one of the client's own socket."""
    router, path = beyond.router, beyond.path
    with contextlib.ExitStack() as undo:
        counted = undo.enter_context(router.counted())
        peer = undo.enter_context(
            datagram_socket(router.lab.client, (host(way, family), PORT), timeout=HANGS_S)
        )
        tell_errors(peer, family)
        for sent in (b"one", b"two"):
            peer.send(sent)
            assert peer.recv(100) == sent
        path.unreachable(True)
        undo.callback(path.unreachable, False)
        peer.send(b"are you there?")
        who = error_of(peer, errno.EHOSTUNREACH if family == 4 else errno.ENETUNREACH)
        assert who == path.hop_addresses[family]
        assert counted("icmp_translated") == 1
