# SPDX-License-Identifier: Apache-2.0
"""Frames with faults on purpose: lengths, options, flags, fragments, tags, TTL, addresses.

A frame is taken apart, one to four of its fields get other values, and it is put together
again with sums that fit what its own lengths say: so a fault is found for itself, and not
because a checksum would give it away.
"""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from scapy.utils import checksum

from tests.support.frames import ETH_HEADER, l3_offset

from .states import State
from .world import (
    B1,
    B2,
    CLIENT,
    OTHER_MAC,
    PROBE_PORTS,
    PROBE_SOURCE,
    ROUTER_MAC_B,
    ROUTER_MAC_C,
    SERVERS,
    SHOP,
    WEB,
)

ENDS = (CLIENT, WEB, SHOP, B1.end, B2.end, PROBE_SOURCE)
SERVICES = {(end.number, end.port) for end in (WEB, SHOP)}
BACKENDS = {(server.end.number, server.end.port) for server in SERVERS}


@dataclass(slots=True)
class Parts:
    """A frame of TCP over IPv4, taken apart. None: what fits is put in."""

    dst: bytes
    src: bytes
    tags: list[tuple[int, int]]
    ethertype: int
    ip: list[int]
    """version, words, TOS, identification, fragment, TTL, protocol, source, destination."""
    ip_options: bytes
    tcp: list[int]
    """ports, sequence, acknowledgement, flags, window, urgent."""
    tcp_options: bytes
    payload: bytes
    pad: bytes = b""
    total: int | None = None
    ip_words: int | None = None
    tcp_words: int | None = None
    cut: int | None = None
    sums: tuple[int, int] | None = None

    def frame(self) -> bytes:
        """The frame that they make."""
        head = self.dst + self.src
        for kind, tci in self.tags:
            head += struct.pack(">HH", kind, tci)
        head += struct.pack(">H", self.ethertype)
        version, tos, ident, fragment, ttl, proto, saddr, daddr = self.ip
        sport, dport, seq, ack, flags, window, urgent = self.tcp
        words = 5 + len(self.tcp_options) // 4 if self.tcp_words is None else self.tcp_words
        tcp = struct.pack(
            ">HHIIBBHHH", sport, dport, seq, ack, words << 4, flags, window, 0, urgent
        )
        body = tcp + self.tcp_options + self.payload
        words = 5 + len(self.ip_options) // 4 if self.ip_words is None else self.ip_words
        total = 20 + len(self.ip_options) + len(body) if self.total is None else self.total
        packet = struct.pack(
            ">BBHHHBBHII", version << 4 | words, tos, total, ident, fragment, ttl, proto, 0,
            saddr, daddr,
        ) + self.ip_options + body + self.pad  # fmt: skip
        packet = packet[: len(packet) if self.cut is None else self.cut]
        return head + _with_sums(packet, self.sums)


def _with_sums(packet: bytes, sums: tuple[int, int] | None) -> bytes:
    """Checksums for what the lengths in the packet claim; ``sums`` instead, if given."""
    if len(packet) < 20:
        return packet
    header, total = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big")
    if not 20 <= header <= total <= len(packet):
        return packet
    data = bytearray(packet)
    data[10:12] = (sums[0] if sums else checksum(bytes(data[:header]))).to_bytes(2, "big")
    if total >= header + 20:
        at = header + 16
        data[at : at + 2] = b"\0\0"
        pseudo = data[12:20] + struct.pack(">HH", 6, total - header)
        tcp = checksum(bytes(pseudo + data[header:total]))
        data[at : at + 2] = (sums[1] if sums else tcp).to_bytes(2, "big")
    return bytes(data)


