# SPDX-License-Identifier: Apache-2.0
"""Which ids services and backends have, when the maps hold flows that name some already.

A flow's entry names its backend by id. So whatever is still configured keeps its id, an id
that flows still use goes to nobody else, and what is new gets a free one.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from .config import RouterConfig
from .config_wide import entries_of
from .errors import XdpRouterError
from .model import NO_BACKEND, ONE_SIDED, Endpoint, Forwarding, Service


class DoesNotFit(XdpRouterError):
    """The configuration has more services or backends than the maps have room for."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the maps hold. ``services``: id by address; ``backends``: (service id, address) by id.

    ``service_room`` and ``backend_room``: how many ids there can be. ``entry_room``: how many
    places services have, with what they leave out, and ICMP echo of their addresses.
    """

    services: Mapping[Endpoint, int]
    backends: Mapping[int, tuple[int, Endpoint]]
    service_room: int
    backend_room: int
    methods: Mapping[int, Forwarding] = field(default_factory=dict)
    """How flows of a backend reach it, by id; NAT if it is not there."""
    entry_room: int = sys.maxsize
    plane: str = "the data plane that was found"
    mend: str = "xdp-routerd detach the interfaces first, which ends their connections"
    """Whose room it is, and how there is more of it: for messages."""


def vanished(config: RouterConfig, known: Known) -> frozenset[int]:
    """Ids of the backends that are known and not configured any more."""
    kept = _kept_backends(config, known)
    return frozenset(known.backends).difference(kept.values())


def renumber(config: RouterConfig, known: Known, in_use: Collection[int]) -> RouterConfig:
    """``config`` with ids that fit what is known.

    ``in_use``: which of the vanished backends flows still name. Ids that were never used come
    before those that become free: for a moment old hash tables may name these. Raises
    DoesNotFit.
    """
    entries = entries_of(config.services)
    if entries > known.entry_room:
        raise DoesNotFit(
            f"{known.plane} has room for {known.entry_room} addresses of services, "
            f"except_ports and icmp_echo included, and the configuration has {entries}: "
            f"{known.mend}"
        )
    kept = _kept_backends(config, known)
    kept_services = {
        each.endpoint: known.services[each.endpoint]
        for each in config.services
        if each.endpoint in known.services
    }
    service_ids = _free_ids(
        {*kept_services.values(), *(known.backends[each][0] for each in in_use)},
        known.services.values(),
        known.service_room,
        "services",
        known,
    )
    backend_ids = _free_ids(
        {*kept.values(), *in_use},
        known.backends,
        known.backend_room,
        "backends",
        known,
    )
    services = []
    for service in config.services:
        number = kept_services.get(service.endpoint)
        services.append(
            _renumbered(service, next(service_ids) if number is None else number, kept, backend_ids)
        )
    return replace(config, services=tuple(services))


def _renumbered(
    service: Service,
    number: int,
    kept: Mapping[tuple[Endpoint, Endpoint], int],
    backend_ids: Iterator[int],
) -> Service:
    new_id = {NO_BACKEND: NO_BACKEND}
    for backend in service.backends:
        known = kept.get((service.endpoint, backend.endpoint))
        new_id[backend.id] = next(backend_ids) if known is None else known
    return replace(
        service,
        id=number,
        backends=tuple(
            replace(backend, id=new_id[backend.id], service=number) for backend in service.backends
        ),
        fallback=new_id[service.fallback],
    )


def _kept_backends(config: RouterConfig, known: Known) -> dict[tuple[Endpoint, Endpoint], int]:
    """Known ids of configured backends, by (service's address, backend's address)."""
    address = {number: endpoint for endpoint, number in known.services.items()}
    by_addresses = {
        (address[service], endpoint): number
        for number, (service, endpoint) in known.backends.items()
        if service in address
    }
    wanted = {
        (service.endpoint, backend.endpoint): _way(service.forwarding)
        for service in config.services
        for backend in service.backends
    }
    # Its flows go on the way that they have begun: by another method it is another backend.
    return {
        pair: number
        for pair, number in by_addresses.items()
        if pair in wanted and wanted[pair] is _way(known.methods.get(number, Forwarding.NAT))
    }


def _way(method: Forwarding) -> Forwarding:
    """What of a method a backend's entry says; how packets are rewritten is said by the flow's."""
    return method if method in ONE_SIDED else Forwarding.NAT


def _free_ids(
    taken: Collection[int], later: Collection[int], room: int, what: str, known: Known
) -> Iterator[int]:
    used = {*taken, *later}
    yield from (number for number in range(room) if number not in used)
    yield from (number for number in range(room) if number in used and number not in taken)
    raise DoesNotFit(
        f"{known.plane} has room for {room} {what}, those with open connections "
        f"that are not configured any more included, and the configuration needs more: {known.mend}"
    )
