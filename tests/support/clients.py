# SPDX-License-Identifier: Apache-2.0
"""What clients of an echo service do, over the TCP stacks of the lab."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import threading

from tests.support.router import Router
from xdp_router.lab import Namespace

Address = tuple[str, int]


def connect(
    router: Router, *, source: Address | None = None, timeout: float = 5.0
) -> socket.socket:
    """A connection from the client to the lab's service."""
    return dial(router.lab.client, router.service, source=source, timeout=timeout)


def dial(
    namespace: Namespace,
    target: Address,
    *,
    source: Address | None = None,
    timeout: float = 5.0,
) -> socket.socket:
    """A connection whose local port may be used for another target too. Raises OSError."""
    peer = namespace.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET)
    try:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        peer.settimeout(timeout)
        if source is not None:
            peer.bind(source)
        peer.connect(target)
    except BaseException:
        peer.close()
        raise
    return peer


def who(peer: socket.socket) -> str:
    """The name of the backend at the other end; only as a connection's first words."""
    peer.sendall(b"WHO\n")
    name = b""
    while not name.endswith(b"\n"):
        data = peer.recv(100)
        assert data, "the backend closed instead of saying its name"
        name += data
    return name.decode().strip()


def who_answers(router: Router, *, source: Address | None = None, timeout: float = 5.0) -> str:
    """The backend that a new connection gets."""
    with connect(router, source=source, timeout=timeout) as peer:
        return who(peer)


def stream_to(router: Router, backend: str, timeout: float = 20.0) -> socket.socket:
    """A connection that a certain backend has won, by its 100th try at the latest."""
    for _ in range(100):
        peer = connect(router, timeout=timeout)
        if who(peer) == backend:
            return peer
        peer.close()
    raise AssertionError(f"{backend} never won")


def receive(peer: socket.socket, count: int) -> bytes:
    """Exactly ``count`` bytes; fewer only if the other side ends."""
    received = bytearray()
    while len(received) < count:
        data = peer.recv(min(1 << 18, count - len(received)))
        if not data:
            break
        received += data
    return bytes(received)


def send_and_finish(peer: socket.socket, payload: bytes) -> None:
    """Send the payload and a FIN."""
    peer.sendall(payload)
    peer.shutdown(socket.SHUT_WR)


def echo_intact(peer: socket.socket, payload: bytes) -> bool:
    """Send the payload, read as much; whether the same bytes came back, by their hash."""
    failures: list[OSError] = []

    def send() -> None:
        try:
            peer.sendall(payload)
        except OSError as error:
            failures.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    received = receive(peer, len(payload))
    sender.join()
    if failures:
        raise failures[0]
    return len(received) == len(payload) and digest(received) == digest(payload)


def digest(data: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(data).hexdigest()


def random_bytes(count: int, seed: int = 1) -> bytes:
    """The same bytes for the same seed, without a pattern that could hide a mix-up."""
    return random.Random(seed).randbytes(count)


def echoes_at_once(namespace: Namespace, service: Address, count: int, size: int) -> list[bool]:
    """``count`` clients, all connected before the first sends; which got their bytes back."""

    async def one(number: int, connected: asyncio.Barrier) -> bool:
        reader, writer = await asyncio.open_connection(*service)
        try:
            await connected.wait()
            payload = random_bytes(size, number)
            writer.write(payload)
            received = await reader.readexactly(size)
            await writer.drain()
            return digest(received) == digest(payload)
        finally:
            writer.close()

    async def everyone() -> list[bool]:
        connected = asyncio.Barrier(count)
        clients = (one(number, connected) for number in range(count))
        return await asyncio.wait_for(asyncio.gather(*clients), 60)

    return namespace.run(lambda: asyncio.run(everyone()))
