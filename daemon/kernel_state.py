# SPDX-License-Identifier: Apache-2.0
"""Brings configuration and network state into the maps that the XDP program reads.

The daemon alone writes these maps; what it wrote last is kept here, so that a change
rewrites one value and nothing is read back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

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
_NO_LIMIT = 65_535
"""Longer than any packet."""
ICMP_BURST = 50
"""ICMP errors at once, of all CPUs together; as many as the kernel's own."""
_NS_PER_S = 1_000_000_000
_NOBODY = abi.BackendValue(0, 0, 0, 0, 0, 0, 0, _NO_MAC, _NO_MAC, 0)


def icmp_budget(rate: int) -> tuple[int, int]:
    """One CPU's share of ``rate`` ICMP errors a second: (interval_ns, burst_ns); 0: none at all.

    The share is even among the CPUs that are online.
    """
    if not rate:
        return 1 << 63, 0
    # Not the possible ones: a virtual machine may have room for a hundred more than it has.
    cpus = os.cpu_count() or 1
    interval_ns = _NS_PER_S * cpus // rate
    return interval_ns, max(interval_ns, interval_ns * ICMP_BURST // cpus)


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
        self._interfaces: dict[int, abi.InterfaceValue] = {}
        self._handoff: dict[int, int] = {}
        self._gathered: dict[int, abi.BackendValue] | None = None
        self.is_lost: Callable[[], bool] = lambda: False
        """Whether the maps are a successor's: nothing that changes is written into them then."""
        self.former = self.maps.control.read()
        """``control`` as it was before ``write_all``."""
        self.carried: frozenset[int] = frozenset()
        """Adopted services whose consistent-hash tables name their own backends and no other."""

    def write_all(self) -> None:
        """Write control, services, backends (all of them down, unless adopted) and names."""
        self._write_control()
        settings = self._config.settings
        now_ns = time.monotonic_ns()
        running = dict(self.maps.services.items()) if self._adopted else {}
        self.maps.tokens.fill(abi.TOKENS_EVENTS, 0, now_ns - _NS_PER_S)
        self.maps.tokens.fill(abi.TOKENS_ICMP, 0, now_ns - _NS_PER_S)
        indexed: dict[Endpoint, tuple[int, int]] = {}
        before = dict(self.maps.backends.items()) if self._adopted else {}
        for service in self._config.services:
            interval_ns, burst_ns = price(service.event_rate, settings.event_burst)
            value = abi.ServiceValue(
                deadline_ns=service.deadline_ns,
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
                    hash_active=running[service.endpoint].hash_active,
                )
            elif self._adopted:
                self.maps.pressure.reset(service.id)
            self._services[service.id] = (service, value)
            self.maps.tokens.fill(abi.TOKENS_SERVICE + service.id, 0, now_ns - _NS_PER_S)
            for backend in service.backends:
                found = before.get(backend.id, _NOBODY)
                if Endpoint(found.addr, found.port, found.proto) != backend.endpoint:
                    found = _NOBODY
                self._backends[backend.id] = self._value(backend, found)
                # One address may serve two services; the first one answers for its probes.
                indexed.setdefault(backend.endpoint, (backend.id, service.id))
        for backend in self._retired:
            found = before[backend.id]
            flags = found.flags & ~abi.BACKEND_UP | abi.BACKEND_DRAINING
            if backend.endpoint in self.shared:
                flags |= abi.BACKEND_SHARED
            self._backends[backend.id] = dataclasses.replace(found, flags=flags)
            indexed.setdefault(backend.endpoint, (backend.id, backend.service))
        self._names.write_all(
            {service.id: service.name for service in self._config.services},
            {
                backend.id: backend.name
                for service in self._config.services
                for backend in service.backends
            },
        )
        self.maps.backends.write_all(self._backends)
        self.maps.backend_index.write_all(indexed)
        if self._adopted:
            self.carried = self._carried(running, before)
            self._forget_others(indexed, before)

    def _carried(
        self,
        running: Mapping[Endpoint, abi.ServiceValue],
        before: Mapping[int, abi.BackendValue],
    ) -> frozenset[int]:
        had: dict[int, set[int]] = {}
        for backend, value in before.items():
            had.setdefault(value.service, set()).add(backend)
        return frozenset(
            service.id
            for service in self._config.services
            if service.endpoint in running
            and running[service.endpoint].id == service.id
            and had.get(service.id) == {backend.id for backend in service.backends}
        )

    def _forget_others(self, indexed: Container[Endpoint], before: Iterable[int]) -> None:
        """Remove what a former configuration had, and no flow has."""
        for endpoint, _ in list(self.maps.backend_index.items()):
            if endpoint not in indexed:
                self.maps.backend_index.delete(endpoint)
        gone = (number for number in before if number not in self._backends)
        self.maps.backends.write_all(dict.fromkeys(gone, _NOBODY))
        services = {*self._services, *(backend.service for backend in self._retired)}
        self._names.keep_only(services, self._backends)

    def forget_interfaces(self, attached: Collection[int]) -> None:
        """Forget interfaces that are not attached any more."""
        for ifindex, _ in list(self.maps.interfaces.items()):
            if ifindex not in attached:
                self.maps.interfaces.delete(ifindex)
        self._interfaces = {
            ifindex: value for ifindex, value in self._interfaces.items() if ifindex in attached
        }
        self._write_min_mtu()

    def forget_interface(self, ifindex: int) -> None:
        """Forget one: what arrives there is other traffic."""
        if self.is_lost():
            return
        self.maps.interfaces.delete(ifindex)
        self._interfaces.pop(ifindex, None)
        self._write_min_mtu()

    def open_services(self) -> None:
        """Write the services themselves, last: from now on their SYNs are held."""
        opened = {service.endpoint for service, _ in self._services.values()}
        for endpoint, _ in list(self.maps.services.items()):
            if endpoint not in opened:
                self.maps.services.delete(endpoint)
        for service, value in self._services.values():
            self.maps.services.write(service.endpoint, value)

    def forget_backend(self, backend: Backend) -> None:
        """Free the id of a retired backend that no flow has any more."""
        if self.is_lost():
            return
        self._backends.pop(backend.id, None)
        index = self.maps.backend_index.read(backend.endpoint)
        if index is not None and index[0] == backend.id:
            self.maps.backend_index.delete(backend.endpoint)
        self.maps.backends.write(backend.id, _NOBODY)
        self._names.delete_backend(backend.id)

    @property
    def generation(self) -> int:
        """How many daemons have had this data plane, this one included."""
        return self.former.generation + 1

    def beat(self, now_ns: int, resumed_ns: int) -> None:
        """Write the heartbeat, and the end of its newest pause."""
        self.maps.control.beat(now_ns, resumed_ns)

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Backends that change within are written at the end, all at once."""
        self._gathered = {}
        try:
            yield
            self.maps.backends.write_all(self._gathered)
        finally:
            self._gathered = None

    def set_path(self, backend: int, path: Path | None, by_kernel: bool = False) -> None:
        """Set where a backend's frames go; None: nowhere, they are dropped as ``no_path``.

        ``by_kernel``: they are left to the kernel instead, path or not.
        """
        old = self._backends[backend]
        kernel = abi.BACKEND_KERNEL if by_kernel else 0
        self._put_backend(
            backend,
            dataclasses.replace(
                old,
                flags=old.flags & ~abi.BACKEND_KERNEL | kernel,
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
        if self.is_lost():
            return
        service, value = self._services[service_id]
        half = 1 - value.hash_active
        self.maps.hash_tables.write(service_id, half, slots)
        value = dataclasses.replace(value, hash_active=half)
        self._services[service_id] = (service, value)
        if self.maps.services.read(service.endpoint) is not None:
            self.maps.services.write(service.endpoint, value)

    def set_interface(self, link: LinkInfo) -> None:
        """Tell XDP an attached interface's MAC, address and MTU, and how to answer by it."""
        if self.is_lost():
            return
        # XDP_TX on veth wakes the other end only if that has a program; a redirect always.
        flags = abi.IF_BOUNCE_REDIRECT if link.kind == "veth" else 0
        value = abi.InterfaceValue(link.mac, _NO_MAC, flags, link.addr, link.mtu)
        self._interfaces[link.ifindex] = value
        self._write_interface(link.ifindex)
        self._write_min_mtu()

    def _write_min_mtu(self) -> None:
        if self._interfaces:
            mtus = [value.mtu for value in self._interfaces.values()]
            self.maps.control.change_min_mtu(min(mtus))

    def set_handoff(self, flags: Mapping[int, int]) -> None:
        """Set how hand-off to the kernel stands, by interface number (``IF_HANDOFF_*``, ...)."""
        if self.is_lost():
            return
        self._handoff = dict(flags)
        lacking = any(each & abi.IF_NO_XMIT for each in flags.values())
        self.maps.control.set_flags(abi.CONTROL_NO_XMIT if lacking else 0)
        for ifindex in self._interfaces:
            self._write_interface(ifindex)

    def _write_interface(self, ifindex: int) -> None:
        value = self._interfaces[ifindex]
        flags = value.flags | self._handoff.get(ifindex, 0)
        self.maps.interfaces.write(ifindex, dataclasses.replace(value, flags=flags))

    def backend_value(self, backend: int) -> abi.BackendValue:
        """What was written last for a backend."""
        return self._backends[backend]

    def _write_control(self) -> None:
        settings = self._config.settings
        interval_ns, burst_ns = price(settings.event_rate, settings.event_burst)
        prefix_ns, prefix_burst_ns = price(settings.event_rate_per_prefix, settings.event_burst)
        icmp_interval_ns, icmp_burst_ns = icmp_budget(settings.icmp_rate)
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
                orphan_window_ns=settings.flow_idle_ns,
                event_interval_ns=interval_ns,
                event_burst_ns=burst_ns,
                icmp_interval_ns=icmp_interval_ns,
                icmp_burst_ns=icmp_burst_ns,
                min_mtu=self.former.min_mtu if self._adopted else _NO_LIMIT,
                prefix_interval_ns=prefix_ns,
                prefix_burst_ns=prefix_burst_ns,
                ring_deep=deep_ring([each.deadline_ns for each in self._config.services]),
                probe_key=self.probe_key,
                abi_version=abi.ABI_VERSION,
                generation=self.generation,
                probe_port_min=settings.probe_port_min,
                probe_port_max=settings.probe_port_max,
                flags=self.former.flags if self._adopted else 0,
            )
        )

    def _value(self, backend: Backend, before: abi.BackendValue) -> abi.BackendValue:
        """``before``: what the map has of it, whose packets, and XDP's own choice, go on until
        the path is known anew.
        """
        return abi.BackendValue(
            addr=backend.endpoint.addr,
            port=backend.endpoint.port,
            proto=backend.endpoint.proto,
            flags=(abi.BACKEND_SHARED if backend.endpoint in self.shared else 0)
            | (before.flags & (abi.BACKEND_UP | abi.BACKEND_KERNEL)),
            service=backend.service,
            ifindex=before.ifindex,
            probe_addr=before.probe_addr,
            dmac=before.dmac,
            smac=before.smac,
            weight=backend.weight,
        )

    def _put_backend(self, backend: int, value: abi.BackendValue) -> None:
        self._backends[backend] = value
        if self.is_lost():
            return
        if self._gathered is not None:
            self._gathered[backend] = value
        else:
            self.maps.backends.write(backend, value)
