# SPDX-License-Identifier: Apache-2.0
"""``doctor`` over an IPv6 configuration before anything is attached."""

from __future__ import annotations

import os
from pathlib import Path

from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns, make_wire
from xdp_router.adapters.doctor import examine
from xdp_router.adapters.doctor_finding import Severity
from xdp_router.core.config import parse_config

CONFIG = """
[[service]]
name = "web6"
address = "[2001:db8:1::9]:443"
[[service.backend]]
name = "b1"
address = "[2001:db8:1::2]:8443"
[[service.backend]]
name = "b2"
address = "[2001:db8:9::2]:8443"
"""


@in_fresh_netns
def test_findings(tmp_path: Path) -> None:
    """Who does not answer for the service, who is reached and who is not, with their mends."""
    with IPRoute() as netlink:
        wire = make_wire(netlink, "v0", "2001:db8:1::1", "2001:db8:1::2")
    found = examine(
        tmp_path / "none.sock", tmp_path / "pins", ["v0"], parse_config(CONFIG, "router.toml")
    )
    os.close(wire.far_ns)
    by_code = {each.code: each for each in found}
    assert by_code["backend"].text == "[2001:db8:1::2]:8443 is reached by v0"
    assert by_code["backend_unreachable"].subject == "b2"
    assert "nobody answers neighbour solicitations" in by_code["service_not_answered_for"].text
    assert by_code["ipv6_forwarding"].severity is Severity.WARN
    assert by_code["clients_in_backend_subnet"].severity is Severity.WARN
    assert not [each for each in found if "cannot be looked at" in each.text], found
