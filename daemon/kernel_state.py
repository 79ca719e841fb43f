# SPDX-License-Identifier: Apache-2.0
"""Brings configuration and network state into the maps that the XDP program reads.

The daemon alone writes these maps; what it wrote last is kept here, so that a change
rewrites one value and nothing is read back.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections import Counter
from collections.abc import Collection, Sequence

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.host import LinkInfo
from xdp_router.adapters.names import Names
from xdp_router.adapters.netlink import Path
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.event_budget import deep_ring, price
from xdp_router.core.model import Backend, Endpoint, Service

_NO_MAC = bytes(6)
_NS_PER_S = 1_000_000_000
_NOBODY = abi.BackendValue(0, 0, 0, 0, 0, 0, 0, _NO_MAC, _NO_MAC, 0)


class KernelState:
    """The written side of one data plane. Methods raise BpfError when a table is full."""

    def __init__(
        self,
        plane: DataPlane,
        config: RouterConfig,
        *,
        adopted: bool = False,
        retired: Sequence[Backend] = (),
    ) -> None:
        """``adopted``: the maps are in use, and what is in them goes on meanwhile.

        ``retired``: backends that only flows have; they keep their ids.
        """
        self._adopted = adopted
        self._retired = retired
        self.maps = Maps(plane.maps)
        self._names = Names(plane.maps["names"])
        self._config = config
        self.probe_key = (secrets.randbits(32), secrets.randbits(32))
        self.reinject_mark = secrets.randbits(63) + 1
        self._services: dict[int, tuple[Service, abi.ServiceValue]] = {}
        counts = Counter(
            endpoint
            for service in config.services
            for endpoint in {backend.endpoint for backend in service.backends}
        )
        counts.update(backend.endpoint for backend in retired)
        self.shared = frozenset(endpoint for endpoint, count in counts.items() if count > 1)
        """Addresses that serve more than one service: their reply tuples can collide."""
        self._backends: dict[int, abi.BackendValue] = {}
        self.former = self.maps.control.read()
        """``control`` as it was before ``write_all``."""

    def write_all(self) -> None:
        """Write control, services, backends (all of them down, unless adopted) and names."""
        self._write_control()
        settings = self._config.settings
        now_ns = time.monotonic_ns()
        running = dict(self.maps.services.items()) if self._adopted else {}
        self.maps.tokens.fill(abi.TOKENS_EVENTS, 0, now_ns - _NS_PER_S)
        self.maps.tokens.fill(abi.TOKENS_ICMP, 0, now_ns - _NS_PER_S)
        indexed: set[Endpoint] = set()
        for service in self._config.services:
            interval_ns, burst_ns = price(service.event_rate, settings.event_burst)
            value = abi.ServiceValue(
                deadline_ns=service.deadline_ns,
                stateless_until_ns=0,
                event_interval_ns=interval_ns,
                event_burst_ns=burst_ns,
                id=service.id,
                first_backend=min(backend.id for backend in service.backends),
                backend_count=len(service.backends),
                fallback=service.fallback,
                mode=service.mode,
                forwarding=service.forwarding,
                orphans=service.orphans,
                hash_active=0,
            )
            if service.endpoint in running:
                value = dataclasses.replace(
                    value,
                    stateless_until_ns=running[service.endpoint].stateless_until_ns,
                    hash_active=running[service.endpoint].hash_active,
                )
            self._services[service.id] = (service, value)
            self.maps.tokens.fill(abi.TOKENS_SERVICE + service.id, 0, now_ns - _NS_PER_S)
            self._names.write_service(service.id, service.name)
            for backend in service.backends:
                self._write_backend(backend, service)
                # One address may serve two services; the first one answers for its probes.
                if backend.endpoint not in indexed:
                    indexed.add(backend.endpoint)
                    self.maps.backend_index.write(backend.endpoint, backend.id, service.id)
        for backend in self._retired:
            found = self.maps.backends.read(backend.id)
            assert found is not None
            flags = found.flags & ~abi.BACKEND_UP | abi.BACKEND_DRAINING
            if backend.endpoint in self.shared:
                flags |= abi.BACKEND_SHARED
            self._put_backend(backend.id, dataclasses.replace(found, flags=flags))
            if backend.endpoint not in indexed:
                indexed.add(backend.endpoint)
                self.maps.backend_index.write(backend.endpoint, backend.id, backend.service)
        if self._adopted:
            self._forget_others(indexed)

    def _forget_others(self, indexed: set[Endpoint]) -> None:
        """Remove what a former configuration had, and no flow has."""
        for endpoint, _ in list(self.maps.backend_index.items()):
            if endpoint not in indexed:
                self.maps.backend_index.delete(endpoint)
        number = 0
        while (found := self.maps.backends.read(number)) is not None:
            if number not in self._backends and found.port:
                self.maps.backends.write(number, _NOBODY)
            number += 1
        services = {*self._services, *(backend.service for backend in self._retired)}
        self._names.keep_only(services, self._backends)

    def forget_interfaces(self, attached: Collection[int]) -> None:
        """Forget interfaces that are not attached any more."""
        for ifindex, _ in list(self.maps.interfaces.items()):
            if ifindex not in attached:
                self.maps.interfaces.delete(ifindex)

    def open_services(self) -> None:
        """Write the services themselves, last: from now on their SYNs are held."""
        opened = {service.endpoint for service, _ in self._services.values()}
        for endpoint, _ in list(self.maps.services.items()):
            if endpoint not in opened:
                self.maps.services.delete(endpoint)
        for service, value in self._services.values():
            self.maps.services.write(service.endpoint, value)

    def beat(self, now_ns: int, resumed_ns: int) -> None:
        """Write the heartbeat, and the end of its newest pause."""
        self.maps.control.beat(now_ns, resumed_ns)

    def set_path(self, backend: int, path: Path | None) -> None:
        """Set where a backend's frames go; None: nowhere, they are dropped as ``no_path``."""
        old = self._backends[backend]
        self._put_backend(
            backend,
            dataclasses.replace(
                old,
                ifindex=path.ifindex if path else 0,
                probe_addr=path.source_addr if path else 0,
                dmac=path.dmac if path else _NO_MAC,
                smac=path.smac if path else _NO_MAC,
            ),
        )

    def set_up(self, backend: int, up: bool) -> None:
        """Set whether XDP may choose a backend."""
        old = self._backends[backend]
        flags = old.flags | abi.BACKEND_UP if up else old.flags & ~abi.BACKEND_UP
        self._put_backend(backend, dataclasses.replace(old, flags=flags))

    def publish_hash_table(self, service_id: int, slots: tuple[int, ...]) -> None:
        """Write the table that is not in use, then switch to it."""
        service, value = self._services[service_id]
        half = 1 - value.hash_active
        self.maps.hash_tables.write(service_id, half, slots)
        current = self.maps.services.read(service.endpoint)
        value = dataclasses.replace(
            value,
            hash_active=half,
            # XDP's own field: carried over, not reset
            stateless_until_ns=current.stateless_until_ns if current else 0,
        )
        self._services[service_id] = (service, value)
        if current is not None:
            self.maps.services.write(service.endpoint, value)

    def set_interface(self, link: LinkInfo) -> None:
        """Tell XDP an attached interface's MAC, and how to answer by it."""
        # XDP_TX on veth wakes the other end only if that has a program; a redirect always.
        flags = abi.IF_BOUNCE_REDIRECT if link.kind == "veth" else 0
        self.maps.interfaces.write(link.ifindex, abi.InterfaceValue(link.mac, _NO_MAC, flags))

    def backend_value(self, backend: int) -> abi.BackendValue:
        """What was written last for a backend."""
        return self._backends[backend]

    def _write_control(self) -> None:
        settings = self._config.settings
        interval_ns, burst_ns = price(settings.event_rate, settings.event_burst)
        prefix_ns, prefix_burst_ns = price(settings.event_rate_per_prefix, settings.event_burst)
        now_ns = time.monotonic_ns()
        self.maps.control.write(
            abi.ControlValue(
                # Nobody answers yet: the first beat says when.
                heartbeat_ns=self.former.heartbeat_ns if self._adopted else now_ns,
                resumed_ns=now_ns,
                heartbeat_stale_ns=settings.heartbeat_stale_ns,
                reinject_mark=self.reinject_mark,
                pending_idle_ns=settings.pending_idle_ns,
                flow_idle_ns=settings.flow_idle_ns,
                orphan_window_ns=settings.pending_idle_ns,
                event_interval_ns=interval_ns,
                event_burst_ns=burst_ns,
                prefix_interval_ns=prefix_ns,
                prefix_burst_ns=prefix_burst_ns,
                ring_deep=deep_ring([each.deadline_ns for each in self._config.services]),
                probe_key=self.probe_key,
                abi_version=abi.ABI_VERSION,
                generation=self.former.generation + 1,
                probe_port_min=settings.probe_port_min,
                probe_port_max=settings.probe_port_max,
            )
        )

    def _write_backend(self, backend: Backend, service: Service) -> None:
        self._names.write_backend(backend.id, backend.name)
        before = self.maps.backends.read(backend.id) if self._adopted else None
        if before is None or Endpoint(before.addr, before.port) != backend.endpoint:
            before = _NOBODY
        self._put_backend(
            backend.id,
            abi.BackendValue(
                addr=backend.endpoint.addr,
                port=backend.endpoint.port,
                proto=backend.endpoint.proto,
                # Its packets, and XDP's own choice, go on until the path is known anew.
                flags=(abi.BACKEND_SHARED if backend.endpoint in self.shared else 0)
                | (before.flags & abi.BACKEND_UP),
                service=service.id,
                ifindex=before.ifindex,
                probe_addr=before.probe_addr,
                dmac=before.dmac,
                smac=before.smac,
                weight=backend.weight,
            ),
        )

    def _put_backend(self, backend: int, value: abi.BackendValue) -> None:
        self._backends[backend] = value
        self.maps.backends.write(backend, value)
