# SPDX-License-Identifier: Apache-2.0
"""Enumerations and structs of ``ebpf/abi.h`` as values. :mod:`.abi` makes them from bytes.

Addresses and ports are host-order integers, MAC addresses are 6 bytes, times are as named.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from .model import Endpoint, FlowKey, Forwarding, Mode, Orphans, Reason

RANGES = 8
"""Of one address and protocol."""
SERVICE_GATEWAY = 0x20


class Kind(enum.IntEnum):
    """Which entry of a flow a ``pending_flows`` key names; ``flow_table`` keys use NONE."""

    NONE = 0
    SEEN = 1
    FORWARD = 2
    REPLY = 3


class EndpointKind(enum.IntEnum):
    """What a key of ``services`` or ``backend_index`` names (``enum xr_endpoint``)."""

    ONE = 0
    RANGE = 1
    PROBE = 2
    STUN = 3
    ECHO = 4
    TAKEN_UP = 5


class SourceRule(enum.IntEnum):
    """What a rule of ``source_rules`` says (``enum xr_source``)."""

    ALLOW = 0
    DENY = 1


class TcpState(enum.IntEnum):
    """TCP detail of an established flow (``enum xr_tcp_state``)."""

    NONE = 0
    ESTABLISHED = 1
    CLOSING = 2


class Direction(enum.IntEnum):
    """Which way an entry's packets go (``enum xr_direction``)."""

    FORWARD = 0
    REPLY = 1


class EventType(enum.IntEnum):
    """What a ring buffer record tells (``enum xr_event_type``)."""

    FIRST_PACKET = 1
    PROBE_REPLY = 2
    ESTABLISHED = 3
    XDP_DECIDED = 4
    DATAGRAM = 5


class Stage(enum.IntEnum):
    """Slots of the ``stages`` program array (``enum xr_stage``)."""

    SYN = 0
    SYN_BOUND = 1
    DECIDE = 2
    SEGMENT = 3
    REPLY = 4
    PROBE = 5
    ICMP = 6
    ICMP_ERROR = 7
    BOUND = 8
    UDP = 9
    DATAGRAM = 10
    UDP_REPLY = 11
    FRAGMENT = 12
    SEND = 13
    ECHO = 14
    FLOOD = 15
    TAKE_OVER = 16
    FORWARD = 17
    KILLED = 18
    PREVIOUS = 19


class Counter(enum.IntEnum):
    """Slots of the ``counters`` map; names and order are those of ``XR_COUNTERS``."""

    pass_malformed = 0
    pass_other_mac = 1
    pass_not_ip = 2
    pass_other_protocol = 3
    pass_fragment = 4
    pass_not_service = 5
    first_packet = 6
    syn_held_again = 7
    syn_retransmit = 8
    syn_on_live_flow = 9
    syn_reopened = 10
    ring_full = 11
    budget_global = 12
    budget_service = 13
    heartbeat_stale = 14
    deadline_passed = 15
    frame_too_long = 16
    pending_insert_failed = 17
    pending_reply_taken = 18
    decided_fallback = 19
    decided_hash = 20
    refused_no_backend = 21
    refused_by_daemon = 22
    promoted = 23
    promote_conflict = 24
    promote_table_full = 25
    orphan_hashed = 26
    orphan_reset = 27
    orphan_dropped = 28
    probe_synack = 29
    probe_rst = 30
    probe_unreachable = 31
    probe_unverified = 32
    reinjected = 33
    fin_outside_window = 34
    rst_inexact = 35
    client_moved = 36
    closing_revoked = 37
    ttl_exceeded = 38
    fragment_dropped = 39
    no_path = 40
    tail_call_missed = 41
    event_lost = 42
    budget_prefix = 43
    ring_deep = 44
    table_full = 45
    promoted_late = 46
    flow_restarted = 47
    reply_tuple_freed = 48
    client_is_backend = 49
    handed_to_kernel = 50
    icmp_time_exceeded = 51
    icmp_too_big = 52
    icmp_over_budget = 53
    icmp_no_source = 54
    too_big_dropped = 55
    icmp_translated = 56
    pass_no_ipv6 = 57
    extension_headers = 58
    datagram_first = 59
    datagram_held = 60
    datagram_dropped = 61
    datagrams_over = 62
    connection_id_known = 63
    unreachable_sent = 64
    fragment_first = 65
    fragment_followed = 66
    fragment_unknown = 67
    fragments_full = 68
    tunneled = 69
    vlan_changed = 70
    echo_answered = 71
    probe_echo = 72
    probe_datagram = 73
    affinity_used = 74
    flow_limit_reached = 75
    source_denied = 76
    nat_port_taken = 77
    nat_ports_exhausted = 78
    one_sided_promoted = 79
    one_sided_capped = 80
    stateless_forwarded = 81
    stateless_replied = 82
    stateless_promoted = 83
    flood_entry = 84
    nat_reply_unknown = 85
    tunnel_too_big = 86
    killed = 87
    killed_reset = 88
    killed_anew = 89
    decided_snapshot = 90
    decided_inline = 91
    snapshot_stale = 92
    pick_unusable = 93
    inline_tried = 94
    decided_control_arm = 95
    flow_moved = 96
    flow_not_moved = 97
    pass_gateway = 98
    gateway_steered = 99
    gateway_absent = 100
    taken_up_refused = 101


