# SPDX-License-Identifier: Apache-2.0
"""Sends a packet as the host itself would: routed, its neighbour resolved, by a raw IP socket.

For a held first packet whose backend is left to the kernel: nothing can pass it on as XDP does.
"""

from __future__ import annotations

import socket
import struct

_ETH_HEADER = 14
_IP_HEADER = 20
_LENGTH = struct.Struct("!2xH")
_TTL_AT = 8
_TARGET = slice(16, 20)


class RoutedSocket:
    """Opened at its first packet, in the network namespace of that moment."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def send(self, frame: bytes) -> bool:
        """Send the IPv4 packet in an untagged Ethernet frame, its TTL lowered. False: not sent.

        The source may be another host's address. The kernel puts the header's checksum in.
        """
        packet = bytearray(frame[_ETH_HEADER:])
        if len(packet) < _IP_HEADER:
            return False
        del packet[_LENGTH.unpack_from(packet)[0] :]  # padding of the frame
        packet[_TTL_AT] -= 1  # what a raw socket sends is not forwarded, to the kernel
        try:
            if self._socket is None:
                kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
                self._socket = socket.socket(socket.AF_INET, kind, socket.IPPROTO_RAW)
            self._socket.sendto(packet, (socket.inet_ntoa(packet[_TARGET]), 0))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the socket. Calling it again does nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
