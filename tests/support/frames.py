# SPDX-License-Identifier: Apache-2.0
"""Frames built and judged by scapy: an implementation that shares nothing with the router.

A :class:`Segment` is the TCP part of a frame without addresses. The same segment gives the
frame that goes in and, with other addresses, the frame that has to come out.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw
from scapy.utils import checksum

FIN, SYN, RST, PSH, ACK, URG, ECE, CWR = (1 << bit for bit in range(8))

ETH_HEADER = 14
VLAN_TAG = 4
TAG_TYPES = (0x8100, 0x88A8)

Options = tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class End:
    """One side of a conversation: address as text, port."""

    addr: str
    port: int

    @property
    def number(self) -> int:
        """The address as a host-order integer."""
        a, b, c, d = (int(part) for part in self.addr.split("."))
        return a << 24 | b << 16 | c << 8 | d


@dataclass(frozen=True, slots=True)
class Hop:
    """One crossing of a wire: source and destination MAC."""

    src: bytes
    dst: bytes

    @property
    def back(self) -> Hop:
        """The same wire in the other direction."""
        return Hop(self.dst, self.src)


@dataclass(frozen=True, slots=True)
class Segment:
    """A TCP segment and the IP fields that rewriting leaves alone. ``pad`` is a trailer."""

    flags: int = ACK
    seq: int = 0
    ack: int = 0
    window: int = 512
    options: Options = ()
    payload: bytes = b""
    ttl: int = 64
    ident: int = 1
    tos: int = 0
    ip_options: bytes = b""
    tags: tuple[tuple[int, int], ...] = ()
    """VLAN tags, outer first: (ethertype of the tag, tag control information)."""
    pad: bytes = b""
    fragment: int = 0x4000
    """The 16 bits of flags and fragment offset."""
    urgent: int = 0
    words: int | None = None
    """TCP header length to claim, in words; the first of ``payload`` is then option bytes."""

    def but(self, **change: Any) -> Segment:
        """A copy with other values."""
        return dataclasses.replace(self, **change)

    def frame(self, src: End, dst: End, hop: Hop) -> bytes:
        """The whole frame from ``src`` to ``dst`` over ``hop``, checksums right."""
        ip = IP(
            src=src.addr,
            dst=dst.addr,
            ttl=self.ttl,
            id=self.ident,
            tos=self.tos,
            flags=self.fragment >> 13,
            frag=self.fragment & 0x1FFF,
            ihl=5 + len(self.ip_options) // 4,
            proto=6,
        )
        tcp = TCP(
            sport=src.port,
            dport=dst.port,
            seq=self.seq & 0xFFFFFFFF,
            ack=self.ack & 0xFFFFFFFF,
            flags=self.flags,
            window=self.window,
            options=list(self.options),
            urgptr=self.urgent,
            dataofs=self.words,
        )
        body = bytes(ip / tcp / Raw(self.payload)) if self.payload else bytes(ip / tcp)
        if self.ip_options:
            body = with_ip_options(body, self.ip_options)
        return ethernet(hop, body, self.tags) + self.pad


def ethernet(
    hop: Hop, body: bytes, tags: tuple[tuple[int, int], ...] = (), proto: int = 0x0800
) -> bytes:
    """An Ethernet frame with VLAN tags around ``body``."""
    types = [tag for tag, _ in tags] + [proto]
    head = hop.dst + hop.src + types[0].to_bytes(2, "big")
    for (_, tci), inner in zip(tags, types[1:], strict=True):
        head += struct.pack(">HH", tci, inner)
    return head + body


def with_ip_options(packet: bytes, options: bytes) -> bytes:
    """An IPv4 packet (already of the right ``ihl``) with raw option bytes put in."""
    head, rest = packet[:20], packet[20:]
    length = (len(packet) + len(options)).to_bytes(2, "big")
    head = head[:2] + length + head[4:10] + b"\0\0" + head[12:] + options
    return head[:10] + checksum(head).to_bytes(2, "big") + head[12:] + rest


def l3_offset(frame: bytes) -> int:
    """Where the header behind Ethernet and at most two VLAN tags begins."""
    at = ETH_HEADER
    for _ in range(2):
        if int.from_bytes(frame[at - 2 : at], "big") not in TAG_TYPES:
            break
        at += VLAN_TAG
    return at


def is_fragment(frame: bytes) -> bool:
    """Whether an IPv4 frame holds a part of a packet: then TCP's sum is over more than that."""
    at = l3_offset(frame) + 6
    return bool(int.from_bytes(frame[at : at + 2], "big") & 0x3FFF)


