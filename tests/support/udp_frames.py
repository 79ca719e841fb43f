# SPDX-License-Identifier: Apache-2.0
"""Datagrams built by scapy, and what can be wrong with the frame of one, of either family."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.packet import Raw
from scapy.utils import checksum

from tests.support import frames, ipv6_judge
from tests.support.frames import End, Hop, ethernet, l3_offset, with_ip_options
from tests.support.ipv6_frames import HEADER, is_ipv6, payload_of, pseudo

PROTOCOL = 17


@dataclass(frozen=True, slots=True)
class Datagram:
    """A UDP datagram and the IP fields that rewriting leaves alone. ``pad`` is a trailer."""

    payload: bytes = b""
    ttl: int = 64
    ident: int = 1
    tos: int = 0
    ip_options: bytes = b""
    tags: tuple[tuple[int, int], ...] = ()
    pad: bytes = b""
    dont_fragment: bool = True
    check: int | None = None
    """The checksum to claim; None: the right one."""
    length: int | None = None
    """The length to claim in UDP's header."""

    def but(self, **change: Any) -> Datagram:
        """A copy with other values."""
        return dataclasses.replace(self, **change)

    def frame(self, src: End, dst: End, hop: Hop) -> bytes:
        """The whole frame from ``src`` to ``dst`` over ``hop``."""
        ip = IP(
            src=src.addr,
            dst=dst.addr,
            ttl=self.ttl,
            id=self.ident,
            tos=self.tos,
            flags="DF" if self.dont_fragment else 0,
            ihl=5 + len(self.ip_options) // 4,
            proto=PROTOCOL,
        )
        udp = UDP(sport=src.port, dport=dst.port, chksum=self.check, len=self.length)
        body = bytes(ip / udp / Raw(self.payload)) if self.payload else bytes(ip / udp)
        if self.ip_options:
            body = with_ip_options(body, self.ip_options)
        return ethernet(hop, body, self.tags) + self.pad


def is_datagram(frame: bytes) -> bool:
    """Whether a frame holds UDP."""
    return _upper(frame)[0] == PROTOCOL


def is_part(frame: bytes) -> bool:
    """Whether a frame holds a fragment."""
    if is_ipv6(frame):
        return ipv6_judge.is_fragment(frame[l3_offset(frame) :])
    return frames.is_fragment(frame)


def is_whole_datagram(frame: bytes) -> bool:
    """Whether a frame holds all of a UDP datagram."""
    return is_datagram(frame) and not is_part(frame)


def _upper(frame: bytes) -> tuple[int, bytes, bytes]:
    """Protocol of what is behind IP's headers, its bytes, and its pseudo header."""
    packet = frame[l3_offset(frame) :]
    if is_ipv6(frame):
        protocol, at = payload_of(packet)
        # A damaged length may be less than the headers that are there.
        end = max(at, HEADER + int.from_bytes(packet[4:6], "big"))
        return protocol, packet[at:end], pseudo(packet[8:24], packet[24:40], protocol, end - at)
    at = (packet[0] & 15) * 4
    end = max(at, int.from_bytes(packet[2:4], "big"))
    protocol = packet[9]
    return protocol, packet[at:end], pseudo(packet[12:16], packet[16:20], protocol, end - at)


def datagram_errors(frame: bytes) -> list[str]:
    """What of a datagram's sums and lengths is wrong; a checksum of 0 is none."""
    _, body, before = _upper(frame)
    errors = []
    if int.from_bytes(body[4:6], "big") != len(body):
        errors.append(f"UDP length {body[4:6].hex()} of {len(body)} bytes")
    if body[6:8] != b"\0\0" and checksum(before + body):
        errors.append("wrong UDP checksum")
    packet = frame[l3_offset(frame) :]
    if not is_ipv6(frame) and checksum(packet[: (packet[0] & 15) * 4]):
        errors.append("wrong IP checksum")
    return errors