@dataclass(frozen=True, slots=True)
class ServiceValue:
    """``struct service``, a value of ``services``."""

    deadline_ns: int
    event_interval_ns: int
    event_burst_ns: int
    affinity_ns: int = field(default=0, kw_only=True)
    snapshot_age_ns: int = field(default=0, kw_only=True)
    id: int
    first_backend: int
    backend_count: int
    fallback: int
    flags: int = field(default=0, kw_only=True)
    flow_limit: int = field(default=0, kw_only=True)
    mode: Mode
    forwarding: Forwarding
    orphans: Orphans
    hash_active: int
    tunnel_bits: int = field(default=0, kw_only=True)
    control_arm: int = field(default=0, kw_only=True)
    control_arm_by: Mode = field(default=Mode.ROUND_ROBIN, kw_only=True)
    tunnel_source: int = field(default=0, kw_only=True)

    @property
    def is_left_out(self) -> bool:
        """It is no service, but ports that a service of many leaves to others."""
        return not self.backend_count and not self.flags & SERVICE_GATEWAY


@dataclass(frozen=True, slots=True)
class BackendValue:
    """``struct backend``, a value of ``backends``."""

    addr: int
    probe_addr: int
    port: int
    proto: int
    flags: int
    service: int
    ifindex: int
    dmac: bytes
    smac: bytes
    weight: int
    vlan: int = 0
    stateless_addr: int = 0
    stateless_port: int = 0
    share: int = 0

    @property
    def endpoint(self) -> Endpoint:
        """Where the backend is."""
        return Endpoint(self.addr, self.port, self.proto)


@dataclass(frozen=True, slots=True)
class PendingValue:
    """``struct pending_flow`` or ``pending_flow6``, a value of ``pending_flows``."""

    seen_ns: int
    last_seen_ns: int
    packets: int
    octets: int
    isn: int
    backend: int
    service: int
    ifindex: int
    new_saddr: int
    new_daddr: int
    new_sport: int
    new_dport: int
    dmac: bytes
    smac: bytes
    latency_ns: int
    fppl_ns: int
    synack_us: int
    syn_data: int
    wscale: int
    flags: int
    mode: Mode
    reason: Reason
    vlan: int = field(default=0, kw_only=True)
    window: int
    seq: int = 0
    ack: int = 0


@dataclass(frozen=True, slots=True)
class FlowEntryValue:
    """``struct flow_entry``, a value of ``flow_table``: one direction of a flow."""

    last_seen_ns: int
    packets: int
    octets: int
    seq_next: int
    ack: int
    window: int
    state: TcpState
    flags: int
    wscale: int
    direction: Direction
    new_saddr: int
    new_daddr: int
    new_sport: int
    new_dport: int
    l3_delta: int
    l4_delta: int
    backend: int
    ifindex: int
    in_mac: bytes
    dmac: bytes
    smac: bytes
    mode: Mode
    reason: Reason
    service: int
    seen_ns: int
    established_us: int
    vlan: int = field(default=0, kw_only=True)
    open: int = field(default=0, kw_only=True)
    isn: int
    latency_ns: int
    fppl_ns: int
    synack_us: int
    first_data_us: int
    later_syn: int = 0


@dataclass(frozen=True, slots=True)
class EventHeader:
    """``struct event``, the head of every ring buffer record. ``key`` is as the bytes say."""

    time_ns: int
    key: FlowKey
    service: int
    backend: int
    ifindex: int
    seq: int
    frame_len: int
    type: int
    detail: int
    reason: int
    wscale: int
    syn_data: int
    fppl_ns: int
    synack_us: int
    seen_ns: int


@dataclass(frozen=True, slots=True)
class TrafficValue:
    """``struct traffic``: what flows have carried. ``octets`` are IP total lengths."""

    flows: int
    packets: int
    octets: int
    reply_packets: int
    reply_octets: int

    def plus(self, other: TrafficValue) -> TrafficValue:
        """The sum."""
        return TrafficValue(
            self.flows + other.flows,
            self.packets + other.packets,
            self.octets + other.octets,
            self.reply_packets + other.reply_packets,
            self.reply_octets + other.reply_octets,
        )

    def at_least(self, other: TrafficValue) -> TrafficValue:
        """The greater one of each."""
        return TrafficValue(
            max(self.flows, other.flows),
            max(self.packets, other.packets),
            max(self.octets, other.octets),
            max(self.reply_packets, other.reply_packets),
            max(self.reply_octets, other.reply_octets),
        )


@dataclass(frozen=True, slots=True)
class InterfaceValue:
    """``struct interface``, keyed by ifindex."""

    mac: bytes
    virtual_mac: bytes
    flags: int
    addr: int = 0
    mtu: int = 0
    addr6: int = 0


@dataclass(frozen=True, slots=True)
class ControlValue:
    """``struct control``, the one value of ``control``. Only the daemon writes it.

    ``resumed_ns`` 0: the heartbeat has had no gap. An interval of 0 is no limit.
    """

    heartbeat_ns: int
    heartbeat_stale_ns: int
    resumed_ns: int = field(default=0, kw_only=True)
    reinject_mark: int
    pending_idle_ns: int
    flow_idle_ns: int
    udp_idle_ns: int = field(default=0, kw_only=True)
    orphan_window_ns: int
    event_interval_ns: int
    event_burst_ns: int
    prefix_interval_ns: int = field(default=0, kw_only=True)
    prefix_burst_ns: int = field(default=0, kw_only=True)
    icmp_interval_ns: int = field(default=0, kw_only=True)
    icmp_burst_ns: int = field(default=0, kw_only=True)
    probe_key: tuple[int, int]
    abi_version: int
    generation: int
    min_mtu: int = field(default=65535, kw_only=True)
    ring_deep: int = field(default=0xFFFFFFFF, kw_only=True)
    probe_port_min: int
    probe_port_max: int
    nat_port_min: int = field(default=0, kw_only=True)
    nat_port_max: int = field(default=0, kw_only=True)
    flags: int = 0
    one_sided_interval_ns: int = 0
