# SPDX-License-Identifier: Apache-2.0
"""A QUIC client of the lab's servers of kind ``quic``, with a hello of today's size.

A hello with a post-quantum key share does not fit into one datagram: two Initials leave at once.
aioquic sends none, so as many unused protocol names take its place.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from tests.support.receipts import OWN_PORTS, named_by
from xdp_router.lab import Namespace
from xdp_router.lab.quic_server import ALPN

Address = tuple[str, int]

POST_QUANTUM_BYTES = 1216
"""What X25519MLKEM768 adds to a hello: a key share of 1,184 + 32 bytes."""
_NAME_BYTES = 63
_FILLER = [f"{n:0{_NAME_BYTES}d}" for n in range(POST_QUANTUM_BYTES // (_NAME_BYTES + 1))]


class QuicClient(QuicConnectionProtocol):
    """One connection."""

    async def ask(self, payload: bytes) -> str:
        """Send the payload on a new stream; who got it."""
        reader, writer = await self.create_stream()
        writer.write(payload)
        writer.write_eof()
        return named_by(await reader.read(), payload)

    @property
    def port(self) -> int:
        """The local port that it began with."""
        assert self._transport is not None
        return int(self._transport.get_extra_info("sockname")[1])

    def move(self, transport: asyncio.DatagramTransport) -> None:
        """Go on from another socket, as a client whose address has changed does."""
        self._transport = transport

    def leave(self, transport: asyncio.DatagramTransport) -> None:
        """The same, and nothing is heard any more where it was."""
        assert self._transport is not None
        self._transport.close()
        self.move(transport)


@asynccontextmanager
async def begun_connection(
    target: Address, *, source: Address | None = None, post_quantum: bool = True
) -> AsyncIterator[QuicClient]:
    """A connection from the calling thread's namespace whose hello has left."""
    names = [*(_FILLER if post_quantum else []), ALPN]
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=names, verify_mode=ssl.CERT_NONE, server_name="lab"
    )
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    connection = QuicConnection(configuration=configuration)
    local: Any = source or (("::" if family == socket.AF_INET6 else "0.0.0.0"), next(OWN_PORTS))
    transport, client = await loop.create_datagram_endpoint(
        lambda: QuicClient(connection), local_addr=local, family=family
    )
    try:
        # In full, as the kernel tells it: aioquic compares it with where packets come from.
        client.connect((*target, 0, 0) if family == socket.AF_INET6 else target)
        yield client
        client.close()
        await client.wait_closed()
    finally:
        transport.close()


@asynccontextmanager
async def quic_connection(
    target: Address, *, source: Address | None = None, post_quantum: bool = True
) -> AsyncIterator[QuicClient]:
    """A connection from the calling thread's namespace, its handshake done."""
    async with begun_connection(target, source=source, post_quantum=post_quantum) as client:
        await client.wait_connected()
        yield client


def ask_by_quic(
    namespace: Namespace,
    target: Address,
    payload: bytes,
    *,
    source: Address | None = None,
    post_quantum: bool = True,
    timeout: float = 10.0,
) -> str:
    """Send the payload on the one stream of a new connection; who got it."""

    async def talk() -> str:
        async with quic_connection(target, source=source, post_quantum=post_quantum) as client:
            return await client.ask(payload)

    return namespace.run(lambda: asyncio.run(asyncio.wait_for(talk(), timeout)))
