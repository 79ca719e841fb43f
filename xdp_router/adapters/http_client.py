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
    except h11.RemoteProtocolError as error:
        raise HttpError(f"no good HTTP: {error}") from error
    finally:
        if writer is not None:
            writer.transport.abort()


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
    length = 0
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(_PIECE))
        elif isinstance(event, h11.Response):
            _require_page(event)
        elif isinstance(event, h11.Data):
            length += len(event.data)
            if length > BODY_MAX:
                raise HttpError(f"the answer is longer than {BODY_MAX >> 20} MiB")
            take(bytes(event.data))
            await asyncio.sleep(0)  # a page that is all there must not hold the loop
        elif isinstance(event, h11.EndOfMessage):
            return
        elif not isinstance(event, h11.InformationalResponse):
            raise HttpError("the connection was closed before there was an answer")


def _require_page(response: h11.Response) -> None:
    status, fields = response.status_code, dict(response.headers)
    if 300 <= status < 400:
        where = fields.get(b"location", b"").decode("latin-1")[:200]
        raise HttpError(
            f"status {status}, a redirect to {where!r}, which is not followed: name path and port "
            "in [service.scrape]"
        )
    if status != 200:
        raise HttpError(f"status {status} instead of 200")
    coding = fields.get(b"content-encoding", b"identity").decode("latin-1")
    if coding.strip().lower() != "identity":
        raise HttpError(f"the answer is compressed ({coding[:20]}), which it was not asked to be")
