# SPDX-License-Identifier: Apache-2.0
"""Takes a reply tuple over from another service's flow that is over.

Two services share a backend, and a client uses one port for both. The rule is that of
``ebpf/lib/reply_tuple.h``, by the same values of ``control``.
"""

from __future__ import annotations

from xdp_router.adapters.bpf_maps import FlowTables, Maps
from xdp_router.core import abi
from xdp_router.core.held import UDP
from xdp_router.core.model import FlowKey

from .traffic_keeper import carried


def free_reply_tuple(maps: Maps, reply: bytes, flow: FlowKey, now_ns: int) -> bool:
    """Free ``reply``, a REPLY key, unless its owner lives; whether somebody's was freed.

    ``flow`` is who wants it: its own entries are left alone. Nothing of the owner is left, in
    ``flow_table``, ``pending_flows`` or ``flood_flows``.
    """
    own = (flow.service_addr, flow.service_port)
    control = maps.control.read()
    tables = maps.flows_of(flow.service_addr)
    back = abi.without_kind(reply)
    over = freed = None
    raw = tables.flows.read(back)
    if raw is not None:
        owner = abi.unpack_flow_entry(raw)
        if (owner.new_saddr, owner.new_sport) != own:
            there = abi.peer_key(back, raw)
            peer = tables.flows.read(there)
            if peer is not None and abi.peer_key(there, peer) != back:
                peer = None  # its other tuple is another flow's by now
            if not _flow_is_over(owner, peer, flow.proto, control, now_ns):
                return False
            if peer is not None and not tables.flows.delete(there):
                maps.usage.age(owner.service)
                if abi.unpack_flow_entry(peer).open:
                    maps.backend_loads.age(owner.backend)
                maps.traffic.age(owner.backend, carried(abi.unpack_flow_entry(peer)))
            if not tables.flows.delete(back):
                maps.traffic.age(owner.backend, carried(owner))
            _forget_forward(tables, there)
            over = freed = (owner.new_saddr, owner.new_sport)
    raw = tables.read_pending(reply)
    if raw is None:
        return freed is not None
    entry = abi.unpack_pending(raw)
    whose = (entry.new_saddr, entry.new_sport)
    if whose == own:
        return freed is not None
    if whose != over:
        service = FlowKey(entry.new_daddr, entry.new_dport, *whose, flow.proto)
        there = abi.pack_flow_key(service)
        forward_raw = tables.read_pending(abi.pack_flow_key(service, abi.Kind.FORWARD))
        forward = abi.unpack_pending(forward_raw) if forward_raw is not None else None
        if not _pending_is_over(forward, entry, flow.proto, control, now_ns):
            return freed is not None
        # A FORWARD to another backend, or a SEEN without one, is a later flow's.
        if forward is not None and forward.backend == entry.backend:
            _forget_forward(tables, there)
    tables.delete_pending(reply)
    return True


def _flow_is_over(
    flow: abi.FlowEntryValue,
    peer: bytes | None,
    proto: int,
    control: abi.ControlValue,
    now_ns: int,
) -> bool:
    """Both directions have been silent for their time, or have said goodbye."""
    limit_ns = control.udp_idle_ns if proto == UDP else control.flow_idle_ns
    if flow.state is abi.TcpState.CLOSING:
        return True
    silent = now_ns - control.heartbeat_ns > control.heartbeat_stale_ns
    if silent or now_ns - control.resumed_ns <= limit_ns:
        return False  # the heartbeat, by which flows are dated, stood still
    last_seen_ns = flow.last_seen_ns
    if peer is not None:
        last_seen_ns = max(last_seen_ns, abi.unpack_flow_entry(peer).last_seen_ns)
    return now_ns - last_seen_ns > limit_ns


def _pending_is_over(
    forward: abi.PendingValue | None,
    reply: abi.PendingValue,
    proto: int,
    control: abi.ControlValue,
    now_ns: int,
) -> bool:
    if forward is None or forward.backend != reply.backend:
        return True
    if forward.flags & abi.PENDING_CLOSED:
        return True
    proven = forward.flags & abi.PENDING_PROVEN
    limit_ns = control.flow_idle_ns if proven else control.pending_idle_ns
    if proto == UDP:
        limit_ns = control.udp_idle_ns
    return now_ns - max(forward.last_seen_ns, reply.last_seen_ns) > limit_ns


def _forget_forward(tables: FlowTables, there: bytes) -> None:
    """Remove FORWARD and SEEN of the flow whose ``flow_table`` key is ``there``."""
    flow = abi.flow_key_from_bytes(there)
    for kind in (abi.Kind.FORWARD, abi.Kind.SEEN):
        tables.delete_pending(abi.pack_flow_key(flow, kind))
