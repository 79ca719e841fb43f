# SPDX-License-Identifier: Apache-2.0
"""ClientHellos taken apart and put together again: for those that the parser under test accepts."""

from __future__ import annotations

from tests.support.hello_bytes import (
    ALPN,
    SERVER_NAME,
    SUPPORTED_VERSIONS,
    extension,
    vector,
)

READ = (SERVER_NAME, ALPN, SUPPORTED_VERSIONS)
"""The extensions that decide where a connection goes; the rest is left to the backend."""


def unframed(data: bytes) -> bytes:
    """Return what is in these whole records."""
    out = b""
    while data:
        end = 5 + int.from_bytes(data[3:5], "big")
        out += data[5:end]
        data = data[end:]
    return out


def parts(message: bytes) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Return what stands before the extensions of a whole message, and the extensions."""
    at = 4 + 34
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    head, block = message[4:at], message[at + 2 :]
    found = []
    while block:
        size = int.from_bytes(block[2:4], "big")
        found.append((int.from_bytes(block[:2], "big"), block[4 : 4 + size]))
        block = block[4 + size :]
    return head, found


def put_together(head: bytes, extensions: list[tuple[int, bytes]]) -> bytes:
    """Return a message with these parts."""
    block = b"".join(extension(kind, content[:60000]) for kind, content in extensions)
    return b"\1" + vector(3, head + (vector(2, block[:65000]) if extensions else b""))


def what_we_read(message: bytes) -> bytes:
    """Return the message without the extensions that we leave to the backend."""
    head, extensions = parts(message)
    return put_together(head, [(kind, content) for kind, content in extensions if kind in READ])
