# SPDX-License-Identifier: Apache-2.0
"""Heads of HTTP/1.1 messages (RFC 9112): incremental, bounded, strict.

A head is a value, needs more bytes, or is a MessageError. Every form that two parsers on a path
could read in two ways is refused, because such pairs are how requests are smuggled. The outcome
depends on the bytes alone, never on how they were cut up on the way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from xdp_router.gateway.errors import MessageError, SpeaksHttp2
from xdp_router.gateway.http_fields import (
    FRAMING_FIELDS,
    HEAD_BYTES,
    TOKEN_BYTES,
    read_fields,
    tokens,
)

if TYPE_CHECKING:
    from xdp_router.gateway.known_answers import AnswerTraits, KnownAnswers
    from xdp_router.gateway.known_heads import KnownHeads
    from xdp_router.gateway.traits import HeadTraits

# A method that is longer is none that anyone here implements (RFC 9112 section 3: 501).
METHOD_BYTES = 32
# 18 digits are below 2**63 and more bytes than a connection carries.
LENGTH_DIGITS = 18

# "METHOD target HTTP/1.1" without its target.
_LINE_AROUND_TARGET = METHOD_BYTES + len(b"  HTTP/1.1")
_END = b"\r\n\r\n"
_BARE = re.compile(rb"\r[^\n]|[^\r]\n")
_VERSIONS = {b"HTTP/1.1": 11, b"HTTP/1.0": 10}
_SOME_VERSION = re.compile(rb"HTTP/[0-9](?:\.[0-9])?")
_USUAL_METHODS = frozenset(
    (b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE")
)
_METHOD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
# A fragment is never sent, and parsers differ on what stands after it.
_TARGET_BYTES = bytes(c for c in range(0x21, 0x7F) if c != 0x23)
# reg-name, IP literals and port (RFC 3986 section 3.2), without the comma that joins two hosts.
_HOST_BYTES = b"-._~%!$&'()*+;=:[]0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_REQUEST_FIELDS = FRAMING_FIELDS | {b"connection", b"upgrade", b"expect"}
_RESPONSE_FIELDS = frozenset((b"connection", b"content-length", b"transfer-encoding", b"upgrade"))
# Protocols whose requests would pass by everything that is decided here.
_NOT_TUNNELLED = (b"h2c", b"http", b"tls")


class Framing(Enum):
    """Where the body of a message ends."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"
    # Raw bytes both ways from here: 101 (Switching Protocols).
    TUNNEL = "tunnel"


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """What a head may be at most. ``head_bytes`` counts its lines and the empty one."""

    head_bytes: int = 16384
    headers: int = 100
    target_bytes: int = 8192


