# SPDX-License-Identifier: Apache-2.0
"""Text forms of IP addresses, endpoints, prefixes and MAC addresses.

An address is a host-order integer: below 2**32 it is IPv4 (198.18.0.1 is 0xC6120001), else IPv6,
so addresses of ::/96 do not exist here. A MAC address is 6 bytes.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from .model import Endpoint

PROTOCOLS = {"tcp": 6, "udp": 17}
"""Protocol names to IP protocol numbers."""

ICMP, ICMPV6 = 1, 58

EXAMPLES = "198.18.1.2:80 or [2001:db8::2]:80"
"""Endpoints as an operator writes them."""

_PROTOCOL_NAMES = {number: name for name, number in PROTOCOLS.items()}
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_PORTS = re.compile(r"([1-9][0-9]{0,4})(?:-([1-9][0-9]{0,4}))?")
PORT_MAX = 65_535
_LENGTH = re.compile(r"0|[1-9][0-9]{0,2}")
_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")
LOOPBACK_IPV6 = 1 << 128 | 1
"""Stands for ``::1``, which no flow has and which is no number of its own here: where the host
itself speaks to a place that may be its own."""
_MAPPED = 0xFFFF
"""Of an address of ::ffff:0:0/96, the bits above the IPv4 address."""


def is_ipv6(addr: int) -> bool:
    """Which family an address is of."""
    return addr > 0xFFFF_FFFF


def family_name(addr: int) -> str:
    """``IPv4`` or ``IPv6``."""
    return "IPv6" if is_ipv6(addr) else "IPv4"


def family_of(addr: int) -> int:
    """4 or 6."""
    return 6 if is_ipv6(addr) else 4


def icmp_protocol(addr: int) -> int:
    """The protocol number of an address family's ICMP."""
    return ICMPV6 if is_ipv6(addr) else ICMP


def address_bytes(addr: int) -> bytes:
    """An address as it stands in packets: 4 or 16 bytes."""
    return addr.to_bytes(16 if is_ipv6(addr) else 4, "big")


def in_subnet(addr: int, network: int, mask: int) -> bool:
    """Whether an address lies in ``network``, whose mask is not empty; families differ: no."""
    return addr & mask == network and is_ipv6(addr) == is_ipv6(mask)


def format_addr(addr: int) -> str:
    """Dotted form, or that of RFC 5952."""
    if addr == LOOPBACK_IPV6:
        return "::1"
    if is_ipv6(addr):
        return str(ipaddress.IPv6Address(addr))
    return f"{addr >> 24 & 255}.{addr >> 16 & 255}.{addr >> 8 & 255}.{addr & 255}"


def parse_addr(text: str) -> int:
    """Host-order address of a dotted quad or of an IPv6 address without brackets.

    Raises ValueError, saying what was expected.
    """
    if ":" in text:
        return _parse_ipv6(text)
    try:
        return int(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not an IP address, expected one as 198.18.1.2 or 2001:db8::2"
        ) from None


