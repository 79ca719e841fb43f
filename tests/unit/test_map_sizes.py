# SPDX-License-Identifier: Apache-2.0
"""Sizes of maps follow from the configuration, and from what flows still need."""

from __future__ import annotations

import dataclasses

from xdp_router.adapters.map_sizes import sizes_of
from xdp_router.core.config import config_from_flags
from xdp_router.core.model import Backend, Endpoint

CONFIG = config_from_flags([("198.18.100.1:80", ["198.19.0.1:80", "198.19.0.2:80"])])
LEFT = Backend(7, "left", Endpoint(0x20010DB8 << 96 | 1, 80), 3, 1)


def test_by_configuration() -> None:
    """Counts and limits are those that are configured."""
    settings = dataclasses.replace(CONFIG.settings, max_flows=2000, pending_flows=5000)
    sizes = sizes_of(dataclasses.replace(CONFIG, settings=settings), 3)
    assert (sizes.services, sizes.backends, sizes.interfaces) == (1, 2, 3)
    assert (sizes.max_flows, sizes.pending, sizes.flood) == (2000, 5000, 5000)
    assert not sizes.ipv6


def test_what_flows_need() -> None:
    """Backends that only flows have count, known or not yet, and their family."""
    assert sizes_of(CONFIG, 1, (LEFT,), others=2).backends == 5
    assert sizes_of(CONFIG, 1, (LEFT,)).ipv6
    assert sizes_of(CONFIG, 1, ipv6_flows=True).ipv6
