# SPDX-License-Identifier: Apache-2.0
"""Offload switches of the interfaces in the calling thread's network namespace, by ioctl."""

from __future__ import annotations

import array
import enum
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946
_IFREQ_SIZE = 40


class Offload(enum.Enum):
    """An offload, with the commands that read and write it."""

    TX_CHECKSUM = (0x16, 0x17)
    SEGMENTATION = (0x1E, 0x1F)
    GRO = (0x2B, 0x2C)


def _command(ifname: str, command: int, value: int) -> int:
    pair = array.array("I", [command, value])
    address, _ = pair.buffer_info()
    request = struct.pack("16sQ", ifname.encode(), address).ljust(_IFREQ_SIZE, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            fcntl.ioctl(handle, _SIOCETHTOOL, request)
        except OSError as error:
            raise OSError(
                error.errno, f"ethtool {command:#x} on {ifname}: {error.strerror}"
            ) from error
    return pair[1]


def get_offload(ifname: str, offload: Offload) -> bool:
    """Whether the offload is on. Raises OSError."""
    return _command(ifname, offload.value[0], 0) != 0


def set_offload(ifname: str, offload: Offload, on: bool) -> None:
    """Switch the offload, and make sure that it took. Raises OSError."""
    _command(ifname, offload.value[1], int(on))
    if get_offload(ifname, offload) != on:
        raise OSError(f"{ifname}: the driver keeps {offload.name} {'off' if on else 'on'}")
