# SPDX-License-Identifier: Apache-2.0
"""A STUN server's answers to binding requests (RFC 8489), without authentication.

Its name is in SOFTWARE. Datagrams that are no STUN request, or whose FINGERPRINT is wrong, get no
answer.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import zlib
from collections.abc import Iterator
from typing import Any

_HEADER = struct.Struct(">HHI12s")
_COOKIE = 0x2112A442
_REQUEST, _SUCCESS, _ERROR = 0x0001, 0x0101, 0x0111
_ERROR_CODE, _UNKNOWN_ATTRIBUTES = 0x0009, 0x000A
_XOR_MAPPED_ADDRESS, _SOFTWARE, _FINGERPRINT = 0x0020, 0x8022, 0x8028
_FINGERPRINT_XOR = 0x5354554E
_OPTIONAL = 0x8000
# USERNAME, MESSAGE-INTEGRITY, REALM, NONCE, MESSAGE-INTEGRITY-SHA256, USERHASH: understood, not
# asked for; PRIORITY and USE-CANDIDATE of ICE (RFC 8445).
_UNDERSTOOD = {0x0006, 0x0008, 0x0014, 0x0015, 0x001C, 0x001E, 0x0024, 0x0025}


def answer(request: bytes, peer: tuple[str, int], name: str) -> bytes | None:
    """What to answer a datagram from ``peer``; None: nothing."""
    if len(request) < _HEADER.size:
        return None
    kind, length, cookie, transaction = _HEADER.unpack_from(request)
    if kind != _REQUEST or cookie != _COOKIE or length + _HEADER.size != len(request):
        return None
    try:
        attributes = list(_attributes(request))
    except ValueError:
        return None
    for place, (number, value) in enumerate(attributes):
        if number == _FINGERPRINT:
            mark = fingerprint(request[:-8])
            if place != len(attributes) - 1 or value != mark:
                return None
    unknown = [n for n, _ in attributes if n < _OPTIONAL and n not in _UNDERSTOOD]
    if unknown:
        reply = _ERROR
        body = _attribute(_ERROR_CODE, bytes((0, 0, 4, 20)) + b"Unknown Attribute")
        body += _attribute(_UNKNOWN_ATTRIBUTES, struct.pack(f">{len(unknown)}H", *unknown))
    else:
        reply = _SUCCESS
        body = _attribute(_XOR_MAPPED_ADDRESS, xor_address(peer, transaction))
    body += _attribute(_SOFTWARE, name.encode())
    marked = any(number == _FINGERPRINT for number, _ in attributes)
    message = _HEADER.pack(reply, len(body) + 8 * marked, _COOKIE, transaction) + body
    return message + _attribute(_FINGERPRINT, fingerprint(message)) if marked else message


def fingerprint(before: bytes) -> bytes:
    """The value of FINGERPRINT after these bytes, whose length field counts it already."""
    return struct.pack(">I", zlib.crc32(before) ^ _FINGERPRINT_XOR)


def xor_address(peer: tuple[str, int], transaction: bytes) -> bytes:
    """The value of XOR-MAPPED-ADDRESS."""
    host, port = peer
    family, number = (socket.AF_INET6, 2) if ":" in host else (socket.AF_INET, 1)
    packed = socket.inet_pton(family, host)
    key = struct.pack(">I", _COOKIE) + transaction
    hidden = bytes(a ^ b for a, b in zip(packed, key, strict=False))
    return struct.pack(">BBH", 0, number, port ^ _COOKIE >> 16) + hidden


def _attribute(number: int, value: bytes) -> bytes:
    return struct.pack(">HH", number, len(value)) + value + bytes(-len(value) % 4)


def _attributes(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, value) in order. Raises ValueError where one ends beyond the message."""
    at = _HEADER.size
    while at < len(message):
        if at + 4 > len(message):
            raise ValueError("half an attribute")
        number, length = struct.unpack_from(">HH", message, at)
        value = message[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4
        if at > len(message):
            raise ValueError("an attribute ends beyond the message")
        yield number, value


class StunDatagrams(asyncio.DatagramProtocol):
    """The UDP port."""

    def __init__(self, name: str) -> None:
        self._name = name

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport)
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        reply = answer(data, addr[:2], self._name)
        if reply is not None:
            self._transport.sendto(reply, addr)