def _value_of(headers: list[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    for key, value in headers:
        if key == name:
            return value
    return None


@dataclass(slots=True)
class RequestHead:
    """The head of a request.

    ``target`` is as it came, ``path`` without query and, in absolute form, without authority.
    ``host`` is whom the request is for, as written, with its port: the authority of an
    absolute-form target or the Host field; empty in HTTP/1.0 without one. ``version`` is 10 or
    11. Names in ``headers`` are in lower case, in the order they came. ``raw`` is the head as it
    came, with its empty line. ``length`` counts with ``Framing.LENGTH`` only. ``upgrade`` is the
    protocol asked for, in lower case; None also where it is not taken up: together with a body,
    in HTTP/1.0, several at once, and HTTP or TLS inside the connection.
    """

    method: bytes
    target: bytes
    path: bytes
    host: bytes
    version: int
    headers: list[tuple[bytes, bytes]]
    raw: bytes
    framing: Framing
    length: int
    keep_alive: bool
    upgrade: bytes | None
    expects_continue: bool
    traits: HeadTraits | None = field(default=None, compare=False, repr=False)
    """What a listener makes of it, if somebody has asked."""

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of a field, asked for in lower case."""
        return _value_of(self.headers, name)

    @property
    def server_name(self) -> str:
        """Return ``host`` for a look-up: lower case, no port, no dot at its end."""
        return host_name(self.host)


@dataclass(slots=True)
class ResponseHead:
    """The head of a response; fields as in RequestHead.

    ``keep_alive`` says whether the connection can serve another request after the body.
    """

    status: int
    version: int
    headers: list[tuple[bytes, bytes]]
    raw: bytes
    framing: Framing
    length: int
    keep_alive: bool
    reason: bytes
    traits: AnswerTraits | None = field(default=None, compare=False, repr=False)
    """What is made of it, if somebody has asked."""

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of a field, asked for in lower case."""
        return _value_of(self.headers, name)


def host_name(host: bytes) -> str:
    """Return the name in a Host value: lower case, no port, no dot at its end."""
    if host[:1] == b"[":
        name = host[: host.find(b"]") + 1]
    else:
        name = host.partition(b":")[0]
    return name.decode("ascii").lower().removesuffix(".")


class HeadReader:
    """Takes heads off the front of a buffer: one connection, one direction.

    Between two calls bytes may only be added to the buffer's end, until a head was returned.
    The work is in proportion to the bytes that came, however small the pieces.
    """

    __slots__ = (
        "_limits", "_requests", "_answers", "_line_limit", "_searched", "_line_seen", "_skipped",
    )  # fmt: skip

    def __init__(
        self,
        limits: HeadLimits,
        requests: KnownHeads | None = None,
        answers: KnownAnswers | None = None,
    ) -> None:
        """``requests``, ``answers``: those that are known; without them each is read anew."""
        self._limits = limits
        self._requests = requests
        self._answers = answers
        self._line_limit = limits.target_bytes + _LINE_AROUND_TARGET
        self._searched = 0
        self._line_seen = False
        self._skipped = False

    def request(self, buffer: bytearray) -> RequestHead | None:
        """Return the next request's head, None while it is not whole, or raise MessageError.

        One empty line before a request is taken away (RFC 9112 section 2.2). A head that is an
        error stays in the buffer.
        """
        if not buffer:
            return None
        if self._searched == 0:
            if self._requests is not None:
                end = buffer.find(_END, 0, self._limits.head_bytes) + len(_END)
                known = self._requests.known(bytes(buffer[:end]))
                if known is not None:
                    del buffer[:end]
                    self._skipped = False
                    return known
            if buffer[0] == 0x0D and not self._skipped:
                if len(buffer) == 1:
                    return None
                if buffer[1] == 0x0A:
                    del buffer[:2]
                    self._skipped = True
                    if not buffer:
                        return None
            if buffer[0] not in TOKEN_BYTES:
                if buffer[0] == 0x16:
                    raise MessageError(400, "TLS spoken where plain HTTP is expected")
                raise MessageError(400, "a request that does not begin with a method")
        raw = self._take(buffer, self._line_limit, 400)
        if raw is None:
            return None
        self._skipped = False
        try:
            if self._requests is not None:
                return self._requests.request(raw)
            return read_request(raw, self._limits)
        except MessageError:
            buffer[:0] = raw
            raise

    def response(
        self, buffer: bytearray, method: bytes, *, upgrade: bool = True
    ) -> ResponseHead | None:
        """Return the next response's head, None while it is not whole, or raise MessageError(502).

        ``method`` is that of the request: to HEAD no body is sent. With ``upgrade`` false the
        request asked for no change of protocol, and an answer 101 is an error. Other 1xx are
        heads like any other, without a body; the answer proper comes after them.
        """
        if not buffer:
            return None
        if self._answers is not None and self._searched == 0:
            end = buffer.find(_END, 0, self._limits.head_bytes) + len(_END)
            known = self._answers.known(bytes(buffer[:end]), method, upgrade=upgrade)
            if known is not None:
                del buffer[:end]
                return known
        if self._searched < 7 and buffer[:7] != b"HTTP/1."[: len(buffer)]:
            raise MessageError(502, "the backend's answer is not HTTP/1")
        raw = self._take(buffer, None, 502)
        if raw is None:
            return None
        if self._answers is not None:
            return self._answers.response(raw, method, upgrade=upgrade)
        return read_response(raw, method, self._limits, upgrade=upgrade)

    def _take(self, buffer: bytearray, line_limit: int | None, status: int) -> bytes | None:
        """Return a head with its empty line, taken off the buffer, or None: more is needed.

        What can be known to be wrong before the head is whole is an error at that byte, so that
        nobody waits for more of it. The first such byte decides, however the bytes were cut.
        """
        limit = self._limits.head_bytes
        start = self._searched
        end = buffer.find(_END, max(0, start - 3), limit)
        if end >= 0 and start == 0:
            # The usual case, at a tenth of the price of the search below.
            raw = bytes(buffer[: end + 4])
            lines = raw.count(b"\r\n")
            if raw.count(b"\n") == lines == raw.count(b"\r") and (
                line_limit is None or raw.find(b"\r\n") <= line_limit
            ):
                del buffer[: end + 4]
                return raw
        size = min(len(buffer), limit) if end < 0 else end + 4
        odd = _BARE.search(buffer, max(0, start - 1), size)
        wrong_at = odd.end() if odd is not None else size + 1
        if line_limit is not None and not self._line_seen:
            line = buffer.find(b"\r\n", max(0, start - 1), size)
            self._line_seen = 0 <= line <= line_limit
            if not self._line_seen and line_limit + 2 <= min(size, wrong_at):
                raise MessageError(414, "a request target that is too long")
        if odd is not None:
            raise MessageError(status, "a CR or LF alone where lines end with both")
        if end < 0:
            if len(buffer) >= limit:
                if status == 502:
                    raise MessageError(502, "a head of the backend's answer that is too long")
                raise MessageError(431, "a request head that is too long")
            self._searched = size
            return None
        raw = bytes(buffer[:size])
        del buffer[:size]
        self._searched = 0
        self._line_seen = False
        return raw


def read_request(raw: bytes, limits: HeadLimits) -> RequestHead:
    """Return the request whose whole head is ``raw``, its lines ended by CRLF, or raise."""
    lines = raw[:-4].split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3:
        if len(parts) == 2 and parts[0] == b"GET":
            raise MessageError(505, "HTTP/0.9 is not spoken here")
        raise MessageError(400, "a request line that is not method, target and version")
    method, target, spoken = parts
    version = _VERSIONS.get(spoken)
    if version is None:
        raise _version_error(method, spoken)
    if raw.translate(None, HEAD_BYTES):
        raise MessageError(400, "a control character in the request's head")
    if method not in _USUAL_METHODS:
        _check_method(method)
    if len(target) > limits.target_bytes:
        raise MessageError(414, "a request target that is too long")
    if len(lines) - 1 > limits.headers:
        raise MessageError(431, "too many header lines")
    del lines[0]
    headers, found = read_fields(lines, _REQUEST_FIELDS, 400)

    host = b""
    hosts = found.get(b"host")
    if hosts is not None:
        if len(hosts) > 1:
            raise MessageError(400, "more than one Host")
        host = hosts[0]
        _check_host(host)
    elif version == 11:
        raise MessageError(400, "a request without Host")
    if target.translate(None, _TARGET_BYTES):
        raise MessageError(400, "a character in the target that has to be percent-encoded")
    if target[:1] == b"/":
        path = target.partition(b"?")[0]
    else:
        path, authority = _other_form(method, target)
        host = authority or host

    framing, length = _framing(found, version, 400)
    if method == b"TRACE" and framing is not Framing.NONE:
        raise MessageError(400, "a TRACE request with a body")
    keep_alive = version == 11
    upgrade: bytes | None = None
    options = found.get(b"connection")
    if options is not None:
        members = tokens(options)
        keep_alive = _stays_open(members, version)
        if not FRAMING_FIELDS.isdisjoint(members):
            raise MessageError(400, "a Connection that names a header of the whole path")
        if (
            b"upgrade" in members
            and version == 11
            and not length
            and framing is not Framing.CHUNKED
        ):
            upgrade = _protocol(found.get(b"upgrade"))
    expects = False
    expected = found.get(b"expect")
    if expected is not None and version == 11:
        if tokens(expected) != [b"100-continue"]:
            raise MessageError(417, "an expectation other than 100-continue")
        expects = framing is Framing.CHUNKED or length > 0
    return RequestHead(
        method, target, path, host, version, headers, raw, framing, length, keep_alive, upgrade,
        expects,
    )  # fmt: skip


def read_response(
    raw: bytes, method: bytes, limits: HeadLimits, *, upgrade: bool = True
) -> ResponseHead:
    """Return the response whose whole head is ``raw``, its lines ended by CRLF, or raise."""
    lines = raw[:-4].split(b"\r\n")
    line = lines[0]
    version = _VERSIONS.get(line[:8])
    digits = line[9:12]
    if version is None:
        raise MessageError(502, "the backend's answer is neither HTTP/1.0 nor HTTP/1.1")
    if (
        line[8:9] != b" "
        or len(digits) != 3
        or not digits.isdigit()
        or line[12:13] not in (b" ", b"")
        or digits[0] == 0x30
    ):
        raise MessageError(502, "a status line of the backend that is none")
    if raw.translate(None, HEAD_BYTES):
        raise MessageError(502, "a control character in the head of the backend's answer")
    if len(lines) - 1 > limits.headers:
        raise MessageError(502, "too many header lines in the backend's answer")
    del lines[0]
    headers, found = read_fields(lines, _RESPONSE_FIELDS, 502)
    status = int(digits)
    framing, length = _framing(found, version, 502)
    if status < 200 or status == 204:
        # They have no body (RFC 9112 section 6.3); one that is announced would be the next answer.
        if framing is Framing.CHUNKED or length:
            raise MessageError(502, f"a body announced by an answer {status} of the backend")
        framing = Framing.NONE
        if status == 101:
            if not upgrade or not found.get(b"upgrade"):
                raise MessageError(502, "a change of protocol that was not asked for")
            framing = Framing.TUNNEL
    elif method == b"HEAD" or status == 304:
        framing, length = Framing.NONE, 0
    elif framing is Framing.NONE:
        framing = Framing.CLOSE
    keep_alive = False
    if framing is not Framing.CLOSE and framing is not Framing.TUNNEL:
        options = found.get(b"connection")
        keep_alive = version == 11 if options is None else _stays_open(tokens(options), version)
    return ResponseHead(status, version, headers, raw, framing, length, keep_alive, line[13:])


def _framing(found: dict[bytes, list[bytes]], version: int, status: int) -> tuple[Framing, int]:
    """Return where a body ends as the fields say (RFC 9112 section 6.3, its strict reading)."""
    codings = found.get(b"transfer-encoding")
    lengths = found.get(b"content-length")
    if codings is not None:
        if lengths is not None:
            raise MessageError(status, "both Transfer-Encoding and Content-Length")
        if version == 10:
            raise MessageError(status, "Transfer-Encoding in HTTP/1.0")
        if len(codings) > 1:
            raise MessageError(status, "more than one Transfer-Encoding")
        # A backend that compares case may be behind us; servers that write "Chunked" exist.
        coding = codings[0] if status == 400 else codings[0].lower()
        if coding != b"chunked":
            raise MessageError(501 if status == 400 else status, "a Transfer-Encoding not chunked")
        return Framing.CHUNKED, 0
    if lengths is None:
        return Framing.NONE, 0
    if len(lengths) > 1:
        raise MessageError(status, "more than one Content-Length")
    digits = lengths[0]
    if not digits.isdigit() or len(digits) > LENGTH_DIGITS:
        raise MessageError(status, "a Content-Length that is not a number")
    return Framing.LENGTH, int(digits)


def _stays_open(members: list[bytes], version: int) -> bool:
    if b"close" in members:
        return False
    return version == 11 or b"keep-alive" in members


def _protocol(values: list[bytes] | None) -> bytes | None:
    """Return the one protocol that a request asks to change to, None for those not taken up."""
    members = tokens(values) if values is not None else []
    if len(members) != 1 or members[0].startswith(_NOT_TUNNELLED):
        return None
    return members[0]


def _version_error(method: bytes, spoken: bytes) -> MessageError:
    if method == b"PRI" and spoken == b"HTTP/2.0":
        return SpeaksHttp2()
    if _SOME_VERSION.fullmatch(spoken):
        return MessageError(505, "a version other than HTTP/1.0 and HTTP/1.1")
    return MessageError(400, "a request line that is not method, target and version")


def _check_method(method: bytes) -> None:
    if not method or method.translate(None, TOKEN_BYTES):
        raise MessageError(400, "a character in the method that cannot be there")
    if method == b"CONNECT":
        raise MessageError(501, "CONNECT: targets come from the configuration only")
    # "head" is not HEAD; who takes it for that would answer without a body that we wait for.
    if len(method) > METHOD_BYTES or method.translate(None, _METHOD_BYTES):
        raise MessageError(501, "an unknown method")


def _check_host(host: bytes) -> None:
    """Raise MessageError unless it is a host with or without a port."""
    name, colon, port = host.rpartition(b":")
    if not colon or (host[:1] == b"[" and host[-1:] == b"]"):
        name, port = host, b""
    literal = name[:1] == b"[" and name[-1:] == b"]" and name.count(b"[") == 1
    if (
        not name
        or host.translate(None, _HOST_BYTES)
        or (port and (not port.isdigit() or len(port) > 5))
        or (not literal and (b":" in name or b"[" in name or b"]" in name))
        or (literal and name.count(b"]") != 1)
    ):
        raise MessageError(400, "a Host that is not a name or an address")


def _other_form(method: bytes, target: bytes) -> tuple[bytes, bytes]:
    """Return path and authority of a target that does not begin with a slash."""
    if target == b"*":
        if method != b"OPTIONS":
            raise MessageError(400, "a target * of a method other than OPTIONS")
        return target, b""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise MessageError(400, "a target that is neither a path nor an http URI")
    cut = len(rest)
    for mark in (b"/", b"?"):
        at = rest.find(mark)
        if 0 <= at < cut:
            cut = at
    authority, tail = rest[:cut], rest[cut:]
    _check_host(authority)
    path = tail.partition(b"?")[0]
    if not path:
        path = b"*" if method == b"OPTIONS" and not tail else b"/"
    return path, authority
