# SPDX-License-Identifier: Apache-2.0
"""Text forms of addresses, endpoints, prefixes and MAC addresses."""

from __future__ import annotations

import ipaddress
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from xdp_router.core.address import (
    Prefix,
    address_bytes,
    family_name,
    family_of,
    format_addr,
    format_client,
    format_endpoint,
    format_host,
    format_mac,
    icmp_protocol,
    in_subnet,
    is_ipv6,
    parse_addr,
    parse_client,
    parse_endpoint,
    parse_mac,
    parse_prefix,
    protocol_name,
    unusable,
)
from xdp_router.core.model import Endpoint

DB8 = 0x20010DB8 << 96
V4 = st.integers(0, 0xFFFFFFFF)
V6 = st.integers(1 << 32, (1 << 128) - 1).filter(lambda addr: addr >> 32 != 0xFFFF)
ADDR = st.one_of(V4, V6)
PORT = st.integers(1, 65535)


def test_addresses_have_text_forms() -> None:
    """Text and value of addresses, endpoints and MAC addresses convert both ways."""
    assert parse_addr("198.18.1.2") == 0xC6120102
    assert format_addr(0xC6120102) == "198.18.1.2"
    assert parse_endpoint("198.18.1.2:80") == Endpoint(0xC6120102, 80)
    assert format_endpoint(Endpoint(0xC6120102, 80)) == "198.18.1.2:80"
    assert parse_addr("2001:db8::1") == DB8 | 1
    assert format_addr(DB8 | 1) == "2001:db8::1"
    assert parse_endpoint("[2001:db8::1]:443") == Endpoint(DB8 | 1, 443)
    assert format_endpoint(Endpoint(DB8 | 1, 443)) == "[2001:db8::1]:443"
    assert (format_host(DB8 | 1), format_host(0xC6120102)) == ("[2001:db8::1]", "198.18.1.2")
    assert parse_mac("02:11:22:33:44:55") == b"\x02\x11\x22\x33\x44\x55"
    assert format_mac(b"\x02\x11\x22\x33\x44\x55") == "02:11:22:33:44:55"
    assert (protocol_name(6), protocol_name(99)) == ("tcp", "99")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("2001:DB8:0:0:1:0:0:1", "2001:db8::1:0:0:1"),
        ("2001:0db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"),
        ("2001:db8::0:1", "2001:db8::1"),
        ("2001:db8:0:0:0:0:0:0", "2001:db8::"),
        ("2001:db8:0:1:0:0:0:1", "2001:db8:0:1::1"),
        ("64:ff9b::198.18.1.2", "64:ff9b::c612:102"),
    ],
)
def test_text_form_is_that_of_rfc_5952(written: str, shown: str) -> None:
    """Lower case, no leading zeros, the longest run of zeros (the first of equals) as ::."""
    assert format_addr(parse_addr(written)) == shown


@given(ADDR, PORT)
def test_every_address_comes_back(addr: int, port: int) -> None:
    """What is shown can be typed again, bare, as endpoint and as prefix, in both families."""
    assert parse_addr(format_addr(addr)) == addr
    endpoint = Endpoint(addr, port)
    assert parse_endpoint(format_endpoint(endpoint)) == endpoint
    prefix = parse_prefix(format_addr(addr))
    assert (prefix.network, prefix.length) == (addr, 128 if is_ipv6(addr) else 32)
    assert addr in prefix
    packed = address_bytes(addr)
    assert ipaddress.ip_address(packed) == ipaddress.ip_address(format_addr(addr))
    assert family_name(addr) == ("IPv6" if len(packed) == 16 else "IPv4")


@given(ADDR, st.integers(0, 128), ADDR)
def test_prefixes_hold_what_they_should(addr: int, length: int, other: int) -> None:
    """As the standard library has it; an address of the other family is never inside."""
    bits = 128 if is_ipv6(addr) else 32
    length = min(length, bits)
    network = ipaddress.ip_network((address_bytes(addr), length), strict=False)
    below = int(network.network_address) >> 32
    assume(bits == 32 or below or not length)  # ::/96 and what lies in it has no value
    if bits == 128 and below == 0xFFFF:
        return
    prefix = parse_prefix(str(network))
    assert str(prefix) == str(network)
    assert addr in prefix
    theirs = ipaddress.ip_address(address_bytes(other))
    assert (other in prefix) == (theirs in network)
    if length:
        assert in_subnet(other, prefix.network, prefix.mask) == (theirs in network)


