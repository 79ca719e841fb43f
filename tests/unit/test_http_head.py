# SPDX-License-Identifier: Apache-2.0
"""Heads of requests and answers as conversations: pieces in, values out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import fuzz_http_head
from tests.support.http_talk import requests, responses, singly
from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_head import (
    METHOD_BYTES,
    Framing,
    HeadLimits,
    HeadReader,
    RequestHead,
    ResponseHead,
    host_name,
)

BROWSER = (
    b"GET /v1/models?limit=20 HTTP/1.1\r\nHost: Api.Example.com:8080\r\n"
    b"User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: text/html,*/*;q=0.8\r\n"
    b"Accept-Encoding: gzip, br\r\nConnection: keep-alive\r\nCookie: a=1; b=\xc3\xa4\r\n\r\n"
)
COMPLETION = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: llm\r\nContent-Type: application/json\r\n"
    b"X-Tenant-ID: red\r\nExpect: 100-Continue\r\nContent-Length: 14\r\n\r\n"
)
WEBSOCKET = (
    b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LIMITS = HeadLimits(head_bytes=400, headers=5, target_bytes=100)


def request(raw: bytes, limits: HeadLimits | None = None) -> RequestHead:
    """Read one whole head that comes at once."""
    head = HeadReader(limits or HeadLimits()).request(bytearray(raw))
    assert head is not None
    return head


def response(raw: bytes, method: bytes = b"GET", *, upgrade: bool = True) -> ResponseHead:
    """Read one whole head of an answer that comes at once."""
    head = HeadReader(HeadLimits()).response(bytearray(raw), method, upgrade=upgrade)
    assert head is not None
    return head


def test_a_browsers_request_is_read() -> None:
    """All that a decision rests on is in the head; what came is there unchanged."""
    head = request(BROWSER)
    assert (head.method, head.target, head.path) == (b"GET", b"/v1/models?limit=20", b"/v1/models")
    assert (head.host, head.server_name) == (b"Api.Example.com:8080", "api.example.com")
    assert (head.version, head.keep_alive, head.upgrade) == (11, True, None)
    assert (head.framing, head.length, head.expects_continue) == (Framing.NONE, 0, False)
    assert [name for name, _ in head.headers] == [
        b"host",
        b"user-agent",
        b"accept",
        b"accept-encoding",
        b"connection",
        b"cookie",
    ]
    assert head.get(b"cookie") == b"a=1; b=\xc3\xa4"
    assert head.get(b"x-tenant-id") is None
    assert head.raw == BROWSER


def test_a_body_that_is_announced() -> None:
    """Its length, and that the client waits for 100 (Continue) before it sends it."""
    head = request(COMPLETION)
    assert (head.framing, head.length, head.expects_continue) == (Framing.LENGTH, 14, True)
    head = request(b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert (head.framing, head.length, head.expects_continue) == (Framing.CHUNKED, 0, False)


def test_requests_one_after_the_other_on_one_connection() -> None:
    """Pipelined requests come apart at the right byte, bodies and stray empty lines between."""
    stream = b"\r\n" + BROWSER + COMPLETION + b'{"model": "m"}' + b"\r\n" + WEBSOCKET
    for pieces in ([stream], singly(stream)):
        outcome = requests(pieces)
        assert outcome.error is None
        assert [message.head.raw for message in outcome.messages] == [
            BROWSER,
            COMPLETION,
            WEBSOCKET,
        ]
        assert [message.body for message in outcome.messages] == [b"", b'{"model": "m"}', b""]


def test_a_head_is_not_whole_before_its_last_byte() -> None:
    """Each prefix needs more, and so does each one that came in two pieces."""
    for raw in (BROWSER, COMPLETION, WEBSOCKET):
        for size in range(len(raw)):
            buffer = bytearray(raw[:size])
            reader = HeadReader(HeadLimits())
            assert reader.request(buffer) is None
            assert buffer == raw[:size]
            buffer += raw[size:] + b"rest"
            head = reader.request(buffer)
            assert head is not None
            assert head.raw == raw
            assert buffer == b"rest"
    for size in range(len(STREAM)):
        outcome = responses([STREAM[:size]])
        assert (outcome.messages, outcome.error, outcome.left) == ([], None, STREAM[:size])


def test_a_stray_empty_line_leaves_an_idle_connection() -> None:
    """What some clients send behind a body is gone at once: nothing begins a request's deadline."""
    reader = HeadReader(HeadLimits())
    buffer = bytearray(b"\r\n")
    assert reader.request(buffer) is None
    assert not buffer


