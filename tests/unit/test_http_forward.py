# SPDX-License-Identifier: Apache-2.0
"""Heads that are sent on: byte for byte what came, but for what is said here."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from xdp_router.gateway.http_forward import (
    error_response,
    http2_refusal,
    origin_form,
    request_frame,
    response_to_client,
)
from xdp_router.gateway.http_head import HeadLimits, RequestHead, read_request, read_response

OURS = b"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\n"


def request(raw: bytes) -> RequestHead:
    """Read a whole head."""
    return read_request(raw, HeadLimits())


def to_backend(
    raw: bytes,
    host: bytes | None = None,
    extra: Sequence[tuple[bytes, bytes]] = (),
    keep_alive: bool = True,
    drop: Sequence[bytes] = (),
) -> bytes:
    """Return a request as it is sent on."""
    frame = request_frame(request(raw), host=host, proto=b"https", keep_alive=keep_alive, drop=drop)
    return frame.filled(b"192.0.2.1", extra)


def to_client(raw: bytes, method: bytes = b"GET", close: bool = False, version: int = 11) -> bytes:
    """Return an answer as it is sent on."""
    head = read_response(raw, method, HeadLimits())
    return response_to_client(head, close=close, client_version=version)


def test_lines_pass_byte_for_byte() -> None:
    """Capitals, blanks, order, repeated and unknown fields, bytes of no character set: as came."""
    kept = (
        b"POST /a%2F..//b?q=%00 HTTP/1.1\r\nhOST:  Api.example:80\t\r\nX-Odd:\ta , b \xff\r\n"
        b"Cookie: a=1\r\nX-Odd:\r\nCookie: b=2\r\nAuthorization: Bearer x\r\n"
        b"Expect: 100-continue\r\n"
        b"Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\nVia: 1.1 other\r\n"
        b"Forwarded: for=192.0.2.9\r\n"
    )
    sent = to_backend(kept + b"\r\n")
    assert sent == kept + OURS + b"X-Forwarded-Host: Api.example:80\r\n\r\n"


def test_what_belongs_to_one_connection_stays_there() -> None:
    """RFC 9110 section 7.6.1: Connection, what it names, and what is known to be of that kind."""
    raw = (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Hop ,TE\r\nX-Hop: 1\r\n"
        b"Keep-Alive: 5\r\n"
        b"TE: trailers\r\nProxy-Connection: close\r\nProxy-Authorization: secret\r\nProxy: evil\r\n"
        b"Upgrade: h2c\r\nX-Stays: 1\r\n\r\n"
    )
    sent = to_backend(raw)
    assert sent == (
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Stays: 1\r\n" + OURS + b"X-Forwarded-Host: a\r\n\r\n"
    )


def test_our_own_connection_to_the_backend() -> None:
    """Nothing where 1.1 stays open by itself, else what was decided; 1.0 has to be asked to."""
    raw = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    assert b"Connection" not in to_backend(raw)
    assert to_backend(raw, keep_alive=False).count(b"Connection: close\r\n") == 1
    old = b"GET / HTTP/1.0\r\n\r\n"
    assert to_backend(old) == b"GET / HTTP/1.0\r\n" + OURS + b"Connection: keep-alive\r\n\r\n"
    assert to_backend(old, keep_alive=False).endswith(OURS + b"Connection: close\r\n\r\n")


def test_an_upgrade_is_asked_for_again() -> None:
    """The client's Upgrade line passes, with a Connection of ours."""
    raw = (
        b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
        b"Sec-WebSocket-Key: x\r\n\r\n"
    )
    assert to_backend(raw) == (
        b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: WebSocket\r\nSec-WebSocket-Key: x\r\n"
        + OURS
        + b"X-Forwarded-Host: a\r\nConnection: Upgrade\r\n\r\n"
    )
    with_body = raw.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 1\r\n\r\n")
    assert b"pgrade" not in to_backend(with_body)


def test_forwarded_for_grows_and_its_sisters_are_set() -> None:
    """The client's own words about its way are kept before ours, or replaced."""
    raw = (
        b"GET / HTTP/1.1\r\nX-Forwarded-For: 198.51.100.7, 10.0.0.1\r\nHost: a\r\n"
        b"x-forwarded-for: \r\nX-Forwarded-Proto: gopher\r\nX-FORWARDED-FOR: 10.0.0.2\r\n"
        b"X-Forwarded-Host: evil\r\nConnection: X-Forwarded-For\r\n\r\n"
    )
    assert to_backend(raw) == (
        b"GET / HTTP/1.1\r\nHost: a\r\n"
        b"X-Forwarded-For: 198.51.100.7, 10.0.0.1, 10.0.0.2, 192.0.2.1\r\n"
        b"X-Forwarded-Proto: https\r\nX-Forwarded-Host: a\r\n\r\n"
    )


