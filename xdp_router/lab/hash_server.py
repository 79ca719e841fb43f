# SPDX-License-Identifier: Apache-2.0
"""A server that says who it is and what it got: for each UDP datagram, and each TCP stream at its
FIN, one line of its name, the SHA-256 of the bytes and their count.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any


def receipt(name: str, digest: str, count: int) -> bytes:
    """The line for so many bytes with that hash."""
    return f"{name} {digest} {count}\n".encode()


def receipt_of(name: str, data: bytes) -> bytes:
    """The line for these bytes."""
    return receipt(name, hashlib.sha256(data).hexdigest(), len(data))


class HashStream(asyncio.Protocol):
    """One TCP connection."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._hash = hashlib.sha256()
        self._count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._hash.update(data)
        self._count += len(data)

    def eof_received(self) -> None:
        self._transport.write(receipt(self._name, self._hash.hexdigest(), self._count))


class HashDatagrams(asyncio.DatagramProtocol):
    """The UDP port."""

    def __init__(self, name: str) -> None:
        self._name = name

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport)
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._transport.sendto(receipt_of(self._name, data), addr)
