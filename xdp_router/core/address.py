# SPDX-License-Identifier: Apache-2.0
"""Text forms of IPv4 addresses, endpoints and MAC addresses.

An address is a host-order integer (198.18.0.1 is 0xC6120001), a MAC address is 6 bytes.
"""

from __future__ import annotations

import ipaddress
import re

from .model import Endpoint

PROTOCOLS = {"tcp": 6, "udp": 17}
"""Protocol names to IP protocol numbers."""

_PROTOCOL_NAMES = {number: name for name, number in PROTOCOLS.items()}
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")


def format_addr(addr: int) -> str:
    """Dotted form of a host-order address."""
    return f"{addr >> 24 & 255}.{addr >> 16 & 255}.{addr >> 8 & 255}.{addr & 255}"


def parse_addr(text: str) -> int:
    """Host-order address of a dotted quad. Raises ValueError, saying what was expected."""
    try:
        return int(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not an IPv4 address, expected four numbers "
            "from 0 to 255 with dots between, as 198.18.1.2"
        ) from None


def format_endpoint(endpoint: Endpoint) -> str:
    """``addr:port`` form, without the protocol."""
    return f"{format_addr(endpoint.addr)}:{endpoint.port}"


def protocol_name(proto: int) -> str:
    """``tcp``, ``udp``, or the number as text."""
    return _PROTOCOL_NAMES.get(proto, str(proto))


def parse_endpoint(text: str, proto: int = PROTOCOLS["tcp"]) -> Endpoint:
    """Endpoint of ``addr:port``. Raises ValueError, saying what was found and expected."""
    host, colon, port = text.rpartition(":")
    if ":" in host or host.startswith("["):
        raise ValueError(
            f"{text!r} is an IPv6 address, which is not available in this "
            "version: use an IPv4 address and port, as 198.18.1.2:80"
        )
    if not colon or not host:
        raise ValueError(f"found {text!r}, expected an IPv4 address and port, as 198.18.1.2:80")
    addr = parse_addr(host)
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError(f"found port {port!r} in {text!r}, expected 1 to 65535")
    return Endpoint(addr, int(port), proto)


def format_mac(mac: bytes) -> str:
    """Colon form of a MAC address, lower case."""
    return mac.hex(":")


def parse_mac(text: str) -> bytes:
    """Six bytes of a colon-separated MAC address. Raises ValueError."""
    if not _MAC.fullmatch(text):
        raise ValueError(f"{text!r} is not a MAC address, expected as 02:00:00:00:00:01")
    return bytes.fromhex(text.replace(":", ""))