def taken_apart(frame: bytes) -> Parts:
    """The parts of a faultless frame."""
    at = l3_offset(frame)
    tags = [
        (int.from_bytes(frame[i - 2 : i], "big"), int.from_bytes(frame[i : i + 2], "big"))
        for i in range(ETH_HEADER, at, 4)
    ]
    first, tos, total, ident, fragment, ttl, proto, _, saddr, daddr = struct.unpack_from(
        ">BBHHHBBHII", frame, at
    )
    tcp = at + (first & 15) * 4
    sport, dport, seq, ack, words, flags, window, _, urgent = struct.unpack_from(
        ">HHIIBBHHH", frame, tcp
    )
    data = tcp + (words >> 4) * 4
    return Parts(
        dst=frame[:6],
        src=frame[6:12],
        tags=tags,
        ethertype=0x0800,
        ip=[first >> 4, tos, ident, fragment, ttl, proto, saddr, daddr],
        ip_options=frame[at + 20 : tcp],
        tcp=[sport, dport, seq, ack, flags, window, urgent],
        tcp_options=frame[tcp + 20 : data],
        payload=frame[data : at + total],
        pad=frame[at + total :],
    )


# --- faults, and things that are merely rare ------------------------------------------------


def _near(rng: random.Random, value: int, top: int) -> int:
    """A number close to another one, or at an end of its range."""
    near = value + rng.choice((-20, -5, -4, -2, -1, 1, 2, 4, 5, 20))
    return rng.choice((0, 1, top, rng.randint(0, top), near, near)) & top


def _lengths(parts: Parts, rng: random.Random) -> None:
    whole = 40 + len(parts.ip_options) + len(parts.tcp_options) + len(parts.payload)
    match rng.randrange(6):
        case 0:
            parts.total = _near(rng, whole, 0xFFFF)
        case 1:
            parts.ip_words = rng.randint(0, 15)
        case 2:
            parts.tcp_words = rng.randint(0, 15)
        case 3:
            parts.cut = rng.randint(0, whole)
        case 4:
            parts.pad += rng.randbytes(rng.randint(1, 50))
        case _:
            parts.payload = rng.randbytes(rng.choice((0, 1, 2, 3, 100, 1200)))


def _ip_options(parts: Parts, rng: random.Random) -> None:
    parts.ip_options = rng.choice((bytes([1, 1, 1, 0]), b"\x94\x04\0\0", rng.randbytes(8),
                                   b"\x07\x27\x04" + bytes(37), rng.randbytes(40)))  # fmt: skip


def _tcp_options(parts: Parts, rng: random.Random) -> None:
    scale = bytes([3, 3, rng.randrange(20)])
    parts.tcp_options = rng.choice(
        (b"", bytes([1]) * 40, scale + b"\0", bytes([1]) * 9 + scale, bytes([2, 40]) + bytes(2),
         bytes([5, 0, 3, 3]), bytes([8, 10]) + bytes(10), rng.randbytes(4 * rng.randint(1, 10)))
    )  # fmt: skip


def _flags(parts: Parts, rng: random.Random) -> None:
    parts.tcp[4] = rng.choice((0x02, 0x12, 0x10, 0x11, 0x01, 0x04, 0x14, 0, rng.randrange(256)))


def _numbers(parts: Parts, rng: random.Random) -> None:
    which = rng.choice((2, 3))
    parts.tcp[which] = _near(rng, parts.tcp[which], 0xFFFFFFFF)


def _fragment(parts: Parts, rng: random.Random) -> None:
    parts.ip[3] = rng.choice((0, 0x2000, 0x2001, 1, 185, 0x1FFF, 0x8000, 0x6000,
                              rng.randrange(1 << 16)))  # fmt: skip


def _tags(parts: Parts, rng: random.Random) -> None:
    kinds = (0x8100, 0x8100, 0x88A8, 0x9100)
    parts.tags = [(rng.choice(kinds), rng.randrange(1 << 16)) for _ in range(rng.randint(0, 3))]


def _ttl(parts: Parts, rng: random.Random) -> None:
    parts.ip[4] = rng.choice((0, 1, 1, 2, 3, 255, rng.randrange(256)))


