# SPDX-License-Identifier: Apache-2.0
"""What a pinned data plane says of itself: heartbeat, ports, and counters that mean trouble."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
        "a flood from there; raise event_rate_per_prefix if many clients share a /24",
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
    "fragment_dropped": (
        "IP fragments of service traffic were dropped",
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

    ``full_ns``: when a flow last found no room in ``flow_table``; 0: never.
    """

    beat_ns: int
    stale_ns: int
    ports: tuple[int, int]
    max_flows: int
    counters: Mapping[str, int]
    pending: int
    pending_max: int
    full_ns: int = 0


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
            pending=_entries(plane.maps["pending_flows"]),
            pending_max=bpf.map_info(plane.maps["pending_flows"]).max_entries,
            full_ns=maps.pressure.table_full_ns(),
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
    if facts.pending > 0.9 * facts.pending_max:
        yield warn(
            "pending_flows",
            "pending_flows",
            f"{facts.pending} of {facts.pending_max} entries: a flood of SYNs, or more handshakes "
            "than fit; the oldest are evicted",
            "see where SYNs come from, raise pending_flows; established flows are elsewhere",
        )
    else:
        text = f"{facts.pending} of {facts.pending_max} entries"
        yield ok("pending_flows", "pending_flows", text)
    full_s = (now_ns - facts.full_ns) / 1e9
    if facts.full_ns and full_s < _FULL_S:
        yield warn(
            "flow_table_full",
            "flow_table",
            f"is full: {full_s:.0f} s ago a flow found no room among {facts.max_flows}; new ones "
            "are hashed, not raced",
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
