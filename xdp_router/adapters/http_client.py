# SPDX-License-Identifier: Apache-2.0
"""Asks for one page over HTTP/1.1, by the host's own TCP, in the event loop.

Bounded in time and length. No redirects: what is asked is what was configured. No proxies, no TLS,
no compression.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

import h11

from xdp_router.core.address import format_addr, format_endpoint
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.model import Endpoint

BODY_MAX: Final = 4 << 20
_HEAD_MAX: Final = 32 << 10
_SHOWN: Final = 24
"""Bytes of what is no HTTP that are shown."""
_PIECE: Final = 16 << 10
"""Many answers may come at once, and a piece of each is taken in one turn of the loop."""


class HttpError(XdpRouterError):
    """There is no page; the text says why."""


async def fetch(to: Endpoint, path: str, take: Callable[[bytes], None], timeout_s: float) -> None:
    """GET ``path``, and hand the body to ``take``, piece by piece. Raises HttpError, and what
    ``take`` raises."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(
                format_addr(to.addr), to.port, limit=_PIECE
            )
            await _ask(reader, writer, to, path, take)
    except TimeoutError as error:
        raise HttpError(f"no answer within {timeout_s * 1000:g} ms") from error
    except OSError as error:
        # asyncio has words of its own, which name the address once more
        text = os.strerror(error.errno) if error.errno else str(error)
        raise HttpError(text.lower()) from error
    finally:
        if writer is not None:
            writer.transport.abort()


class _Answer:
    """What has come of one, in words for who reads of its failure: h11 has its own words only."""

    def __init__(self) -> None:
        self.begin = b""
        self.length = 0
        self.closed = False
        self.has_head = False
        self.body = 0

    def took(self, data: bytes) -> bytes:
        """A piece of it; empty: that was all."""
        self.closed = not data
        self.length += len(data)
        self.begin += data[: _SHOWN - len(self.begin)]
        return data

    @property
    def fault(self) -> str:
        """What is wrong with it, if it is not as RFC 9112 has it."""
        if self.closed and not self.length:
            return "the server closed the connection without an answer"
        if self.closed and not self.has_head:
            return (
                f"the server closed the connection after {self.length} bytes, before the end of "
                f"its answer's head, which begins with {self._begin}"
            )
        if self.closed:
            return (
                f"the server closed the connection after {self.body} bytes of the page, before "
                "its end"
            )
        if self.has_head:
            return f"what came after {self.body} bytes of the page is no HTTP/1.1"
        if self.length > _HEAD_MAX:
            return f"the head of its answer is longer than {_HEAD_MAX >> 10} KiB"
        return f"its answer is no HTTP/1.1: it begins with {self._begin}"

    @property
    def _begin(self) -> str:
        return repr(self.begin.decode("latin-1"))


async def _ask(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    to: Endpoint,
    path: str,
    take: Callable[[bytes], None],
) -> None:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_MAX)
    headers = [
        ("Host", format_endpoint(to)),
        ("User-Agent", "xdp-router"),
        ("Accept", "text/plain;version=0.0.4, text/plain;q=0.5, */*;q=0.1"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
    request = http.send(h11.Request(method="GET", target=path, headers=headers))
    writer.write((request or b"") + (http.send(h11.EndOfMessage()) or b""))
    answer = _Answer()
    while True:
        try:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(answer.took(await reader.read(_PIECE)))
                continue
        except h11.RemoteProtocolError as error:
            raise HttpError(answer.fault) from error
        if isinstance(event, h11.Response):
            answer.has_head = True
            _require_page(event)
        elif isinstance(event, h11.Data):
            answer.body += len(event.data)
            if answer.body > BODY_MAX:
                raise HttpError(f"the answer is longer than {BODY_MAX >> 20} MiB")
            take(bytes(event.data))
            await asyncio.sleep(0)  # a page that is all there must not hold the loop
        elif isinstance(event, h11.EndOfMessage):
            return
        elif not isinstance(event, h11.InformationalResponse):
            raise HttpError(answer.fault)


def _require_page(response: h11.Response) -> None:
    status, fields = response.status_code, dict(response.headers)
    if 300 <= status < 400:
        where = fields.get(b"location", b"").decode("latin-1")[:200]
        raise HttpError(
            f"status {status}, a redirect to {where!r}, which is not followed: name path and port "
            "in the table 'scrape'"
        )
    if status != 200:
        raise HttpError(f"status {status} instead of 200")
    coding = fields.get(b"content-encoding", b"identity").decode("latin-1")
    if coding.strip().lower() != "identity":
        raise HttpError(f"the answer is compressed ({coding[:20]}), which it was not asked to be")
