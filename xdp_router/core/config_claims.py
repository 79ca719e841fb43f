# SPDX-License-Identifier: Apache-2.0
"""Names and addresses that two services, or backends, of a configuration both have."""

from __future__ import annotations

from collections.abc import Sequence

from .address import family_name, format_endpoint, is_ipv6
from .config_fields import Problems
from .config_wide import Claims, check_ranges
from .model import Endpoint, Forwarding, Service
from .toml_lines import Path


def check_claims(services: Sequence[Service], problems: Problems) -> None:
    """Note what is claimed twice, and backends that packets would go round in a loop to."""
    names: set[str] = set()
    addresses: dict[Endpoint, str] = {}
    for service in services:
        if service.name in names:
            problems.found(
                ("service", service.id, "name"),
                repr(service.name),
                "a name that no other service has",
            )
        if service.endpoint in addresses:
            problems.found(
                ("service", service.id, "address"),
                f"{format_endpoint(service.endpoint)}, the address of service "
                f"{addresses[service.endpoint]!r} as well",
                "an address that no other service has",
            )
        if service.endpoint.addr:  # else it was bad, and reported
            names.add(service.name)
            addresses.setdefault(service.endpoint, service.name)
    check_ranges(services, problems)
    _check_backends(services, addresses, problems)


def _check_backends(
    services: Sequence[Service], service_at: dict[Endpoint, str], problems: Problems
) -> None:
    owners: dict[str, str] = {}
    claims = Claims(service_at)
    for service in services:
        seen: dict[Endpoint, str] = {}
        for index, backend in enumerate(service.backends):
            where: Path = ("service", service.id, "backend", index)
            address = format_endpoint(backend.endpoint)
            if not backend.endpoint.addr:
                continue  # it was bad, and reported
            if (
                service.forwarding in (Forwarding.NAT, Forwarding.FULLNAT)
                and service.endpoint.addr
                and is_ipv6(backend.endpoint.addr) != is_ipv6(service.endpoint.addr)
            ):
                family = family_name(service.endpoint.addr)
                how = service.forwarding.name.lower()
                problems.found(
                    (*where, "address"),
                    f"{address}, no {family} address",
                    f"an {family} address as the service's "
                    f"({format_endpoint(service.endpoint)}): forwarding {how!r} keeps the family",
                )
            if backend.endpoint in seen:
                problems.found(
                    (*where, "address"),
                    f"{address}, the address of backend {seen[backend.endpoint]!r} as well",
                    "each backend of a service once (weight gives it a larger share)",
                )
            elif backend.name in owners:
                problems.found(
                    (*where, "name"),
                    f"{backend.name!r}, a backend of service {owners[backend.name]!r} as well",
                    "a name that no other backend of the router has, because commands use it",
                )
            looped = claims.of(backend.endpoint)
            if looped is not None:
                problems.found(
                    (*where, "address"),
                    f"{address}, the address of service {looped!r}",
                    "the address of a real server (packets would go round in a loop)",
                )
            seen.setdefault(backend.endpoint, backend.name)
            owners.setdefault(backend.name, service.name)
