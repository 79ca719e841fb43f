# SPDX-License-Identifier: Apache-2.0
"""The first message of a stream as other people's parsers of HTTP/1.1 see it."""

from __future__ import annotations

from dataclasses import dataclass, field

import h11
import httptools

from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_body import BodyReader
from xdp_router.gateway.http_head import Framing, HeadLimits, HeadReader


@dataclass(slots=True)
class Seen:
    """What a parser made of the first request or answer; ``end``: where it ended, -1: not yet."""

    start: tuple[bytes | int, ...] = ()
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    end: int = -1


def by_us(stream: bytes, method: bytes | None = None) -> Seen | None:
    """Return the message as the gateway reads it, None if it refuses it.

    ``method`` is given for an answer: that of its request.
    """
    reader = HeadReader(HeadLimits())
    buffer = bytearray(stream)
    seen = Seen()
    try:
        if method is None:
            request = reader.request(buffer)
            if request is None:
                return seen
            seen.start = (request.method, request.target, request.version)
            seen.headers, framing, length = request.headers, request.framing, request.length
        else:
            answer = reader.response(buffer, method)
            if answer is None:
                return seen
            seen.start = (answer.status, answer.version)
            seen.headers, framing, length = answer.headers, answer.framing, answer.length
        begin = len(stream) - len(buffer)
        body = BodyReader(framing, length, decode=True)
        used = 0 if framing is Framing.TUNNEL else body.feed(buffer)
    except MessageError:
        return None
    seen.body = b"".join(body.payload)
    seen.end = begin + used if body.done or framing is Framing.TUNNEL else -1
    return seen


class _Listener:
    """Collects what httptools calls, up to the end of the first message."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.url = b""
        self.in_head = True
        self.done = False

    def on_url(self, url: bytes) -> None:
        if self.in_head:
            self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_head:
            # It leaves the blanks before the line's end to its user.
            self.seen.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.in_head = False

    def on_body(self, body: bytes) -> None:
        if not self.done:
            self.seen.body += body

    def on_message_complete(self) -> None:
        self.done = True


def by_httptools(stream: bytes, *, answer: bool = False) -> Seen | None:
    """Return the message as httptools (llhttp) reads it byte by byte, None if it refuses it."""
    listener = _Listener()
    parser = (
        httptools.HttpResponseParser(listener) if answer else httptools.HttpRequestParser(listener)
    )
    seen = listener.seen
    for at in range(len(stream)):
        try:
            parser.feed_data(stream[at : at + 1])
        except httptools.HttpParserUpgrade:
            listener.done = True
        except httptools.HttpParserError:
            if not listener.done:
                return None
        if listener.done:
            seen.end = at + 1
            break
    if not listener.in_head:
        version = int(parser.get_http_version().replace(".", ""))
        if isinstance(parser, httptools.HttpResponseParser):
            seen.start = (parser.get_status_code(), version)
        else:
            seen.start = (parser.get_method(), listener.url, version)
    return seen


def by_h11(stream: bytes, method: bytes | None = None) -> Seen | None:
    """Return the message as h11 reads it, None if it refuses it."""
    seen = Seen()
    if method is None:
        connection = h11.Connection(h11.SERVER)
    else:
        connection = h11.Connection(h11.CLIENT)
        connection.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
        connection.send(h11.EndOfMessage())
    try:
        connection.receive_data(stream)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                version = int(event.http_version.replace(b".", b""))
                seen.start = (event.method, event.target, version)
                seen.headers = list(event.headers)
            elif isinstance(event, h11.Response | h11.InformationalResponse):
                version = int(event.http_version.replace(b".", b""))
                seen.start = (event.status_code, version)
                seen.headers = list(event.headers)
            elif isinstance(event, h11.Data):
                seen.body += bytes(event.data)
            if isinstance(event, h11.EndOfMessage | h11.InformationalResponse):
                seen.end = len(stream) - len(connection.trailing_data[0])
                return seen
            if event in (h11.NEED_DATA, h11.PAUSED):
                return seen
    except h11.RemoteProtocolError:
        return None
