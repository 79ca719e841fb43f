# SPDX-License-Identifier: Apache-2.0
"""Writes which packets are a service's, and who may have a flow of it.

In use are the maps at any time: so what lets somebody in is written before what keeps others
out, what is narrow before what is wide, and what is no more goes when nobody looks there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.core import abi
from xdp_router.core.config_wide import left_out, ranges_of
from xdp_router.core.model import NO_BACKEND, Endpoint, Mode, Service


def admission_of(service: Service, *, stateless: bool = False) -> dict[str, Any]:
    """Fields of a ``services`` value that say who may have a flow, and with whom it goes.

    ``stateless``: over budget without an entry, which is not for the service alone to say.
    """
    flags = 0
    if service.sources or service.allowed_only:
        flags |= abi.SERVICE_SOURCES
    if service.affinity_ns:
        flags |= abi.SERVICE_AFFINITY
    if service.quic:
        flags |= abi.SERVICE_QUIC
    if service.icmp_echo:
        flags |= abi.SERVICE_ECHO
    if stateless:
        flags |= abi.SERVICE_STATELESS
    if service.listener:
        flags |= abi.SERVICE_GATEWAY
    return {
        "flags": flags,
        "flow_limit": service.max_connections,
        "affinity_ns": service.affinity_ns,
    }


def goes_before(value: abi.BackendValue, other: abi.BackendValue) -> bool:
    """Whether a backend is the one that its endpoint names, though another one was there first.

    Any of them will do to tell that something is a backend's, or a probe's answer. But errors
    about what is in a tunnel are taken only from the way to one that has a tunnel.
    """
    return bool(value.flags & ~other.flags & abi.BACKEND_TUNNEL)


def answers_for(value: abi.BackendValue, service: Service) -> abi.BackendValue:
    """``value`` of a backend whose replies are told to be of ``service`` without an entry."""
    return dataclasses.replace(
        value,
        stateless_addr=service.endpoint.addr,
        # a service of many ports has backends that keep them
        stateless_port=0 if service.endpoint.ranged else service.endpoint.port,
    )


class ServiceRules:
    """The written side of these maps; see KernelState, whose part it is."""

    def __init__(self, maps: Maps, services: Sequence[Service], *, adopted: bool) -> None:
        self._maps = maps
        self._services = services
        self._adopted = adopted
        self._ranges = ranges_of(services)
        self._sources: set[bytes] = set()

    def successor(self, services: Sequence[Service]) -> ServiceRules:
        """The same for other services, while these ones are in the maps."""
        return ServiceRules(self._maps, services, adopted=True)

    @property
    def control_flags(self) -> int:
        """Flags of ``control`` that XDP looks at before it looks here."""
        flags = abi.CONTROL_RANGES if self._ranges else 0
        if any(service.icmp_echo for service in self._services):
            flags |= abi.CONTROL_ECHO
        return flags

    def left_out(self) -> dict[Endpoint, abi.ServiceValue]:
        """``services`` values, without backends, of ports that a wide service leaves out."""
        return {
            endpoint: abi.ServiceValue(
                deadline_ns=0,
                event_interval_ns=0,
                event_burst_ns=0,
                id=service.id,
                first_backend=NO_BACKEND,
                backend_count=0,
                fallback=NO_BACKEND,
                mode=Mode.REFUSED,
                forwarding=service.forwarding,
                orphans=service.orphans,
                hash_active=0,
            )
            for service in self._services
            for endpoint in left_out(service)
        }

    def write(self, before: Mapping[int, abi.BackendValue]) -> None:
        """Before the services are written. ``before``: backends that the maps had."""
        self._sources = self._maps.source_rules.add(self._services)
        if not self._adopted:
            return
        # A number that was another one's must not inherit that one's clients.
        with_affinity = self._still(before, [s for s in self._services if s.affinity_ns])
        with_quic = self._still(before, [s for s in self._services if s.quic])
        for table in (self._maps.affinity, self._maps.companions):
            table.forget(lambda service, backend: (service, backend) in with_affinity)
        self._maps.connection_ids.forget(lambda service, backend: (service, backend) in with_quic)

    @staticmethod
    def _still(
        before: Mapping[int, abi.BackendValue], services: Sequence[Service]
    ) -> set[tuple[int, int]]:
        """Numbers of these services and their backends that are what they were."""
        return {
            (service.id, each.id)
            for service in services
            for each in service.backends
            if each.id in before
            and _endpoint(before[each.id]) == each.endpoint
            and before[each.id].service == service.id
        }

    def open_ranges(self) -> None:
        """After the services were written: their ports lead to them, and not to others any more."""
        self._maps.service_ranges.replace(self._ranges)

    def opened(self) -> None:
        """At the end: nobody looks for what is not theirs any more."""
        self._maps.source_rules.keep_only(self._sources)


def _endpoint(value: abi.BackendValue) -> Endpoint:
    return Endpoint(value.addr, value.port, value.proto)
