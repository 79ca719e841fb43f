# SPDX-License-Identifier: Apache-2.0
"""A client port that is used again while the router still has the old connection for alive."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import receive
from tests.support.netns import wait_for
from tests.support.own_service import OwnService, config, own_service
from tests.support.router import Router, routed_lab
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"), BackendSpec("b2")))
TCP_REPAIR = 19


@pytest.fixture(scope="module")
def router(private_mounts: Path) -> Iterator[Router]:
    with routed_lab(private_mounts, SPEC, config(SPEC)) as started:
        yield started


@pytest.fixture
def own(router: Router) -> Iterator[OwnService]:
    with own_service(router) as service:
        yield service


def vanish(peer: socket.socket) -> None:
    """End one side without a word, as a crash does."""
    peer.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    peer.close()


def test_a_new_connection_on_the_ports_of_a_vanished_one(router: Router, own: OwnService) -> None:
    """Both sides crashed: the bound backend takes the new SYN, and the flow is the new one's."""
    source = (router.lab.addresses.client, 46_000)
    with own.connection(source) as (client, server):
        client.sendall(b"old")
        assert receive(server, 3) == b"old"
        vanish(client)
        vanish(server)
    before = router.flow(source)
    assert before is not None
    assert before["state"] == "established"
    with router.counted() as counted, own.connection(source) as (client, server):
        server.sendall(b"new")
        assert receive(client, 3) == b"new"
        client.sendall(bytes(100_000))
        assert receive(server, 100_000) == bytes(100_000)
        flow = router.flow(source)
        assert flow is not None
        assert (flow["state"], flow["backend"]) == ("established", before["backend"])
        assert flow["age_s"] < before["age_s"] + 5
        assert counted("flow_restarted") == 1
        assert counted("syn_on_live_flow") == 1
        assert counted("first_packet") == 0
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

        def over() -> bool:
            flow = router.flow(source)
            return flow is not None and flow["state"] == "closing"

        wait_for(over, 5, "the new connection's end is seen")
        assert counted("rst_inexact") == 0


def test_only_the_client_vanished(router: Router, own: OwnService) -> None:
    """The backend's old connection lives: it asks back, the client resets it, and is served."""
    source = (router.lab.addresses.client, 46_001)
    with own.connection(source) as (client, server):
        client.sendall(b"old")
        assert receive(server, 3) == b"old"
        vanish(client)
        with router.counted() as counted, own.connection(source) as (client, newer):
            newer.sendall(b"new")
            assert receive(client, 3) == b"new"
            assert counted("flow_restarted") == 0
            assert counted("syn_reopened") == 1
        with pytest.raises(ConnectionResetError):
            server.recv(1)
