# SPDX-License-Identifier: Apache-2.0
"""The Internet checksum (RFC 1071), and the pseudo headers of IPv4 and IPv6."""

from __future__ import annotations

import struct

from .address import address_bytes


def ones_sum(data: bytes) -> int:
    """Sum of big-endian 16-bit words, not folded; an odd last byte counts as if 0 followed."""
    if len(data) % 2:
        data += b"\0"
    return sum(struct.unpack(f"!{len(data) // 2}H", data))


def checksum(total: int) -> int:
    """The checksum of what sums up to ``total``; 0 if that contains a right one."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def pseudo_sum(source: int, destination: int, protocol: int, length: int) -> int:
    """What the pseudo header adds to the sum of a message of ``length`` bytes, not folded."""
    return ones_sum(address_bytes(source) + address_bytes(destination)) + protocol + length
