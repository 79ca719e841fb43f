# SPDX-License-Identifier: Apache-2.0
"""A UDP server's sockets that answer from the very address that a datagram was sent to.

A plain unconnected socket answers from the address that the route back prefers. A backend with
several addresses, such as a service's on ``lo``, would so answer its clients from a stranger's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from typing import Any

_IP_PKTINFO = 8
_IPV6_RECVPKTINFO, _IPV6_PKTINFO = 49, 50
_PKTINFO4 = struct.Struct("=I4s4s")
_PKTINFO6 = struct.Struct("=16sI")
_DATAGRAM_MAX = 65536
_BATCH = 64
_BUFFER_BYTES = 4 << 20


class UdpEndpoint(asyncio.DatagramTransport):
    """One port of all local addresses of both families, as a transport of asyncio.

    The addresses that it hands to the protocol, and takes back in ``sendto``, are those of the
    socket with the local address added at the end.
    """

    def __init__(self, protocol: asyncio.DatagramProtocol, port: int) -> None:
        """Bind; call from a running loop. Raises OSError if the port is taken."""
        super().__init__()
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[int, socket.socket] = {}
        self._port = port
        try:
            for family in (socket.AF_INET, socket.AF_INET6):
                self._open(family)
        except BaseException:
            self.close()
            raise
        protocol.connection_made(self)

    def _open(self, family: socket.AddressFamily) -> None:
        try:
            handle = socket.socket(family, socket.SOCK_DGRAM)
        except OSError as error:
            if family == socket.AF_INET6 and error.errno == errno.EAFNOSUPPORT:
                return  # a kernel without IPv6
            raise
        self._sockets[family] = handle
        handle.setblocking(False)
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        if family == socket.AF_INET:
            handle.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
            handle.bind(("0.0.0.0", self._port))
        else:
            handle.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            handle.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
            handle.bind(("::", self._port))
        self._loop.add_reader(handle, self._read, handle)

    def _read(self, handle: socket.socket) -> None:
        for _ in range(_BATCH):
            try:
                data, ancillary, _, peer = handle.recvmsg(_DATAGRAM_MAX, 64)
            except OSError:  # nothing more, or an ICMP error of an earlier answer
                return
            for _, kind, value in ancillary:
                if (handle.family, kind) == (socket.AF_INET, _IP_PKTINFO):
                    _, _, local = _PKTINFO4.unpack(value)
                elif (handle.family, kind) == (socket.AF_INET6, _IPV6_PKTINFO):
                    local, _ = _PKTINFO6.unpack(value)
                else:
                    continue
                self._protocol.datagram_received(data, (*peer, local))

    def sendto(self, data: Any, addr: Any = None) -> None:
        """Answer a peer; what the kernel does not take is lost, as on a busy wire."""
        *peer, local = addr
        if len(local) == 4:
            info = _PKTINFO4.pack(0, local, bytes(4))
            family, control = socket.AF_INET, (socket.IPPROTO_IP, _IP_PKTINFO, info)
        else:
            info = _PKTINFO6.pack(local, 0)
            family, control = socket.AF_INET6, (socket.IPPROTO_IPV6, _IPV6_PKTINFO, info)
        with contextlib.suppress(OSError):
            self._sockets[family].sendmsg([data], [control], 0, tuple(peer))

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return not self._sockets

    def close(self) -> None:
        """Let go of the port."""
        for handle in self._sockets.values():
            self._loop.remove_reader(handle)
            handle.close()
        self._sockets.clear()

    def abort(self) -> None:
        """Let go of the port."""
        self.close()
