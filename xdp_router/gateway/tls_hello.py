# SPDX-License-Identifier: Apache-2.0
"""What the first bytes of a TLS connection say: the ClientHello (RFC 8446 4.1.2), as it comes.

Only what decides where a connection goes is read and judged: framing, server name, ALPN, versions.
All else of the hello is the backend's to judge; it gets the bytes untouched. So the other
extensions may be anything here, as long as they lie within the hello. A hello may fill several
records and any number of segments.

Stricter than OpenSSL, and each time by the letter of the protocol: no SSL 2.0 hello
(RFC 8446 D.5), no empty handshake record (5.1), nothing behind the hello in its record (5.1,
OpenSSL: TLS 1.3 only), no empty name and none with control characters or blanks (RFC 6066 3).
And one limit of our own: ``MAX_HELLO``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from xdp_router.core.errors import XdpRouterError

# One record's worth. With two post-quantum key shares a hello has about 3 KiB; a session ticket
# with a client certificate in it may add some more.
MAX_HELLO = 1 << 14
# RFC 8446 5.1.
MAX_RECORD = 1 << 14
# DNS has none that is longer, and OpenSSL takes none.
MAX_NAME = 255

UNEXPECTED_MESSAGE = 10
RECORD_OVERFLOW = 22
ILLEGAL_PARAMETER = 47
DECODE_ERROR = 50
PROTOCOL_VERSION = 70
UNRECOGNIZED_NAME = 112

_HANDSHAKE = 22
_OTHER_RECORDS = {20: "ChangeCipherSpec", 21: "an alert", 23: "application data", 24: "a heartbeat"}
_RECORD_HEADER = 5
_CLIENT_HELLO = 1
_MESSAGE_HEADER = 4
# Version and random stand before the session id.
_FIXED = 34
_SSL_3_0 = 0x0300

_SERVER_NAME = 0
_ALPN = 16
_SUPPORTED_VERSIONS = 43

# The first five bytes of each method that is in use, and of HTTP/2's preface.
_HTTP_STARTS = frozenset(
    line[:5]
    for method in (
        b"GET",
        b"HEAD",
        b"POST",
        b"PUT",
        b"DELETE",
        b"CONNECT",
        b"OPTIONS",
        b"TRACE",
        b"PATCH",
        b"PRI",
    )
    for line in (method + b" /", method + b" *", method + b" h")
)

_two_numbers = struct.Struct(">HH").unpack_from


class HelloError(XdpRouterError):
    """These bytes are no ClientHello that can be routed.

    ``alert`` is the number of the TLS alert to answer with (RFC 8446 6); ``plain_http`` says that
    the client speaks HTTP without TLS, so that an HTTP answer helps it more.
    """

    def __init__(self, alert: int, reason: str, *, plain_http: bool = False) -> None:
        super().__init__(reason)
        self.alert = alert
        self.plain_http = plain_http


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What a hello asks for.

    ``server_name`` is in lower case and without the dot at its end, None if the client named
    nobody; with encrypted ClientHello it is the outer name. It may be an address: some clients send
    one although RFC 6066 forbids it. ``alpn`` has the protocols in the client's order, bytes
    beyond ASCII as Latin-1. ``versions`` are those offered, most wanted first and without GREASE
    (RFC 8701), or the one highest version of a client without that list. ``size`` counts the
    bytes of the connection up to the end of the hello.
    """

    server_name: str | None
    alpn: tuple[str, ...]
    versions: tuple[int, ...]
    size: int


