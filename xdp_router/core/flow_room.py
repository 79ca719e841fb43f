# SPDX-License-Identifier: Apache-2.0
"""Whether the services' ``max_connections`` have room in ``flow_table``, which they share.

A limit without room is no limit: connections beyond find no place, and are hashed, long before
``flow_limit_reached`` counts the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .address import family_of
from .model import ONE_SIDED, Forwarding, Service

_NAMED = 3
"""Services that a message has by name: the largest limits."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One service's limit. ``entries``: of one connection; ``ports``: how many connections the
    source ports of ``fullnat`` are enough for, all backends together; 0: it needs none.
    """

    service: str
    family: int
    connections: int
    entries: int = 2
    ports: int = 0


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Limits that cannot be reached: what is so, and what mends it."""

    text: str
    mend: str


def limits_of(services: Iterable[Service], nat_ports: tuple[int, int] | None) -> tuple[Limit, ...]:
    """The limits of a configuration. ``nat_ports``: first and last, if some service needs them."""
    return tuple(
        Limit(
            each.name,
            family_of(each.endpoint.addr),
            each.max_connections,
            1 if each.forwarding in ONE_SIDED else 2,
            source_ports(each.forwarding, len(each.backends), nat_ports),
        )
        for each in services
        if each.max_connections
    )


def source_ports(method: Forwarding, backends: int, ports: tuple[int, int] | None) -> int:
    """Connections that one service's backends can have at once by their source ports; 0: any."""
    if method is not Forwarding.FULLNAT or ports is None:
        return 0
    return backends * (ports[1] - ports[0] + 1)


def rooms_of(max_flows: int) -> dict[int, int]:
    """Connections of each family that tables made for ``max_flows`` have room for."""
    return {4: max_flows, 6: max_flows}


def shortfalls(limits: Iterable[Limit], rooms: Mapping[int, int]) -> Iterator[Shortfall]:
    """What cannot be reached. ``rooms``: connections that there is room for, by family: tables that
    were taken over may be of two sizes."""
    limits = tuple(limits)
    for family, max_flows in rooms.items():
        members = [each for each in limits if each.family == family]
        entries = sum(each.entries * each.connections for each in members)
        if entries > 2 * max_flows:
            needed = (entries + 1) // 2
            yield Shortfall(
                f"max_connections of {_named(members)} add up to more connections of IPv{family} "
                f"than max_flows ({max_flows}) has room for: {needed} would be needed; before all "
                "limits are reached, new connections are hashed and have no place of their own "
                "(table_full)",
                f"max_flows = {needed} (or attach --max-flows {needed}; a data plane that is taken "
                "over keeps its size: detach first), or lower limits",
            )
    for each in limits:
        if 0 < each.ports < each.connections:
            yield Shortfall(
                f"max_connections of {each.service} ({each.connections}) cannot be reached: "
                f"nat_ports at its backends are enough for {each.ports} connections, closed ones "
                "of the last minute included (nat_ports_exhausted)",
                "widen nat_ports, give the service more backends, or lower the limit",
            )


def _named(limits: Iterable[Limit]) -> str:
    largest = sorted(limits, key=lambda each: -each.connections)
    names = ", ".join(f"{each.service} ({each.connections})" for each in largest[:_NAMED])
    others = len(largest) - _NAMED
    return f"{names} and {others} others" if others > 0 else names
