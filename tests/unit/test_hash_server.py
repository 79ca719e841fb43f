# SPDX-License-Identifier: Apache-2.0
"""The line by which a server says what it got."""

from __future__ import annotations

from xdp_router.lab.hash_server import receipt_of

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_receipt_names_server_hash_and_count() -> None:
    """Name, SHA-256 in hexadecimal, count of bytes; nothing is a message too."""
    assert receipt_of("b1", b"") == f"b1 {EMPTY} 0\n".encode()
    name, digest, count = receipt_of("b2", b"abc").split()
    assert (name, count) == (b"b2", b"3")
    assert digest.startswith(b"ba7816bf8f01cfea")
