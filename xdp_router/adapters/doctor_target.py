# SPDX-License-Identifier: Apache-2.0
"""What ``doctor`` looks at: interfaces, services and backends, from a file or the daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xdp_router.core.address import (
    PROTOCOLS,
    family_of,
    parse_ports,
    parse_server,
    parse_wide,
)
from xdp_router.core.config import RouterConfig
from xdp_router.core.flow_room import Limit, limits_of, source_ports
from xdp_router.core.model import ONE_SIDED, Endpoint, Forwarding

Named = tuple[str, Endpoint]

_DIRECT = {each.name.lower() for each in ONE_SIDED}
_METHODS = {each.name.lower(): each for each in Forwarding}


@dataclass(frozen=True, slots=True)
class Target:
    """Everything that is, or will be, routed. ``ports``: first and last probe port, if known.

    ``nat_ports``: those of ``fullnat``, if there are any; ``fullnat``: names of such services.
    """

    interfaces: tuple[str, ...] = ()
    services: tuple[Named, ...] = ()
    backends: tuple[Named, ...] = ()
    ports: tuple[int, int] | None = None
    nat_ports: tuple[int, int] | None = None
    fullnat: frozenset[str] = frozenset()
    left_out: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Ports, first and last, that services of many leave out; by service."""
    direct: frozenset[str] = frozenset()
    """Names of services whose backends answer the clients themselves."""
    on_link: frozenset[str] = frozenset()
    """Names of backends that have to be neighbours of this host."""
    known_by_us: tuple[Named, ...] = ()
    """Backends that see this host in place of their clients."""
    limits: tuple[Limit, ...] = ()
    max_flows: int = field(default=0, compare=False)
    """Configured; 0: only the table that there is knows."""
    kernel_handoff: str = "check"
    taken_up: frozenset[str] = frozenset()
    """Names of services that the gateway of this host has."""

    @property
    def with_backends(self) -> tuple[Named, ...]:
        """Services whose packets are forwarded."""
        return tuple(each for each in self.services if each[0] not in self.taken_up)

    @property
    def made_local(self) -> frozenset[int]:
        """Addresses that are this host's for the gateway's sake."""
        return frozenset(at.addr for name, at in self.services if name in self.taken_up)

    @property
    def endpoints(self) -> tuple[Named, ...]:
        """Services and backends."""
        return self.services + self.backends

    @property
    def answered_through_us(self) -> tuple[Named, ...]:
        """Services whose replies must come back, by way of their clients' addresses."""
        others = self.direct | self.fullnat | self.taken_up
        return tuple(each for each in self.services if each[0] not in others)


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
        config.nat_ports,
        frozenset(each.name for each in config.services if each.forwarding is Forwarding.FULLNAT),
        {service.name: service.except_ports for service in config.services},
        frozenset(each.name for each in config.services if each.forwarding in ONE_SIDED),
        frozenset(
            each.name
            for service in config.services
            for each in service.backends
            if each.forwarding is Forwarding.DSR
        ),
        tuple(
            (each.name, each.endpoint)
            for service in config.services
            for each in service.backends
            if each.forwarding is Forwarding.FULLNAT
        ),
        limits_of(config.services, config.nat_ports),
        settings.max_flows,
        settings.kernel_handoff.name.lower(),
        frozenset(each.name for each in config.services if each.listener),
    )


def from_answers(
    interfaces: Sequence[str],
    services: Sequence[dict[str, Any]],
    backends: Sequence[dict[str, Any]],
    ports: tuple[int, int] | None,
    nat_ports: tuple[int, int] | None = None,
    status: Mapping[str, Any] | None = None,
) -> Target:
    """What a daemon says that it does: its answers to ``services`` and ``backends``; and, as far
    as its version tells so much, to ``status``."""
    methods = {row["name"]: row["forwarding"] for row in services}
    protocols = {row["name"]: PROTOCOLS[row["protocol"]] for row in services}
    endpoints = {
        row["name"]: parse_server(row["address"], protocols[row["service"]]) for row in backends
    }
    return Target(
        tuple(interfaces),
        tuple(
            (row["name"], parse_wide(row["address"], protocols[row["name"]])) for row in services
        ),
        tuple(endpoints.items()),
        ports,
        nat_ports,
        frozenset(name for name, method in methods.items() if method == "fullnat"),
        {row["name"]: tuple(map(parse_ports, row["except_ports"])) for row in services},
        frozenset(name for name, method in methods.items() if method in _DIRECT),
        frozenset(row["name"] for row in backends if methods[row["service"]] == "dsr"),
        tuple(
            (row["name"], endpoints[row["name"]])
            for row in backends
            if methods[row["service"]] == "fullnat"
        ),
        tuple(
            Limit(
                row["name"],
                family_of(parse_wide(row["address"], protocols[row["name"]]).addr),
                row["max_connections"],
                1 if row["forwarding"] in _DIRECT else 2,
                source_ports(_METHODS[row["forwarding"]], len(row["backends"]), nat_ports),
            )
            for row in services
            if row["max_connections"]
        ),
        kernel_handoff=(status or {}).get("kernel_handoff", "check"),
        taken_up=frozenset(row["name"] for row in services if row.get("gateway")),
    )
