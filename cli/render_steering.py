# SPDX-License-Identifier: Apache-2.0
"""Words for services that the gateway of the router's host takes up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def listener_of(service: Mapping[str, Any]) -> str:
    """In the place of a service's backends; empty if it has some."""
    view = service.get("gateway")
    return f"listener {view['listener']}" if view else ""


def absence_of(service: Mapping[str, Any]) -> str:
    """Below the table of services: why connections of one are refused; empty if they are not."""
    view = service.get("gateway")
    if not view or view["sockets"]:
        return ""
    return f"refused, listener {view['listener']} has no socket: {view['reason']}"
