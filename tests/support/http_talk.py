# SPDX-License-Identifier: Apache-2.0
"""Streams of HTTP/1.1 as a connection sees them: bytes come in pieces, messages come out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_body import BodyReader
from xdp_router.gateway.http_head import HeadLimits, HeadReader, RequestHead, ResponseHead


@dataclass(slots=True)
class Message:
    """A message as far as it came: head, body as it was sent, and its content."""

    head: RequestHead | ResponseHead
    body: bytes = b""
    content: bytes = b""
    whole: bool = False


@dataclass(slots=True)
class Outcome:
    """What a stream was: its messages, then an error or what is left of a head."""

    messages: list[Message]
    error: tuple[int, str] | None = None
    left: bytes = b""


def singly(data: bytes) -> Iterator[bytes]:
    """Return the bytes one at a time."""
    return (data[at : at + 1] for at in range(len(data)))


def requests(pieces: Iterable[bytes], limits: HeadLimits | None = None) -> Outcome:
    """Read a client's side of a connection."""
    return _talk(pieces, limits or HeadLimits(), None)


def responses(
    pieces: Iterable[bytes], methods: Sequence[bytes] = (b"GET",), limits: HeadLimits | None = None
) -> Outcome:
    """Read a backend's side: ``methods`` are those of the requests, the last one repeats."""
    return _talk(pieces, limits or HeadLimits(), methods)


def _talk(pieces: Iterable[bytes], limits: HeadLimits, methods: Sequence[bytes] | None) -> Outcome:
    reader = HeadReader(limits)
    buffer = bytearray()
    outcome = Outcome([])
    body: BodyReader | None = None
    asked = list(methods or ())
    try:
        for piece in pieces:
            buffer += piece
            while True:
                if body is None:
                    head: RequestHead | ResponseHead | None
                    if methods is None:
                        head = reader.request(buffer)
                    else:
                        head = reader.response(buffer, asked[0])
                        if isinstance(head, ResponseHead) and head.status >= 200 and asked[1:]:
                            del asked[0]
                    if head is None:
                        break
                    outcome.messages.append(Message(head))
                    status = 400 if methods is None else 502
                    body = BodyReader(head.framing, head.length, decode=True, status=status)
                data = bytes(buffer)
                used = body.feed(data)
                message = outcome.messages[-1]
                message.body += data[:used]
                message.content += b"".join(body.payload)
                del buffer[:used]
                if not body.done:
                    assert not buffer, "a body that is not done takes all that comes"
                    break
                message.whole = True
                body = None
    except MessageError as error:
        # How much of a broken body was seen before depends on the pieces; nothing of it counts.
        if body is not None:
            outcome.messages[-1].body = outcome.messages[-1].content = b""
        outcome.error = (error.status, error.reason)
        return outcome
    outcome.left = bytes(buffer)
    return outcome
