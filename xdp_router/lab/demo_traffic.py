# SPDX-License-Identifier: Apache-2.0
"""The demo's client: real TCP connections, timed, with data both ways that is compared."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from .backend import WHO
from .namespace import Namespace

PAYLOAD_BYTES = 4096
_TIMEOUT_S = 5.0
_END_TIMEOUT_S = 1.0
_PAUSE_S = 0.004  # longer than the router's coalescing window: each connection is raced


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection that worked. ``client`` is its own ``address:port``."""

    client: str
    backend: str
    connect_ns: int


@dataclass(slots=True)
class Batch:
    """What became of a number of connections. ``open`` are those that were kept."""

    connections: list[Connection] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    open: list[socket.socket] = field(default_factory=list)

    @property
    def by_backend(self) -> Counter[str]:
        """Connections by the name with which the backend itself answered."""
        return Counter(connection.backend for connection in self.connections)

    @property
    def connect_ns(self) -> list[int]:
        """How long each connect() took."""
        return [connection.connect_ns for connection in self.connections]

    def close(self) -> None:
        """Close the connections that were kept."""
        while self.open:
            self.open.pop().close()


def connect_many(
    client: Namespace,
    address: tuple[str, int],
    count: int,
    *,
    keep: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Batch:
    """Make connections one after the other; each asks who answers and has a block echoed.

    The last ``keep`` of them stay open. What fails is in the result, not raised;
    ``progress`` is told after each connection how many are done.
    """
    batch = Batch()
    for number in range(1, count + 1):
        handle = client.socket()
        try:
            handle.settimeout(_TIMEOUT_S)
            batch.connections.append(_converse(handle, address))
        except OSError as error:
            batch.failures.append(f"connection {number}: {error}")
            handle.close()
        else:
            if number > count - keep:
                batch.open.append(handle)
            else:
                handle.close()
        progress(number)
        time.sleep(_PAUSE_S)
    return batch


def ended(handle: socket.socket) -> bool:
    """Whether the other side has ended the connection; waits for it a moment."""
    handle.settimeout(_END_TIMEOUT_S)
    try:
        return not handle.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def _converse(handle: socket.socket, address: tuple[str, int]) -> Connection:
    """Connect and compare what comes back. Raises OSError, also when the data differ."""
    started_ns = time.monotonic_ns()
    handle.connect(address)
    connect_ns = time.monotonic_ns() - started_ns
    payload = os.urandom(PAYLOAD_BYTES)
    handle.sendall(WHO + payload)
    received = bytearray()
    while True:
        name, newline, echo = bytes(received).partition(b"\n")
        if newline and len(echo) >= PAYLOAD_BYTES:
            break
        data = handle.recv(65536)
        if not data:
            raise OSError(f"closed after {len(received)} bytes, expected {PAYLOAD_BYTES} and more")
        received += data
    if echo != payload:
        raise OSError(f"the {PAYLOAD_BYTES} bytes that came back are not those that were sent")
    own, port = handle.getsockname()
    return Connection(f"{own}:{port}", name.decode(errors="replace"), connect_ns)
