# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a frame of IPv6 that holds TCP or an ICMPv6 error, judged by scapy."""

from __future__ import annotations

from scapy.layers.inet import TCP as ScapyTCP
from scapy.layers.inet6 import IPv6, _ICMPv6
from scapy.packet import Packet
from scapy.utils import checksum

from tests.support.frames import l3_offset
from tests.support.ipv6_frames import (
    EXTENSIONS,
    FRAGMENT,
    HEADER,
    ICMPV6,
    TCP,
    payload_of,
    pseudo,
)

ECHO = (b"\x80", b"\x81")
"""Request and reply, which embed nothing."""


def _upper(packet: bytes) -> tuple[int, int, int]:
    """Protocol of what is behind all headers, where it begins, and where the packet ends."""
    protocol, at = payload_of(packet)
    return protocol, at, max(at, HEADER + int.from_bytes(packet[4:6], "big"))


def _sum(packet: bytes, protocol: int, at: int, end: int) -> int:
    return checksum(pseudo(packet[8:24], packet[24:40], protocol, end - at) + packet[at:end])


def is_fragment(packet: bytes) -> bool:
    """Whether it is a part of a packet, whose sums are over more than that."""
    kind, at = packet[6], HEADER
    while kind in EXTENSIONS and len(packet) >= at + 8:
        if kind == FRAGMENT:
            return bool(int.from_bytes(packet[at + 2 : at + 4], "big") & 0xFFF9)
        kind, at = packet[at], at + 8 + packet[at + 1] * 8
    return False


def checksum_errors(frame: bytes) -> set[str]:
    """Which sums of a frame are wrong: "tcp", or "icmp" and "quoted tcp". Lengths are believed."""
    packet = frame[l3_offset(frame) :]
    if is_fragment(packet):
        return set()
    protocol, at, end = _upper(packet)
    wrong = {"tcp" if protocol == TCP else "icmp"} if _sum(packet, protocol, at, end) else set()
    if protocol == TCP or packet[at : at + 1] in ECHO:
        return wrong
    inner = packet[at + 8 : end]
    quoted, place, total = _upper(inner)
    if quoted == TCP and place + 20 <= total <= len(inner) and _sum(inner, TCP, place, total):
        wrong.add("quoted tcp")
    return wrong


def length_errors(frame: bytes) -> list[str]:
    """What the lengths in a frame say that cannot be."""
    packet = frame[l3_offset(frame) :]
    if len(packet) < HEADER + 8 or packet[0] >> 4 != 6:
        return [f"{len(packet)} bytes behind Ethernet, version {packet[0] >> 4 if packet else 0}"]
    protocol, at, end = _upper(packet)
    if is_fragment(packet):
        return [] if at < end <= len(packet) else [f"packet of {end} bytes"]
    least = {TCP: 20, ICMPV6: 8 if packet[at : at + 1] in ECHO else 8 + HEADER + 8}.get(protocol)
    if least is None or not at + least <= end <= len(packet):
        return [f"protocol {protocol} at {at}, packet of {end} bytes, {len(packet)} there"]
    if protocol == TCP and not 20 <= (packet[at + 12] >> 4) * 4 <= end - at:
        return [f"TCP header of {packet[at + 12] >> 4} words"]
    return []


def rebuilt(frame: bytes) -> bytes:
    """The frame as scapy writes it after reading it, lengths and sums computed anew.

    What an error embeds stays as it is.
    """
    at = l3_offset(frame)
    end = at + HEADER + int.from_bytes(frame[at + 4 : at + 6], "big")
    if is_fragment(frame[at:end]):
        return frame
    packet = IPv6(frame[at:end])
    packet.delfieldval("plen")
    if ScapyTCP in packet and not packet.haslayer(_ICMPv6):
        for name in ("chksum", "dataofs"):
            packet[ScapyTCP].delfieldval(name)
    layer: Packet = packet
    while layer:
        if isinstance(layer, _ICMPv6):
            layer.delfieldval("cksum")
            break
        layer = layer.payload
    return frame[:at] + bytes(packet) + frame[end:]
