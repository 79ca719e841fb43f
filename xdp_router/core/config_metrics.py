# SPDX-License-Identifier: Apache-2.0
"""Where the daemon serves its metrics, as the configuration says."""

from __future__ import annotations

import ipaddress
import re

from .config_fields import Table

_EXPECTED = 'an address of this host and a port, as "127.0.0.1:9850" or "[::1]:9850"'
_FORM = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)):([1-9][0-9]{0,4})")


def read_metrics(table: Table) -> tuple[str, int] | None:
    """The address, as text, and the port; None: nowhere.

    It is no endpoint of traffic: loopback addresses, and the one that means all, are welcome.
    """
    text = table.text("metrics", _EXPECTED)
    if text is None:
        return None
    found = _FORM.fullmatch(text)
    try:
        six, four, port = found.groups() if found else ("", "", "0")
        address = ipaddress.IPv6Address(six) if six else ipaddress.IPv4Address(four)
    except ValueError:
        table.wrong("metrics", text, _EXPECTED)
        return None
    if address.is_multicast or not 0 < int(port) <= 65535:
        table.wrong("metrics", text, _EXPECTED)
        return None
    return str(address), int(port)


def format_metrics(address: tuple[str, int]) -> str:
    """As the configuration has it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
