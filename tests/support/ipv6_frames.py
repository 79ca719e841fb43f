# SPDX-License-Identifier: Apache-2.0
"""The same packet in IPv6: what the tables of the packet tests say in IPv4 holds for both.

A frame of IPv4 becomes one of IPv6 that means the same: type of service is traffic class, TTL
is hop limit, identification and flags are the flow label, options are a header of destination
options, fragments have a fragment header, and an ICMP error is ICMPv6's of that meaning. Sums
that are right stay so, computed anew; those that are wrong stay wrong by as much.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from scapy.utils import checksum

from tests.support.frames import l3_offset
from xdp_router.core.probe_sequence import probe_hash

IPV4, IPV6 = 0x0800, 0x86DD
HEADER = 40
LONGER = HEADER - 20
"""By how much IPv6's header is longer."""

HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, NO_NEXT, DESTINATION = 0, 43, 44, 51, 59, 60
ICMP, TCP, UDP, ICMPV6 = 1, 6, 17, 58

TOO_BIG = 2
TYPES = {0: 129, 3: 1, 4: 5, 5: 137, 8: 128, 11: 3, 12: 4, 13: 135, 40: 200}
"""Types of ICMP, and those of ICMPv6 that mean the same, or are as unknown."""

_PREFIX, _MIDDLE = 0x20010DB8, 0x5A11223344556677
_NOT_DF, _RESERVED, _MORE, _OFFSET = 0x10000, 0x20000, 0x2000, 0x1FFF
_HASH = 0x00FFFFFF


def ipv6_addr(number: int) -> int:
    """The IPv6 address that stands for an IPv4 one: /24 becomes /56. Others, and 0, stay."""
    if not number or number >> 32:
        return number
    return _PREFIX << 96 | number >> 8 << 72 | _MIDDLE << 8 | number & 255


def ipv4_addr(number: int) -> int:
    """The IPv4 address that it stands for; another one stays as it is."""
    back = (number >> 72 & 0xFFFFFF) << 8 | number & 255
    return back if back and number == ipv6_addr(back) else number


@dataclass(frozen=True, slots=True)
class Probes:
    """By what answers to probes are known: a keyed hash of the addresses is in them."""

    key: tuple[int, int]
    ports: tuple[int, int]

    def moved(self, seq: int, backend: tuple[int, int], ours: tuple[int, int]) -> int:
        """A probe's number as it has to be between the same ends in IPv6."""
        if not self.ports[0] <= ours[1] <= self.ports[1]:
            return seq
        hashes = [
            probe_hash(self.key, addr(backend[0]), backend[1], ours[1], addr(ours[0]))
            for addr in (ipv6_addr, ipv4_addr)
        ]
        return seq & ~_HASH | (seq + hashes[0] - hashes[1]) & _HASH


def sum_of(data: bytes) -> int:
    """The one's complement sum of big-endian words."""
    return ~checksum(data) & 0xFFFF


def pseudo(saddr: bytes, daddr: bytes, protocol: int, length: int) -> bytes:
    """The pseudo header of either family."""
    return saddr + daddr + struct.pack(">II", length, protocol)


def ipv6_frame(frame: bytes, probes: Probes) -> bytes:
    """The frame in IPv6. One that is not of IPv4 stays. Raises ValueError: it cannot be said."""
    at = l3_offset(frame)
    if int.from_bytes(frame[at - 2 : at], "big") != IPV4:
        return frame
    packet = frame[at:]
    total = int.from_bytes(packet[2:4], "big")
    if not 20 <= total <= len(packet):
        raise ValueError("lengths of IPv4 that IPv6 cannot have")
    try:
        made = ipv6_packet(packet[:total], total, probes)
    except (IndexError, struct.error) as short:
        raise ValueError("headers that are cut off") from short
    return frame[: at - 2] + IPV6.to_bytes(2, "big") + made + packet[total:]


def ipv6_packet(packet: bytes, total: int, probes: Probes) -> bytes:
    """A packet, or the first bytes of one of ``total``, in IPv6."""
    header = (packet[0] & 15) * 4
    if packet[0] >> 4 != 4 or not 20 <= header <= len(packet) or header > total:
        raise ValueError("a header of IPv4 that IPv6 cannot have")
    _, tos, _, ident, fragment, ttl, protocol, _, saddr, daddr = struct.unpack_from(
        ">BBHHHBBHII", packet
    )
    if protocol == HOP_BY_HOP:
        raise ValueError("protocol 0 is another thing in IPv6")
    source, target = (ipv6_addr(each).to_bytes(16, "big") for each in (saddr, daddr))
    protocol, body = _body(packet, header, protocol, (source, target), probes)
    chain, first = _extensions(protocol, packet[20:header], fragment, ident)
    label = ident | (0 if fragment & 0x4000 else _NOT_DF) | (_RESERVED if fragment >> 15 else 0)
    length = total - len(packet) + len(chain) + len(body)  # what an error embeds has grown
    head = struct.pack(">IHBB", 6 << 28 | tos << 20 | label, length, first, ttl)
    return head + source + target + chain + body