def test_a_host_of_the_configuration_takes_the_clients_place() -> None:
    """In its line; before all others where the client had none; the client's is told apart."""
    raw = b"GET / HTTP/1.1\r\nA: b\r\nHost: a\r\nC: d\r\n\r\n"
    assert to_backend(raw, host=b"engine:8000") == (
        b"GET / HTTP/1.1\r\nA: b\r\nHost: engine:8000\r\nC: d\r\n"
        + OURS
        + b"X-Forwarded-Host: a\r\n\r\n"
    )
    old = to_backend(b"GET / HTTP/1.0\r\nA: b\r\n\r\n", host=b"e")
    assert old.startswith(b"GET / HTTP/1.0\r\nHost: e\r\nA: b\r\n")
    assert b"X-Forwarded-Host" not in old


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        (b"GET http://b:8/x?y=z", b"GET /x?y=z HTTP/1.1\r\nHost: b:8\r\n"),
        (b"GET http://b", b"GET / HTTP/1.1\r\nHost: b\r\n"),
        (b"GET http://b?q", b"GET /?q HTTP/1.1\r\nHost: b\r\n"),
        (b"OPTIONS http://b", b"OPTIONS * HTTP/1.1\r\nHost: b\r\n"),
        (b"OPTIONS *", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n"),
    ],
)
def test_absolute_form_becomes_origin_form(line: bytes, sent: bytes) -> None:
    """Its authority becomes Host: backend and gateway mean the same one (RFC 9112 3.2.2)."""
    raw = line + b" HTTP/1.1\r\nHost: a\r\n\r\n"
    assert to_backend(raw).startswith(sent)
    assert sent.startswith(request(raw).method + b" " + origin_form(request(raw)) + b" ")


def test_fields_are_added_and_left_out_as_asked() -> None:
    """What a listener sets for its backends, and what shall not reach them."""
    raw = (
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nX-Tenant-ID: red\r\n"
        b"Content-Length: 1\r\n\r\n"
    )
    sent = to_backend(raw, extra=[(b"X-Request-ID", b"7")], drop=(b"expect", b"x-tenant-id"))
    assert sent == (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n"
        + OURS
        + b"X-Forwarded-Host: a\r\nX-Request-ID: 7\r\n\r\n"
    )
    named = raw.replace(b"X-Tenant", b"Connection: x-b\r\nX-B: 1\r\nX-Tenant")
    assert to_backend(named, drop=(b"x-tenant-id",)).count(b"\r\nX-") == 3


