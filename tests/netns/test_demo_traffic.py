# SPDX-License-Identifier: Apache-2.0
"""The demo's client, straight to a backend and against servers that fail it."""

from __future__ import annotations

import socket
import threading
from contextlib import closing

import pytest

from tests.support.netns import LabFactory
from xdp_router.lab import BackendSpec, Lab, LabSpec
from xdp_router.lab.demo_traffic import PAYLOAD_BYTES, connect_many, ended

pytest_plugins = ("tests.support.netns",)


@pytest.fixture
def lab(make_lab: LabFactory) -> Lab:
    """A lab with one backend and no router program: the kernel forwards."""
    return make_lab(LabSpec((BackendSpec("b1"),)))


def test_connections_that_work(lab: Lab) -> None:
    """Each has its own client port, the backend's name and a time; the last ones stay open."""
    told: list[int] = []
    address = lab.addresses.backends[0]
    batch = connect_many(lab.client, address, 5, keep=2, progress=told.append)
    assert batch.failures == []
    assert batch.by_backend == {"b1": 5}
    assert len({connection.client for connection in batch.connections}) == 5
    assert all(0 < each < 1_000_000_000 for each in batch.connect_ns)
    assert told == [1, 2, 3, 4, 5]
    names = [f"{host}:{port}" for host, port in (peer.getsockname() for peer in batch.open)]
    assert names == [connection.client for connection in batch.connections[-2:]]
    handle = batch.open[0]
    batch.close()
    assert batch.open == []
    assert handle.fileno() == -1


def test_ended_connections_are_seen(lab: Lab) -> None:
    """A connection has ended when its server was killed, and not before."""
    with closing(connect_many(lab.client, lab.addresses.backends[0], 2, keep=2)) as batch:
        assert not ended(batch.open[0])
        lab.kill_backend(0)
        assert all(ended(handle) for handle in batch.open)


def test_refused_connections_are_failures(lab: Lab) -> None:
    """A closed port is a failure of each connection, not an exception."""
    lab.kill_backend(0)
    batch = connect_many(lab.client, lab.addresses.backends[0], 2, keep=2)
    assert batch.connections == []
    assert batch.open == []
    assert len(batch.failures) == 2
    assert "connection 1" in batch.failures[0]
    assert "refused" in batch.failures[0]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"b1\n" + b"x" * PAYLOAD_BYTES, "not those that were sent"),
        (b"b1\n" + b"x" * 10, "closed after 13 bytes"),
    ],
)
def test_wrong_data_are_failures(lab: Lab, answer: bytes, complaint: str) -> None:
    """Bytes that differ, or are missing, make a connection a failure."""
    with lab.backends[0].socket() as server:
        host, _ = lab.addresses.backends[0]
        server.bind((host, 9090))
        server.listen()
        thread = threading.Thread(target=_serve_once, args=(server, answer))
        thread.start()
        batch = connect_many(lab.client, (host, 9090), 1)
        thread.join()
    assert batch.connections == []
    assert complaint in batch.failures[0]


def _serve_once(server: socket.socket, answer: bytes) -> None:
    peer, _ = server.accept()
    with peer:
        received = 0
        while received < PAYLOAD_BYTES:
            received += len(peer.recv(65536))
        peer.sendall(answer)
