# SPDX-License-Identifier: Apache-2.0
"""What ``dsr`` and ``ipip`` ask of a configuration: ports, families, the tunnel's source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .address import family_name, format_addr, format_endpoint, is_ipv6, parse_prefix, unusable
from .config_fields import Problems, Table
from .model import ONE_SIDED, Backend, Endpoint, Forwarding, Service
from .toml_lines import Path

HASH_BITS = 32
"""A flow's hash has no more, so that no more bits of a tunnel's source differ."""


def with_implied_port(backend: Endpoint, forwarding: Forwarding, service: Endpoint) -> Endpoint:
    """The address of a backend whose port need not be named: packets keep the service's."""
    if forwarding not in ONE_SIDED or backend.port or service.ranged or not backend.addr:
        return backend
    return Endpoint(backend.addr, service.port, backend.proto)


def read_tunnel_source(
    table: Table, forwarding: Forwarding, backends: Iterable[Backend]
) -> tuple[int, int]:
    """``tunnel_source``: its lowest address, and how many bits differ from flow to flow."""
    expected = 'a prefix, as "198.18.200.0/24" or "2001:db8:c8::/64"'
    text = table.text("tunnel_source", expected)
    if text is None:
        return 0, 0
    if forwarding is not Forwarding.IPIP:
        table.found(
            "tunnel_source",
            repr(text),
            f"none: forwarding '{forwarding.name.lower()}' has no outer header",
        )
        return 0, 0
    try:
        prefix = parse_prefix(text)
    except ValueError as error:
        table.found("tunnel_source", repr(text), f"{expected}: {error}")
        return 0, 0
    kind = unusable(prefix.network) if prefix.length else "every address"
    if kind:
        table.found("tunnel_source", f"{text!r}, {kind}", "addresses that are this router's alone")
        return 0, 0
    for backend in backends:
        if backend.endpoint.addr and is_ipv6(backend.endpoint.addr) != prefix.ipv6:
            table.found(
                "tunnel_source",
                repr(text),
                f"an {family_name(backend.endpoint.addr)} prefix, as the address of backend "
                f"{backend.name!r} is ({format_addr(backend.endpoint.addr)}): the outer header is "
                "of the backend's family",
            )
            return 0, 0
    return prefix.network, min(HASH_BITS, (128 if prefix.ipv6 else 32) - prefix.length)


def speaks_ipv6(services: Iterable[Service], others: Iterable[Backend]) -> bool:
    """Whether some service, or a backend (of a tunnel, then), is of IPv6."""
    ends = [backend.endpoint for backend in others]
    for service in services:
        ends += [service.endpoint, *(backend.endpoint for backend in service.backends)]
    return any(is_ipv6(end.addr) for end in ends)


def check_tunnel_sources(services: Sequence[Service], problems: Problems) -> None:
    """Note sources of outer headers that are the address of a backend or a service."""
    known = [(each.endpoint.addr, f"service {each.name!r}") for each in services]
    known += [
        (backend.endpoint.addr, f"backend {backend.name!r}")
        for service in services
        for backend in service.backends
    ]
    for service in services:
        if not service.tunnel_source:
            continue
        last = service.tunnel_source | (1 << service.tunnel_bits) - 1
        for addr, whose in known:
            if service.tunnel_source <= addr <= last:
                problems.found(
                    ("service", service.id, "tunnel_source"),
                    f"a prefix with {format_addr(addr)}, the address of {whose}",
                    "addresses that are this router's alone: a packet from one's own address is "
                    "dropped",
                )
                break


def check_direct(services: Sequence[Service], problems: Problems) -> None:
    """Note what is wrong with the backends of services whose packets keep their tuple."""
    for service in services:
        if service.forwarding not in ONE_SIDED or not service.endpoint.addr:
            continue
        for index, backend in enumerate(service.backends):
            if backend.endpoint.addr:  # else it was bad, and reported
                where: Path = ("service", service.id, "backend", index, "address")
                _check_backend(service, backend, where, problems)


def _check_backend(service: Service, backend: Backend, where: Path, problems: Problems) -> None:
    method = service.forwarding.name.lower()
    address = format_endpoint(backend.endpoint)
    own = 0 if service.endpoint.ranged else service.endpoint.port
    if backend.endpoint.port != own:
        kept = f", or port {own} as the service has" if own else ""
        problems.found(
            where,
            address,
            f"{format_addr(backend.endpoint.addr)!r}{kept}: forwarding '{method}' leaves the port "
            "as it is",
        )
    same_family = is_ipv6(backend.endpoint.addr) == is_ipv6(service.endpoint.addr)
    if service.forwarding is Forwarding.DSR and not same_family:
        family = family_name(service.endpoint.addr)
        problems.found(
            where,
            f"{address}, no {family} address",
            f"an {family} address as the service's ({format_endpoint(service.endpoint)}): "
            "forwarding 'dsr' sends to its neighbour on the link",
        )