def checksum_errors(frame: bytes) -> set[str]:
    """Which checksums of an IPv4 TCP frame are wrong: "ip", "tcp". Lengths are believed."""
    packet = frame[l3_offset(frame) :]
    if is_fragment(frame):
        return {"ip"} if checksum(packet[: (packet[0] & 15) * 4]) else set()
    header = (packet[0] & 15) * 4
    total = int.from_bytes(packet[2:4], "big")
    segment = packet[header:total]
    pseudo = packet[12:20] + struct.pack(">HH", 6, len(segment))
    errors = set()
    if checksum(packet[:header]):
        errors.add("ip")
    if checksum(pseudo + segment):
        errors.add("tcp")
    return errors


def length_errors(frame: bytes) -> list[str]:
    """What the lengths in a frame of TCP over IPv4 say that cannot be."""
    packet = frame[l3_offset(frame) :]
    if len(packet) < 40 and not is_fragment(frame):
        return [f"{len(packet)} bytes behind Ethernet"]
    header, total = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big")
    errors = []
    if packet[0] >> 4 != 4 or header < 20:
        errors.append(f"version and header length {packet[0]:#x}")
    if is_fragment(frame):
        return errors + ([] if header < total <= len(packet) else [f"total length {total}"])
    if not header + 20 <= total <= len(packet):
        errors.append(f"total length {total} of {len(packet)}")
    elif not 20 <= (packet[header + 12] >> 4) * 4 <= total - header:
        errors.append(f"TCP header of {packet[header + 12] >> 4} words")
    return errors


def parse(frame: bytes) -> Packet:
    """The frame as scapy reads it."""
    return Ether(frame)


def rebuilt(frame: bytes) -> bytes:
    """The frame as scapy writes it after reading it, lengths and checksums computed anew."""
    packet = parse(frame)
    fields: tuple[tuple[type[Packet], tuple[str, ...]], ...]
    fields = ((IP, ("len", "chksum")), (TCP, ("chksum", "dataofs")))
    for layer, names in fields[:1] if is_fragment(frame) else fields:
        if layer in packet:
            for name in names:
                packet[layer].delfieldval(name)
    return bytes(packet)


def summary(frame: bytes) -> str:
    """One line: MACs, tags and what scapy makes of the rest."""
    packet = parse(frame)
    tags = [layer.vlan for layer in _layers(packet) if isinstance(layer, Dot1Q)]
    ip = f" ttl {packet[IP].ttl} len {packet[IP].len}" if IP in packet else ""
    tcp = f" seq {packet[TCP].seq} ack {packet[TCP].ack}" if TCP in packet else ""
    return f"{packet.src} > {packet.dst} vlan {tags} {packet.summary()}{ip}{tcp}"


def _layers(packet: Packet) -> Iterator[Packet]:
    while packet:
        yield packet
        packet = packet.payload


def difference(got: bytes, wanted: bytes) -> str:
    """Two frames side by side for people: summaries, and the rows of bytes that differ."""
    lines = [
        f"got    {len(got):4} bytes: {summary(got)}",
        f"wanted {len(wanted):4} bytes: {summary(wanted)}",
    ]
    for at in range(0, max(len(got), len(wanted)), 16):
        here, there = got[at : at + 16], wanted[at : at + 16]
        if here != there:
            marks = "".join(
                "   " if here[i : i + 1] == there[i : i + 1] else " ^^" for i in range(16)
            )
            lines += [f"  {at:04x} got    {here.hex(' ')}", f"       wanted {there.hex(' ')}"]
            lines += [f"             {marks}"]
    return "\n".join(lines)
