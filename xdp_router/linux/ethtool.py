# SPDX-License-Identifier: Apache-2.0
"""Offloads of the interfaces in the calling thread's network namespace, by ioctl."""

from __future__ import annotations

import array
import enum
import fcntl
import socket
import struct
from dataclasses import dataclass

_SIOCETHTOOL = 0x8946
_IFREQ_SIZE = 40
_GET_STRINGS = 0x1B
_GET_SET_SIZE = 0x37
_GET_FEATURES = 0x3A
_GET_FLAGS = 0x25
_SET_FLAGS = 0x26
_TX_VLAN_FLAG = 1 << 7
_GET_CHANNELS = 0x3C
_FEATURE_NAMES = 4  # the string set
_NAME_BYTES = 32


class Offload(enum.Enum):
    """An offload, with the commands that read and write it."""

    TX_CHECKSUM = (0x16, 0x17)
    SEGMENTATION = (0x1E, 0x1F)
    GRO = (0x2B, 0x2C)


def _ioctl(ifname: str, data: bytearray) -> None:
    """One command; the kernel answers into ``data``, which begins with its number."""
    buffer = array.array("B", data)
    address, _ = buffer.buffer_info()
    request = struct.pack("16sQ", ifname.encode(), address).ljust(_IFREQ_SIZE, b"\0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            fcntl.ioctl(handle, _SIOCETHTOOL, request)
        except OSError as error:
            (command,) = struct.unpack_from("=I", data)
            raise OSError(
                error.errno, f"ethtool {command:#x} on {ifname}: {error.strerror}"
            ) from error
    data[:] = buffer.tobytes()


def _command(ifname: str, command: int, value: int) -> int:
    data = bytearray(struct.pack("=II", command, value))
    _ioctl(ifname, data)
    answer: int = struct.unpack("=II", data)[1]
    return answer


def active_features(ifname: str) -> frozenset[str]:
    """Kernel names of the features that are on, such as ``rx-lro``. Raises OSError."""
    size = bytearray(struct.pack("=IIQI", _GET_SET_SIZE, 0, 1 << _FEATURE_NAMES, 0))
    _ioctl(ifname, size)
    count = struct.unpack("=IIQI", size)[3]
    names = bytearray(struct.pack("=III", _GET_STRINGS, _FEATURE_NAMES, count))
    names += bytes(count * _NAME_BYTES)
    _ioctl(ifname, names)
    blocks = (count + 31) // 32
    state = bytearray(struct.pack("=II", _GET_FEATURES, blocks)) + bytes(blocks * 16)
    _ioctl(ifname, state)
    on = set()
    for bit in range(count):
        # A block: available, requested, active, never changed.
        (active,) = struct.unpack_from("=I", state, 8 + bit // 32 * 16 + 8)
        if active >> bit % 32 & 1:
            name = names[12 + bit * _NAME_BYTES :][:_NAME_BYTES]
            on.add(bytes(name).partition(b"\0")[0].decode())
    return frozenset(on)


@dataclass(frozen=True, slots=True)
class Channels:
    """Queues of an interface; a combined channel counts as one of each kind."""

    rx: int
    tx: int
    rx_max: int


def channels(ifname: str) -> Channels:
    """Queues in use, and how many receive queues there could be. Raises OSError."""
    data = bytearray(struct.pack("=9I", _GET_CHANNELS, *[0] * 8))
    _ioctl(ifname, data)
    values = struct.unpack("=9I", data)
    max_rx, max_combined, rx, tx, combined = (values[at] for at in (1, 4, 5, 6, 8))
    return Channels(rx + combined, tx + combined, max(max_rx, max_combined))


def get_offload(ifname: str, offload: Offload) -> bool:
    """Whether the offload is on. Raises OSError."""
    return _command(ifname, offload.value[0], 0) != 0


def set_offload(ifname: str, offload: Offload, on: bool) -> None:
    """Switch the offload, and make sure that it took. Raises OSError."""
    _command(ifname, offload.value[1], int(on))
    if get_offload(ifname, offload) != on:
        raise OSError(f"{ifname}: the driver keeps {offload.name} {'off' if on else 'on'}")


def set_tag_insertion(ifname: str, on: bool) -> None:
    """Let the device put 802.1Q tags into frames, or the kernel before the device sees them.

    Raises OSError, also if it did not take.
    """
    flags = _command(ifname, _GET_FLAGS, 0) & ~_TX_VLAN_FLAG
    _command(ifname, _SET_FLAGS, flags | _TX_VLAN_FLAG if on else flags)
    if bool(_command(ifname, _GET_FLAGS, 0) & _TX_VLAN_FLAG) != on:
        raise OSError(f"{ifname}: the driver keeps TX VLAN offload {'off' if on else 'on'}")