def test_a_name_of_the_request_is_for_the_whole_path() -> None:
    """Connection does not take it away; one of ours takes the place of all others."""
    own = b"HTTP/1.1 200 OK\r\nConnection: X-Request-ID\r\nX-Request-ID: a\r\nX-Request-Id: b\r\n"
    own += b"Content-Length: 0\r\n"
    assert to_client(own + b"\r\n").lower().count(b"x-request-id") == 2
    raw = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x-request-id\r\nX-Request-ID: a\r\n\r\n"
    assert b"\r\nX-Request-ID: a\r\n" in to_backend(raw)
    answer = read_response(own + b"\r\n", b"GET", HeadLimits())
    assert response_to_client(
        answer, close=False, extra=[(b"X-Request-ID", b"c")], drop=(b"x-request-id",)
    ) == (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Request-ID: c\r\n\r\n")


@pytest.mark.parametrize("wrong", [b"a\r\nb", b"a\nb", b"a\rb", b"a\0b"])
def test_nothing_is_added_that_would_split_a_head(wrong: bytes) -> None:
    """A line end in an added value is our own mistake and never sent."""
    raw = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    with pytest.raises(ValueError, match="line end"):
        to_backend(raw, extra=[(b"X", wrong)])
    with pytest.raises(ValueError, match="line end"):
        to_backend(raw, extra=[(wrong, b"x")])
    with pytest.raises(ValueError, match="line end"):
        to_backend(raw, host=wrong)
    head = request(raw)
    with pytest.raises(ValueError, match="line end"):
        request_frame(head, host=None, proto=b"http").filled(wrong)
    with pytest.raises(ValueError, match="line end"):
        request_frame(head, host=None, proto=wrong)
    answer = read_response(b"HTTP/1.1 200 OK\r\n\r\n", b"GET", HeadLimits())
    with pytest.raises(ValueError, match="line end"):
        response_to_client(answer, close=False, extra=[(b"X", wrong)])
    with pytest.raises(ValueError, match="line end"):
        error_response(503, "x", extra=[(b"X", wrong)])


def test_an_answer_passes_byte_for_byte() -> None:
    """But for the fields of one connection; the body's framing is kept."""
    raw = (
        b"HTTP/1.1 200 Fine \xe4\r\nSERVER:x\r\nSet-Cookie: a\r\nConnection: keep-alive, X-Hop\r\n"
        b"Keep-Alive: timeout=5\r\nX-Hop: 1\r\nUpgrade: h2,h2c\r\nProxy-Authenticate: x\r\n"
        b"Transfer-Encoding: chunked\r\nset-cookie: b\r\n\r\n"
    )
    kept = (
        b"HTTP/1.1 200 Fine \xe4\r\nSERVER:x\r\nSet-Cookie: a\r\n"
        b"Transfer-Encoding: chunked\r\nset-cookie: b\r\n"
    )
    assert to_client(raw) == kept + b"\r\n"
    assert to_client(raw, close=True) == kept + b"Connection: close\r\n\r\n"


def test_an_answer_never_loses_what_says_where_it_ends() -> None:
    """Old servers name Transfer-Encoding in Connection; the client has to see it all the same."""
    raw = (
        b"HTTP/1.1 200 OK\r\nConnection: Transfer-Encoding, close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    assert to_client(raw) == b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_the_version_of_an_answer_is_ours() -> None:
    """A backend of 1.0 does not make the client's connection one (RFC 9110 section 2.5)."""
    raw = b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n"
    assert to_client(raw) == b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"


def test_an_answer_that_ends_with_the_connection_says_so() -> None:
    """Whatever the caller thought."""
    assert to_client(b"HTTP/1.0 200 OK\r\n\r\n") == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


def test_answers_for_a_client_of_1_0() -> None:
    """An open connection is said; chunks that it cannot read are not (RFC 9112 section 6.1)."""
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"
    assert to_client(raw, version=10) == (
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\n"
    )
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\nA: b\r\n\r\n"
    assert to_client(chunked, version=10) == b"HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\n"


def test_interim_answers_and_changes_of_protocol() -> None:
    """100 and 103 say nothing about the connection; 101 and 426 name the protocol."""
    assert (
        to_client(b"HTTP/1.1 100 Continue\r\n\r\n", close=True) == b"HTTP/1.1 100 Continue\r\n\r\n"
    )
    raw = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    assert to_client(raw, close=True) == raw
    raw = b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: TLS/1.3\r\nContent-Length: 0\r\n"
    assert to_client(raw + b"\r\n", close=True) == raw + b"Connection: Upgrade, close\r\n\r\n"


def test_an_answer_of_our_own() -> None:
    """A client reads it as any other: length, type, and whether the connection ends."""
    raw = error_response(431, "a request head that is too long")
    head = read_response(raw[: raw.index(b"\r\n\r\n") + 4], b"GET", HeadLimits())
    body = raw[len(head.raw) :]
    assert (head.status, head.reason) == (431, b"Request Header Fields Too Large")
    assert (head.length, head.keep_alive) == (len(body), False)
    assert body == b"a request head that is too long\n"
    assert error_response(431, "a request head that is too long", to_head=True) == head.raw
    open_ended = error_response(404, "no such model", close=False, retry_after_s=3)
    assert b"Connection" not in open_ended
    assert b"\r\nRetry-After: 3\r\n" in open_ended
    allow = error_response(405, "no", extra=[(b"Allow", b"POST")])
    assert b"\r\nAllow: POST\r\n" in allow
    assert error_response(599, "odd").startswith(b"HTTP/1.1 599 Error\r\n")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (429, "rate_limit_error"),
        (502, "server_error"),
    ],
)
def test_an_error_that_clients_of_openai_read(status: int, kind: str) -> None:
    """They look for an object "error" with message and type."""
    raw = error_response(status, 'model "ü" is unknown\r\n', json=True)
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"Content-Type: application/json" in head
    assert b"Content-Length: %d\r\n" % len(body) in head
    error = json.loads(body)["error"]
    assert (error["message"], error["type"]) == ('model "ü" is unknown\r\n', kind)


def test_who_speaks_http_2_is_told_in_its_frames() -> None:
    """Empty SETTINGS, then GOAWAY: no stream was taken up, HTTP_1_1_REQUIRED, and words."""
    assert http2_refusal("no") == (
        b"\0\0\0\x04\0\0\0\0\0" + b"\0\0\x0a\x07\0\0\0\0\0" + b"\0\0\0\0\0\0\0\x0dno"
    )
