# SPDX-License-Identifier: Apache-2.0
"""The HTTP side of metrics over real sockets: what is answered, refused, and cut off."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns
from tests.support.netns import wait_for
from xdp_router.adapters.metrics_http import CONNECTIONS_MAX, MetricsError, MetricsServer

_Result = TypeVar("_Result")

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def text() -> Generator[bytes, None, None]:
    yield b"a 1\n"
    yield b""
    yield b"b 2\n"


def served(
    ask: Callable[[int], _Result],
    render: Callable[[], Generator[bytes, None, None]] = text,
    host: str = "127.0.0.1",
    ready: bool = True,
    slow_reader_s: float = 10.0,
) -> _Result:
    """What a client in a thread is answered; it is given the port."""

    async def main() -> _Result:
        server = MetricsServer((host, 0), "text/plain", render, lambda: ready, slow_reader_s)
        await server.start()
        try:
            return await asyncio.to_thread(ask, server.port)
        finally:
            await server.close()
            await server.close()

    return asyncio.run(main())


def up() -> None:
    with IPRoute() as netlink:
        netlink.link("set", index=1, state="up")


def dial(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port), timeout=10)


def answer(port: int, request: bytes, host: str = "127.0.0.1") -> tuple[bytes, bytes]:
    """Head and body."""
    with dial(port, host) as peer:
        peer.sendall(request)
        found = b""
        while data := peer.recv(1 << 16):
            found += data
    head, _, body = found.partition(b"\r\n\r\n")
    return head, body


@in_fresh_netns
def test_get_is_answered_in_chunks_and_http_1_0_as_it_is() -> None:
    """Empty pieces end nothing; who speaks 1.0 knows no chunks; HEAD has no body."""
    up()
    head, body = served(lambda port: answer(port, GET))
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert body == b"4\r\na 1\n\r\n4\r\nb 2\n\r\n0\r\n\r\n"
    _, body = served(lambda port: answer(port, b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"))
    assert body == b"a 1\nb 2\n"
    head, body = served(lambda port: answer(port, GET.replace(b"GET", b"HEAD")))
    assert (head[:15], body) == (b"HTTP/1.1 200 OK", b"")


@in_fresh_netns
def test_what_is_refused() -> None:
    """With the status that says why, and nothing rendered."""
    up()

    rendered: list[bool] = []

    def render() -> Generator[bytes, None, None]:
        rendered.append(True)
        yield b""

    for request, status in (
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\x16\x03\x01\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n" + b"x" * 9000, b"431"),
    ):
        head, _ = served(partial(answer, request=request), render)
        assert head.split(b" ")[1] == status, request
    head, _ = served(lambda port: answer(port, GET), render, ready=False)
    assert head.split(b" ")[1] == b"503"
    assert not rendered


@in_fresh_netns
def test_ipv6_has_its_own_address() -> None:
    """And does not take IPv4's with it."""
    up()
    head, _ = served(lambda port: answer(port, GET, "::1"), host="::1")
    assert head.startswith(b"HTTP/1.1 200 OK")
    with pytest.raises(ConnectionRefusedError):
        served(lambda port: dial(port, "127.0.0.1"), host="::")


@in_fresh_netns
def test_a_port_in_use_says_whose_turn_it_is() -> None:
    """The error names the address and the mend; so does an address that is nobody's here."""
    up()
    with socket.create_server(("127.0.0.1", 9850)):
        server = MetricsServer(("127.0.0.1", 9850), "text/plain", text, lambda: True)
        with pytest.raises(MetricsError, match=r"127\.0\.0\.1:9850: Address already in use: stop"):
            asyncio.run(server.start())
    server = MetricsServer(("2001:db8::1", 9850), "text/plain", text, lambda: True)
    with pytest.raises(MetricsError, match=r"\[2001:db8::1\]:9850: .*change metrics in \[router\]"):
        asyncio.run(server.start())


@in_fresh_netns
def test_no_more_connections_than_there_are_to_be() -> None:
    """Those beyond are closed at once, those that are there go on."""
    up()

    def ask(port: int) -> tuple[bytes, bytes]:
        peers = [dial(port) for _ in range(CONNECTIONS_MAX)]
        with dial(port) as beyond:
            try:
                last = beyond.recv(1)
            except ConnectionResetError:
                last = b""
        peers[0].sendall(GET)
        first = peers[0].recv(12)
        for peer in peers:
            peer.close()
        return first, last

    assert served(ask) == (b"HTTP/1.1 200", b"")


@in_fresh_netns
def test_who_does_not_read_is_cut_off() -> None:
    """The rest is not rendered for it, and its place is free again."""
    up()
    ended: list[bool] = []

    def endless() -> Generator[bytes, None, None]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            ended.append(True)

    def ask(port: int) -> bool:
        with dial(port) as peer:
            peer.sendall(GET)
            wait_for(lambda: ended, 10, "it is given up")
        return bool(ended)

    assert served(ask, endless, slow_reader_s=0.2)
