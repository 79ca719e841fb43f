# SPDX-License-Identifier: Apache-2.0
"""The systemd units let their processes open every kind of socket that they open."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "contrib" / "systemd"


def _allowed(unit: str) -> set[str]:
    text = (UNITS / unit).read_text()
    (line,) = re.findall(r"^RestrictAddressFamilies=(.*)$", text, re.MULTILINE)
    return set(line.split())


def _named(*sources: str) -> set[str]:
    """What the code in these folders names."""
    return {
        family
        for source in sources
        for file in (ROOT / source).rglob("*.py")
        for family in re.findall(r"\bAF_(?!UNSPEC|BRIDGE)[A-Z0-9]+", file.read_text())
    }


def test_address_families() -> None:
    """What the code names is allowed; else a socket fails only on hosts that run the unit."""
    named = _named("xdp_router/adapters", "xdp_router/linux", "daemon")
    assert {"AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET"} <= named
    assert named <= _allowed("xdp-routerd.service")


def test_address_families_of_the_gateway() -> None:
    """Of the gateway as well, which has no business with packets."""
    named = _named("daemon/gateway")
    assert "AF_UNIX" in named
    assert named <= _allowed("xdp-router-gateway.service") == {"AF_UNIX", "AF_INET", "AF_INET6"}
