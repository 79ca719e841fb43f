# SPDX-License-Identifier: Apache-2.0
"""What the lab's servers say, byte for byte."""

from __future__ import annotations

import http.client
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from tests.support.netns import unique_prefix
from xdp_router.lab import BackendSpec, Lab, LabSpec

pytest_plugins = ("tests.support.netns",)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One echo and one HTTP server for all tests here: they keep no state."""
    backends = (BackendSpec("echo-1"), BackendSpec("web-1", kind="http", port=8081))
    with Lab(LabSpec(backends), prefix=unique_prefix()) as lab:
        yield lab


def read_all(peer: socket.socket) -> bytes:
    """Everything up to the FIN."""
    return peer.makefile("rb").read()


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ([b"WHO\n"], b"echo-1\n"),
        ([b"WHO\nthen this"], b"echo-1\nthen this"),
        ([b"W", b"H", b"O\nx"], b"echo-1\nx"),
        ([b"WHO\n", b"WHO\n"], b"echo-1\nWHO\n"),
        ([b"WH", b"AT\n"], b"WHAT\n"),
        ([b"WHO"], b"WHO"),
        ([b"xWHO\n"], b"xWHO\n"),
        ([], b""),
    ],
)
def test_echo_and_who(lab: Lab, parts: list[bytes], answer: bytes) -> None:
    """WHO counts only as the first four bytes; all else comes back, also after a half-close."""
    with lab.client.connect(lab.addresses.backends[0]) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            peer.sendall(part)
            time.sleep(0.02)
        peer.shutdown(socket.SHUT_WR)
        assert read_all(peer) == answer


def test_reset_harms_nobody_else(lab: Lab) -> None:
    """A client that resets leaves the server to the others."""
    with lab.client.connect(lab.addresses.backends[0]) as rude:
        rude.sendall(b"x" * 100_000)
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with lab.client.connect(lab.addresses.backends[0]) as peer:
        peer.sendall(b"WHO\n")
        assert peer.recv(100) == b"echo-1\n"


def test_http_keeps_the_connection(lab: Lab) -> None:
    """Several requests on one connection: names, sizes, methods, and bodies that are skipped."""
    connection = http.client.HTTPConnection("service")
    connection.sock = lab.client.connect(lab.addresses.backends[1])
    for _ in range(2):
        connection.request("GET", "/")
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"web-1\n")
        assert response.headers["X-Backend"] == "web-1"
    connection.request("GET", "/bytes/70000")
    assert len(connection.getresponse().read()) == 70_000
    connection.request("HEAD", "/bytes/10")
    response = connection.getresponse()
    assert (response.headers["Content-Length"], response.read()) == ("10", b"")
    connection.request("POST", "/", body=b"GET / HTTP/1.1\r\n\r\n")
    response = connection.getresponse()
    assert (response.status, response.read()) == (405, b"")
    connection.request("GET", "/bytes/x")
    response = connection.getresponse()
    assert (response.status, response.read()) == (404, b"")
    connection.request("GET", "/", headers={"Connection": "close"})
    assert connection.getresponse().read() == b"web-1\n"
    connection.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"200"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000, b"431"),
    ],
    ids=["HTTP/1.0", "nonsense", "chunked", "too long"],
)
def test_http_closes_when_it_must(lab: Lab, request_: bytes, status: bytes) -> None:
    """Old clients, and requests that can't be followed, get one answer and a FIN."""
    with lab.client.connect(lab.addresses.backends[1]) as peer:
        peer.sendall(request_)
        assert read_all(peer).startswith(b"HTTP/1.1 " + status)
