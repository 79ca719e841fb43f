# SPDX-License-Identifier: Apache-2.0
"""Text forms of addresses, endpoints and MAC addresses."""

from __future__ import annotations

import pytest

from xdp_router.core.address import (
    format_addr,
    format_endpoint,
    format_mac,
    parse_addr,
    parse_endpoint,
    parse_mac,
    protocol_name,
)
from xdp_router.core.model import Endpoint


def test_addresses_have_text_forms() -> None:
    """Text and value of addresses, endpoints and MAC addresses convert both ways."""
    assert parse_addr("198.18.1.2") == 0xC6120102
    assert format_addr(0xC6120102) == "198.18.1.2"
    assert parse_endpoint("198.18.1.2:80") == Endpoint(0xC6120102, 80)
    assert format_endpoint(Endpoint(0xC6120102, 80)) == "198.18.1.2:80"
    assert parse_mac("02:11:22:33:44:55") == b"\x02\x11\x22\x33\x44\x55"
    assert format_mac(b"\x02\x11\x22\x33\x44\x55") == "02:11:22:33:44:55"
    assert (protocol_name(6), protocol_name(99)) == ("tcp", "99")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1.2.3.4",
        "1.2.3.4:",
        "1.2.3.4:0",
        "1.2.3.4:65536",
        "1.2.3:80",
        "01.2.3.4:80",
        "[::1]:80",
        "::1:80",
        "1.2.3.4:+80",
    ],
)
def test_bad_endpoints_are_refused(text: str) -> None:
    """Anything but ADDR:PORT raises ValueError."""
    with pytest.raises(ValueError, match=r"expected|IPv6"):
        parse_endpoint(text)


@pytest.mark.parametrize("text", ["", "02:11:22:33:44", "02-11-22-33-44-55", "0g:11:22:33:44:55"])
def test_bad_mac_addresses_are_refused(text: str) -> None:
    """Anything but six colon-separated bytes raises ValueError."""
    with pytest.raises(ValueError, match="not a MAC address"):
        parse_mac(text)
