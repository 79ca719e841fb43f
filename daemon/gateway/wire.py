# SPDX-License-Identifier: Apache-2.0
"""Writes to a connection at once, and through its transport only what the socket does not take.

uvloop keeps what is written until the end of its turn: whatever is noted of a request meanwhile
would be between the first token and its reader.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct

from xdp_router.core.listeners import SocketAddress

WRITE_HIGH = 64 << 10
"""Bytes that wait for a peer before its other side is read no more."""


_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
"""Options of a socket, by which a host that is gone without a word is noticed after two minutes.

A relay or a tunnel has no deadline of its own: it and its place at the backend would stay for ever.
Accepted sockets have them from the listening one.
"""


class Wire:
    """Of one transport, whose writes all go through here. ``fd`` -1: it is encrypted."""

    __slots__ = ("transport", "_fd")

    def __init__(
        self, transport: asyncio.Transport, *, is_tls: bool = False, is_ours: bool = False
    ) -> None:
        """``is_ours``: it was made here, not accepted."""
        self.transport = transport
        sock = transport.get_extra_info("socket")
        self._fd = -1
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option in KEEPALIVE if is_ours else ():
                sock.setsockopt(*option)
            if not is_tls:
                self._fd = sock.fileno()
        transport.set_write_buffer_limits(high=WRITE_HIGH)

    def write(self, data: bytes) -> None:
        """All of it, in order, now or when the socket takes it."""
        transport = self.transport
        if self._fd >= 0 and not transport.get_write_buffer_size():
            # A transport that is closing has let go of its descriptor, or is about to.
            if transport.is_closing():
                return
            try:
                sent = os.write(self._fd, data)
            except OSError:  # it is full, or gone: the transport knows what to do
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        transport.write(data)


def peer_of(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """A client's address, and the same with its port as it is shown; empty if it has gone."""
    host, port, *_ = transport.get_extra_info("peername") or ("", 0)
    return host, str(SocketAddress(host, port))


def reset(transport: asyncio.Transport | None, *, is_tls: bool = False) -> None:
    """Close a connection by RST; an encrypted one without it."""
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    if sock is not None and not is_tls:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