class HelloParser:
    """Reads the hello of one connection.

    What comes out depends on the bytes only, never on how they were cut. The outcome stays: after
    a hello or an error each further ``feed`` gives the same again, and keeps nothing.
    """

    __slots__ = ("_fed", "_header", "_left", "_message", "_outcome")

    def __init__(self) -> None:
        self._outcome: ClientHello | HelloError | None = None
        self._header = b""
        self._message = b""
        self._left = 0
        self._fed = 0

    def feed(self, data: bytes | bytearray | memoryview) -> ClientHello | None:
        """Take the next bytes; return the hello once it is whole, None while more is needed.

        The caller keeps the bytes for the backend. Raises HelloError.
        """
        if self._outcome is None:
            try:
                self._outcome = self._read(bytes(data))
            except HelloError as error:
                # A copy: with its traceback it would hold this parser in a cycle.
                self._outcome = HelloError(error.alert, str(error), plain_http=error.plain_http)
                self._header = self._message = b""
                raise
        elif isinstance(self._outcome, HelloError):
            again = self._outcome
            raise HelloError(again.alert, str(again), plain_http=again.plain_http)
        return self._outcome

    def _read(self, data: bytes) -> ClientHello | None:
        at = 0
        while True:
            if not self._left:
                header = self._header + data[at : at + _RECORD_HEADER - len(self._header)]
                at += len(header) - len(self._header)
                if len(header) < _RECORD_HEADER:
                    self._header = header
                    self._fed += at
                    return None
                self._header = b""
                self._left = _record_size(header)
            part = data[at : at + self._left]
            at += len(part)
            self._left -= len(part)
            message = self._message = self._message + part if self._message else part
            if len(message) >= _MESSAGE_HEADER:
                size = _message_size(message)
                if len(message) >= size:
                    if len(message) > size or self._left:
                        raise HelloError(
                            UNEXPECTED_MESSAGE,
                            "more follows in the record in which the ClientHello ends; expected "
                            "its end there (RFC 8446 5.1)",
                        )
                    hello = _read_hello(message, self._fed + at)
                    self._message = b""
                    return hello
            if self._left:
                self._fed += at
                return None


def alert_record(alert: int) -> bytes:
    """Return a fatal alert as a plaintext record (RFC 8446 6)."""
    return bytes((21, 3, 3, 0, 2, 2, alert))


def _record_size(header: bytes) -> int:
    """Return how many bytes follow a record's header. Raises HelloError."""
    kind, major, _, high, low = header
    if major != 3 or not 20 <= kind <= 24:
        raise _no_record(header)
    if kind != _HANDSHAKE:
        raise HelloError(
            UNEXPECTED_MESSAGE, f"{_OTHER_RECORDS[kind]} where a ClientHello was expected"
        )
    size = high << 8 | low
    if size > MAX_RECORD:
        raise HelloError(
            RECORD_OVERFLOW, f"a record of {size} bytes; expected at most {MAX_RECORD}"
        )
    if not size:
        raise HelloError(UNEXPECTED_MESSAGE, "an empty handshake record (RFC 8446 5.1)")
    return size


def _no_record(header: bytes) -> HelloError:
    if header in _HTTP_STARTS:
        return HelloError(
            PROTOCOL_VERSION,
            f"plain HTTP ({header!r}) where TLS was expected: use https:// or another port",
            plain_http=True,
        )
    if header[0] & 0x80 and header[2] == _CLIENT_HELLO and header[3] in {0, 3}:
        return HelloError(
            PROTOCOL_VERSION, "an SSL 2.0 hello; expected TLS 1.0 or newer (RFC 8446 D.5)"
        )
    return HelloError(
        PROTOCOL_VERSION, f"no TLS: the first bytes are {header.hex(' ')}, a record begins 16 03"
    )


def _message_size(message: bytes) -> int:
    """Return the size of a handshake message, header and all. Raises HelloError."""
    kind = message[0]
    if kind != _CLIENT_HELLO:
        raise HelloError(
            UNEXPECTED_MESSAGE, f"handshake message {kind} where a ClientHello (1) was expected"
        )
    size = _MESSAGE_HEADER + (message[1] << 16 | message[2] << 8 | message[3])
    if size > MAX_HELLO:
        raise HelloError(
            ILLEGAL_PARAMETER, f"a ClientHello of {size} bytes; expected at most {MAX_HELLO}"
        )
    return size


def _broken(what: str) -> HelloError:
    return HelloError(DECODE_ERROR, f"ClientHello: {what}")


