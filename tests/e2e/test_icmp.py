# SPDX-License-Identifier: Apache-2.0
"""ICMP errors as programs see them: traceroute, a way that is lost, and who is told."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import connect, dial, echo_intact, random_bytes, receive, who
from tests.support.long_path import EchoServer, LongPath, long_path
from tests.support.netns import running_lab
from tests.support.router import Router, calm_config, router_in
from xdp_router.lab import Namespace

from .test_path_mtu import SERVICE, SPEC, far_config

pytest_plugins = ("tests.support.netns",)

UNREACHABLE = os.strerror(errno.EHOSTUNREACH)


@pytest.fixture(scope="module", params=["native", "generic"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def routed(private_mounts: Path, mode: str) -> Iterator[tuple[Router, LongPath]]:
    """A router with a long path on the clients' side."""
    with running_lab(SPEC) as lab, long_path(lab, "client") as path:
        with router_in(lab, private_mounts) as router:
            yield router.start(calm_config(SPEC), "--xdp-mode", mode), path


def test_traceroute_sees_the_router(routed: tuple[Router, LongPath]) -> None:
    """A SYN, and a packet of a connection, whose TTL ends here come back with our address."""
    router, path = routed
    lab = router.lab
    with path.far.socket(kind=socket.SOCK_RAW, proto=socket.IPPROTO_ICMP) as heard:
        heard.settimeout(5)
        with path.far.socket() as peer:
            peer.settimeout(5)
            peer.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 3)
            with pytest.raises(OSError, match=UNREACHABLE):
                peer.connect(router.service)
        packet, (source, _) = heard.recvfrom(1000)
        assert source == lab.addresses.client_router
        assert packet[20:22] == b"\x0b\x00"
        assert packet[44:48] == socket.inet_aton(router.service[0]), "the service is quoted"

        with dial(path.far, router.service) as peer:
            assert who(peer) == "b1"
            peer.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 3)
            peer.sendall(b"lost")
            packet, (source, _) = heard.recvfrom(1000)
            assert (source, packet[20]) == (lab.addresses.client_router, 11)
            peer.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 64)
            assert receive(peer, 4) == b"lost", "sent again with a TTL that reaches"
            assert echo_intact(peer, random_bytes(100_000))


def _cause_of_lost_way(client: Namespace, path: LongPath) -> int | None:
    """Why a connection fails whose way is lost right after another one took it."""
    with dial(client, SERVICE):
        path.unreachable(True)
        try:
            dial(client, SERVICE).close()
        except OSError as error:
            return error.errno
        finally:
            path.unreachable(False)
    return 0


def test_a_backend_that_is_unreachable_is_so_for_the_client(
    private_mounts: Path, mode: str
) -> None:
    """A connection whose SYN a hop on the backends' side refuses fails at once, with that cause."""
    with running_lab(SPEC) as lab, long_path(lab, "backend") as path:
        with router_in(lab, private_mounts) as router:
            server = EchoServer(path.far)
            try:
                # The second connection shares the first one's race: its SYN finds the way lost.
                text = far_config(path.address).replace(
                    "[router]\n", '[router]\ncoalesce_window = "1s"\n'
                )
                router.start(text, "--xdp-mode", mode)
                with router.counted() as counted:
                    causes = [_cause_of_lost_way(lab.client, path) for _ in range(3)]
                    # A race of its own, if the machine stalled for that second: refused.
                    assert errno.EHOSTUNREACH in causes
                    assert counted("icmp_translated") >= 1
                with dial(lab.client, SERVICE) as peer:
                    assert echo_intact(peer, random_bytes(10_000))
            finally:
                server.close()


def test_other_icmp_is_left_alone(routed: tuple[Router, LongPath]) -> None:
    """An error about no flow of ours is the kernel's to route, as without us."""
    router, _ = routed
    lab = router.lab
    with router.counted() as counted, lab.client.socket(kind=socket.SOCK_DGRAM) as peer:
        peer.settimeout(5)
        peer.connect((lab.addresses.backends[0][0], 9))
        peer.send(b"nobody listens")
        with pytest.raises(ConnectionRefusedError):
            peer.recv(1)
        assert counted("icmp_translated") == 0
    with connect(router) as client:
        assert who(client) == "b1"