def _extensions(protocol: int, options: bytes, fragment: int, ident: int) -> tuple[bytes, int]:
    """Extension headers, and which one is the first."""
    chain, first = b"", protocol
    if fragment & (_MORE | _OFFSET):
        where = (fragment & _OFFSET) << 3 | bool(fragment & _MORE)
        chain, first = struct.pack(">BBHI", first, 0, where, ident), FRAGMENT
    if options:
        words = (len(options) + 2 + 7) // 8
        fill = words * 8 - 4
        chain = bytes([first, words - 1, 1, fill]) + bytes(fill) + chain
        first = DESTINATION
    return chain, first


def _body(
    packet: bytes, header: int, protocol: int, ends: tuple[bytes, bytes], probes: Probes
) -> tuple[int, bytes]:
    """What is behind the header, and its protocol's number."""
    body = packet[header:]
    if int.from_bytes(packet[6:8], "big") & _OFFSET:
        return (ICMPV6 if protocol == ICMP else protocol), body
    if protocol == ICMP:
        return ICMPV6, _message(body, ends, probes)
    at = {TCP: 16, UDP: 6}.get(protocol)
    if at is None or len(body) < 8:
        return protocol, body
    old = body
    if protocol == TCP:
        body = _with_numbers(packet, body, probes)
    if len(body) < at + 2:
        return protocol, body
    if protocol == UDP and body[at : at + 2] == b"\0\0":
        return protocol, body  # no sum, in either
    length = int.from_bytes(packet[2:4], "big") - header
    before = pseudo(packet[12:16], packet[16:20], protocol, length)
    after = pseudo(*ends, protocol, length)
    if len(body) >= length and not checksum(before + old[:length]):
        blank = body[:at] + b"\0\0" + body[at + 2 : length]
        check = checksum(after + blank)
        if old[at : at + 2] == b"\xff\xff" and not check:
            check = 0xFFFF  # the other zero stays the other one
        if protocol == UDP:
            check = check or 0xFFFF
    else:
        check = int.from_bytes(body[at : at + 2], "big")
        change = sum_of(before) + sum_of(old[:8]) + (0xFFFF ^ sum_of(after))
        change += 0xFFFF ^ sum_of(body[:8])
        change += sum_of(old[8:12]) + (0xFFFF ^ sum_of(body[8:12]))
        check = _folded(check + change)
    return protocol, body[:at] + check.to_bytes(2, "big") + body[at + 2 :]


def _folded(total: int) -> int:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def _with_numbers(packet: bytes, body: bytes, probes: Probes) -> bytes:
    """TCP with the numbers that probes and their answers have in IPv6."""
    saddr, daddr = struct.unpack_from(">II", packet, 12)
    sport, dport, seq = struct.unpack_from(">HHI", body)
    seq = probes.moved(seq, (daddr, dport), (saddr, sport))
    body = body[:4] + seq.to_bytes(4, "big") + body[8:]
    if len(body) >= 12:
        ack = int.from_bytes(body[8:12], "big")
        ack = probes.moved(ack, (saddr, sport), (daddr, dport))
        body = body[:8] + ack.to_bytes(4, "big") + body[12:]
    return body


def _message(message: bytes, ends: tuple[bytes, bytes], probes: Probes) -> bytes:
    """An ICMP message as one of ICMPv6, with its sum."""
    kind, code, embedded = message[0], message[1], message[8:]
    if kind not in TYPES:
        raise ValueError(f"ICMP type {kind}")
    number = TYPES[kind]
    if (kind, code) == (3, 4):
        number, code = TOO_BIG, 0
    if kind in (3, 11, 12) and len(embedded) >= 20:
        embedded = ipv6_packet(embedded, int.from_bytes(embedded[2:4], "big"), probes)
    return icmpv6(number, code, message[4:8] + embedded, *ends)


def icmpv6(kind: int, code: int, rest: bytes, saddr: bytes, daddr: bytes) -> bytes:
    """A message of ICMPv6 behind its first word, with its sum."""
    blank = bytes([kind, code, 0, 0]) + rest
    check = checksum(pseudo(saddr, daddr, ICMPV6, len(blank)) + blank)
    return blank[:2] + check.to_bytes(2, "big") + blank[4:]


# --- taking frames of IPv6 apart, for judging them ------------------------------------------

EXTENSIONS = (HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION)


def payload_of(packet: bytes) -> tuple[int, int]:
    """Protocol and offset of what is behind the extension headers of a packet."""
    kind, at = packet[6], HEADER
    while kind in EXTENSIONS and len(packet) >= at + 8:
        length = 8 if kind == FRAGMENT else 8 + packet[at + 1] * 8
        kind, at = packet[at], at + length
    return kind, at


def is_ipv6(frame: bytes) -> bool:
    """Whether the frame says that it is of IPv6."""
    at = l3_offset(frame)
    return frame[at - 2 : at] == IPV6.to_bytes(2, "big")


def with_extensions(frame: bytes, *headers: tuple[int, bytes]) -> bytes:
    """A frame of IPv6 with (type, bytes) put behind its header; first bytes are made to fit."""
    at = l3_offset(frame)
    packet = frame[at:]
    following, chain = packet[6], b""
    for kind, raw in reversed(headers):
        chain, following = bytes([following]) + raw[1:] + chain, kind
    length = int.from_bytes(packet[4:6], "big") + len(chain)
    head = packet[:4] + length.to_bytes(2, "big") + bytes([following]) + packet[7:HEADER]
    return frame[:at] + head + chain + packet[HEADER:]
