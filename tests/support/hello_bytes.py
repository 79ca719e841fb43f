# SPDX-License-Identifier: Apache-2.0
"""ClientHellos byte by byte, right and wrong: shares no code with the parser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SERVER_NAME = 0
ALPN = 16
SUPPORTED_VERSIONS = 43
KEY_SHARE = 51
ECH = 0xFE0D

RANDOM = bytes(range(32))
SUITES = bytes.fromhex("130113021303c02bc02fc02cc030009c009d002f0035")


def vector(width: int, content: bytes) -> bytes:
    """Return the content behind its length in ``width`` bytes."""
    return len(content).to_bytes(width, "big") + content


def extension(kind: int, content: bytes) -> bytes:
    """Return one extension."""
    return kind.to_bytes(2, "big") + vector(2, content)


def server_name(*names: bytes, kind: int = 0) -> bytes:
    """Return a server_name extension with these names in its list."""
    entries = b"".join(bytes((kind,)) + vector(2, name) for name in names)
    return extension(SERVER_NAME, vector(2, entries))


def alpn(*protocols: bytes) -> bytes:
    """Return an ALPN extension."""
    return extension(ALPN, vector(2, b"".join(vector(1, name) for name in protocols)))


def supported_versions(*versions: int) -> bytes:
    """Return a supported_versions extension."""
    listed = b"".join(version.to_bytes(2, "big") for version in versions)
    return extension(SUPPORTED_VERSIONS, vector(1, listed))


def key_share(sizes: Iterable[tuple[int, int]]) -> bytes:
    """Return a key_share extension: a group and the bytes of its share, for each."""
    shares = b"".join(group.to_bytes(2, "big") + vector(2, bytes(size)) for group, size in sizes)
    return extension(KEY_SHARE, vector(2, shares))


def hello(
    *extensions: bytes,
    version: int = 0x0303,
    session: bytes = RANDOM,
    suites: bytes = SUITES,
    compression: bytes = b"\0",
    block: bytes | None = None,
) -> bytes:
    """Return a ClientHello message, header and all; ``block`` instead of the extensions' block."""
    if block is None:
        block = vector(2, b"".join(extensions)) if extensions else b""
    body = version.to_bytes(2, "big") + RANDOM + vector(1, session) + vector(2, suites)
    return message(1, body + vector(1, compression) + block)


def message(kind: int, body: bytes) -> bytes:
    """Return a handshake message."""
    return bytes((kind,)) + vector(3, body)


def record(content: bytes, *, kind: int = 22, version: int = 0x0301) -> bytes:
    """Return one record."""
    return bytes((kind,)) + version.to_bytes(2, "big") + vector(2, content)


def records(content: bytes, sizes: Sequence[int]) -> bytes:
    """Return the content cut into records of these sizes, the last one taking what is left."""
    out, at = b"", 0
    for size in sizes:
        if at + size >= len(content):
            break
        out += record(content[at : at + size])
        at += size
    return out + record(content[at:])
