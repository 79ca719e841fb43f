# SPDX-License-Identifier: Apache-2.0
"""Any bytes give a hello, "more" or a HelloError, the same one whole and one byte at a time, and
what OpenSSL makes of it too, but for what stands at the head of tls_hello.py.

The bytes are fed as they are, as the body of a hello, and short ones as its extensions and as the
content of each extension that is read: a fuzzer alone would long be busy with lengths.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.support.hello_bytes import (
    ALPN,
    ECH,
    alpn,
    extension,
    hello,
    key_share,
    message,
    record,
    records,
    server_name,
    supported_versions,
    vector,
)
from tests.support.hello_oracle import OTHER_VERSION, judge
from tests.support.hello_parts import READ, unframed, what_we_read
from xdp_router.gateway.tls_hello import MAX_HELLO, ClientHello, HelloError, HelloParser

Outcome = ClientHello | tuple[int, str, bool] | None

# What OpenSSL accepts and we do not; the reasons are in tls_hello.py.
STRICTER = (
    "an SSL 2.0 hello",
    "an empty handshake record",
    "more follows in the record",
    "its server name is empty",
    "expected visible ASCII",
    f"expected at most {MAX_HELLO}",
)

SHORT = 200

_USUAL = (
    server_name(b"api.example.com"),
    alpn(b"h2", b"http/1.1"),
    supported_versions(0x0A0A, 0x0304, 0x0303),
    extension(0x0A0A, b""),
    extension(ECH, b"\0\0\1\0\1\7\0\0\0\0"),
)
_WHOLE = hello(*_USUAL)

SEEDS = (
    record(_WHOLE),
    records(_WHOLE, [1, 2, 3, 50, 1]),
    records(hello(*_USUAL, key_share([(0x11EC, 1216), (29, 32)])), [600, 600]),
    record(hello()),
    record(hello(server_name(b"a", b"b"))),
    record(hello(alpn(b""), version=0x0301, session=b"")),
    record(_WHOLE) + record(b"\1", kind=20),
    record(b"\2\x28", kind=21),
    bytes.fromhex("802e010302001500000010") + b"\0\0\x2f" * 7 + b"r" * 16,
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    # The body alone.
    _WHOLE[4:],
    # Extensions, and the contents of those that are read.
    b"".join(_USUAL),
    *(part[4:] for part in _USUAL[:3]),
)
WORDS = (
    b"\x16\3\1",
    b"\x16\3\3",
    server_name(b"a.b"),
    server_name(b"A.B."),
    alpn(b"h2"),
    ALPN.to_bytes(2, "big"),
    supported_versions(0x0304),
    extension(0x1A1A, b""),
)


def outcome(pieces: Iterable[bytes]) -> Outcome:
    """Feed a parser and return what came out, an error as its parts."""
    parser = HelloParser()
    found: ClientHello | None = None
    for piece in pieces:
        try:
            found = parser.feed(piece)
        except HelloError as error:
            return error.alert, str(error), error.plain_http
        if found:
            break
    return found


def check(data: bytes) -> None:
    """Raise AssertionError if the sentence above does not hold for these bytes."""
    check_stream(data)
    if 0 < len(data) < MAX_HELLO - 4:
        check_stream(record(message(1, data)))
    if len(data) < SHORT:
        check_stream(record(hello(block=vector(2, data))))
        for kind in READ:
            check_stream(record(hello(extension(kind, data))))


def check_stream(data: bytes) -> None:
    """The same for the first bytes of a connection."""
    whole = outcome([data])
    assert whole == outcome(data[at : at + 1] for at in range(len(data)))
    assert whole == outcome([data[: len(data) // 2], data[len(data) // 2 :]])
    theirs = judge(data)
    if isinstance(whole, ClientHello):
        assert 0 < whole.size <= len(data)
        assert outcome([data[: whole.size]]) == whole
        assert outcome([data[: whole.size - 1]]) is None
        name = whole.server_name
        if name is not None:
            assert name == name.lower()
            assert 0 < len(name) <= 255
            assert name.isascii()
            assert name.isprintable()
        if theirs.accepted:
            assert name == (theirs.name and theirs.name.lower().removesuffix("."))
        elif theirs.reason not in OTHER_VERSION:
            # Then an extension that we do not read is broken.
            again = judge(record(what_we_read(unframed(data[: whole.size]))))
            assert again.accepted or again.reason in OTHER_VERSION, (whole, theirs, again)
    elif whole is None:
        assert not theirs.accepted
    else:
        alert, reason, _ = whole
        assert 0 < alert < 256
        if theirs.accepted:
            assert any(words in reason for words in STRICTER), (whole, theirs)
