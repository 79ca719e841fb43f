# SPDX-License-Identifier: Apache-2.0
"""What a pinned data plane says of itself: heartbeat, ports, and counters that mean trouble."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from xdp_router.core.flow_room import Limit, shortfalls

from . import bpf_syscall as bpf
from .bpf_maps import Maps
from .dataplane import DataPlane
from .doctor_finding import Finding, ok, warn
from .map_specs import MAP_SPECS
from .pins import InstanceRef

# By counter: what it means, and the mend.
_TROUBLE = {
    "no_path": (
        "packets were dropped because there was no way to their backend or client",
        "xdp-router backends gives the reason; attach the interface that is missing, or mend what "
        "the findings 'handoff' say",
    ),
    "ring_full": (
        "first packets were decided without a race, because the daemon did not empty the ring in "
        "time",
        "give the daemon CPU time; lower event_rate",
    ),
    "event_lost": (
        "events about flows were lost, because the ring was full: counts and explain miss them",
        "give the daemon CPU time; lower event_rate",
    ),
    "heartbeat_stale": (
        "first packets were decided without a race, because the daemon was gone or starved",
        "see its log; raise its CPU priority, or heartbeat_stale",
    ),
    "deadline_passed": (
        "SYNs were retransmitted before there was a decision",
        "raise deadline above the slowest backend's round trip, or see why none answers",
    ),
    "tail_call_missed": (
        "a stage of the program was missing: packets went down the degrade chain",
        "detach and attach again; report it",
    ),
    "promote_table_full": (
        "flows found no room in flow_table: they work from pending_flows, whose oldest entries go "
        "first, and are hashed when theirs are gone",
        "raise max_flows (attach --max-flows), or lower flow_idle",
    ),
    "promote_conflict": (
        "an established flow's reply tuple was taken by another flow",
        "give services backends of their own, or addresses of their own to one backend",
    ),
    "pending_insert_failed": (
        "flows could not be noted in pending_flows",
        "usually memory: see dmesg",
    ),
    "budget_global": (
        "first packets went beyond event_rate of the router and were decided without a race",
        "a flood, or too small an event_rate",
    ),
    "budget_service": (
        "first packets went beyond a service's event_rate and were decided without a race",
        "a flood, or too small an event_rate",
    ),
    "budget_prefix": (
        "first packets from one source prefix went beyond event_rate_per_prefix and were decided "
        "without a race",
        "a flood from there; raise event_rate_per_prefix if many clients share a /24 (/56 of IPv6)",
    ),
    "ring_deep": (
        "first packets were decided without a race, because the daemon was behind",
        "a flood, or other work on its CPU; if it is always so, lower event_rate",
    ),
    "frame_too_long": (
        "SYNs were too long for an event and decided without a race",
        "nothing, unless clients send much data with their SYN",
    ),
    "refused_no_backend": (
        "connections were refused because no backend was up",
        "xdp-router backends gives the reason",
    ),
    "nat_ports_exhausted": (
        "XDP found no free source port at a backend of a fullnat service: connections went to "
        "another one, or were refused",
        "widen nat_ports, or give the service more backends",
    ),
    "fragment_dropped": (
        "IP fragments of service traffic were dropped: too short, or of no flow",
        "find the path whose MTU is smaller; clamp the MSS (advmss of the backends' route)",
    ),
    "ttl_exceeded": (
        "packets of services arrived with their TTL at its end",
        "look for a routing loop between this box and its neighbours",
    ),
}


_FULL_S = 60.0
"""A table in which a flow found no room this short ago is still called full."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the maps of one data plane say. Ports are the first and the last probe port.

    ``full_ns``: when a flow of IPv4 last found no room in its table; 0: never.
    """

    beat_ns: int
    stale_ns: int
    ports: tuple[int, int]
    max_flows: int
    counters: Mapping[str, int]
    pending: Mapping[str, tuple[int, int]]
    """By table of handshakes: entries, and most entries."""
    full_ns: int = 0
    max_flows6: int = 0
    """Of IPv6; ``max_flows``: of IPv4."""
    full6_ns: int = 0
    """Of IPv6; ``full_ns``: of IPv4."""
    nat_ports: tuple[int, int] | None = None


def read_facts(instance: InstanceRef) -> Facts | None:
    """Open the maps and look; None when some have lost their pin. Raises BpfError."""
    plane = DataPlane.open(instance.path)
    try:
        if any(spec.value_size and spec.name not in plane.maps for spec in MAP_SPECS):
            return None
        maps = Maps(plane.maps)
        control = maps.control.read()
        return Facts(
            beat_ns=control.heartbeat_ns,
            stale_ns=control.heartbeat_stale_ns,
            ports=(control.probe_port_min, control.probe_port_max),
            max_flows=bpf.map_info(plane.maps["flow_table"]).max_entries // 2,
            counters=maps.counters.read(),
            pending={
                name: (_entries(plane.maps[name]), bpf.map_info(plane.maps[name]).max_entries)
                for name in ("pending_flows", "pending_flows6")
            },
            full_ns=maps.pressure.table_full_ns(4),
            full6_ns=maps.pressure.table_full_ns(6),
            max_flows6=bpf.map_info(plane.maps["flow_table6"]).max_entries // 2,
            nat_ports=(
                (control.nat_port_min, control.nat_port_max) if control.nat_port_min else None
            ),
        )
    finally:
        plane.close()


def _entries(fd: int) -> int:
    return sum(1 for batch in bpf.BpfMap(fd).batches(4096) for _ in batch)


def judge_facts(subject: str, facts: Facts, now_ns: int) -> Iterator[Finding]:
    """Findings that follow; asks the kernel nothing. ``now_ns``: CLOCK_MONOTONIC."""
    age_ms = (now_ns - facts.beat_ns) / 1e6
    if age_ms * 1e6 <= facts.stale_ns:
        yield ok("heartbeat", subject, f"the daemon's last sign of life is {age_ms:.0f} ms old")
    else:
        yield warn(
            "heartbeat",
            subject,
            f"the daemon's last sign of life is {age_ms:.0f} ms old: XDP decides by itself",
            "see whether the daemon runs, and its log",
        )
    for table, (entries, most) in facts.pending.items():
        if most == 1:
            continue  # there is no IPv6
        if entries > 0.9 * most:
            yield warn(
                "pending_flows",
                table,
                f"{entries} of {most} entries: a flood of first packets, or more handshakes than "
                "fit; the oldest are evicted",
                "see where they come from, raise pending_flows; established flows are elsewhere",
            )
        else:
            yield ok("pending_flows", table, f"{entries} of {most} entries")
    tables = (
        ("flow_table", 4, facts.full_ns, facts.max_flows),
        ("flow_table6", 6, facts.full6_ns, facts.max_flows6),
    )
    for table, family, full_ns, room in tables:
        full_s = (now_ns - full_ns) / 1e9
        if not full_ns or full_s >= _FULL_S:
            continue
        yield warn(
            "flow_table_full",
            table,
            f"is full: {full_s:.0f} s ago a flow found no room among {room}; new ones of "
            f"IPv{family} are hashed, not raced",
            "raise max_flows (attach --max-flows): detach and attach, a table cannot grow; or "
            "lower flow_idle",
        )
    troubled = False
    for name, (text, mend) in _TROUBLE.items():
        count = facts.counters.get(name, 0)
        if count:
            troubled = True
            yield warn(name, f"counter {name}", f"{count} since attach: {text}", mend)
    if not troubled:
        yield ok("counters", subject, "no counter tells of trouble")


def rooms_in(planes: Iterable[Facts]) -> dict[int, int]:
    """Connections of each family that the largest tables have room for; empty: there are none."""
    known = list(planes)
    if not known:
        return {}
    return {4: max(each.max_flows for each in known), 6: max(each.max_flows6 for each in known)}


def judge_limits(limits: Collection[Limit], rooms: Mapping[int, int]) -> Iterator[Finding]:
    """Whether ``max_connections`` of the services have room; ``rooms``: by family, if known."""
    found = list(shortfalls(limits, rooms))
    for each in found:
        yield warn("max_connections_out_of_reach", "services", each.text, each.mend)
    if limits and rooms and not found:
        yield ok("max_connections", "services", "every limit of connections can be reached")
