# SPDX-License-Identifier: Apache-2.0
"""What a client gets of the winner's answer, and what it is told when that breaks off."""

from __future__ import annotations

import pytest

from xdp_router.core.listeners import SocketAddress
from xdp_router.daemon.gateway.answer import Answer
from xdp_router.daemon.gateway.delivery import Delivery
from xdp_router.daemon.gateway.leg import Leg
from xdp_router.gateway.http_body import BodyReader
from xdp_router.gateway.http_head import HeadLimits, read_response

CHUNKED = b"Transfer-Encoding: chunked\r\n"
LENGTH = b"Content-Length: 9999\r\n"
CLOSE = b""
TOLD = b"event: error\ndata: "


class Nobody:
    """Whose the leg is; hears nothing here."""

    def leg_ready(self, leg: Leg) -> None: ...
    def leg_head(self, leg: Leg, head: object, first: bytes) -> None: ...
    def leg_body(self, leg: Leg, data: bytes) -> None: ...
    def leg_done(self, leg: Leg) -> None: ...
    def leg_said_all(self, leg: Leg) -> None: ...
    def leg_lost(self, leg: Leg, reason: str, clean: bool) -> None: ...
    def leg_writable(self, leg: Leg, writable: bool) -> None: ...


def chunk(content: bytes) -> bytes:
    """In the coding of chunks."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def broken(
    framing: bytes, *pieces: bytes, version: int = 11, kind: str = "text/event-stream"
) -> bytes:
    """What is written behind ``pieces`` of a body when it breaks off after them."""
    raw = b"HTTP/1.1 200 OK\r\nContent-Type: " + kind.encode() + b"\r\n" + framing + b"\r\n"
    head = read_response(raw, b"POST", HeadLimits())
    leg = Leg(SocketAddress("198.18.0.1", 80), 0, Nobody(), 0)
    leg.head, leg.body = head, BodyReader(head.framing, head.length)
    written: list[bytes] = []
    delivery = Delivery(leg, Answer(head), version, written.append)
    for each in pieces:
        assert leg.body.feed(each) == len(each)
        delivery.more(each)
    written.clear()
    delivery.break_off()
    return b"".join(written)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("version", [10, 11])
def test_between_two_events_it_is_told(end: bytes, version: int) -> None:
    """Whatever line ends the backend writes, in chunks or without, for both versions."""
    event = b"data: {}" + end + end
    told = broken(CHUNKED, chunk(event), chunk(event), version=version)
    if version == 11:
        size, _, told = told.partition(b"\r\n")
        assert len(told) == int(size, 16) + 2
    assert told.startswith(TOLD)
    assert broken(CLOSE, event, event, version=version).startswith(TOLD)
    assert TOLD in broken(CHUNKED, *(bytes([each]) for each in chunk(event)), version=version)
    assert TOLD in broken(CHUNKED, chunk(event[:-2]), chunk(event[-2:] + event), version=version)


def test_before_the_first_event_it_is_told() -> None:
    """The head alone is out: an event fits behind it."""
    assert TOLD in broken(CHUNKED)
    assert broken(CLOSE).startswith(TOLD)


@pytest.mark.parametrize(
    "content",
    [b"data: {", b"data: {}\n", b"data: {}\r\n", b"data: {}\r", b"data: {}\n\ndata: {}\n"],
)
def test_within_an_event_it_is_not(content: bytes) -> None:
    """Ours would become part of it."""
    assert broken(CHUNKED, chunk(content)) == b""
    assert broken(CHUNKED, chunk(content), version=10) == b""
    assert broken(CLOSE, content) == b""


@pytest.mark.parametrize("short", [b"\n", b"\r\n"])
def test_the_line_of_a_chunks_size_is_no_line_of_an_event(short: bytes) -> None:
    """A line end alone in a chunk may or may not end an event: nothing is said."""
    assert broken(CHUNKED, chunk(b"data: {}"), chunk(short)) == b""
    assert broken(CHUNKED, chunk(short)) == b""
    extended = b"00%x;a=b\r\n%b\r\n" % (len(short), short)
    assert broken(CHUNKED, chunk(b"data: {}"), extended) == b""


def test_within_a_chunk_or_a_length_it_is_not() -> None:
    """It would be read as the backend's, or as the next answer."""
    event = b"data: {}\n\n"
    assert broken(CHUNKED, chunk(event), b"a\r\n" + event[:-1]) == b""
    assert broken(CHUNKED, chunk(event), b"a\r\n" + event) == b""
    assert broken(CHUNKED, chunk(event), b"9") == b""
    assert broken(LENGTH, event) == b""
    assert broken(CHUNKED, chunk(event), kind="text/plain") == b""