def test_a_head_that_cannot_be_read_stays() -> None:
    """So that whoever refuses it can say what it was."""
    raw = b"GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"
    buffer = bytearray(raw + b"rest")
    with pytest.raises(MessageError):
        HeadReader(HeadLimits()).request(buffer)
    assert buffer == raw + b"rest"


@pytest.mark.parametrize(
    ("version", "options", "stays"),
    [
        (11, b"", True),
        (11, b"Connection: close\r\n", False),
        (11, b"Connection: Keep-Alive, CLOSE\r\n", False),
        (11, b"Connection: te\r\nConnection: close\r\n", False),
        (11, b"Connection: closed\r\n", True),
        (10, b"", False),
        (10, b"Connection: Keep-Alive\r\n", True),
        (10, b"Connection: keep-alive, close\r\n", False),
    ],
)
def test_whether_a_connection_stays_open(version: int, options: bytes, stays: bool) -> None:
    """RFC 9112 section 9.3, both ways."""
    head = b"GET / HTTP/1.%d\r\nHost: a\r\n%b\r\n" % (version - 10, options)
    assert request(head).keep_alive is stays
    answer = b"HTTP/1.%d 200 OK\r\nContent-Length: 1\r\n%b\r\n" % (version - 10, options)
    assert response(answer).keep_alive is stays


