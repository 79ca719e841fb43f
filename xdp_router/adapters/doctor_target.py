# SPDX-License-Identifier: Apache-2.0
"""What ``doctor`` looks at: interfaces, services and backends, from a file or the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdp_router.core.address import parse_endpoint
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import Endpoint

Named = tuple[str, Endpoint]


@dataclass(frozen=True, slots=True)
class Target:
    """Everything that is, or will be, routed. ``ports``: first and last probe port, if known."""

    interfaces: tuple[str, ...] = ()
    services: tuple[Named, ...] = ()
    backends: tuple[Named, ...] = ()
    ports: tuple[int, int] | None = None


def from_config(config: RouterConfig, interfaces: Sequence[str]) -> Target:
    """What ``attach`` would do with a configuration."""
    settings = config.settings
    return Target(
        tuple(interfaces),
        tuple((service.name, service.endpoint) for service in config.services),
        tuple(
            (each.name, each.endpoint) for service in config.services for each in service.backends
        ),
        (settings.probe_port_min, settings.probe_port_max),
    )


def from_answers(
    interfaces: Sequence[str],
    services: Sequence[dict[str, Any]],
    backends: Sequence[dict[str, Any]],
    ports: tuple[int, int] | None,
) -> Target:
    """What a daemon says that it does: its answers to ``services`` and ``backends``."""
    return Target(
        tuple(interfaces),
        tuple((row["name"], parse_endpoint(row["address"])) for row in services),
        tuple((row["name"], parse_endpoint(row["address"])) for row in backends),
        ports,
    )
