# SPDX-License-Identifier: Apache-2.0
"""Frames on the ends of a wire as they are: sent raw, and received with their VLAN tag."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable

_ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_IGNORE_OUTGOING = 263, 8, 23
_TP_STATUS_VLAN_VALID = 1 << 4
_AUXDATA = struct.Struct("=IIIHHHH")
_FRAME_MAX = 65536


class Tap:
    """One interface: what arrives at it from now on, and a way to send from it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(_ETH_P_ALL)
        )
        self._socket.bind((name, _ETH_P_ALL))
        self._socket.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self.address = self._socket.getsockname()[4]

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Send a frame as it is."""
        self._socket.send(frame)

    def received(self) -> list[bytes]:
        """What has arrived. The kernel takes the outer tag off; here it is put back."""
        frames: list[bytes] = []
        while True:
            try:
                data, extra, _, _ = self._socket.recvmsg(_FRAME_MAX, 256)
            except BlockingIOError:
                return frames
            for level, kind, raw in extra:
                if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
                    status, *_, tci, proto = _AUXDATA.unpack(raw[: _AUXDATA.size])
                    if status & _TP_STATUS_VLAN_VALID:
                        data = data[:12] + struct.pack(">HH", proto, tci) + data[12:]
            frames.append(data)


def wait_readable(taps: Iterable[Tap], timeout: float) -> bool:
    """Whether something arrives at one of them in time (seconds)."""
    return bool(select.select(list(taps), [], [], timeout)[0])
