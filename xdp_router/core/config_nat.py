# SPDX-License-Identifier: Apache-2.0
"""Which ports are the router's own, and what a configuration with ``fullnat`` must not have."""

from __future__ import annotations

from collections.abc import Sequence

from .address import format_endpoint
from .config_fields import Problems
from .model import Forwarding, Orphans, Service

PortRange = tuple[int, int]
"""First and last port."""


def check_nat(
    services: Sequence[Service], nat_ports: PortRange, probe_ports: PortRange, problems: Problems
) -> None:
    """Note what is wrong about services with ``fullnat``, and about their source ports."""
    low, high = nat_ports
    fullnat = [each for each in services if each.forwarding is Forwarding.FULLNAT]
    _check_ports(services, "probe_ports", probe_ports, problems)
    if not fullnat:
        return
    if low <= probe_ports[1] and probe_ports[0] <= high:
        problems.found(
            ("router", "nat_ports"),
            f"{low}-{high}, which overlaps probe_ports ({probe_ports[0]}-{probe_ports[1]})",
            "ports that no probe uses: answers of backends are told apart by them",
        )
    _check_ports(services, "nat_ports", nat_ports, problems)
    for service in fullnat:
        if service.orphans is Orphans.HASH:
            problems.found(
                ("service", service.id, "orphans"),
                "'hash' with forwarding 'fullnat'",
                "'reset': a backend knows a connection by the router's port, which is lost with "
                "what the router knew of it",
            )


def _check_ports(
    services: Sequence[Service], key: str, ports: PortRange, problems: Problems
) -> None:
    """Of a service of many ports XDP takes what is no backend's answer."""
    low, high = ports
    for service in services:
        if not service.endpoint.ranged and low <= service.endpoint.port <= high:
            problems.found(
                ("service", service.id, "address"),
                f"{format_endpoint(service.endpoint)}, a port within {key} ({low}-{high})",
                f"a port outside of them, or other {key} in [router]: a backend's answer to "
                "that port would be taken for a client's packet",
            )
