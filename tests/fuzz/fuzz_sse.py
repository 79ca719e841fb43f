# SPDX-License-Identifier: Apache-2.0
"""An event stream gives the same events, and the same fault or none, in whatever pieces it comes.

And they are those of a plain reading of the standard, as long as there is no fault; no payload
makes the first-token predicate raise.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.whatwg_events import events_of
from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.first_token import Verdict, first_token
from xdp_router.gateway.sse import SseReader

BOUND = 64
SEEDS = (
    b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n',
    b": comment\r\nevent: x\r\ndata: a\r\ndata: b\r\n\r\n",
    b"\xef\xbb\xbfdata:a\r\rid: 1\rdata\r\r",
    b'data: {"error": {"message": "x"}}\n\n',
    b"data: " + b"x" * 100 + b"\n\n",
)
WORDS = (b"data: ", b"\n\n", b"\r\n\r\n", b"\r\r", b": ", b"[DONE]", b'"content": "a"', b"event: ")


def read(pieces: Iterator[bytes], bound: int) -> tuple[list[bytes], str]:
    """The events of a stream, and its fault."""
    reader = SseReader(max_bytes=bound)
    events: list[bytes] = []
    try:
        for piece in pieces:
            events += reader.feed(piece)
        reader.feed(b"")
    except MessageError as error:
        if error.status != 502:
            raise AssertionError(f"a backend's fault is a 502, not {error.status}") from error
        return events, error.reason
    return events, ""


def pieces_of(data: bytes, step: int) -> Iterator[bytes]:
    """All of it, so many bytes at a time."""
    return (data[at : at + step] for at in range(0, len(data), step))


def check(data: bytes) -> None:
    """Raise AssertionError if the invariant does not hold for ``data``."""
    step = data[0] + 1 if data else 1
    for bound in (BOUND, 1 << 20):
        single = read(pieces_of(data, 1), bound)
        for whole in (read(iter([data]), bound), read(pieces_of(data, step), bound)):
            if whole != single:
                raise AssertionError(f"{whole} in pieces, {single} byte by byte")
        events, fault = single
        expected = events_of(data)
        if events != (expected[: len(events)] if fault else expected):
            raise AssertionError(f"{events}, but the standard has {expected}")
    for payload in [data, *expected]:
        if first_token(payload) not in Verdict:
            raise AssertionError(f"no verdict: {payload!r}")
