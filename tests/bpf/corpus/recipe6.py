# SPDX-License-Identifier: Apache-2.0
"""Frames of IPv6 with faults on purpose: those of :mod:`.recipe`, in IPv6's formats.

Options become extension headers of some kind, a header length becomes one that the first of
them claims, and a total length becomes the payload length.
"""

from __future__ import annotations

import dataclasses
import random
import struct
from dataclasses import dataclass

from scapy.utils import checksum

from tests.support.frames import l3_offset
from tests.support.ipv6_frames import (
    DESTINATION,
    EXTENSIONS,
    FRAGMENT,
    HEADER,
    HOP_BY_HOP,
    IPV6,
    ROUTING,
    TCP,
    ipv4_addr,
    ipv6_addr,
    pseudo,
)

from .recipe import BACKENDS, FAULTS, SERVICES, Parts, frame_at_home, taken_apart
from .states import State
from .world import CLIENT, PROBE_PORTS, ROUTER_MAC_B, ROUTER_MAC_C
from .world6 import PROBES

WALKED, WALKED_LENGTH = 6, 1024
"""Extension headers, and bytes up to TCP, that the program goes through."""


@dataclass(slots=True)
class Parts6(Parts):
    """A frame of TCP over IPv6, taken apart. Addresses are said in IPv4."""

    kinds: tuple[int, ...] = ()
    """What the extension headers are that hold ``ip_options``."""

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
        chain, first = self._chain(proto, fragment, ident)
        length = len(chain) + len(body) if self.total is None else (self.total - 20) & 0xFFFF
        ends = b"".join(ipv6_addr(addr).to_bytes(16, "big") for addr in (saddr, daddr))
        packet = struct.pack(">IHBB", version << 28 | tos << 20 | ident, length, first, ttl)
        packet += ends + chain + body + self.pad
        packet = packet[: len(packet) if self.cut is None else self.cut]
        return head + self._with_sum(packet, HEADER + len(chain), HEADER + length)

    def _chain(self, proto: int, fragment: int, ident: int) -> tuple[bytes, int]:
        """Extension headers, and the type of the first."""
        chain, following = b"", proto
        if fragment & 0x3FFF:
            where = (fragment & 0x1FFF) << 3 | bool(fragment & 0x2000)
            chain, following = struct.pack(">BBHI", following, 0, where, ident), FRAGMENT
        for number, kind in enumerate(self.kinds):
            fill = self.ip_options.ljust(6, b"\0")
            fill = fill.ljust(len(fill) + -(len(fill) + 2) % 8, b"\1")
            if kind == ROUTING:
                fill = fill[:1] + bytes([self.ip_words or 0]) + fill[2:]
            elif kind == FRAGMENT:
                fill = bytes(6)
            words = (len(fill) + 2) // 8 - 1
            if number == 0 and self.ip_words is not None:
                words = self.ip_words
            chain, following = bytes([following, words]) + fill + chain, kind
        return chain, following

    def _with_sum(self, packet: bytes, at: int, end: int) -> bytes:
        """TCP's sum for what the lengths in the packet claim; that of ``sums``, if given."""
        if not at + 20 <= end <= len(packet):
            return packet
        data = bytearray(packet)
        data[at + 16 : at + 18] = b"\0\0"
        covered = pseudo(packet[8:24], packet[24:40], TCP, end - at) + bytes(data[at:end])
        value = self.sums[1] if self.sums else checksum(covered)
        data[at + 16 : at + 18] = value.to_bytes(2, "big")
        return bytes(data)


def generated6(state: State, rng: random.Random) -> bytes:
    """A frame at home in a state, with up to four changes."""
    plain = taken_apart(frame_at_home(state))
    parts = Parts6(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)})
    parts.ethertype = IPV6
    parts.ip[0] = 6
    source, target = (parts.ip[6], parts.tcp[0]), (parts.ip[7], parts.tcp[1])
    parts.tcp[3] = PROBES.moved(parts.tcp[3], source, target)
    for fault in rng.sample(FAULTS, rng.choice((0, 1, 1, 2, 2, 3, 4))):
        fault(parts, rng)
    if parts.ip_options or rng.randrange(8) == 0:
        many = rng.choice((1, 1, 1, 2, 3, 5, 6, 7))
        kinds = (DESTINATION, DESTINATION, ROUTING, FRAGMENT, HOP_BY_HOP)
        parts.kinds = tuple(rng.choice(kinds) for _ in range(many))
    if parts.ip[0] == 6 and parts.ethertype == 0x86DD and rng.randrange(20) == 0:
        parts.ip[5] = rng.choice(EXTENSIONS)  # TCP's header read as an extension
    return parts.frame()


def is_ours6(frame: bytes, state: State) -> bool | None:
    """Whether a frame that meets a state is ours to handle; None: answers to probes, unsaid.

    Written from the description of the formats, not from the program.
    """
    ours = ROUTER_MAC_C if state.at == "client" else ROUTER_MAC_B
    at = l3_offset(frame)
    if frame[:6] != ours or frame[at - 2 : at] != b"\x86\xdd":
        return False
    packet = frame[at:]
    if len(packet) < HEADER or packet[0] >> 4 != 6:
        return False
    end = HEADER + int.from_bytes(packet[4:6], "big")
    walk = _walked(packet)
    if end > len(packet) or walk is None:
        return False
    tcp, first = walk
    if end < tcp + 20:
        return None if first and end >= tcp + 8 else False  # ports, and no more
    words = packet[tcp + 12] >> 4
    if words < 5 or (not first and end < tcp + words * 4):
        return False
    saddr, daddr = (ipv4_addr(int.from_bytes(packet[i : i + 16], "big")) for i in (8, 24))
    sport, dport = struct.unpack_from(">HH", packet, tcp)
    if (daddr, dport) in SERVICES and saddr:
        return True
    if (saddr, sport) not in BACKENDS:
        return False
    if (daddr, dport) == (CLIENT.number, CLIENT.port):
        return (saddr, sport) in {(end.number, end.port) for end in state.bound}
    return None if PROBE_PORTS[0] <= dport <= PROBE_PORTS[1] else False


def _walked(packet: bytes) -> tuple[int, bool] | None:
    """Where TCP begins, and whether it is a first fragment; None: not TCP, or not walked."""
    kind, at, first = packet[6], HEADER, False
    for _ in range(WALKED):
        if kind not in EXTENSIONS:
            break
        if len(packet) < at + 8 or at > WALKED_LENGTH:
            return None
        if kind == FRAGMENT:
            word = int.from_bytes(packet[at + 2 : at + 4], "big")
            if word & 0xFFF8:
                return None
            first = first or bool(word & 1)
        if kind == ROUTING and packet[at + 3]:
            return None
        length = 8 if kind == FRAGMENT else 8 + packet[at + 1] * 8
        kind, at = packet[at], at + length
    whole = kind == TCP and at <= WALKED_LENGTH and len(packet) >= at + (8 if first else 20)
    return (at, first) if whole else None
