# SPDX-License-Identifier: Apache-2.0
"""A file and a running daemon describe the same target."""

from __future__ import annotations

from tests.support.cli_samples import BACKENDS, SERVICES
from xdp_router.adapters.doctor_target import from_answers, from_config
from xdp_router.core.config import parse_config

TEXT = """
[[service]]
name = "web"
address = "198.18.100.1:80"
[[service.backend]]
name = "b1"
address = "198.19.1.2:8080"
[[service.backend]]
name = "b2"
address = "198.19.2.2:8080"
"""


def test_file_and_daemon_agree() -> None:
    """Interfaces, names, addresses and ports are the same from both."""
    by_file = from_config(parse_config(TEXT, "x"), ["eth0"])
    assert by_file == from_answers(["eth0"], SERVICES, BACKENDS, (61_000, 61_999))
