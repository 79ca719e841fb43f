# SPDX-License-Identifier: Apache-2.0
"""The gateway's reading of messages against httptools (llhttp) and h11.

Whatever the gateway accepts, both read as the same message with the same end. It accepts less:
each kind of message that one of them takes and the gateway refuses stands in STRICTER.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.http_oracles import Seen, by_h11, by_httptools, by_us
from tests.unit.test_http_head_smuggling import ANSWERS, ROWS
from xdp_router.gateway.http_forward import request_frame
from xdp_router.gateway.http_head import HeadLimits, HeadReader

# Rows of the tables (the beginnings of their names) and why they are refused.
STRICTER = {
    (
        "CL.TE",
        "TE.CL",
        "TE.TE with CL",
        "TE and CL",
    ): "two ends of one body: Transfer-Encoding wins by RFC 9112, Content-Length in old parsers",
    (
        "CL.CL",
        "two CLs",
        "CL list",
    ): "equal lengths may be merged, but nobody sends them in good faith",
    ("CL twin", "TE.TE underscore"): "CGI-like backends read the underscore as a hyphen",
    ("CL named", "TE.TE named"): "a proxy behind us would take the body's end out of the head",
    ("TE in HTTP/1.0",): "RFC 9112 6.1: the framing is faulty; 1.0 parsers take no chunks",
    ("TE.TE other", "TE gzip", "TE twice"): "a coding that one of two parsers may not know",
    ("TE.TE capitals",): "a backend that compares case would see no body",
    ("TRACE",): "RFC 9110 9.3.8: no content; backends that ignore it read it as a request",
    (
        "bare LF",
        "LF",
        "CR",
        "TE.TE bare LF",
        "TE.TE bare CR",
        "trailer with LF",
    ): "RFC 9112 2.2 lets a recipient end a line there; the next parser may not",
    (
        "two empty lines",
        "bare LF before",
        "empty line before",
    ): "one empty line before a request is what clients are known to send; none before an answer",
    (
        "obs-fold",
        "folded",
        "TE.TE folded",
        "TE.TE space before name",
        "trailer folded",
    ): "RFC 9112 5.2: refused by a server; the next parser may see two fields",
    (
        "no Host",
        "two Hosts",
        "two equal Hosts",
        "absolute form, no Host",
    ): "RFC 9112 3.2: 400; routing rests on it",
    ("Host", "absolute form"): "no name, address or port: the next parser may cut it elsewhere",
    (
        "other scheme",
        "target without",
        "target with",
        "asterisk",
        "authority form",
    ): "RFC 9112 3.2 has four forms of a target; the path that a route sees must be the backend's",
    ("CONNECT",): "no open proxy: targets come from the configuration",
    ("two blanks",): "RFC 9112 3: one blank; whitespace in a target moves its end",
    (
        "lower-case",
        "method of",
        "long method",
    ): "methods are case-sensitive; a backend that takes head for HEAD sends no body",
    ("HTTP/0.9", "HTTP/1.2", "HTTP/2", "ICE"): "versions whose framing is not this one",
    ("escape in a value",): "RFC 9110 5.5: control characters are invalid; logs show them",
    ("other expectation", "expectation twice"): "RFC 9110 10.1.1: 417",
    (
        "chunk size padded",
        "EXT.TERM",
        "NUL in an extension",
        "long extension",
    ): "a line of a chunk is read to its end in one way only, and is short",
    (
        "trailer",
        "long trailers",
        "bad trailer",
    ): "no trailer changes where the message ends or whom it is for; their size is bounded",
    ("204", "100", "101"): "a body announced where none can be is the next answer to somebody",
}  # fmt: skip - reasons beside their rows


def takes(seen: Seen | None) -> bool:
    """Say whether a parser read a whole message."""
    return seen is not None and seen.end >= 0


def test_each_case_where_the_gateway_is_stricter_has_its_reason() -> None:
    """A row refused here and taken by one of the others is a decision, and is written down."""
    refused = {
        name: takes(by_httptools(stream)) or takes(by_h11(stream))
        for name, (stream, whole, status) in ROWS.items()
        if status and not whole
    }
    for name, stream in ANSWERS.items():
        taken = takes(by_httptools(stream, answer=True)) or takes(by_h11(stream, b"GET"))
        refused[name] = refused.get(name, False) or taken
    beginnings = tuple(beginning for group in STRICTER for beginning in group)
    silent = [name for name, taken in refused.items() if taken and not name.startswith(beginnings)]
    assert not silent
    for group in STRICTER:
        for beginning in group:
            assert any(name.startswith(beginning) for name in refused), beginning


# What stands in heads, and what may be done to it.
REQUEST_LINES = (
    b"GET / HTTP/1.1",
    b"POST /a?b=c HTTP/1.1",
    b"PUT http://b:80/x HTTP/1.1",
    b"HEAD /h HTTP/1.0",
    b"OPTIONS * HTTP/1.1",
    b"DELETE /%20 HTTP/1.1",
)  # fmt: skip - one line each would say less
STATUS_LINES = (
    b"HTTP/1.1 200 OK",
    b"HTTP/1.0 404 Not Found",
    b"HTTP/1.1 304 Not Modified",
    b"HTTP/1.1 500 ",
    b"HTTP/1.1 204 No Content",
)  # fmt: skip - one line each would say less
FIELDS = (
    b"Host: a",
    b"host:b:8080",
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"content-length:3 ",
    b"Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: keep-alive, X",
    b"X: y",
    b"X:\t\xe4  z ",
    b"Cookie: a=b; c=d",
    b"Accept: */*",
    b"Empty:",
    b"A_b: 1",
)  # fmt: skip - one line each would say less
BODIES = (b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"3;x=y\r\nabc\r\n0\r\nT: u\r\n\r\n", b"GET /")
SPOILERS = b"\r\n \t:;,0159aF\0\xff\x0b_-+*/?#@[]\"'"


@st.composite
def streams(draw: st.DrawFn, lines: tuple[bytes, ...]) -> bytes:
    """Return a message that is often right, with a few bytes changed, taken out or put in."""
    fields = draw(st.lists(st.sampled_from(FIELDS), max_size=5))
    head = [draw(st.sampled_from(lines)), *fields]
    if draw(st.booleans()):
        head.insert(1, b"Host: a")
    stream = bytearray(b"\r\n".join(head) + b"\r\n\r\n" + draw(st.sampled_from(BODIES)))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(stream) - 1))
        kept = draw(st.sampled_from((0, 1)))
        spoiler = draw(st.sampled_from(SPOILERS))
        stream[at : at + 1 - kept] = bytes([spoiler]) * draw(st.integers(0, 1))
    return bytes(stream)


KNOWN_METHODS = tuple(line.split(b" ")[0] for line in REQUEST_LINES)


@settings(max_examples=500)
@given(streams(REQUEST_LINES))
def test_what_is_accepted_is_the_same_request_to_others(stream: bytes) -> None:
    """Method, target, fields, body and the byte at which it ends."""
    ours = by_us(stream)
    if ours is None or ours.end < 0:
        return
    assert ours == by_h11(stream)
    # httptools has a list of methods.
    if ours.start[0] in KNOWN_METHODS:
        assert ours == by_httptools(stream)


@settings(max_examples=500)
@given(streams(STATUS_LINES), st.sampled_from((b"GET", b"HEAD")))
def test_what_is_accepted_is_the_same_answer_to_others(stream: bytes, method: bytes) -> None:
    """Status, fields, body and its end; to HEAD httptools has to be told, so it is not asked."""
    ours = by_us(stream, method)
    if ours is None or ours.end < 0:
        return
    assert ours == by_h11(stream, method)
    if method == b"GET":
        assert ours == by_httptools(stream, answer=True)


@settings(max_examples=300)
@given(streams((*REQUEST_LINES, b"GET /ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade")))
def test_what_is_sent_on_is_the_same_request_to_a_backend(stream: bytes) -> None:
    """A backend built on either of them finds the body's end where the gateway found it."""
    ours = by_us(stream)
    buffer = bytearray(stream)
    if ours is None or ours.end < 0:
        return
    head = HeadReader(HeadLimits()).request(buffer)
    assert head is not None
    sent = request_frame(head, host=None, proto=b"http").filled(b"192.0.2.1")
    body = stream[len(stream) - len(buffer) : ours.end]
    others = [by_h11(sent + body)]
    if head.method in KNOWN_METHODS:
        others.append(by_httptools(sent + body))
    for other in others:
        assert other is not None
        assert (other.body, other.end) == (ours.body, len(sent + body))
        assert dict(other.headers).get(b"host", b"") == head.host


@pytest.mark.parametrize(
    "stream",
    [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"PUT / HTTP/1.0\r\nContent-Length: 2\r\n\r\nok"],
)
def test_the_others_are_asked(stream: bytes) -> None:
    """A plain request is one to all three: silence is not agreement."""
    ours = by_us(stream)
    assert ours is not None
    assert ours.end == len(stream)
    assert ours == by_h11(stream) == by_httptools(stream)
