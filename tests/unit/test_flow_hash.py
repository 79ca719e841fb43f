# SPDX-License-Identifier: Apache-2.0
"""The hash of a flow, as whoever writes the C half has it before them."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xdp_router.core.address import address_bytes, parse_addr
from xdp_router.core.flow_hash import flow_hash, fold_addr
from xdp_router.core.model import FlowKey

U16 = st.integers(0, 0xFFFF)
V4 = st.integers(1, 0xFFFFFFFF)
V6 = st.integers(1 << 32, (1 << 128) - 1)


def key(client: str, service: str) -> FlowKey:
    return FlowKey(parse_addr(client), 40000, parse_addr(service), 80)


@given(V6)
def test_fold_is_the_xor_of_four_products(addr: int) -> None:
    """Each 32-bit word of the address, the first on the wire first, has its own factor."""
    words = struct.unpack(">4I", ipaddress.IPv6Address(addr).packed)
    factors = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35, 0x27D4EB2F)
    products = [word * factor % 2**32 for word, factor in zip(words, factors, strict=True)]
    assert fold_addr(addr) == products[0] ^ products[1] ^ products[2] ^ products[3]


@given(V4)
def test_ipv4_is_not_folded(addr: int) -> None:
    """The hash of IPv4 flows is what it was: a table filled before gives the same backends."""
    assert fold_addr(addr) == addr


@given(st.one_of(st.tuples(V4, V4), st.tuples(V6, V6)), U16, U16)
def test_hash_has_32_bits_and_uses_the_folded_addresses(
    addrs: tuple[int, int], client_port: int, service_port: int
) -> None:
    """Two addresses of one fold hash alike; nothing else of an address counts."""
    client, service = addrs
    value = flow_hash(FlowKey(client, client_port, service, service_port))
    assert 0 <= value <= 0xFFFFFFFF
    folded = FlowKey(fold_addr(client), client_port, fold_addr(service), service_port)
    assert value == flow_hash(folded)


@given(V6, st.integers(0, 127))
def test_each_bit_of_an_address_counts(addr: int, bit: int) -> None:
    """Clients that differ in one bit, of the prefix or of the host part, hash differently."""
    other = addr ^ 1 << bit
    if other >> 32:
        assert fold_addr(addr) != fold_addr(other)


@pytest.mark.parametrize(
    ("five_tuple", "value"),
    [
        (key("2001:db8::5", "2001:db8:100::1"), 0x0ED962FC),
        (key("2001:db8:ffff:1:2:3:4:5", "2001:db8:100::1"), 0xB81ACFB8),
        (key("ff::1", "2001:db8:100::2"), 0xDC077808),
    ],
)
def test_reference_hashes_for_the_xdp_program(five_tuple: FlowKey, value: int) -> None:
    """Worked examples, for whoever writes the C side."""
    assert len(address_bytes(five_tuple.client_addr)) == 16
    assert flow_hash(five_tuple) == value


def test_clients_of_one_prefix_spread_over_the_slots() -> None:
    """65,536 hosts of a /112, one port each, fill the slots of a table evenly."""
    service = parse_addr("2001:db8:100::1")
    base = parse_addr("2001:db8:7::")
    slots = [0] * 64
    for host in range(65_536):
        slots[flow_hash(FlowKey(base + host, 40_000, service, 80)) % 64] += 1
    assert min(slots) > 0.8 * 1024
    assert max(slots) < 1.2 * 1024
