# SPDX-License-Identifier: Apache-2.0
"""Frames that answer probes of other kinds than SYN, and errors about them, in every byte."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6EchoReply, IPv6
from scapy.packet import Packet, Raw

from tests.support.frames import Hop, ethernet

STUN_SUCCESS, STUN_ERROR = 0x0101, 0x0111
COOKIE = bytes.fromhex("2112a442")


@dataclass(frozen=True)
class Way:
    """From a server to us: addresses as text, of one family."""

    server: str
    us: str
    hop: Hop
    tags: tuple[tuple[int, int], ...] = ()

    @property
    def is_v6(self) -> bool:
        """Whether the addresses are IPv6."""
        return ip_address(self.us).version == 6

    def frame(self, payload: Packet, source: str = "") -> bytes:
        """A frame with something in an IP packet."""
        source = source or self.server
        head: Packet
        if self.is_v6:
            head = IPv6(src=source, dst=self.us, hlim=61)
        else:
            head = IP(src=source, dst=self.us, ttl=61, id=7)
        return ethernet(
            self.hop, bytes(head / payload), self.tags, 0x86DD if self.is_v6 else 0x0800
        )


def echo_reply(
    way: Way, port: int, number: int, *, sequence: int | None = None, data: bytes = bytes(4)
) -> bytes:
    """The answer to an echo request of a probe."""
    high = number >> 16 if sequence is None else sequence
    body = number.to_bytes(4, "big") + data
    if way.is_v6:
        return way.frame(ICMPv6EchoReply(id=port, seq=high, data=body))
    return way.frame(ICMP(type=0, id=port, seq=high) / Raw(body))


def stun_answer(number: int, kind: int = STUN_SUCCESS, body: bytes = b"") -> bytes:
    """A STUN server's answer, without the datagram."""
    head = kind.to_bytes(2, "big") + len(body).to_bytes(2, "big") + COOKIE
    return head + number.to_bytes(4, "big") + bytes(8) + body


def datagram(way: Way, sport: int, dport: int, payload: bytes) -> bytes:
    """A datagram of a server."""
    return way.frame(UDP(sport=sport, dport=dport) / Raw(payload))


def unreachable(way: Way, probe: bytes, code: int | None = None, source: str = "") -> bytes:
    """The error about a probe's frame, of a router on the way or of the server itself.

    ``code`` None: port unreachable.
    """
    quoted = Raw(probe[14:])
    if way.is_v6:
        return way.frame(ICMPv6DestUnreach(code=4 if code is None else code) / quoted, source)
    return way.frame(ICMP(type=3, code=3 if code is None else code) / quoted, source)
