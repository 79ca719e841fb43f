# SPDX-License-Identifier: Apache-2.0
"""TCP and UDP frames for the generators, with right checksums."""

from __future__ import annotations

import struct

SYN, ACK = 0x02, 0x10
ETHERNET = 14
HEADERS = 54
FRAME_64 = 60
"""Bytes of a 64-byte Ethernet frame without its check sequence."""
FRAME_LEAST6 = 74
"""The programs look at so many bytes of IPv6: as many as TCP's headers have."""
PROTO_TCP, PROTO_UDP = 6, 17

_ETH = struct.Struct("!6s6sH")
_IP = struct.Struct("!BBHHHBBHII")
_TCP = struct.Struct("!HHIIBBHHH")
_UDP = struct.Struct("!HHHH")
_CHECK_AT = {PROTO_TCP: 16, PROTO_UDP: 6}

Address = tuple[int, int]


def sum16(data: bytes) -> int:
    """Sum of big-endian 16-bit words, not folded."""
    data += b"\0" * (len(data) & 1)
    return sum(struct.unpack(f"!{len(data) // 2}H", data))


def fold(total: int) -> int:
    """One's complement sum in 16 bits."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def family_of(frame: bytes) -> int:
    """4 or 6, of an untagged IP frame."""
    return 6 if frame[12:14] == b"\x86\xdd" else 4


def tcp_frame(
    dmac: bytes,
    smac: bytes,
    source: Address,
    destination: Address,
    flags: int,
    *,
    seq: int = 0,
    ack: int = 0,
    ttl: int = 64,
    window: int = 512,
    length: int = FRAME_64,
) -> bytes:
    """A frame of ``length`` bytes; what follows the headers is zeros, all of it payload.

    With IPv6 addresses it has at least its headers, 74 bytes.
    """
    tcp = _TCP.pack(source[1], destination[1], seq, ack, 0x50, flags, window, 0, 0)
    return _frame(dmac, smac, source, destination, PROTO_TCP, tcp, ttl, length)


def udp_frame(
    dmac: bytes,
    smac: bytes,
    source: Address,
    destination: Address,
    *,
    ttl: int = 64,
    length: int = FRAME_64,
) -> bytes:
    """A datagram of zeros; its frame has at least as many bytes as TCP's headers take."""
    six = bool(source[0] >> 32)
    length = max(length, FRAME_LEAST6 if six else HEADERS)
    size = length - ETHERNET - (40 if six else 20)
    udp = _UDP.pack(source[1], destination[1], size, 0)
    return _frame(dmac, smac, source, destination, PROTO_UDP, udp, ttl, length)


def _frame(
    dmac: bytes,
    smac: bytes,
    source: Address,
    destination: Address,
    proto: int,
    head: bytes,
    ttl: int,
    length: int,
) -> bytes:
    """``head``: of the protocol, its checksum 0."""
    six = bool(source[0] >> 32)
    width, before = (16, ETHERNET + 40) if six else (4, ETHERNET + 20)
    payload = bytes(max(0, length - before - len(head)))
    ends = source[0].to_bytes(width, "big") + destination[0].to_bytes(width, "big")
    size = len(head) + len(payload)
    total = fold(sum16(ends) + proto + size + sum16(head))
    at = _CHECK_AT[proto]
    head = head[:at] + ((total ^ 0xFFFF) or 0xFFFF).to_bytes(2, "big") + head[at + 2 :]
    if six:
        ip = struct.pack("!IHBB", 6 << 28, size, proto, ttl) + ends
    else:
        ip = _IP.pack(0x45, 0, 20 + size, 0, 0x4000, ttl, proto, 0, source[0], destination[0])
        ip = ip[:10] + (fold(sum16(ip)) ^ 0xFFFF).to_bytes(2, "big") + ip[12:]
    return _ETH.pack(dmac, smac, 0x86DD if six else 0x0800) + ip + head + payload
