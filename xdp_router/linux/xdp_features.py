# SPDX-License-Identifier: Apache-2.0
"""What interfaces can do for XDP, as the kernel tells by its ``netdev`` family (Linux 6.3).

Generic netlink by hand: two messages, and a question costs some ten microseconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Self

_NETLINK_GENERIC = 16
_GENL_ID_CTRL = 16
_CTRL_CMD_GETFAMILY = 3
_CTRL_ATTR_FAMILY_ID = 1
_CTRL_ATTR_FAMILY_NAME = 2
_CTRL_ATTR_MCAST_GROUPS = 7
_CTRL_ATTR_MCAST_GRP_NAME = 1
_CTRL_ATTR_MCAST_GRP_ID = 2
_CHANGES = b"mgmt\0"
_SOL_NETLINK = 270
_NETLINK_ADD_MEMBERSHIP = 1
_NETDEV_CMD_DEV_GET = 1
_NETDEV_A_DEV_IFINDEX = 1
_NETDEV_A_DEV_XDP_FEATURES = 3
_NETDEV_XDP_ACT_NDO_XMIT = 4

_NLM_F_REQUEST = 1
_NLMSG_ERROR = 2
_HEADER = struct.Struct("=IHHIIBBxx")  # struct nlmsghdr, struct genlmsghdr
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
_ANSWER_TIMEOUT_S = 2.0


class XdpFeatures:
    """Questions about the interfaces of the network namespace that it was made in.

    Close it, or use it as a context manager. A kernel without the family knows nothing.
    """

    def __init__(self) -> None:
        self._seq = 0
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_NETLINK, kind, _NETLINK_GENERIC)
        with contextlib.ExitStack() as undo:
            undo.callback(self._socket.close)
            self._socket.bind((0, 0))
            self._socket.settimeout(_ANSWER_TIMEOUT_S)
            self._family, self._group = self._find_family()
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. Calling it again does nothing."""
        self._socket.close()

    def takes_frames(self, ifindex: int) -> bool | None:
        """Whether frames can be redirected to an interface (``ndo_xdp_xmit``).

        None: the kernel does not tell, or the interface is gone. A driver may need a program
        of its own there first, and a veth's other end GRO or a program. Raises OSError.
        """
        if not self._family:
            return None
        asked = struct.pack("=HHI", 8, _NETDEV_A_DEV_IFINDEX, ifindex)
        try:
            answer = self._ask(self._family, _NETDEV_CMD_DEV_GET, asked)
        except OSError as error:
            if error.errno in (errno.ENODEV, errno.EOPNOTSUPP):
                return None
            raise
        features = answer.get(_NETDEV_A_DEV_XDP_FEATURES)
        if features is None:
            return None
        return bool(int.from_bytes(features, "little") & _NETDEV_XDP_ACT_NDO_XMIT)

    def changes(self) -> socket.socket | None:
        """A socket that becomes readable when an interface of this namespace can do more, or
        less, than before; the caller reads it empty, and closes it. It does not block.

        None: the kernel does not tell. Raises OSError.
        """
        if not self._group:
            return None
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.socket(socket.AF_NETLINK, kind, _NETLINK_GENERIC))
            listener.bind((0, 0))
            listener.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, self._group)
            undo.pop_all()
        return listener

    def _find_family(self) -> tuple[int, int]:
        """Numbers of the family and of its group for changes; 0: there is none."""
        name = b"netdev\0"
        asked = _ATTRIBUTE.pack(4 + len(name), _CTRL_ATTR_FAMILY_NAME) + name + b"\0"
        try:
            answer = self._ask(_GENL_ID_CTRL, _CTRL_CMD_GETFAMILY, asked)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return 0, 0
            raise
        group = 0
        for _, nested in _attributes(answer.get(_CTRL_ATTR_MCAST_GROUPS, b"")):
            found = dict(_attributes(nested))
            if found.get(_CTRL_ATTR_MCAST_GRP_NAME) == _CHANGES:
                group = int.from_bytes(found[_CTRL_ATTR_MCAST_GRP_ID], "little")
        return int.from_bytes(answer[_CTRL_ATTR_FAMILY_ID], "little"), group

    def _ask(self, family: int, command: int, attributes: bytes) -> dict[int, bytes]:
        self._seq += 1
        length = _HEADER.size + len(attributes)
        head = _HEADER.pack(length, family, _NLM_F_REQUEST, self._seq, 0, command, 1)
        self._socket.send(head + attributes)
        while True:
            data = self._socket.recv(1 << 16)
            (length, kind, _, seq), at = struct.unpack_from("=IHHI", data), 16
            if seq != self._seq:
                continue  # of a question whose answer came too late
            if kind == _NLMSG_ERROR:
                code = -struct.unpack_from("=i", data, at)[0]
                raise OSError(code, f"netdev features: {os.strerror(code)}")
            return dict(_attributes(data[_HEADER.size : length]))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
