# SPDX-License-Identifier: Apache-2.0
"""Sends a packet as the host itself would: routed, its neighbour resolved, by a raw IP socket.

For a held first packet whose backend is left to the kernel: nothing can pass it on as XDP does.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

_ETH_HEADER = 14
_ETH_TYPE = slice(12, 14)


@dataclass(frozen=True, slots=True)
class _Family:
    """Where its header has what is needed; ``uncounted``: bytes that its length leaves out."""

    number: socket.AddressFamily
    header: int
    length_at: int
    uncounted: int
    ttl_at: int
    target: slice


_FAMILIES = {
    b"\x08\x00": _Family(socket.AF_INET, 20, 2, 0, 8, slice(16, 20)),
    b"\x86\xdd": _Family(socket.AF_INET6, 40, 4, 40, 7, slice(24, 40)),
}


class RoutedSocket:
    """One socket a family, opened at its first packet, in the network namespace of that moment."""

    def __init__(self) -> None:
        self._sockets: dict[socket.AddressFamily, socket.socket] = {}

    def send(self, frame: bytes) -> bool:
        """Send the IP packet in an untagged Ethernet frame, its TTL lowered. False: not sent.

        The source may be another host's address. The kernel puts an IPv4 header's checksum in.
        """
        family = _FAMILIES.get(frame[_ETH_TYPE])
        packet = bytearray(frame[_ETH_HEADER:])
        if family is None or len(packet) < family.header:
            return False
        length = int.from_bytes(packet[family.length_at : family.length_at + 2], "big")
        del packet[length + family.uncounted :]  # padding of the frame
        packet[family.ttl_at] -= 1  # what a raw socket sends is not forwarded, to the kernel
        target = socket.inet_ntop(family.number, packet[family.target])
        try:
            self._socket(family.number).sendto(packet, (target, 0))
        except OSError:
            return False
        return True

    def _socket(self, family: socket.AddressFamily) -> socket.socket:
        found = self._sockets.get(family)
        if found is None:
            # IPPROTO_RAW: packets bring their header along, in both families.
            kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            found = self._sockets[family] = socket.socket(family, kind, socket.IPPROTO_RAW)
        return found

    def close(self) -> None:
        """Close the sockets. Calling it again does nothing."""
        while self._sockets:
            self._sockets.popitem()[1].close()
