# SPDX-License-Identifier: Apache-2.0
"""The Internet checksum against the example of RFC 1071 and against scapy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scapy.utils import checksum as scapy_checksum

from xdp_router.core.checksum import checksum, ones_sum, pseudo_sum


def test_the_example_of_the_rfc() -> None:
    """RFC 1071, 3: the words 0001 f203 f4f5 f6f7 sum up to ddf2."""
    assert checksum(ones_sum(bytes.fromhex("0001f203f4f5f6f7"))) == 0xDDF2 ^ 0xFFFF


@given(st.binary(max_size=100))
def test_agrees_with_scapy(data: bytes) -> None:
    """For any bytes, an odd number of them included."""
    assert checksum(ones_sum(data)) == scapy_checksum(data)


@given(st.binary(max_size=100))
def test_what_carries_its_checksum_has_none(data: bytes) -> None:
    """Whoever receives a message sums up all of it and gets 0."""
    data += bytes(len(data) % 2)
    right = checksum(ones_sum(data)).to_bytes(2, "big")
    assert checksum(ones_sum(data + right)) == 0


def test_pseudo_headers_are_those_of_the_rfcs() -> None:
    """RFC 768: addresses, protocol, length; RFC 8200, 8.1: the same, wider."""
    assert pseudo_sum(0xC6120101, 0xC6120102, 17, 28) == 2 * 0xC612 + 0x101 + 0x102 + 17 + 28
    near, far = 0x20010DB8 << 96 | 1, 0x20010DB8 << 96 | 2
    assert pseudo_sum(near, far, 58, 16) == 2 * (0x2001 + 0xDB8) + 1 + 2 + 58 + 16
