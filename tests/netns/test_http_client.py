# SPDX-License-Identifier: Apache-2.0
"""Pages over HTTP, from servers of a real stack in a namespace of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from tests.netns.test_connection_probes import HOSTS, Say, server, with_addresses
from tests.support.fresh_netns import in_fresh_netns
from xdp_router.adapters import http_client
from xdp_router.adapters.http_client import HttpError, fetch
from xdp_router.core.address import LOOPBACK_IPV6, parse_addr
from xdp_router.core.model import Endpoint

HOST = HOSTS[0]
PATIENCE_S = 20.0


def says(*pieces: bytes, close: bool = True) -> Say:
    """A server that reads a request, and answers so."""

    def say(peer: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += peer.recv(4096)
        for piece in pieces:
            peer.sendall(piece.replace(b"%ASKED%", asked.partition(b"\r\n")[0]))
        if not close:
            peer.recv(1)

    return say


def pieces_of(host: str, port: int, path: str, timeout_s: float) -> list[bytes]:
    """What is fetched there, as it comes."""
    taken: list[bytes] = []
    asyncio.run(fetch(Endpoint(parse_addr(host), port), path, taken.append, timeout_s))
    return taken


def body_of(host: str, port: int, path: str = "/metrics", timeout_s: float = PATIENCE_S) -> bytes:
    """What is fetched there."""
    return b"".join(pieces_of(host, port, path, timeout_s))


def why(say: Say, timeout_s: float = PATIENCE_S) -> str:
    """What is wrong with a server that answers so."""
    with server(HOST, say) as (host, port), pytest.raises(HttpError) as caught:
        body_of(host, port, timeout_s=timeout_s)
    return str(caught.value)


def fresh(run: Callable[[], None]) -> None:
    """In a namespace with addresses."""

    def there() -> None:
        with_addresses()
        run()

    in_fresh_netns(there)()


def test_bodies_of_all_kinds() -> None:
    """With a length, in chunks, to the end of the connection; of both families."""

    def there() -> None:
        for host in HOSTS:
            for head, body in (
                (b"Content-Length: 4\r\n\r\n", b"a 1\n"),
                (b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\na \r\n2\r\n1\n\r\n0\r\n\r\n"),
                (b"\r\n", b"a 1\n"),
            ):
                with server(host, says(b"HTTP/1.1 200 OK\r\n" + head, body)) as (addr, port):
                    assert body_of(addr, port) == b"a 1\n"
        with server(HOST, says(b"HTTP/1.1 200 OK\r\n\r\n%ASKED%")) as (addr, port):
            assert body_of(addr, port, "/x?y=1") == b"GET /x?y=1 HTTP/1.1"

    fresh(there)


def test_what_is_no_page_says_why() -> None:
    """Other answers, none at all, cut off ones; nothing is followed."""

    def there() -> None:
        moved = b"HTTP/1.1 301 Moved\r\nLocation: http://198.18.0.9/m\r\nContent-Length: 0\r\n\r\n"
        assert why(says(moved)).startswith(
            "status 301, a redirect to 'http://198.18.0.9/m', which is not followed: name path"
        )
        assert why(says(b"HTTP/1.1 404 No\r\n\r\n")) == "status 404 instead of 200"
        packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
        assert why(says(packed)).startswith("the answer is compressed (gzip)")
        ssh = "its answer is no HTTP/1.1: it begins with 'SSH-2.0-x\\r\\n\\r\\n'"
        assert why(says(b"SSH-2.0-x\r\n\r\n", close=False)) == ssh
        tls = b"\x15\x03\x01\x00\x02\x02\x16"
        assert why(says(tls, close=False)).startswith("its answer is no HTTP/1.1: it begins with")
        closed = "the server closed the connection"
        assert why(says(b"")) == f"{closed} without an answer"
        assert why(says(b"HTTP/1.1 100 Continue\r\n\r\n")).startswith(f"{closed} after 25 bytes")
        assert why(says(b"HTTP/1.1 200 OK\r\n")).endswith(
            "which begins with 'HTTP/1.1 200 OK\\r\\n'"
        )
        short = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na 1\n"
        cut = f"{closed} after 4 bytes of the page, before its end"
        assert why(says(short)) == cut
        chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert why(says(chunked + b"4\r\na 1\n")) == cut
        assert (
            why(says(chunked + b"ZZ\r\n")) == "what came after 0 bytes of the page is no HTTP/1.1"
        )
        long = b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000
        assert why(says(long, close=False)) == "the head of its answer is longer than 32 KiB"
        assert why(says(b"HTTP/1.1 200 OK\r\n", close=False), 0.2) == "no answer within 200 ms"
        with socket.socket() as unused:
            unused.bind((HOST, 0))
            with pytest.raises(HttpError, match="refused"):
                body_of(*unused.getsockname())
        with pytest.raises(HttpError, match="unreachable"):
            body_of("198.18.99.9", 80)

    fresh(there)


def test_a_page_of_this_host() -> None:
    """At the loopback address of IPv6, which is no number of its own."""

    def there() -> None:
        with server("::1", says(b"HTTP/1.1 200 OK\r\n\r\n", b"a 1\n")) as (_, port):
            taken: list[bytes] = []
            to = Endpoint(LOOPBACK_IPV6, port)
            asyncio.run(fetch(to, "/metrics", taken.append, PATIENCE_S))
        assert b"".join(taken) == b"a 1\n"

    fresh(there)


def test_a_long_page_is_taken_in_small_pieces() -> None:
    """However much of it is there already: many pages may come at once."""
    body = b"a 1\n" * 50_000

    def there() -> None:
        with server(HOST, says(b"HTTP/1.1 200 OK\r\n\r\n", body)) as (host, port):
            pieces = pieces_of(host, port, "/metrics", PATIENCE_S)
        assert b"".join(pieces) == body
        assert max(map(len, pieces)) <= 16 << 10

    fresh(there)


def test_an_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is sent."""
    monkeypatch.setattr(http_client, "BODY_MAX", 1 << 20)
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"a 1\n" * (1 << 19)

    def there() -> None:
        assert why(says(endless)) == "the answer is longer than 1 MiB"

    fresh(there)