def _read_hello(message: bytes, size: int) -> ClientHello:
    """Read a whole message (its header too, for the offsets). Raises HelloError."""
    end = len(message)
    at = _MESSAGE_HEADER + _FIXED
    if at >= end:
        raise _broken("it ends within version and random")
    version = message[4] << 8 | message[5]
    if version < _SSL_3_0:
        raise HelloError(PROTOCOL_VERSION, f"ClientHello: version {version:#06x} is before SSL 3.0")
    length = message[at]
    if length > 32:
        raise _broken(f"a session id of {length} bytes; expected at most 32")
    at += 1 + length
    if at + 2 > end:
        raise _broken("it ends within the session id")
    length = message[at] << 8 | message[at + 1]
    at += 2 + length
    if at >= end:
        raise _broken("it ends within the cipher suites")
    if not length or length & 1:
        raise _broken(f"cipher suites of {length} bytes; expected two for each, and one at least")
    length = message[at]
    at += 1 + length
    if at > end:
        raise _broken("it ends within the compression methods")
    if 0 not in message[at - length : at]:
        raise _broken("no compression method 0 is offered")

    name: str | None = None
    alpn: tuple[str, ...] | None = None
    versions: tuple[int, ...] | None = None
    if at < end:
        if at + 2 > end or message[at] << 8 | message[at + 1] != end - at - 2:
            raise _broken("its extensions do not end where it ends")
        at += 2
    while at < end:
        if at + 4 > end:
            raise _broken("it ends within an extension's header")
        kind, length = _two_numbers(message, at)
        at += 4 + length
        if at > end:
            raise _broken(f"it ends within extension {kind}")
        if kind == _SERVER_NAME:
            if name is not None:
                raise _twice("server_name")
            name = _read_name(message, at - length, at)
        elif kind == _ALPN:
            if alpn is not None:
                raise _twice("ALPN")
            alpn = _read_alpn(message, at - length, at)
        elif kind == _SUPPORTED_VERSIONS:
            if versions is not None:
                raise _twice("supported_versions")
            versions = _read_versions(message, at - length, at)
    return ClientHello(name, alpn or (), (version,) if versions is None else versions, size)


def _twice(extension: str) -> HelloError:
    return HelloError(ILLEGAL_PARAMETER, f"ClientHello: two {extension} extensions; expected one")


def _read_name(message: bytes, at: int, end: int) -> str:
    """Read a server_name extension: a list of one host name (RFC 6066 3). Raises HelloError."""
    if end - at < 5 or message[at] << 8 | message[at + 1] != end - at - 2:
        raise _broken("its server_name list does not end where the extension ends")
    if message[at + 2]:
        raise _broken(f"a server name of type {message[at + 2]}; expected 0, a host name")
    if message[at + 3] << 8 | message[at + 4] != end - at - 5:
        raise _broken("its server_name list has not exactly one name")
    at += 5
    if end - at > MAX_NAME:
        raise HelloError(
            UNRECOGNIZED_NAME,
            f"ClientHello: a server name of {end - at} bytes; expected at most {MAX_NAME}",
        )
    # As Latin-1 every byte is a character, and those beyond ASCII are no longer ASCII.
    name = message[at:end].decode("latin-1")
    if not name.isascii() or not name.isprintable() or " " in name:
        raise HelloError(
            UNRECOGNIZED_NAME,
            f"ClientHello: server name {message[at:end]!r}; expected visible ASCII (xn--... for "
            "others)",
        )
    name = name.lower().removesuffix(".")
    if not name:
        raise _broken("its server name is empty")
    return name


def _read_alpn(message: bytes, at: int, end: int) -> tuple[str, ...]:
    """Read an ALPN extension (RFC 7301 3.1). Raises HelloError."""
    if end - at < 4 or message[at] << 8 | message[at + 1] != end - at - 2:
        raise _broken("its ALPN list does not end where the extension ends, or is empty")
    at += 2
    protocols = []
    while at < end:
        length = message[at]
        at += 1 + length
        if not length or at > end:
            raise _broken("an ALPN protocol is empty or goes beyond the list")
        protocols.append(message[at - length : at].decode("latin-1"))
    return tuple(protocols)


def _read_versions(message: bytes, at: int, end: int) -> tuple[int, ...]:
    """Read a supported_versions extension (RFC 8446 4.2.1). Raises HelloError."""
    length = end - at - 1
    if length < 2 or length & 1 or message[at] != length:
        raise _broken("its list of versions does not end where the extension ends, or is empty")
    found = struct.unpack_from(f">{length // 2}H", message, at + 1)
    return tuple([version for version in found if version & 0x0F0F != 0x0A0A])
