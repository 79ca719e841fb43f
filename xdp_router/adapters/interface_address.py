# SPDX-License-Identifier: Apache-2.0
"""The primary IPv4 address of an interface: what an ICMP error that is sent there comes from."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("=16s4xI16x")  # name, family and port, address


class InterfaceAddresses:
    """Asks in the network namespace that it was made in. Raises OSError if it can't be made.

    One ioctl, a microsecond: a netlink dump would be read through, and a host may have
    thousands of service addresses.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def close(self) -> None:
        """Close the socket. Calling it again does nothing."""
        self._socket.close()

    def primary(self, name: str) -> int:
        """The interface's first primary address; 0 if it has none or is gone."""
        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(self._socket, _SIOCGIFADDR, _IFREQ.pack(name.encode(), 0))
            return int.from_bytes(answer[20:24], "big")
        return 0
