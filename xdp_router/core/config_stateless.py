# SPDX-License-Identifier: Apache-2.0
"""Which services may be stateless: forwarded without an entry while they are over budget.

A backend's segment then has to tell by itself whose it is: so its service is the only one of that
backend, and rewriting it back takes nothing that is not in the segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from .address import PROTOCOLS, format_endpoint, protocol_name
from .config_fields import Problems
from .config_wide import shared_endpoints
from .model import Endpoint, Forwarding, Service

_KEY = "stateless"


def check_stateless(services: Sequence[Service], problems: Problems) -> None:
    """Report each obstacle to a service that wants to be stateless."""
    owners: dict[Endpoint, list[Service]] = {}
    for service in services:
        for endpoint in {backend.endpoint for backend in service.backends if backend.endpoint.addr}:
            owners.setdefault(endpoint, []).append(service)
    shared = shared_endpoints(services, ())
    for service in services:
        if not service.stateless:
            continue
        where = ("service", service.id, _KEY)
        if service.endpoint.proto != PROTOCOLS["tcp"]:
            problems.found(
                where,
                f"true, and protocol {protocol_name(service.endpoint.proto)!r}",
                "false: only TCP has the handshake that shows when to keep an entry",
            )
        if service.forwarding is not Forwarding.NAT:
            problems.found(
                where,
                f"true, and forwarding {service.forwarding.name.lower()!r}",
                "false, or forwarding 'nat': replies are rewritten without an entry",
            )
        for backend in service.backends:
            others = [each.name for each in owners.get(backend.endpoint, ()) if each is not service]
            if backend.vlan is not None:
                problems.found(
                    where,
                    f"true, and vlan of {format_endpoint(backend.endpoint)}",
                    "false, or no vlan: the tag of the client is kept in an entry",
                )
            if others:
                problems.found(
                    where,
                    f"true, and {format_endpoint(backend.endpoint)} is a backend of service "
                    f"{others[0]!r} as well",
                    "false, or an address and port for each service on that server: a reply "
                    "without an entry must tell whose it is",
                )
            elif backend.endpoint in shared and service.endpoint.ranged and backend.endpoint.port:
                problems.found(
                    where,
                    f"true, and many ports that all go to {format_endpoint(backend.endpoint)}",
                    "false, or backends that keep the port: a reply without an entry must tell "
                    "which port was asked",
                )
            elif backend.endpoint in shared:
                problems.found(
                    where,
                    f"true, and another backend has the address of "
                    f"{format_endpoint(backend.endpoint)}, with or without a port",
                    "false, or an address for each: a reply without an entry must tell whose it is",
                )
