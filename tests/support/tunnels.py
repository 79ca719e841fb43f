# SPDX-License-Identifier: Apache-2.0
"""Frames inside another IP header, as scapy builds them."""

from __future__ import annotations

from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

from tests.support.frames import l3_offset

_IPV4, _IPV6 = 0x0800, 0x86DD
_IN_IP = {_IPV4: 4, _IPV6: 41}
"""Protocol number of what is inside, by its EtherType."""
_HEADER = {_IPV4: 20, _IPV6: 40}


def tunneled(frame: bytes, source: str, target: str, label: int = 0) -> bytes:
    """The frame with an outer header of the family of ``target`` in front of its packet.

    ``label``: the flow label of an outer IPv6 header.
    """
    at = l3_offset(frame)
    packet = frame[at:]
    inside = int.from_bytes(frame[at - 2 : at], "big")
    if inside == _IPV4:
        tos, length = packet[1], int.from_bytes(packet[2:4], "big")
    else:
        tos = int.from_bytes(packet[:2], "big") >> 4 & 0xFF
        length = 40 + int.from_bytes(packet[4:6], "big")
    body, pad = packet[:length], packet[length:]
    if ":" in target:
        outer = bytes(
            IPv6(src=source, dst=target, tc=tos, fl=label, hlim=64, nh=_IN_IP[inside]) / Raw(body)
        )
        proto = _IPV6
    else:
        outer = bytes(
            IP(src=source, dst=target, tos=tos, id=0, flags="DF", ttl=64, proto=_IN_IP[inside])
            / Raw(body)
        )
        proto = _IPV4
    return frame[: at - 2] + proto.to_bytes(2, "big") + outer + pad


def inner_frame(frame: bytes) -> bytes:
    """What a tunnel brings, as a frame of its own; any other frame as it is."""
    at = l3_offset(frame)
    outer = int.from_bytes(frame[at - 2 : at], "big")
    protocol = frame[at + (9 if outer == _IPV4 else 6) :][:1]
    for kind, number in _IN_IP.items():
        if outer in _HEADER and protocol == bytes([number]):
            head = frame[: at - 2] + kind.to_bytes(2, "big")
            return head + frame[at + _HEADER[outer] :]
    return frame