@pytest.mark.parametrize(
    ("lines", "upgrade"),
    [
        (b"Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n", b"websocket"),
        (b"Upgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 0\r\n", b"websocket"),
        (b"Upgrade: tcp\r\nConnection: upgrade\r\n", b"tcp"),
        (b"Upgrade: websocket\r\n", None),
        (b"Connection: Upgrade\r\n", None),
        (b"Upgrade: \r\nConnection: Upgrade\r\n", None),
        (b"Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n", None),
        (b"Upgrade: websocket\r\nUpgrade: tcp\r\nConnection: Upgrade\r\n", None),
        (b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n", None),
        (b"Upgrade: HTTP/2.0\r\nConnection: Upgrade\r\n", None),
        (b"Upgrade: TLS/1.3\r\nConnection: Upgrade\r\n", None),
        (b"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 3\r\n", None),
        (b"Upgrade: websocket\r\nConnection: Upgrade\r\nTransfer-Encoding: chunked\r\n", None),
    ],
)
def test_which_upgrades_are_taken_up(lines: bytes, upgrade: bytes | None) -> None:
    """One protocol, named in Connection, no body before it, no HTTP that nobody would judge."""
    assert request(b"GET / HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n").upgrade == upgrade


def test_http_1_0_upgrades_nothing_and_waits_for_nothing() -> None:
    """Upgrade and Expect of a 1.0 client are not heard (RFC 9110 sections 7.8 and 10.1.1)."""
    head = request(
        b"POST / HTTP/1.0\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
        b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n"
    )
    assert (head.upgrade, head.expects_continue, head.host) == (None, False, b"")


@pytest.mark.parametrize(
    ("target", "host", "path", "authority"),
    [
        (b"/", b"a", b"/", b"a"),
        (b"/a/../b?x=/y?z", b"a", b"/a/../b", b"a"),
        (b"//evil/x", b"a", b"//evil/x", b"a"),
        (b"http://b:81/x?y", b"a", b"/x", b"b:81"),
        (b"HTTPS://b", b"a", b"/", b"b"),
        (b"http://b?q=/", b"a", b"/", b"b"),
        (b"http://[2001:db8::1]:80/x", b"a", b"/x", b"[2001:db8::1]:80"),
        (b"/%2e%2e/%00", b"198.18.0.1:", b"/%2e%2e/%00", b"198.18.0.1:"),
    ],
)
def test_forms_of_a_target(target: bytes, host: bytes, path: bytes, authority: bytes) -> None:
    """The target's own authority goes before Host (RFC 9112 section 3.2.2)."""
    head = request(b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert (head.target, head.path, head.host) == (target, path, authority)


def test_options_of_the_whole_server() -> None:
    """The asterisk form belongs to OPTIONS, also where a proxy is asked (section 3.2.4)."""
    assert request(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").path == b"*"
    head = request(b"OPTIONS http://b HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (head.path, head.host) == (b"*", b"b")


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (b"Example.COM", "example.com"),
        (b"example.com.:443", "example.com"),
        (b"[2001:DB8::1]:443", "[2001:db8::1]"),
        (b"[2001:db8::1]", "[2001:db8::1]"),
        (b"", ""),
    ],
)
def test_the_name_that_is_looked_up(host: bytes, name: str) -> None:
    """Without port, final dot and capitals."""
    assert host_name(host) == name


def test_limits_are_met_to_the_byte() -> None:
    """What fits is read; one more is refused with the status that names it."""
    fixed = len(b"GET  HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n")
    fits = b"GET /%b HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n" % (b"t" * 99, b"v" * (300 - fixed))
    assert len(fits) == LIMITS.head_bytes
    assert request(fits, LIMITS).raw == fits
    for wrong, status in (
        (fits.replace(b"X: ", b"X: v"), 431),
        (fits.replace(b"GET /", b"GET /t").replace(b"X: v", b"X: "), 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 5 + b"\r\n", 431),
        (b"GET /" + b"t" * 1000, 414),
        (b"GET / HTTP/1.1\r\n" + b"v" * 1000, 431),
    ):
        for pieces in ([wrong], singly(wrong)):
            outcome = requests(pieces, LIMITS)
            assert outcome.error is not None
            assert outcome.error[0] == status, wrong
    assert request(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 4 + b"\r\n", LIMITS)
    long = STREAM.replace(b"\r\n\r\n", b"\r\nX: %b\r\n\r\n" % (b"v" * 400))
    many = STREAM.replace(b"\r\n\r\n", b"\r\n" + b"a:\r\n" * 5 + b"\r\n")
    for wrong in (long, many):
        outcome = responses([wrong], limits=LIMITS)
        assert outcome.error is not None
        assert outcome.error[0] == 502


def test_a_target_without_end_is_refused_at_its_byte() -> None:
    """At the byte after which no request line fits any more, and on each request anew."""
    longest = LIMITS.target_bytes + METHOD_BYTES + len(b"  HTTP/1.1")
    begun = b"GET /" + b"t" * (longest - 4)
    assert requests([begun], LIMITS).error is None
    for stream in (
        begun + b"t",
        begun + b"t is no request line\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + begun + b"t",
    ):
        for pieces in ([stream], singly(stream)):
            outcome = requests(pieces, LIMITS)
            assert outcome.error == (414, "a request target that is too long")


def test_nobody_waits_for_more_of_what_is_wrong_already() -> None:
    """An error that a head cannot grow out of is raised at its byte, not at a deadline."""
    for begun, status in (
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"\0", 400),
        (b"GET / HTTP/1.1\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\rb", 400),
        (b"GET /" + b"a" * 200, 414),
        (b"\r\n\r", 400),
    ):
        outcome = requests([begun], LIMITS)
        assert outcome.error is not None
        assert outcome.error[0] == status
    for begun in (b"\x15\x03", b"HTTP/2", b"HTTP/1.1 200 OK\n", b"220 smtp ready"):
        outcome = responses([begun])
        assert outcome.error is not None
        assert outcome.error[0] == 502


def test_small_pieces_cost_no_more_than_they_are() -> None:
    """A head of 16 KiB byte by byte searches each byte a few times, not all that came before."""
    seen = 0

    class Counting(bytearray):
        def find(self, *args: Any) -> int:
            nonlocal seen
            seen += len(self) - args[1]
            return super().find(*args)

    raw = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"v" * 16000 + b"\r\n\r\n"
    buffer = Counting()
    reader = HeadReader(HeadLimits())
    for piece in singly(raw[:-1]):
        buffer += piece
        assert reader.request(buffer) is None
    assert seen < 10 * len(raw)


def test_an_answer_is_read() -> None:
    """Status, reason and where the body ends; the head is there as it came."""
    head = response(STREAM)
    assert (head.status, head.reason, head.version) == (200, b"OK", 11)
    assert (head.framing, head.keep_alive) == (Framing.CHUNKED, True)
    assert head.get(b"content-type") == b"text/event-stream"
    assert head.raw == STREAM


@pytest.mark.parametrize(
    ("line", "fields", "method", "framing", "length", "stays"),
    [
        (b"200 OK", b"Content-Length: 3", b"GET", Framing.LENGTH, 3, True),
        (b"200 OK", b"Transfer-Encoding: Chunked", b"GET", Framing.CHUNKED, 0, True),
        (b"200 OK", b"A: b", b"GET", Framing.CLOSE, 0, False),
        (b"200 OK", b"Connection: keep-alive", b"GET", Framing.CLOSE, 0, False),
        (b"200 OK", b"Content-Length: 3", b"HEAD", Framing.NONE, 0, True),
        (b"200 OK", b"Transfer-Encoding: chunked", b"HEAD", Framing.NONE, 0, True),
        (b"200 OK", b"Connection: close", b"HEAD", Framing.NONE, 0, False),
        (b"304 Not Modified", b"Content-Length: 3", b"GET", Framing.NONE, 0, True),
        (b"204 No Content", b"A: b", b"DELETE", Framing.NONE, 0, True),
        (b"204 No Content", b"Content-Length: 0", b"DELETE", Framing.NONE, 0, True),
        (b"205 Reset Content", b"Content-Length: 0", b"POST", Framing.LENGTH, 0, True),
        (b"100 Continue", b"A: b", b"POST", Framing.NONE, 0, True),
        (b"103 Early Hints", b"Link: </a>", b"GET", Framing.NONE, 0, True),
        (b"101 Switching Protocols", b"Upgrade: x", b"GET", Framing.TUNNEL, 0, False),
        (b"200 OK", b"Content-Length: 3\r\nConnection: close", b"GET", Framing.LENGTH, 3, False),
        (b"500 ", b"Content-Length: 0", b"GET", Framing.LENGTH, 0, True),
        (b"404", b"Content-Length: 0", b"GET", Framing.LENGTH, 0, True),
        (b"799 \xe4 odd\treason", b"Content-Length: 0", b"GET", Framing.LENGTH, 0, True),
    ],
)
def test_where_an_answers_body_ends(
    line: bytes, fields: bytes, method: bytes, framing: Framing, length: int, stays: bool
) -> None:
    """RFC 9112 section 6.3: by status, by method, by the fields, at last by the connection."""
    head = response(b"HTTP/1.1 " + line + b"\r\n" + fields + b"\r\n\r\n", method)
    assert (head.framing, head.length, head.keep_alive) == (framing, length, stays)
    assert head.status == int(line[:3])
    assert head.reason == line[4:]


def test_answers_of_http_1_0() -> None:
    """They close, but for those that say otherwise and have a length."""
    assert response(b"HTTP/1.0 200 OK\r\n\r\n").framing is Framing.CLOSE
    head = response(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n")
    assert (head.version, head.keep_alive) == (10, True)


def test_interim_answers_come_before_the_real_one() -> None:
    """100 and 103 are heads without a body; each answer of a pipeline is for its own method."""
    stream = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    )
    for pieces in ([stream], singly(stream)):
        outcome = responses(pieces, [b"HEAD", b"GET"])
        assert outcome.error is None
        found = [
            (m.head.status, m.body) for m in outcome.messages if isinstance(m.head, ResponseHead)
        ]
        assert found == [(100, b""), (103, b""), (200, b""), (200, b"ok")]


def test_a_change_of_protocol_has_to_be_asked_for() -> None:
    """101 to a request without Upgrade would make a tunnel past everything that judges requests."""
    raw = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
    assert response(raw, upgrade=True).framing is Framing.TUNNEL
    with pytest.raises(MessageError) as caught:
        response(raw, upgrade=False)
    assert caught.value.status == 502


FRAGMENTS = (
    b"GET / HTTP/1.1\r\n",
    b"POST http://a:8/x?y HTTP/1.0\r\n",
    b"OPTIONS * HTTP/1.1\r\n",
    b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.0 304 N\r\n",
    b"HTTP/1.1 101 S\r\n",
    b"HTTP/1.1 100 C\r\n",
    b"Host: a\r\n",
    b"Host: [::1]:8\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: upgrade, x\r\n",
    b"Upgrade: websocket\r\n",
    b"Expect: 100-continue\r\n",
    b"X-Forwarded-For: b\r\n",
    b"\r\n",
    b"hello",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"0\r\nA: b\r\n\r\n",
    b"\n",
    b"\r",
    b" ",
    b":",
    b"\t",
    b"\0",
    b"\xff",
    b"A" * 70,
    b"B" * 500,
)  # fmt: skip - one line each would say less


@settings(max_examples=300)
@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=4)), max_size=12))
def test_the_outcome_does_not_depend_on_the_pieces(parts: list[bytes]) -> None:
    """The fuzz target's invariant over streams made of lines that mean something."""
    stream = b"".join(parts)
    for side in (b"\0", b"\1", b"\3", b"\x20", b"\x21"):
        fuzz_http_head.check(side + stream)


@settings(max_examples=100)
@given(st.binary(max_size=40), st.sampled_from((BROWSER, COMPLETION, WEBSOCKET)))
def test_any_prefix_and_any_garbage(garbage: bytes, raw: bytes) -> None:
    """A begun head that goes on with anything at all is read or refused, never anything else."""
    for size in range(0, len(raw), 7):
        fuzz_http_head.check(b"\0" + raw[:size] + garbage)
