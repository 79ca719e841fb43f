# SPDX-License-Identifier: Apache-2.0
"""ICMP errors about TCP packets, built by scapy, and what can be wrong with a frame of either."""

from __future__ import annotations

import struct
from typing import Any

from scapy.layers.inet import ICMP, IP
from scapy.packet import Raw
from scapy.utils import checksum

from tests.support import frames, ipv6_judge
from tests.support.frames import End, Hop, ethernet, l3_offset, with_ip_options
from tests.support.ipv6_frames import (
    HEADER,
    ICMPV6,
    IPV6,
    LONGER,
    TOO_BIG,
    TYPES,
    Probes,
    icmpv6,
    ipv6_addr,
    ipv6_frame,
    is_ipv6,
    payload_of,
)

UNREACHABLE, TIME_EXCEEDED, PARAMETER_PROBLEM = 3, 11, 12
FRAG_NEEDED = 4
PORT, PORT6 = 3, 4
"""Codes of "port unreachable" in either family."""
ERROR_MAX, ERROR_MAX6 = 576, 1280
"""A router's error is no longer than this (RFC 1812, 4.3.2.3; RFC 4443, 2.4)."""


def icmp_error(
    kind: int,
    code: int,
    quoted: bytes,
    source: str,
    target: str,
    hop: Hop,
    *,
    rest: int = 0,
    options: bytes = b"",
    tags: tuple[tuple[int, int], ...] = (),
    pad: bytes = b"",
    **ip: Any,
) -> bytes:
    """A frame with an ICMP error. ``rest``: the second word; ``ip``: other fields of the header."""
    ip = {"ttl": 64, "id": 1, "ihl": 5 + len(options) // 4, "proto": 1} | ip
    message = bytes([kind, code, 0, 0]) + rest.to_bytes(4, "big") + quoted
    message = message[:2] + checksum(message).to_bytes(2, "big") + message[4:]
    body = bytes(IP(src=source, dst=target, **ip) / Raw(message))
    if options:
        body = with_ip_options(body, options)
    return ethernet(hop, body, tags) + pad


def quote(frame: bytes, length: int | None = None) -> bytes:
    """The packet in a frame, or the first bytes of it, as an error embeds it."""
    at = l3_offset(frame)
    total = int.from_bytes(frame[at + 2 : at + 4], "big")
    return frame[at : at + total][:length]


class OwnError(bytes):
    """The error by which we answer a frame. IPv6's embeds more than its translation would."""

    said: tuple[int, int, bytes, int, int]

    def in_ipv6(self, probes: Probes) -> bytes:
        """The error that answers the same frame of IPv6."""
        kind, code, frame, source, mtu = self.said
        if (kind, code) == (UNREACHABLE, FRAG_NEEDED):
            return own_error6(TOO_BIG, 0, ipv6_frame(frame, probes), source, mtu + LONGER)
        if (kind, code) == (UNREACHABLE, PORT):
            code = PORT6
        return own_error6(TYPES[kind], code, ipv6_frame(frame, probes), source)


def _way_back(frame: bytes) -> tuple[Hop, tuple[tuple[int, int], ...]]:
    """The way by which a frame is answered, and its tags."""
    tags = tuple(
        (int.from_bytes(frame[i - 2 : i], "big"), int.from_bytes(frame[i : i + 2], "big"))
        for i in range(14, l3_offset(frame), 4)
    )
    return Hop(frame[:6], frame[6:12]), tags


def own_error(kind: int, code: int, frame: bytes, source: End, mtu: int = 0) -> OwnError:
    """The error by which we answer a frame: back to its sender, from ``source``."""
    packet = quote(frame)
    kept = min(len(packet) // 4 * 4, ERROR_MAX - 28)
    target = ".".join(map(str, packet[12:16]))
    hop, tags = _way_back(frame)
    made = OwnError(icmp_error(kind, code, packet[:kept], source.addr, target, hop, rest=mtu,
                               tags=tags, id=0, tos=0xC0, flags="DF"))  # fmt: skip
    made.said = (kind, code, frame, source.number, mtu)
    return made


def own_error6(kind: int, code: int, frame: bytes, source: int, mtu: int = 0) -> bytes:
    """The same with ICMPv6: as much is embedded as the smallest MTU holds (RFC 4443, 2.4)."""
    packet = frame[l3_offset(frame) :]
    packet = packet[: HEADER + int.from_bytes(packet[4:6], "big")]
    saddr, target = ipv6_addr(source).to_bytes(16, "big"), packet[8:24]
    rest = mtu.to_bytes(4, "big") + packet[: ERROR_MAX6 - HEADER - 8]
    message = icmpv6(kind, code, rest, saddr, target)
    head = struct.pack(">IHBB", 6 << 28 | 0xC0 << 20, len(message), ICMPV6, 64)
    hop, tags = _way_back(frame)
    return ethernet(hop, head + saddr + target + message, tags, IPV6)


def message_errors(packet: bytes) -> set[str]:
    """Which sums of an IPv4 packet with an ICMP error are wrong: "icmp", "quoted ip", ..."""
    header = (packet[0] & 15) * 4
    message = packet[header : int.from_bytes(packet[2:4], "big")]
    errors = {"icmp"} if checksum(message) else set()
    if message[0] in (0, 8):  # echo embeds nothing
        return errors
    inner = message[8:]
    inner_header = (inner[0] & 15) * 4
    if checksum(inner[:inner_header]):
        errors.add("quoted ip")
    total = int.from_bytes(inner[2:4], "big")
    if inner[9] == 6 and len(inner) >= total >= inner_header + 20:
        segment = inner[inner_header:total]
        pseudo = inner[12:20] + bytes([0, 6]) + len(segment).to_bytes(2, "big")
        if checksum(pseudo + segment):
            errors.add("quoted tcp")
    return errors


def message_length_errors(packet: bytes) -> list[str]:
    """What the lengths of an IPv4 packet with an ICMP error say that cannot be."""
    header, total = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big")
    quoted = 0 if packet[header] in (0, 8) else 28
    if header < 20 or not header + 8 + quoted <= total <= len(packet):
        return [f"ICMP error of {total} bytes, {len(packet)} there"]
    return []


def is_icmp(frame: bytes) -> bool:
    """Whether a frame holds ICMP."""
    if is_ipv6(frame):
        return payload_of(frame[l3_offset(frame) :])[0] == ICMPV6
    return frame[l3_offset(frame) + 9] == 1


def checksum_errors(frame: bytes) -> set[str]:
    """Which sums of an IPv4 frame of TCP, or of an ICMP error, are wrong."""
    if is_ipv6(frame):
        return ipv6_judge.checksum_errors(frame)
    if not is_icmp(frame):
        return frames.checksum_errors(frame)
    packet = frame[l3_offset(frame) :]
    outer = {"ip"} if checksum(packet[: (packet[0] & 15) * 4]) else set()
    return outer | message_errors(packet)


def length_errors(frame: bytes) -> list[str]:
    """What the lengths in a frame of TCP, or of an ICMP error, say that cannot be."""
    if is_ipv6(frame):
        return ipv6_judge.length_errors(frame)
    if not is_icmp(frame):
        return frames.length_errors(frame)
    return message_length_errors(frame[l3_offset(frame) :])


def rebuilt(frame: bytes) -> bytes:
    """The frame as scapy writes it after reading it; what an error embeds stays as it is."""
    if is_ipv6(frame):
        return ipv6_judge.rebuilt(frame)
    if not is_icmp(frame):
        return frames.rebuilt(frame)
    at = l3_offset(frame)
    total = int.from_bytes(frame[at + 2 : at + 4], "big")
    packet = IP(frame[at : at + total])
    for layer, names in ((IP, ("len", "chksum")), (ICMP, ("chksum",))):
        for name in names:
            packet[layer].delfieldval(name)
    return frame[:at] + bytes(packet) + frame[at + total :]
