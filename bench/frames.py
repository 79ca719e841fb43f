# SPDX-License-Identifier: Apache-2.0
"""TCP over IPv4 frames for the generators, with right checksums."""

from __future__ import annotations

import struct

SYN, ACK = 0x02, 0x10
HEADERS = 54
FRAME_64 = 60
"""Bytes of a 64-byte Ethernet frame without its check sequence."""

_ETH = struct.Struct("!6s6sH")
_IP = struct.Struct("!BBHHHBBHII")
_TCP = struct.Struct("!HHIIBBHHH")


def sum16(data: bytes) -> int:
    """Sum of big-endian 16-bit words, not folded."""
    data += b"\0" * (len(data) & 1)
    return sum(struct.unpack(f"!{len(data) // 2}H", data))


def fold(total: int) -> int:
    """One's complement sum in 16 bits."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def tcp_frame(
    dmac: bytes,
    smac: bytes,
    source: tuple[int, int],
    destination: tuple[int, int],
    flags: int,
    *,
    seq: int = 0,
    ack: int = 0,
    ttl: int = 64,
    window: int = 512,
    length: int = FRAME_64,
) -> bytes:
    """A frame of ``length`` bytes; what follows the headers is zeros, all of it payload."""
    payload = bytes(max(0, length - HEADERS))
    ip = _IP.pack(0x45, 0, 40 + len(payload), 0, 0x4000, ttl, 6, 0, source[0], destination[0])
    ip = ip[:10] + (fold(sum16(ip)) ^ 0xFFFF).to_bytes(2, "big") + ip[12:]
    tcp = _TCP.pack(source[1], destination[1], seq, ack, 0x50, flags, window, 0, 0)
    total = fold(sum16(ip[12:]) + 6 + 20 + len(payload) + sum16(tcp) + sum16(payload))
    tcp = tcp[:16] + (total ^ 0xFFFF).to_bytes(2, "big") + tcp[18:]
    return _ETH.pack(dmac, smac, 0x0800) + ip + tcp + payload
