# SPDX-License-Identifier: Apache-2.0
"""Two services with one backend, and a client that uses the same ports for both."""

from __future__ import annotations

import itertools
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import dial, receive
from tests.support.router import Router, calm_config, heartbeat_stale, routed_lab
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"),))
OTHER = ("198.18.100.2", 80)
ROUNDS = 250
PORTS = range(45_000, 45_004)


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    """A router whose two services have the same backend, and no other one."""
    ((address, port),) = SPEC.addresses.backends
    config = calm_config(SPEC, 'heartbeat_stale = "300ms"\nprobe_rate = 100_000')
    config += f'[[service]]\nname = "other"\naddress = "{OTHER[0]}:{OTHER[1]}"\ndeadline = "1s"\n'
    config += f'[[service.backend]]\nname = "o1"\naddress = "{address}:{port}"\n'
    with routed_lab(private_mounts, SPEC, config) as started:
        yield started


def talk(router: Router, service: tuple[str, int], port: int, number: int, how: str) -> None:
    """A whole connection from a port, with its data checked, that ends in the way ``how``."""
    source = (router.lab.addresses.client, port)
    payload = struct.pack("!HI", port, number) * 4
    with dial(router.lab.client, service, source=source) as peer:
        peer.sendall(payload)
        assert receive(peer, len(payload)) == payload
        if how == "reset":
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            peer.shutdown(socket.SHUT_WR)
            assert peer.recv(1) == b""


def alternate(router: Router, rounds: int) -> None:
    """Each port in turn, once for the one service and once for the other."""
    services = (router.service, OTHER)
    for number, port, service in itertools.product(range(rounds), PORTS, services):
        talk(router, service, port, number, "reset")


def test_alternating_connections_are_never_refused(router: Router) -> None:
    """Two thousand connections by four ports: the flow that is over gives its tuple away."""
    with router.counted() as counted:
        alternate(router, ROUNDS)
        assert counted("first_packet") == 2 * ROUNDS * len(PORTS)
        assert counted("refused_by_daemon") == counted("refused_no_backend") == 0
    freed = router.ask("status")["engine"]["reply_tuple_freed"]
    assert freed >= (2 * ROUNDS - 1) * len(PORTS)


def test_connections_that_end_by_fin(router: Router) -> None:
    """The same after an orderly end, for which the client's stack keeps the port to itself."""
    with router.counted() as counted:
        for port in range(45_100, 45_300):
            for service in (router.service, OTHER):
                talk(router, service, port, port, "fin")
        assert counted("refused_by_daemon") == counted("refused_no_backend") == 0


def test_a_live_connection_keeps_its_tuple(router: Router) -> None:
    """The other service refuses the port while it is used, and takes it right after."""
    source = (router.lab.addresses.client, 45_500)
    with dial(router.lab.client, router.service, source=source) as peer:
        peer.sendall(b"mine")
        assert receive(peer, 4) == b"mine"
        with pytest.raises(ConnectionRefusedError):
            dial(router.lab.client, OTHER, source=source)
        peer.sendall(b"still")
        assert receive(peer, 5) == b"still"
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    talk(router, OTHER, 45_500, 1, "reset")


def test_xdp_takes_tuples_over_by_itself(router: Router) -> None:
    """The daemon is gone: the same rule, in the program."""
    router.stop(signal.SIGKILL)
    heartbeat_stale()
    with router.counted() as counted:
        alternate(router, 50)
        assert counted("decided_fallback") + counted("decided_hash") == 100 * len(PORTS)
        assert counted("refused_no_backend") == 0
        assert counted("reply_tuple_freed") >= 99 * len(PORTS)
