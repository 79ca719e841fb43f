# SPDX-License-Identifier: Apache-2.0
"""What a configuration means as values of the maps. Nothing is written here, and no map read."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.event_budget import deep_ring, price
from xdp_router.core.model import NO_BACKEND, Backend, Mode, Service

from .service_rules import admission_of

NO_MAC = bytes(6)
NOBODY = abi.BackendValue(0, 0, 0, 0, 0, 0, 0, NO_MAC, NO_MAC, 0)
"""A place in ``backends`` that is free."""
ICMP_BURST = 50
"""ICMP errors at once, of all CPUs together; as many as the kernel's own."""
_NO_LIMIT = 65_535
"""Longer than any packet."""
_NS_PER_S = 1_000_000_000
_KEPT = abi.BACKEND_UP | abi.BACKEND_DRAINING | abi.BACKEND_KERNEL | abi.BACKEND_DEAD
"""Flags that a backend has from what has become of it, not from its configuration."""


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


def one_sided_interval(rate: int) -> int:
    """The price of one place of ``rate`` a second, in nanoseconds; 0: no limit."""
    return _NS_PER_S // rate if rate else 0


def control_value(
    config: RouterConfig,
    former: abi.ControlValue | None,
    now_ns: int,
    *,
    generation: int,
    probe_key: tuple[int, int],
    reinject_mark: int,
) -> abi.ControlValue:
    """``control`` as it begins. ``former``: that of an adopted data plane, whose heartbeat, MTU
    and flags hold until they are written anew.
    """
    settings = config.settings
    interval_ns, burst_ns = price(settings.event_rate, settings.event_burst)
    prefix_ns, prefix_burst_ns = price(settings.event_rate_per_prefix, settings.event_burst)
    icmp_interval_ns, icmp_burst_ns = icmp_budget(settings.icmp_rate)
    nat_ports = config.nat_ports or (0, 0)
    return abi.ControlValue(
        # Nobody answers yet: the first beat says when.
        heartbeat_ns=former.heartbeat_ns if former is not None else now_ns,
        resumed_ns=now_ns,
        heartbeat_stale_ns=settings.heartbeat_stale_ns,
        reinject_mark=reinject_mark,
        pending_idle_ns=settings.pending_idle_ns,
        flow_idle_ns=settings.flow_idle_ns,
        udp_idle_ns=settings.udp_idle_ns,
        orphan_window_ns=settings.flow_idle_ns,
        event_interval_ns=interval_ns,
        event_burst_ns=burst_ns,
        icmp_interval_ns=icmp_interval_ns,
        icmp_burst_ns=icmp_burst_ns,
        min_mtu=former.min_mtu if former is not None else _NO_LIMIT,
        prefix_interval_ns=prefix_ns,
        prefix_burst_ns=prefix_burst_ns,
        ring_deep=deep_ring([each.deadline_ns for each in config.services]),
        probe_key=probe_key,
        abi_version=abi.ABI_VERSION,
        generation=generation,
        probe_port_min=settings.probe_port_min,
        probe_port_max=settings.probe_port_max,
        nat_port_min=nat_ports[0],
        nat_port_max=nat_ports[1],
        # All interfaces have the program that asks for this.
        flags=former.flags & ~abi.CONTROL_HOLD if former is not None else 0,
        one_sided_interval_ns=one_sided_interval(settings.one_sided_rate_per_prefix),
    )


def service_value(service: Service, burst: int, *, stateless: bool) -> abi.ServiceValue:
    """A service. ``burst``: events at once; ``stateless``: see ``admission_of``."""
    interval_ns, burst_ns = price(service.event_rate, burst)
    return abi.ServiceValue(
        deadline_ns=service.deadline_ns,
        event_interval_ns=interval_ns,
        event_burst_ns=burst_ns,
        snapshot_age_ns=service.snapshot_age_ns,
        id=service.id,
        first_backend=min((backend.id for backend in service.backends), default=NO_BACKEND),
        backend_count=len(service.backends),
        fallback=service.fallback,
        # Until there is a table to pick by the daemon decides.
        mode=Mode.RACE if service.mode is Mode.SNAPSHOT else service.mode,
        forwarding=service.forwarding,
        orphans=service.orphans,
        hash_active=0,
        tunnel_bits=service.tunnel_bits,
        control_arm=service.control_arm,
        control_arm_by=service.control_arm_by,
        tunnel_source=service.tunnel_source,
        **admission_of(service, stateless=stateless),
    )


def backend_value(backend: Backend, before: abi.BackendValue, *, shared: bool) -> abi.BackendValue:
    """A backend. ``before``: what the map has of it, whose packets, and XDP's own choice, go on
    until the path is known anew. ``shared``: its reply tuples can collide with others'.
    """
    vlan = before.vlan if backend.vlan is None else abi.vlan_of(backend.vlan)
    return abi.BackendValue(
        addr=backend.endpoint.addr,
        port=backend.endpoint.port,
        proto=backend.endpoint.proto,
        flags=(abi.BACKEND_SHARED if shared else 0)
        | (abi.BACKEND_STAGE if vlan else 0)
        | (before.flags & _KEPT)
        | abi.BACKEND_METHOD.get(backend.forwarding, 0),
        service=backend.service,
        ifindex=before.ifindex,
        probe_addr=before.probe_addr,
        dmac=before.dmac,
        smac=before.smac,
        weight=backend.weight,
        vlan=vlan,
        share=before.share,
    )


def left_out(backends: Mapping[int, abi.BackendValue]) -> frozenset[int]:
    """Ids of those that there is a way to, and that XDP may not choose all the same: who had
    the maps before has found them ill."""
    return frozenset(
        number
        for number, value in backends.items()
        if value.ifindex and not value.flags & abi.BACKEND_UP
    )


def as_well(value: abi.BackendValue) -> abi.BackendValue:
    """A backend of a former daemon's: whether it is dead, or has all of its share, is not known.
    Whether it was ill its flag of being up says."""
    return dataclasses.replace(value, flags=value.flags & ~abi.BACKEND_DEAD, share=0)
