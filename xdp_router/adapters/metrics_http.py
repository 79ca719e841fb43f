# SPDX-License-Identifier: Apache-2.0
"""Serves metrics over HTTP from the one event loop: GET /metrics, and nothing else.

Bounded in every way: connections, length and time of a request, time that a reader may take. The
text comes in pieces, and between two of them everything else has its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from http import HTTPStatus
from typing import Final

from xdp_router.core.errors import XdpRouterError

CONNECTIONS_MAX: Final = 16
SCRAPES_MAX: Final = 4
"""At once; a piece of each is rendered in a turn of the loop."""
REQUEST_MAX: Final = 8 << 10
REQUEST_S: Final = 5.0
SLOW_READER_S: Final = 10.0
_PATH: Final = "/metrics"


class MetricsError(XdpRouterError):
    """Metrics cannot be served where they should be; the text says why."""


class MetricsServer:
    """``render`` gives the text in pieces; ``is_ready`` says whether there is one."""

    def __init__(
        self,
        address: tuple[str, int],
        content_type: str,
        render: Callable[[], Generator[bytes, None, None]],
        is_ready: Callable[[], bool],
        slow_reader_s: float = SLOW_READER_S,
    ) -> None:
        self._address = address
        self._content_type = content_type
        self._render = render
        self._is_ready = is_ready
        self._slow_reader_s = slow_reader_s
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._scrapes = 0

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen. Raises MetricsError, as when the port is in use."""
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.setblocking(False)
            # A former daemon's connections in TIME_WAIT are nobody who listens.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((host, port))
            self._server = await asyncio.start_server(
                self._serve, sock=listener, limit=REQUEST_MAX, backlog=CONNECTIONS_MAX
            )
        except OSError as error:
            listener.close()
            shown = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"
            raise MetricsError(
                f"metrics cannot be served at {shown}: {error.strerror or error}: stop who has it "
                f"(ss -ltnp 'sport = {port}' shows who), or change metrics in [router]"
            ) from error

    async def close(self) -> None:
        """Stop listening, cut connections. Calling it again does nothing."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            await self._answer(reader, writer)
            if writer.can_write_eof():
                writer.write_eof()
            # Until it has gone: what it still sends would turn our last words into a RST.
            async with asyncio.timeout(REQUEST_S):
                await reader.read(REQUEST_MAX)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            await self._refuse(writer, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            await self._refuse(writer, HTTPStatus.BAD_REQUEST)
        elif words[1].split("?")[0] != _PATH:
            await self._refuse(writer, HTTPStatus.NOT_FOUND)
        elif words[0] not in ("GET", "HEAD"):
            await self._refuse(writer, HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET, HEAD\r\n")
        elif not self._is_ready() or self._scrapes >= SCRAPES_MAX:
            await self._refuse(writer, HTTPStatus.SERVICE_UNAVAILABLE, "Retry-After: 1\r\n")
        else:
            self._scrapes += 1
            try:
                await self._write(writer, words[0] == "HEAD", words[2] != "HTTP/1.0")
            finally:
                self._scrapes -= 1

    async def _write(self, writer: asyncio.StreamWriter, only_head: bool, chunked: bool) -> None:
        # In chunks, so that a text that was cut off is not taken for a whole one.
        coding = "Transfer-Encoding: chunked\r\n" if chunked else ""
        writer.write(_head(HTTPStatus.OK, f"Content-Type: {self._content_type}\r\n{coding}"))
        if not only_head:
            with contextlib.closing(self._render()) as text:  # also if nobody reads it to its end
                for piece in text:
                    if piece:  # an empty chunk would be the last
                        writer.write(_chunk(piece) if chunked else piece)
                    async with asyncio.timeout(self._slow_reader_s):
                        await writer.drain()
                    await asyncio.sleep(0)  # drain() gives up the loop only when it has to wait
            if chunked:
                writer.write(b"0\r\n\r\n")
        async with asyncio.timeout(self._slow_reader_s):
            await writer.drain()

    async def _refuse(
        self, writer: asyncio.StreamWriter, status: HTTPStatus, more: str = ""
    ) -> None:
        text = f"{status.phrase}: metrics are at {_PATH}\n".encode()
        fields = f"Content-Type: text/plain\r\nContent-Length: {len(text)}\r\n{more}"
        writer.write(_head(status, fields) + text)
        async with asyncio.timeout(self._slow_reader_s):
            await writer.drain()


def _head(status: HTTPStatus, fields: str) -> bytes:
    line = f"HTTP/1.1 {status.value} {status.phrase}\r\n"
    return f"{line}{fields}Connection: close\r\n\r\n".encode()


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)
