# SPDX-License-Identifier: Apache-2.0
"""IP headers of probes, byte by byte."""

from __future__ import annotations

from xdp_router.adapters.ip_header import ethertype, ip_header
from xdp_router.core.address import parse_addr
from xdp_router.core.checksum import checksum, ones_sum


def test_ipv4() -> None:
    """Twenty bytes that sum up right, DF set."""
    source, destination = parse_addr("198.18.1.1"), parse_addr("198.18.1.2")
    head = ip_header(source, destination, 6, 24)
    assert head[:10] == bytes.fromhex("4500002c000040004006")
    assert head[12:] == bytes.fromhex("c6120101c6120102")
    assert checksum(ones_sum(head)) == 0
    assert ethertype(destination) == 0x0800


def test_ipv6() -> None:
    """Forty bytes, whose length is that of what follows."""
    source, destination = parse_addr("2001:db8::1"), parse_addr("2001:db8::2")
    head = ip_header(source, destination, 58, 16)
    assert head[:8] == bytes.fromhex("6000000000103a40")
    assert head[8:] == source.to_bytes(16, "big") + destination.to_bytes(16, "big")
    assert ethertype(destination) == 0x86DD
