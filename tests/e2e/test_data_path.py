# SPDX-License-Identifier: Apache-2.0
"""Bound flows: every byte arrives, every end arrives, in each mode and by each loader."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bpf_programs import LOADERS
from tests.support.clients import (
    connect,
    digest,
    echo_intact,
    echoes_at_once,
    random_bytes,
    receive,
    send_and_finish,
    who,
)
from tests.support.netns import wait_for
from tests.support.own_service import OwnService, config, own_service
from tests.support.router import Router, routed_lab
from tests.support.segments import Capture
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2"), BackendSpec("b3", delay_ns=20_000_000)))
VARIANTS = [(mode, loader) for mode in ("native", "generic") for loader in LOADERS]
TEN_MB = 10_000_000


@pytest.fixture(scope="module", params=VARIANTS, ids="-".join)
def router(request: pytest.FixtureRequest, private_mounts: Path) -> Iterator[Router]:
    """A router in one mode, by one loader, with the lab's service and one of our own."""
    mode, loader = request.param
    options = ("--xdp-mode", mode, "--loader", loader)
    with routed_lab(private_mounts, SPEC, config(SPEC), *options) as started:
        status = started.ask("status")
        assert {link["mode"] for link in status["interfaces"]} == {mode}
        assert status["loader"] == loader
        yield started


@pytest.fixture
def own(router: Router) -> Iterator[OwnService]:
    with own_service(router) as service:
        yield service


def test_ten_megabytes_come_back_unchanged(router: Router) -> None:
    """A 10 MB echo comes back with the same hash, and the flow counts what passed."""
    with connect(router, timeout=30) as peer:
        assert echo_intact(peer, random_bytes(TEN_MB))
        flow = router.flow(peer.getsockname())
        assert flow is not None
        assert flow["state"] == "established"
        assert flow["bytes"] > TEN_MB
        assert flow["reply_bytes"] > TEN_MB


def test_half_closed_client_still_receives_everything(router: Router) -> None:
    """After shutdown(SHUT_WR) the client gets all that the backend still had to send."""
    payload = random_bytes(300_000)
    with router.lab.client.socket() as peer:
        # A small window: most of the echo is still to come when the FIN is out.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        peer.settimeout(10)
        peer.connect(router.service)
        sender = threading.Thread(target=send_and_finish, args=(peer, payload))
        sender.start()
        received = receive(peer, 50_000)
        received += receive(peer, len(payload))
        sender.join()
        assert digest(received) == digest(payload)
        assert peer.recv(1) == b""


def test_half_closed_server_still_receives_everything(own: OwnService) -> None:
    """A backend that has said FIN first gets all that the client still sends, and its FIN."""
    payload = random_bytes(300_000)
    with own.connection() as (client, server):
        server.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
        sender = threading.Thread(target=send_and_finish, args=(client, payload))
        sender.start()
        assert digest(receive(server, len(payload))) == digest(payload)
        assert server.recv(1) == b""
        sender.join()


@pytest.mark.parametrize("ends", ["client", "server"])
def test_reset_reaches_the_other_side(own: OwnService, ends: str) -> None:
    """A connection that one side aborts is reset at the other, whichever it is."""
    with own.connection() as (client, server):
        ending, other = (client, server) if ends == "client" else (server, client)
        ending.sendall(b"last words")
        assert receive(other, 10) == b"last words"
        ending.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        ending.close()
        with pytest.raises(ConnectionResetError):
            other.recv(1)


def test_router_is_one_hop(router: Router, own: OwnService) -> None:
    """Each packet's TTL is one less behind the router, from SYN to last ACK, in each direction."""
    with Capture(router.lab.client) as at_client, Capture(router.lab.backends[0]) as at_first:
        with Capture(router.lab.backends[1]) as at_second:
            with own.connection() as (client, server):
                port = client.getsockname()[1]
                client.sendall(b"request")
                assert receive(server, 7) == b"request"
                server.sendall(b"answer")
                assert receive(client, 6) == b"answer"
            arrived = [
                segment
                for capture in (at_first, at_second)
                for segment in capture.segments()
                if segment.source == (router.lab.addresses.client, port)
            ]
            returned = [s for s in at_client.segments() if s.target[1] == port]
    assert len(arrived) >= 3
    assert len(returned) >= 2
    assert {segment.ttl for segment in arrived + returned} == {63}


def test_many_clients_at_once(router: Router) -> None:
    """64 clients that are connected together each echo 256 kB, and each gets its own bytes."""
    assert echoes_at_once(router.lab.client, router.service, 64, 256_000) == [True] * 64


def test_other_traffic_is_left_to_the_kernel(router: Router) -> None:
    """TCP, UDP and ping to a backend's own address are routed by the kernel as without us."""
    lab = router.lab
    address = lab.addresses.backends[0]
    with lab.client.connect(address) as peer:
        assert who(peer) == "b1"
        assert router.flow(peer.getsockname()) is None
    with lab.backends[0].socket(kind=socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", 5353))
        server.settimeout(5)
        with lab.client.socket(kind=socket.SOCK_DGRAM) as client:
            client.settimeout(5)
            client.sendto(b"question", (address[0], 5353))
            question, sender = server.recvfrom(100)
            server.sendto(b"answer", sender)
            assert (question, client.recv(100)) == (b"question", b"answer")
    with lab.client.socket(kind=socket.SOCK_RAW, proto=socket.IPPROTO_ICMP) as ping:
        ping.settimeout(5)
        ping.sendto(bytes.fromhex("0800f7ff00000000"), (address[0], 0))
        assert ping.recv(100)[20] == 0, "an echo reply"


def test_two_services_do_not_mix(router: Router, own: OwnService) -> None:
    """One client port used for both services makes two flows, each with its own backends."""
    with connect(router) as peer:
        source = peer.getsockname()
        assert who(peer) in ("b1", "b2")
        with own.connection(source) as (client, server):
            client.sendall(b"to the other one")
            assert receive(server, 16) == b"to the other one"
            rows = router.json("flows", "--client", f"{source[0]}:{source[1]}")
            assert {(row["service"], row["backend"][0]) for row in rows} == {
                ("web", "b"),
                ("own", "o"),
            }
        assert echo_intact(peer, random_bytes(10_000))


def test_closed_flow_is_shown_as_closing(own: OwnService, router: Router) -> None:
    """After both FINs the flow is closing; nothing of it holds up the next one."""
    with own.connection() as (client, server):
        source = client.getsockname()
        client.shutdown(socket.SHUT_WR)
        assert server.recv(1) == b""
    wait_for(lambda: (router.flow(source) or {}).get("state") == "closing", 5)
