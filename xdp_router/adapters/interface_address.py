# SPDX-License-Identifier: Apache-2.0
"""Addresses of interfaces: what an ICMP error that is sent there comes from, and subnets.

Messages are read by their fields, not by pyroute2: a host may have thousands of service
addresses, and one costs it 100 µs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("=16s4xI16x")  # name, family and port, address

_SOL_NETLINK, _GET_STRICT_CHK = 270, 12
_RTM_NEWADDR, _RTM_GETADDR = 20, 22
_DUMP_REQUEST = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_IFADDRMSG = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
_FLAGS = struct.Struct("=I")
_IFA_ADDRESS, _IFA_FLAGS = 1, 8
_TIMEOUT_S = 2.0
_RECV_BYTES = 1 << 18

_SIZES: dict[int, int] = {socket.AF_INET: 4, socket.AF_INET6: 16}
_TEMPORARY, _NOT_YET_OR_NO_MORE = 0x01, 0x08 | 0x20 | 0x40  # failed DAD, deprecated, tentative
_SCOPE_GLOBAL = 0
_LINK_LOCAL = 0xFE80 << 112, 0xFFC0 << 112


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address; with a peer that of the other end."""

    ifindex: int
    family: int
    addr: int
    length: int
    flags: int
    scope: int


def is_link_local(addr: int) -> bool:
    """Whether it is of fe80::/10."""
    network, mask = _LINK_LOCAL
    return addr & mask == network


class InterfaceAddresses:
    """Asks in the network namespace that it was made in. Raises OSError if it can't be made."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as undo:
            self._socket = undo.enter_context(
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            )
            self._netlink = undo.enter_context(
                socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            )
            self._netlink.bind((0, 0))
            self._netlink.settimeout(_TIMEOUT_S)
            # Or a dump is of all interfaces, whatever was asked for.
            self._netlink.setsockopt(_SOL_NETLINK, _GET_STRICT_CHK, 1)
            undo.pop_all()
        self._seq = 0

    def close(self) -> None:
        """Close the sockets. Calling it again does nothing."""
        self._socket.close()
        self._netlink.close()

    def primary(self, name: str) -> int:
        """The interface's first primary IPv4 address; 0 if it has none or is gone.

        One ioctl, a microsecond.
        """
        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(self._socket, _SIOCGIFADDR, _IFREQ.pack(name.encode(), 0))
            return int.from_bytes(answer[20:24], "big")
        return 0

    def primary6(self, ifindex: int) -> int:
        """The interface's global IPv6 address that stays longest; 0 if it has none or is gone.

        One with a subnet goes before a host's (as service addresses are), a stable one before
        a temporary one, an old one before a new one.
        """
        best: tuple[bool, bool] | None = None
        found = 0
        with contextlib.suppress(OSError):
            # The kernel has the newest first.
            for each in self.dump(socket.AF_INET6, ifindex):
                if each.scope != _SCOPE_GLOBAL or each.flags & _NOT_YET_OR_NO_MORE:
                    continue
                rank = each.length < 128, not each.flags & _TEMPORARY
                if best is None or rank >= best:
                    best, found = rank, each.addr
        return found

    def dump(self, family: int, ifindex: int = 0) -> Iterator[InterfaceAddress]:
        """Addresses of one family, of one interface or of all (0). Raises OSError."""
        self._seq += 1
        body = _IFADDRMSG.pack(family, 0, 0, 0, ifindex)
        size = _HEADER.size + len(body)
        self._netlink.send(_HEADER.pack(size, _RTM_GETADDR, _DUMP_REQUEST, self._seq, 0) + body)
        found: list[InterfaceAddress] = []
        while True:
            data = self._netlink.recv(_RECV_BYTES)
            offset = 0
            while offset + _HEADER.size <= len(data):
                length, kind, _flags, seq, _pid = _HEADER.unpack_from(data, offset)
                start, end = offset + _HEADER.size, offset + length
                offset += max((length + 3) & ~3, _HEADER.size)
                if seq != self._seq:
                    continue  # of a question that nobody waited for
                if kind == _NLMSG_DONE:
                    return iter(found)
                if kind == _NLMSG_ERROR:
                    code = -_ERROR.unpack_from(data, start)[0]
                    if code in (errno.ENODEV, 0):
                        return iter(found)
                    raise OSError(code, os.strerror(code))
                if kind == _RTM_NEWADDR and (each := read_address(data[start:end])) is not None:
                    found.append(each)


def read_address(message: bytes) -> InterfaceAddress | None:
    """An address of the body of RTM_NEWADDR or RTM_DELADDR; None: of another family."""
    family, length, flags, scope, ifindex = _IFADDRMSG.unpack_from(message)
    size = _SIZES.get(family)
    addr, at = None, _IFADDRMSG.size
    while at + _ATTRIBUTE.size <= len(message):
        span, kind = _ATTRIBUTE.unpack_from(message, at)
        if span < _ATTRIBUTE.size:
            break
        value = message[at + _ATTRIBUTE.size : at + span]
        if kind == _IFA_ADDRESS and len(value) == size:
            addr = int.from_bytes(value, "big")
        elif kind == _IFA_FLAGS and len(value) == 4:
            flags = _FLAGS.unpack(value)[0]
        at += (span + 3) & ~3
    return None if addr is None else InterfaceAddress(ifindex, family, addr, length, flags, scope)
