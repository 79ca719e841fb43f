# SPDX-License-Identifier: Apache-2.0
"""A backend's server: ``python -m xdp_router.lab.backend``.

``echo`` sends back what it gets, and its FIN after the client's. If a connection begins with
``WHO\\n``, these four bytes are answered by the backend's name and a newline instead; whatever
follows is echoed.

``http`` is a small HTTP/1.1: GET answers 200 with the backend's name and a newline, and
``/bytes/N`` with N bytes; connections are kept alive. Each answer names the backend in X-Backend.

``hash`` (TCP and UDP), ``stun`` (UDP), ``quic`` (UDP) and ``iperf3`` are told of in
``hash_server``, ``stun_server``, ``quic_server`` and ``iperf_server``.

All listen on every address of the namespace, IPv4 and IPv6, and answer from the one that was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from typing import get_args

from .hash_server import HashDatagrams, HashStream
from .iperf_server import become_iperf
from .spec import Kind
from .stun_server import StunDatagrams
from .udp_endpoint import UdpEndpoint

KINDS = get_args(Kind)
BACKLOG = 4096
WHO = b"WHO\n"
_HEAD_MAX = 16384
_BODY_MAX = 64 << 20
_FILLER = b"0123456789abcdef" * 4096
_REQUEST = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.([01])")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,12})[ \t]*(?=\r\n)", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\nconnection:[ \t]*([^\r\n]*)", re.IGNORECASE)


class _Server(asyncio.Protocol):
    """What both kinds share: a transport that stops reading while it can't write."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> None:
        # None lets asyncio send what is buffered, and then our FIN.
        return


class Echo(_Server):
    """See the module's text."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._opening: bytes | None = b""

    def data_received(self, data: bytes) -> None:
        if self._opening is not None:
            data = self._opening + data
            if len(data) < len(WHO) and WHO.startswith(data):
                self._opening = data
                return
            self._opening = None
            if data.startswith(WHO):
                self._transport.write(self._name + b"\n")
                data = data[len(WHO) :]
        if data:
            self._transport.write(data)

    def eof_received(self) -> None:
        if self._opening:
            self._transport.write(self._opening)


class Http(_Server):
    """See the module's text."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._input = bytearray()
        self._skip = 0

    def data_received(self, data: bytes) -> None:
        self._input += data
        while not self._transport.is_closing():
            if self._skip:
                taken = min(self._skip, len(self._input))
                del self._input[:taken]
                self._skip -= taken
                if self._skip:
                    return
            end = self._input.find(b"\r\n\r\n")
            if end < 0:
                if len(self._input) > _HEAD_MAX:
                    self._answer(431, "Request Header Fields Too Large", b"", keep=False)
                return
            head = bytes(self._input[: end + 2])
            del self._input[: end + 4]
            self._request(head)

    def _request(self, head: bytes) -> None:
        request = _REQUEST.match(head)
        if request is None or b"\r\ntransfer-encoding:" in head.lower():
            self._answer(400, "Bad Request", b"", keep=False)
            return
        method, target, minor = request.groups()
        length = _LENGTH.search(head)
        self._skip = int(length[1]) if length else 0
        connection = _CONNECTION.search(head)
        wish = connection[1].lower() if connection else b""
        keep = b"keep-alive" in wish if minor == b"0" else b"close" not in wish
        if method not in (b"GET", b"HEAD"):
            self._answer(405, "Method Not Allowed", b"", keep=keep)
            return
        body = self._name + b"\n"
        if target.startswith(b"/bytes/"):
            count = target[7:]
            if not count.isdigit() or len(count) > 9 or int(count) > _BODY_MAX:
                self._answer(404, "Not Found", b"", keep=keep)
                return
            body = (_FILLER * (int(count) // len(_FILLER) + 1))[: int(count)]
        self._answer(200, "OK", body, keep=keep, with_body=method == b"GET")

    def _answer(
        self, status: int, reason: str, body: bytes, *, keep: bool, with_body: bool = True
    ) -> None:
        head = (
            f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: {'keep-alive' if keep else 'close'}\r\n"
        ).encode()
        head += b"X-Backend: " + self._name + b"\r\n\r\n"
        self._transport.write(head + body if with_body else head)
        if not keep:
            self._transport.close()


Server = asyncio.Server | UdpEndpoint


async def _tcp(protocol: Callable[[], asyncio.Protocol], port: int) -> Server:
    # create_server sets SO_REUSEADDR, so a killed backend can be started again at once.
    hosts = ["0.0.0.0", "::"] if _has_ipv6() else "0.0.0.0"
    return await asyncio.get_running_loop().create_server(protocol, hosts, port, backlog=BACKLOG)


def _has_ipv6() -> bool:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def _quic(name: str) -> asyncio.DatagramProtocol:
    try:
        from . import quic_server
    except ImportError as error:
        raise SystemExit(f"kind quic needs aioquic ({error}): pip install aioquic") from error
    return quic_server.server(name)


async def _servers(kind: str, name: str, port: int) -> list[Server]:
    if kind == "echo":
        return [await _tcp(lambda: Echo(name), port)]
    if kind == "http":
        return [await _tcp(lambda: Http(name), port)]
    if kind == "hash":
        stream = await _tcp(lambda: HashStream(name), port)
        return [stream, UdpEndpoint(HashDatagrams(name), port)]
    if kind == "stun":
        return [UdpEndpoint(StunDatagrams(name), port)]
    return [UdpEndpoint(_quic(name), port)]


async def _serve(kind: str, name: str, port: int, ready_fd: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    servers = await _servers(kind, name, port)
    os.write(ready_fd, b"\n")
    os.close(ready_fd)
    await stop.wait()
    for server in servers:
        server.close()


def main(argv: list[str] | None = None) -> int:
    """Serve on one port of the current network namespace until SIGTERM."""
    parser = argparse.ArgumentParser(prog="xdp_router.lab.backend", description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    options = parser.parse_args(argv)
    if options.kind == "iperf3":
        become_iperf(options.port, options.ready_fd)
    asyncio.run(_serve(options.kind, options.name, options.port, options.ready_fd))
    return 0


if __name__ == "__main__":
    sys.exit(main())
