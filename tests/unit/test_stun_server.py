# SPDX-License-Identifier: Apache-2.0
"""Answers to STUN datagrams, against the vectors of RFC 5769 where it has some."""

from __future__ import annotations

import struct

import pytest

from xdp_router.lab.stun_server import answer, fingerprint, xor_address

PEER = ("198.18.0.2", 4711)
TRANSACTION = bytes.fromhex("b7e7a701bc34d686fa87dfae")
REQUEST = bytes.fromhex(
    "000100582112a442b7e7a701bc34d686fa87dfae"
    "802200105354554e207465737420636c69656e74"
    "002400046e0001ff"
    "80290008932ff9b151263b36"
    "000600096576746a3a68367659202020"
    "000800149aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a2"
    "80280004e57a3bcf"
)
"""Section 2.1."""


def request(attributes: bytes = b"", kind: int = 1) -> bytes:
    """A message with these attributes."""
    return struct.pack(">HHI", kind, len(attributes), 0x2112A442) + TRANSACTION + attributes


def test_addresses_are_hidden_as_in_the_standard() -> None:
    """XOR-MAPPED-ADDRESS of sections 2.2 and 2.3."""
    found = xor_address(("192.0.2.1", 32853), TRANSACTION)
    assert found == bytes.fromhex("0001a147e112a643")
    found = xor_address(("2001:db8:1234:5678:11:2233:4455:6677", 32853), TRANSACTION)
    assert found == bytes.fromhex("0002a1470113a9faa5d3f179bc25f4b5bed2b9d9")


def test_fingerprint_is_that_of_the_standard() -> None:
    """FINGERPRINT of section 2.1."""
    assert fingerprint(REQUEST[:-8]) == REQUEST[-4:]


@pytest.mark.parametrize("message", [request(), REQUEST], ids=["bare", "RFC 5769"])
def test_binding_request_is_answered(message: bytes) -> None:
    """The answer has the transaction, the address and the name; a fingerprint if asked with one."""
    reply = answer(message, PEER, "b1")
    assert reply is not None
    kind, length, cookie, transaction = struct.unpack_from(">HHI12s", reply)
    assert (kind, cookie, transaction) == (0x0101, 0x2112A442, TRANSACTION)
    assert length == len(reply) - 20
    assert reply[20:32] == struct.pack(">HH", 0x0020, 8) + xor_address(PEER, TRANSACTION)
    assert struct.pack(">HH", 0x8022, 2) + b"b1\0\0" in reply
    marked = message is REQUEST
    assert (reply[-8:] == struct.pack(">HH", 0x8028, 4) + fingerprint(reply[:-8])) == marked


def test_unknown_attribute_is_refused_by_number() -> None:
    """An attribute that must be understood, and is not, makes the answer 420 with its number."""
    reply = answer(request(struct.pack(">HH4s", 0x7FFF, 4, b"what")), PEER, "b1")
    assert reply is not None
    assert reply[:2] == b"\x01\x11"
    assert b"\0\0\x04\x14Unknown Attribute" in reply
    assert struct.pack(">HHH", 0x000A, 2, 0x7FFF) in reply


@pytest.mark.parametrize(
    "message",
    [
        b"",
        REQUEST[:19],
        REQUEST[:-4],
        REQUEST[:-1] + b"\0",
        request(kind=0x0101),
        request(b"\0\x24\0\x08\0\0\0\0"),
        request(b"\0\x24"),
        b"\0\1\0\0" + b"nope" + TRANSACTION,
    ],
    ids=["empty", "short", "cut", "fingerprint", "answer", "beyond", "half", "cookie"],
)
def test_anything_else_gets_no_answer(message: bytes) -> None:
    """What is no whole request is met with silence."""
    assert answer(message, PEER, "b1") is None