def _addresses(parts: Parts, rng: random.Random) -> None:
    end, which = rng.choice(ENDS), rng.randrange(2)
    match rng.randrange(4):
        case 0:
            parts.ip[6 + which], parts.tcp[which] = end.number, end.port
        case 1:
            parts.ip[6 + which] = rng.choice((end.number, rng.randrange(1 << 32)))
        case 2:
            parts.tcp[which] = rng.choice((end.port, 0, 0xFFFF, rng.randrange(1 << 16),
                                           rng.randint(*PROBE_PORTS)))  # fmt: skip
        case _:
            parts.dst = rng.choice((OTHER_MAC, b"\xff" * 6, b"\x01\0\x5e\0\0\1", rng.randbytes(6)))


def _protocol(parts: Parts, rng: random.Random) -> None:
    match rng.randrange(3):
        case 0:
            parts.ip[5] = rng.choice((1, 17, 132, 0, 255, rng.randrange(256)))
        case 1:
            parts.ip[0] = rng.choice((0, 5, 6, 15))
        case _:
            parts.ethertype = rng.choice((0x0806, 0x86DD, 46, 0, rng.randrange(1 << 16)))


def _other_fields(parts: Parts, rng: random.Random) -> None:
    parts.ip[1], parts.ip[2] = rng.randrange(256), rng.randrange(1 << 16)
    parts.tcp[5], parts.tcp[6] = rng.randrange(1 << 16), rng.randrange(1 << 16)


def _sums(parts: Parts, rng: random.Random) -> None:
    parts.sums = rng.choice((0, 0xFFFF, rng.randrange(1 << 16))), rng.randrange(1 << 16)


FAULTS: tuple[Callable[[Parts, random.Random], None], ...] = (
    _lengths, _lengths, _ip_options, _tcp_options, _flags, _flags, _numbers, _numbers, _fragment,
    _tags, _ttl, _addresses, _addresses, _protocol, _other_fields, _other_fields, _sums,
)  # fmt: skip


@functools.cache
def frame_at_home(state: State) -> bytes:
    """The state's own frame; scapy takes a millisecond to make it."""
    return state.frame()


def generated(state: State, rng: random.Random) -> bytes:
    """A frame at home in a state, with up to four changes."""
    parts = taken_apart(frame_at_home(state))
    for fault in rng.sample(FAULTS, rng.choice((0, 1, 1, 2, 2, 3, 4))):
        fault(parts, rng)
    return parts.frame()


# --- whose it is ----------------------------------------------------------------------------


def is_ours(frame: bytes, state: State) -> bool | None:
    """Whether a frame that meets a state is ours to handle; None: answers to probes, unsaid.

    Written from the description of the formats, not from the program.
    """
    ours = ROUTER_MAC_C if state.at == "client" else ROUTER_MAC_B
    at = l3_offset(frame)
    if frame[:6] != ours or frame[at - 2 : at] != b"\x08\0" or len(frame) < at + 20:
        return False
    version, total = frame[at] >> 4, int.from_bytes(frame[at + 2 : at + 4], "big")
    tcp = at + (frame[at] & 15) * 4
    end, fragment = at + total, int.from_bytes(frame[at + 6 : at + 8], "big")
    if version != 4 or tcp < at + 20 or end < tcp or end > len(frame):
        return False
    if frame[at + 9] != 6 or fragment & 0x1FFF:
        return False
    if end < tcp + 20:
        return None if fragment & 0x2000 and end >= tcp + 8 else False  # ports, and no more
    words = frame[tcp + 12] >> 4
    if words < 5 or (not fragment & 0x2000 and end < tcp + words * 4):
        return False
    saddr, daddr, sport, dport = (
        *struct.unpack_from(">II", frame, at + 12),
        *struct.unpack_from(">HH", frame, tcp),
    )
    if (daddr, dport) in SERVICES:
        return True
    if (saddr, sport) not in BACKENDS:
        return False
    if (daddr, dport) == (CLIENT.number, CLIENT.port):
        return (saddr, sport) in {(end.number, end.port) for end in state.bound}
    return None if PROBE_PORTS[0] <= dport <= PROBE_PORTS[1] else False