def _parse_ipv6(text: str) -> int:
    if "%" in text:
        raise ValueError(
            f"{text!r} has a zone (what is behind the %), expected an address that is valid "
            "beyond one link, as 2001:db8::2"
        )
    try:
        addr = int(ipaddress.IPv6Address(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not an IPv6 address, expected up to eight groups of four hexadecimal "
            "digits with colons between, :: once for groups of zeros, as 2001:db8::2"
        ) from None
    if addr >> 32 == _MAPPED:
        inner = format_addr(addr & 0xFFFF_FFFF)
        raise ValueError(
            f"{text!r} is an IPv4 address in the form of an IPv6 one, which no packet bears: "
            f"expected {inner}"
        )
    if not is_ipv6(addr):
        kind = {0: "the unspecified address", 1: "the loopback address"}.get(
            addr, "a reserved address (::/96)"
        )
        raise ValueError(f"{text!r} is {kind}, expected a unicast address, as 2001:db8::2")
    return addr


def format_host(addr: int) -> str:
    """As a URL has it: IPv6 in brackets."""
    return f"[{format_addr(addr)}]" if is_ipv6(addr) else format_addr(addr)


def format_endpoint(endpoint: Endpoint) -> str:
    """``addr:port`` or ``[addr]:port`` form, without the protocol.

    One of many ports ends in ``:first-last``; one of all ports is its address alone.
    """
    if not endpoint.port:
        return format_host(endpoint.addr)
    last = f"-{endpoint.last or ''}" if endpoint.ranged else ""
    return f"{format_host(endpoint.addr)}:{endpoint.port}{last}"


def format_ports(ports: tuple[int, int]) -> str:
    """``first-last``, or one port alone."""
    first, last = ports
    return str(first) if first == last else f"{first}-{last}"


def parse_ports(text: str) -> tuple[int, int]:
    """First and last port of ``first-last`` or of one port. Raises ValueError."""
    match = _PORTS.fullmatch(text)
    first = int(match[1]) if match else 0
    last = int(match[2] or first) if match else 0
    if not 0 < first <= last <= PORT_MAX:
        raise ValueError(
            f"found ports {text!r}, expected one from 1 to 65535, or a range as 8000-8100"
        )
    return first, last


def parse_wide(text: str, proto: int = PROTOCOLS["tcp"]) -> Endpoint:
    """A service's endpoint: also ``addr:first-last``, and an address alone, for all ports.

    Raises ValueError.
    """
    alone = _address_alone(text)
    if alone is not None:
        return Endpoint(alone, 0, proto, True, PORT_MAX)
    host, _, ports = text.rpartition(":")
    if "-" not in ports:
        return parse_endpoint(text, proto)
    first, last = parse_ports(ports)
    addr = parse_endpoint(f"{host}:{first}", proto).addr
    return Endpoint(addr, first, proto, last > first, last if last > first else 0)


def parse_server(text: str, proto: int = PROTOCOLS["tcp"]) -> Endpoint:
    """A backend's endpoint: also an address alone. Raises ValueError."""
    alone = _address_alone(text)
    return parse_endpoint(text, proto) if alone is None else Endpoint(alone, 0, proto)


def _address_alone(text: str) -> int | None:
    """An address without a port, IPv6 with or without brackets; None: it is none."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not _is_address(inner) or (inner is not text and ":" not in inner):
        return None
    shorter, _, group = text.rpartition(":")
    if inner is text and len(group) > 1 and _PORT.fullmatch(group) and _is_address(shorter):
        raise ValueError(
            f"{text!r} can be read in two ways: [{shorter}]:{group} is an address with a port, "
            f"[{text}] an address alone"
        )
    return parse_addr(inner)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def protocol_name(proto: int) -> str:
    """``tcp``, ``udp``, or the number as text."""
    return _PROTOCOL_NAMES.get(proto, str(proto))


def parse_endpoint(text: str, proto: int = PROTOCOLS["tcp"]) -> Endpoint:
    """Endpoint of ``addr:port`` or ``[addr]:port``.

    Raises ValueError, saying what was found and expected.
    """
    host, colon, port = text.rpartition(":")
    if text.endswith("]") or not colon or not host:
        raise ValueError(f"found {text!r}, expected an address and port, as {EXAMPLES}")
    if host.startswith("[") != host.endswith("]") or host == "[":
        raise ValueError(f"found {text!r}, with one bracket only: expected as {EXAMPLES}")
    if host.startswith("["):
        host = host[1:-1]
        if ":" not in host:
            raise ValueError(
                f"{host!r}, in brackets, is not an IPv6 address: expected as {EXAMPLES}"
            )
    elif ":" in host:
        raise ValueError(
            f"found {text!r}, expected an IPv6 address in brackets and a port behind them, "
            "as [2001:db8::2]:80"
        )
    addr = parse_addr(host)
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError(f"found port {port!r} in {text!r}, expected 1 to 65535")
    return Endpoint(addr, int(port), proto)


def parse_client(text: str) -> Endpoint:
    """Endpoint of ``addr:port``, ``addr:port/tcp`` or ``addr:port/udp``; its protocol is 0 if
    none is named. Raises ValueError."""
    endpoint, slash, name = text.partition("/")
    if slash and name not in PROTOCOLS:
        raise ValueError(f"found protocol {name!r} in {text!r}, expected tcp or udp")
    return parse_endpoint(endpoint, PROTOCOLS.get(name, 0))


def format_client(client: Endpoint) -> str:
    """What ``parse_client`` reads."""
    return format_endpoint(client) + (f"/{protocol_name(client.proto)}" if client.proto else "")


def parse_host(text: str) -> int | None:
    """The address of ``addr`` or ``[addr]``; None if that is not all that there is."""
    try:
        return parse_addr(text[1:-1] if text.startswith("[") and text.endswith("]") else text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Prefix:
    """A range of addresses of one family, which ``network`` alone does not tell (``::/0``)."""

    network: int
    length: int
    ipv6: bool

    @property
    def mask(self) -> int:
        """As many bits as the family's addresses have, the first ``length`` of them set."""
        bits = 128 if self.ipv6 else 32
        return (1 << bits) - (1 << bits - self.length)

    def __contains__(self, addr: int) -> bool:
        return is_ipv6(addr) == self.ipv6 and addr & self.mask == self.network

    def __str__(self) -> str:
        if self.ipv6:
            return f"{ipaddress.IPv6Address(self.network)}/{self.length}"
        return f"{format_addr(self.network)}/{self.length}"


def parse_prefix(text: str) -> Prefix:
    """Prefix of ``addr/length``, or of an address alone. Raises ValueError."""
    address, slash, length = text.partition("/")
    ipv6 = ":" in address
    bits = 128 if ipv6 else 32
    if slash and not (_LENGTH.fullmatch(length) and int(length) <= bits):
        raise ValueError(f"found length {length!r} in {text!r}, expected 0 to {bits}")
    prefix = Prefix(0, int(length) if slash else bits, ipv6)
    if ipv6 and address == "::" and slash:
        return prefix
    addr = parse_addr(address)
    network = addr & prefix.mask
    prefix = Prefix(network, prefix.length, ipv6)
    if network != addr:
        raise ValueError(f"{text!r} has bits set behind its length, expected {prefix}")
    return prefix


def unusable(addr: int) -> str:
    """Why nobody can be reached at an address through a router, or ""."""
    if is_ipv6(addr):
        address = ipaddress.IPv6Address(addr)
        if address.is_multicast:
            return "a multicast address"
        if address.is_link_local:
            return "a link-local address, which is valid on one link only"
        return ""
    if addr == 0xFFFF_FFFF:
        return "the broadcast address"
    if addr == 0:
        return "the unspecified address"
    if addr >> 24 == 127:
        return "a loopback address"
    if addr >> 28 == 14:
        return "a multicast address"
    if addr >> 16 == 0xA9FE:
        return "a link-local address, which is valid on one link only"
    if addr >> 24 == 0 or addr >> 28 == 15:
        return f"a reserved address ({format_addr(addr & 0xFF00_0000)}/8)"
    return ""


def format_mac(mac: bytes) -> str:
    """Colon form of a MAC address, lower case."""
    return mac.hex(":")


def parse_mac(text: str) -> bytes:
    """Six bytes of a colon-separated MAC address. Raises ValueError."""
    if not _MAC.fullmatch(text):
        raise ValueError(f"{text!r} is not a MAC address, expected as 02:00:00:00:00:01")
    return bytes.fromhex(text.replace(":", ""))
