# SPDX-License-Identifier: Apache-2.0
"""An honest UDP client of a server that tells the hash of each datagram (``hash_server``)."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from xdp_router.lab.hash_server import receipt_of

AGAIN_S = 1.0
"""Without an answer for so long a datagram is sent again, as QUIC and DNS clients do."""
_TRIES = 6


class UdpPeer(asyncio.DatagramProtocol):
    """One flow. ``again``: datagrams that were sent once more."""

    has_handshake = False

    def __init__(self) -> None:
        self.again = 0
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._backend = b""
        self._transport: asyncio.DatagramTransport | None = None

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> UdpPeer:
        """A socket of its own. Raises OSError."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        _, peer = await asyncio.get_running_loop().create_datagram_endpoint(
            cls, remote_addr=address, family=family
        )
        return peer

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._answers.put_nowait(data)

    def error_received(self, exc: Exception) -> None:
        """Nobody listens, says somebody; what is sent again is to show whether that is so."""

    async def exchange(self, payload: bytes) -> None:
        """Send, and wait for who has it and for its hash.

        Raises ConnectionError if it is not to be had, or another backend answers than before.
        """
        assert self._transport is not None
        for attempt in range(_TRIES):
            self.again += attempt > 0
            self._transport.sendto(payload)
            try:
                async with asyncio.timeout(AGAIN_S):
                    while not self._is_receipt(await self._answers.get(), payload):
                        pass  # an earlier datagram's, which was sent twice
                    return
            except TimeoutError:
                continue
        raise ConnectionError(f"no answer to {_TRIES} datagrams")

    def _is_receipt(self, answer: bytes, payload: bytes) -> bool:
        backend = answer.partition(b" ")[0]
        if answer != receipt_of(backend.decode("ascii", "replace"), payload):
            return False
        if self._backend and self._backend != backend:
            raise ConnectionError(f"{backend!r} answered, and {self._backend!r} before")
        self._backend = backend
        return True

    def close(self) -> None:
        """Close the socket."""
        if self._transport is not None:
            self._transport.close()
