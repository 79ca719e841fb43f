# SPDX-License-Identifier: Apache-2.0
"""Heads as they are sent on: to a backend, to a client, and the gateway's own answers.

The lines pass byte for byte and in their order. What changes is what RFC 9110 section 7.6.1
makes a matter of one connection, the X-Forwarded fields, a request line in absolute form, and
the version of an answer, which is the sender's own.
"""

from __future__ import annotations

import json as json_text
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from xdp_router.gateway import request_id
from xdp_router.gateway.http_fields import FRAMING_FIELDS, tokens
from xdp_router.gateway.http_head import Framing, RequestHead, ResponseHead

# "Proxy" becomes HTTP_PROXY in a CGI-like backend.
_ONE_CONNECTION = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"upgrade",
    )
)
_FORWARDED = frozenset((b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"))
_OF_REQUEST = _ONE_CONNECTION | _FORWARDED
# Whatever Connection says. A body's bytes would be read as the next message if its end were taken
# out; and a request would lose its name.
_WHOLE_PATH = FRAMING_FIELDS | {request_id.FIELD}
_UPGRADE_STAYS = frozenset((101, 426))
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_HTTP_1_1_REQUIRED = b"\0\0\0\x0d"
_LINE_ENDS = re.compile(rb"[\r\n\0]")
# What clients of OpenAI's interface tell errors apart by.
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """A head for a backend, but for what is another thing with each client and each request."""

    before: bytes
    """Up to where the client's address stands in X-Forwarded-For."""
    after: bytes

    def filled(self, forwarded_for: bytes, extra: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
        """Return the head with the client's address and fields that are added.

        Raises ValueError for a value with a CR, LF or NUL.
        """
        added = [b"%b: %b" % pair for pair in extra]
        if _LINE_ENDS.search(forwarded_for) or any(map(_LINE_ENDS.search, added)):
            raise ValueError(
                f"a line end or NUL in what is to be added: {forwarded_for!r}, {added}"
            )
        added += (b"", b"")
        return b"%b%b%b%b" % (self.before, forwarded_for, self.after, b"\r\n".join(added))


def request_frame(
    head: RequestHead,
    *,
    host: bytes | None,
    proto: bytes,
    keep_alive: bool = True,
    drop: Collection[bytes] = (),
) -> RequestFrame:
    """Return the head to send to a backend for a request, whoever the client is.

    ``host`` takes the place of the client's Host; None leaves it (in absolute form, the target's
    authority stands there). ``proto`` is http or https. Fields in ``drop`` (lower case) are left
    out. ``keep_alive`` says whether the connection to the backend shall stay open. The version is
    the client's: an answer to HTTP/1.0 must not be chunked. Raises ValueError for an added value
    with a CR, LF or NUL.
    """
    headers = head.headers
    lines = head.raw[:-4].split(b"\r\n")
    request_line = lines.pop(0)
    target = head.target
    if target[:1] != b"/" and target != b"*":
        host = host or head.host
        request_line = b"%b %b HTTP/1.%d" % (head.method, origin_form(head), head.version - 10)
    out = [request_line]
    unwanted = _unwanted(headers, _OF_REQUEST, drop)
    upgrade = head.upgrade
    seen: list[bytes] = []
    host_line = None if host is None else b"Host: " + _clean(host)
    for line, (name, value) in zip(lines, headers, strict=True):
        if name not in unwanted:
            if host_line is not None and name == b"host":
                out.append(host_line)
                host_line = None
            else:
                out.append(line)
        elif name == b"upgrade":
            if upgrade is not None:
                out.append(line)
        elif name == b"x-forwarded-for" and value:
            seen.append(value)
    if host_line is not None:
        out.insert(1, host_line)
    out.append(b"X-Forwarded-For: " + b"".join(value + b", " for value in seen))
    after = [b"", b"X-Forwarded-Proto: " + _clean(proto)]
    if head.host:
        after.append(b"X-Forwarded-Host: " + head.host)
    if upgrade is not None:
        after.append(b"Connection: Upgrade")
    elif not keep_alive:
        after.append(b"Connection: close")
    elif head.version == 10:
        after.append(b"Connection: keep-alive")
    after.append(b"")
    return RequestFrame(b"\r\n".join(out), b"\r\n".join(after))


def origin_form(head: RequestHead) -> bytes:
    """Return the target with the authority of an absolute form taken away."""
    target = head.target
    if target[:1] == b"/" or target == b"*":
        return target
    mark = target.find(b"?")
    return head.path if mark < 0 else head.path + target[mark:]


def response_to_client(
    head: ResponseHead,
    *,
    close: bool,
    extra: Sequence[tuple[bytes, bytes]] = (),
    client_version: int = 11,
    drop: Sequence[bytes] = (),
) -> bytes:
    """Return the head to send to the client for a backend's answer.

    ``close``: the connection ends after this answer, as it does anyway without another end of
    the body. For a client of version 10 an answer in chunks loses Transfer-Encoding and ends
    with the connection; its content has to be sent without the chunks' framing
    (``BodyReader.payload``). Fields in ``extra`` are added and those in ``drop`` (lower case) left
    out. Raises ValueError for an added value with a CR, LF or NUL.
    """
    traits = head.traits
    if traits is not None and not close and client_version == 11 and not drop:
        out = [traits.lines]
    else:
        out = [answer_lines(head, close=close, client_version=client_version, drop=drop)]
    for name, value in extra:
        out.append(_clean(name) + b": " + _clean(value))
    out.append(b"\r\n")
    return b"\r\n".join(out)


def answer_lines(
    head: ResponseHead, *, close: bool, client_version: int = 11, drop: Sequence[bytes] = ()
) -> bytes:
    """Return the lines of ``response_to_client``, without the last line's end."""
    headers = head.headers
    lines = head.raw[:-4].split(b"\r\n")
    status_line = lines.pop(0)
    out = [status_line if head.version == 11 else b"HTTP/1.1" + status_line[8:]]
    status = head.status
    changing = status in _UPGRADE_STAYS
    unchunked = client_version == 10 and head.framing is Framing.CHUNKED
    if unchunked:
        drop = (*drop, b"transfer-encoding", b"trailer")
    unwanted = _unwanted(headers, _ONE_CONNECTION, drop)
    for line, (name, _) in zip(lines, headers, strict=True):
        if name not in unwanted or (changing and name == b"upgrade"):
            out.append(line)
    options = []
    if changing:
        options.append(b"Upgrade")
    if status >= 200:
        if close or unchunked or head.framing is Framing.CLOSE:
            options.append(b"close")
        elif client_version == 10:
            options.append(b"keep-alive")
    if options:
        out.append(b"Connection: " + b", ".join(options))
    return b"\r\n".join(out)


def error_response(
    status: int,
    text: str,
    *,
    close: bool = True,
    json: bool = False,
    retry_after_s: int | None = None,
    extra: Sequence[tuple[bytes, bytes]] = (),
    to_head: bool = False,
) -> bytes:
    """Return an answer of the gateway's own, head and body.

    ``json`` gives the body the form that clients of OpenAI's interface read. An answer to HEAD
    (``to_head``) has the same head and no body. Raises ValueError for an added value with a CR,
    LF or NUL.
    """
    if json:
        kind = _ERROR_TYPES.get(status)
        if kind is None:
            kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": text, "type": kind, "param": None, "code": None}
        body = json_text.dumps({"error": error}).encode()
        content_type = b"application/json"
    else:
        body = text.encode() + b"\n"
        content_type = b"text/plain; charset=utf-8"
    out = [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}".encode(),
        b"Content-Type: " + content_type,
        b"Content-Length: %d" % len(body),
        b"Cache-Control: no-store",
    ]
    if retry_after_s is not None:
        out.append(b"Retry-After: %d" % retry_after_s)
    for name, value in extra:
        out.append(_clean(name) + b": " + _clean(value))
    if close:
        out.append(b"Connection: close")
    out.append(b"\r\n")
    head = b"\r\n".join(out)
    return head if to_head else head + body


def http2_refusal(text: str) -> bytes:
    """Return what tells a client of HTTP/2 that only HTTP/1.1 is spoken here (RFC 9113).

    Its preface is answered by the server's, empty SETTINGS (3.4), and by GOAWAY with
    HTTP_1_1_REQUIRED (6.8, 7): no stream was taken up, so each request may be made again.
    """
    words = text.encode()
    settings = b"\0\0\0\x04\0" + bytes(4)
    away = (8 + len(words)).to_bytes(3, "big") + b"\x07\0" + bytes(4)
    return settings + away + bytes(4) + _HTTP_1_1_REQUIRED + words


def _unwanted(
    headers: list[tuple[bytes, bytes]], base: frozenset[bytes], drop: Collection[bytes]
) -> frozenset[bytes] | set[bytes]:
    """Return the names that are not sent on: those of one connection, and what it names."""
    named: set[bytes] | None = None
    for name, value in headers:
        if name == b"connection":
            members = tokens([value])
            if members not in ([b"keep-alive"], [b"close"], [b"upgrade"]):
                named = set(members) if named is None else named.union(members)
    if named is None:
        return base.union(drop) if drop else base
    return base.union(named - _WHOLE_PATH, drop)


def _clean(value: bytes) -> bytes:
    if _LINE_ENDS.search(value):
        raise ValueError(f"a line end or NUL in a header to be added: {value!r}")
    return value
