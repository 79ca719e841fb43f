# SPDX-License-Identifier: Apache-2.0
"""The systemd unit lets the daemon open every kind of socket that it opens."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "contrib" / "systemd" / "xdp-routerd.service"


def test_address_families() -> None:
    """What the code names is allowed; else a socket fails only on hosts that run the unit."""
    (line,) = re.findall(r"^RestrictAddressFamilies=(.*)$", UNIT.read_text(), re.MULTILINE)
    named = {
        family
        for folder in ("xdp_router/adapters", "xdp_router/linux", "daemon")
        for file in (ROOT / folder).rglob("*.py")
        for family in re.findall(r"\bAF_(?!UNSPEC|BRIDGE)[A-Z0-9]+", file.read_text())
    }
    assert {"AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET"} <= named
    assert named <= set(line.split())