def test_all_of_a_family_is_a_prefix() -> None:
    """0.0.0.0/0 and ::/0 are two, though both begin with no bit set."""
    assert parse_prefix("0.0.0.0/0") == Prefix(0, 0, ipv6=False)
    assert parse_prefix("::/0") == Prefix(0, 0, ipv6=True)
    assert DB8 in parse_prefix("::/0")
    assert DB8 not in parse_prefix("0.0.0.0/0")
    assert str(parse_prefix("::/0")) == "::/0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("198.18.1.0/33", "expected 0 to 32"),
        ("2001:db8::/129", "expected 0 to 128"),
        ("2001:db8::/", "expected 0 to 128"),
        ("2001:db8::/064", "expected 0 to 128"),
        ("198.18.1.1/24", "bits set behind its length, expected 198.18.1.0/24"),
        ("2001:db8::1/64", "bits set behind its length, expected 2001:db8::/64"),
        ("::ffff:198.18.0.0/112", "no packet bears"),
        ("fe80::1%eth0/64", "has a zone"),
        ("here/8", "not an IP address"),
    ],
)
def test_bad_prefixes_are_refused(text: str, expected: str) -> None:
    """The message says what is wrong and what would be right."""
    with pytest.raises(ValueError, match=expected):
        parse_prefix(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected an address and port, as 198.18.1.2:80 or [2001:db8::2]:80"),
        ("x", "expected an address and port"),
        ("1.2.3.4", "expected an address and port"),
        ("1.2.3.4:", "found port ''"),
        ("1.2.3.4:0", "expected 1 to 65535"),
        ("1.2.3.4:65536", "expected 1 to 65535"),
        ("1.2.3.4:+80", "expected 1 to 65535"),
        ("1.2.3:80", "'1.2.3' is not an IP address"),
        ("01.2.3.4:80", "is not an IP address"),
        ("[1.2.3.4]:80", "'1.2.3.4', in brackets, is not an IPv6 address"),
        ("[]:80", "in brackets, is not an IPv6 address"),
        ("2001:db8::1:80", "an IPv6 address in brackets and a port behind them"),
        ("[2001:db8::1]", "expected an address and port"),
        ("[2001:db8::1]80", "one bracket only"),
        ("[2001:db8::1:80", "one bracket only"),
        ("2001:db8::1]:80", "one bracket only"),
        ("[:80", "one bracket only"),
        ("[2001:db8::1]:", "found port ''"),
        ("[2001:db8::1]:0", "expected 1 to 65535"),
        ("[2001:db8::1::]:80", "is not an IPv6 address"),
        ("[2001:db8:12345::]:80", "is not an IPv6 address"),
        ("[fe80::1%eth0]:80", "has a zone"),
        ("[::]:80", "the unspecified address"),
        ("[::1]:80", "the loopback address"),
        ("[::198.18.1.2]:80", "a reserved address (::/96)"),
        ("[::ffff:198.18.1.2]:80", "which no packet bears: expected 198.18.1.2"),
        ("[::ffff:c612:102]:80", "which no packet bears: expected 198.18.1.2"),
    ],
)
def test_bad_endpoints_are_refused(text: str, expected: str) -> None:
    """Anything but ADDR:PORT or [ADDR]:PORT raises ValueError, which says what is wrong."""
    with pytest.raises(ValueError, match=re.escape(expected)):
        parse_endpoint(text)


@given(st.text(alphabet="0123456789abcdef:.[]%/x", max_size=50))
def test_any_text_is_an_endpoint_or_the_documented_error(text: str) -> None:
    """Nothing but ValueError comes out, and never an address that has no value here."""
    for parse in (parse_endpoint, parse_addr, parse_prefix):
        try:
            value = parse(text)
        except ValueError:
            continue
        if isinstance(value, Endpoint):
            assert parse_endpoint(format_endpoint(value)) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0.0.0.0", "the unspecified address"),
        ("0.1.2.3", "a reserved address (0.0.0.0/8)"),
        ("127.0.0.1", "a loopback address"),
        ("169.254.7.7", "a link-local address"),
        ("224.0.0.1", "a multicast address"),
        ("240.0.0.1", "a reserved address (240.0.0.0/8)"),
        ("255.255.255.255", "the broadcast address"),
        ("ff02::1", "a multicast address"),
        ("ff0e::1", "a multicast address"),
        ("fe80::1", "a link-local address"),
        ("febf::1", "a link-local address"),
    ],
)
def test_addresses_that_nobody_can_be_reached_at(text: str, why: str) -> None:
    """The same kinds in both families."""
    assert unusable(parse_addr(text)).startswith(why)


@pytest.mark.parametrize(
    "text", ["198.18.1.2", "10.0.0.1", "1.1.1.1", "2001:db8::1", "fd00::1", "2606:4700::1111"]
)
def test_addresses_of_servers(text: str) -> None:
    """Ordinary ones, public and private, are usable."""
    assert unusable(parse_addr(text)) == ""


@pytest.mark.parametrize("text", ["", "02:11:22:33:44", "02-11-22-33-44-55", "0g:11:22:33:44:55"])
def test_bad_mac_addresses_are_refused(text: str) -> None:
    """Anything but six colon-separated bytes raises ValueError."""
    with pytest.raises(ValueError, match="not a MAC address"):
        parse_mac(text)


def test_what_a_family_is_called_in_numbers() -> None:
    """Of an address: 4 or 6, and ICMP's protocol number."""
    for addr in (0, 0xC6120101, 0xFFFFFFFF):
        assert (family_of(addr), icmp_protocol(addr)) == (4, 1)
    for addr in (1 << 32, 0x20010DB8 << 96):
        assert (family_of(addr), icmp_protocol(addr)) == (6, 58)


@pytest.mark.parametrize("text", ["198.18.0.1:5", "198.18.0.1:5/tcp", "[2001:db8::1]:5/udp"])
def test_clients(text: str) -> None:
    """With a protocol or without, which is then 0; shown as it is read."""
    assert parse_client(text).proto == {"tcp": 6, "udp": 17}.get(text.partition("/")[2], 0)
    assert format_client(parse_client(text)) == text
