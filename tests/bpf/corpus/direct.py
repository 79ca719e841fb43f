# SPDX-License-Identifier: Apache-2.0
"""``dsr`` and ``ipip``: the tuple stays, replies do not come back, the client alone is followed."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.frames import ACK, FIN, PSH, RST, SYN, End, Hop, Segment
from tests.support.program import DROP
from tests.support.tunnels import tunneled
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.core import abi
from xdp_router.core.flow_hash import flow_hash
from xdp_router.core.model import NO_BACKEND, Endpoint, Forwarding, Mode, Reason

from . import flows
from .case import NOW, Case, Then, forwarded, has_pending, tables_hold
from .world import (
    B1,
    CLIENT,
    CLIENT_ISN,
    CLIENT_SCALE,
    MARK,
    OTHER_MAC,
    PROBE_SOURCE,
    ROUTER_MAC_C,
    SECOND,
    SERVER_ISN,
    WEB,
    Given,
    Server,
    World,
    endpoint_of,
    flow_key,
    to_service,
)

SYNS = Segment(flags=SYN, seq=CLIENT_ISN, window=64240, options=(("MSS", 1460), ("WScale", 7)))
AGAIN = SYNS.but(seq=CLIENT_ISN + 70_000)
FIRST_ACK = Segment(flags=ACK, seq=CLIENT_ISN + 1, ack=SERVER_ISN + 1, window=500)
DATA = FIRST_ACK.but(flags=PSH | ACK, payload=b"GET / HTTP/1.1")
HASH = flow_hash(flow_key())

REPLY_KEY = abi.pack_reply_key(endpoint_of(WEB), flow_key(), abi.Kind.REPLY)
FLOW_KEY = abi.pack_flow_key(flow_key())
DSR, IPIP = abi.BACKEND_ONE_SIDED, abi.BACKEND_METHOD[Forwarding.IPIP]


def by(method: int, **change: Any) -> Given:
    """B1 is reached by this method, with its service's port; no hop has said anything yet."""

    def put(world: World) -> None:
        world.change_server(B1, flags=abi.BACKEND_UP | method, port=WEB.port, **change)
        world.maps.backend_index.write(Endpoint(B1.end.number, WEB.port), B1.id, B1.service)
        table = path_mtus(world)
        for key in list(table.each_key()):
            table.delete(key)

    return put


def path_mtus(world: World) -> bpf.BpfMap:
    """What hops have said."""
    return bpf.BpfMap(world.program.plane.maps["path_mtus"])


def said(mtu: int, ago_ns: int = SECOND, server: Server = B1) -> Given:
    """A hop on the way to a backend has named this MTU."""

    def put(world: World) -> None:
        key = abi.pack_prefix_key(server.end.number)
        path_mtus(world).write(key, abi.pack_path_mtu(world.now_ns - ago_ns, mtu))

    return put


def to_b1(segment: Segment, client: End = CLIENT) -> bytes:
    """The client's frame with B1's MAC, and nothing else changed but its TTL."""
    return segment.but(ttl=segment.ttl - 1).frame(client, WEB, B1.hop)


def in_tunnel(
    segment: Segment, source: str = PROBE_SOURCE.addr, target: str = B1.end.addr
) -> bytes:
    """The same in an outer header."""
    return tunneled(to_b1(segment), source, target, HASH & 0xFFFFF)


# --- flows in the tables --------------------------------------------------------------------


def same_tuple(value: abi.PendingValue) -> abi.PendingValue:
    """FORWARD of a flow that is not rewritten."""
    return dataclasses.replace(value, new_daddr=WEB.number, new_dport=WEB.port)


def pending(reply_too: dict[str, Any] | None = None, **change: Any) -> Given:
    """A flow whose SYN was sent on, not rewritten."""

    def put(world: World) -> None:
        flows.put_pending(world, flows.seen_key(), flows.seen_value(world))
        flows.put_pending(world, REPLY_KEY, flows.reply_value(world, **(reply_too or {})))
        value = same_tuple(flows.forward_value(world))
        flows.put_pending(world, flows.forward_key(), dataclasses.replace(value, **change))

    return put


def entry(world: World, **change: Any) -> abi.FlowEntryValue:
    """The one entry of an established flow."""
    value = dataclasses.replace(
        flows.forward_entry(world),
        new_daddr=WEB.number,
        new_dport=WEB.port,
        l3_delta=0,
        l4_delta=0,
        flags=abi.FLOW_ONE_SIDED,
        synack_us=0,
    )
    value = dataclasses.replace(value, **change)
    return dataclasses.replace(value, open=flows.is_open(value.state))


def established(**change: Any) -> Given:
    """An established flow."""
    return lambda world: flows.put_flow(world, FLOW_KEY, entry(world, **change))


def has_entry(**wanted: Any) -> Then:
    """The entry is as ``established`` puts it, but for these."""

    def look(world: World, started_ns: int) -> None:
        found = flows.read_flow(world, FLOW_KEY)
        assert found is not None, "no entry"
        moving = {"last_seen_ns", "packets", "octets", "seen_ns", "established_us", "first_data_us"}
        expected = dataclasses.asdict(entry(world)) | wanted
        expected["open"] = flows.is_open(expected["state"])
        wrong = {
            name: (have, expected[name])
            for name, have in dataclasses.asdict(found).items()
            if have != expected[name] and (name in wanted or name not in moving)
        }
        assert not wrong, wrong

    return look


FLOW = (by(DSR), established())
PENDING = (by(DSR), pending())


def dsr(name: str, segment: Segment, **rest: Any) -> Case:
    """The client's segment goes to B1 with another MAC."""
    rest = {"given": FLOW} | rest
    return forwarded(f"dsr: {name}", to_service(segment), to_b1(segment), **rest)


def ipip(name: str, segment: Segment, out: bytes | None = None, **rest: Any) -> Case:
    """The client's segment goes to B1 in an outer header."""
    rest = {"given": (by(IPIP), established()), "counters": {"tunneled": 1}} | rest
    return forwarded(f"ipip: {name}", to_service(segment), out or in_tunnel(segment), **rest)


# --- deciding and promotion ------------------------------------------------------------------


def silent(world: World) -> None:
    """The daemon gives no sign of life."""
    world.change_control(heartbeat_ns=world.now_ns - SECOND, heartbeat_stale_ns=SECOND // 2)


DECIDING = [
    dsr(
        "XDP decides by itself",
        SYNS,
        given=(by(DSR), silent),
        counters={"heartbeat_stale": 1, "decided_fallback": 1},
        then=(
            has_pending(
                "FORWARD", flows.forward_key(), new_saddr=CLIENT.number, new_daddr=WEB.number,
                new_sport=CLIENT.port, new_dport=WEB.port, backend=B1.id, isn=CLIENT_ISN,
            ),
            has_pending(
                "REPLY", REPLY_KEY, new_saddr=WEB.number, new_daddr=CLIENT.number, backend=B1.id,
            ),
            tables_hold(2, 0),
        ),
    ),
    ipip(
        "XDP decides by itself",
        SYNS,
        given=(by(IPIP), silent),
        counters={"heartbeat_stale": 1, "decided_fallback": 1, "tunneled": 1},
        then=(tables_hold(2, 0),),
    ),
    dsr("a SYN comes again", SYNS, given=PENDING, counters={"syn_retransmit": 1}),
    dsr("another SYN while pending is noted", AGAIN, given=PENDING,
        counters={"syn_on_live_flow": 1},
        then=(has_pending("FORWARD", flows.forward_key(), isn=CLIENT_ISN, seq=AGAIN.seq),)),
    ipip("a held SYN, sent by the daemon", SYNS, given=(by(IPIP), pending(packets=0)),
         counters={"tunneled": 1, "reinjected": 1}, mark=MARK, egress="backend"),
    dsr("a held SYN, sent by the daemon", SYNS, given=(by(DSR), pending(packets=0)),
        counters={"reinjected": 1}, mark=MARK, egress="backend"),
]  # fmt: skip

ESTABLISHED_EVENT = {
    "type": abi.EventType.ESTABLISHED,
    "ifindex": lambda world: world.wires.client,
    "backend": B1.id,
    "detail": Mode.RACE,
    "reason": Reason.RACE_WON,
    "fppl_ns": lambda world: flows.forward_value(world).fppl_ns,
    "seen_ns": lambda world: world.now_ns - flows.AGE_NS,
}


def promoted(name: str, segment: Segment, wanted: dict[str, Any], **rest: Any) -> Case:
    """The segment gets the flow into the table, with one entry."""
    rest = {
        "given": PENDING,
        "counters": {"one_sided_promoted": 1},
        "event": ESTABLISHED_EVENT | {"seq": segment.seq},
        "then": (
            has_entry(**wanted),
            tables_hold(3, 1),
            has_pending("FORWARD", flows.forward_key(), flags=abi.PENDING_PROMOTED),
        ),
    } | rest
    return dsr(name, segment, **rest)


def stays(name: str, segment: Segment, flags: int = 0, **rest: Any) -> Case:
    """The segment does not."""
    rest = {
        "given": PENDING,
        "then": (tables_hold(3, 0), has_pending("FORWARD", flows.forward_key(), flags=flags)),
    } | rest
    return dsr(name, segment, **rest)


OF_TCP, OF_UDP = 1, 2
"""What a prefix's budgets of places end in."""


def capped(left_ns: int, which: int = OF_TCP) -> Given:
    """The client's prefix has spent its budget of places, but for ``left_ns`` of a second."""

    def put(world: World) -> None:
        world.limit(one_sided_interval_ns=SECOND)
        table = bpf.BpfMap(world.program.plane.maps["prefix_tokens"])
        for each in list(table.each_key()):
            table.delete(each)
        host = 0xFF if world.family == 4 else (1 << 72) - 1
        prefix = abi.pack_addr(world.native_addr(CLIENT.number) & ~host | which)
        table.write(prefix, abi.pack_token_bucket(left_ns, world.now_ns))

    return put


def full(world: World) -> None:
    """Nobody else finds room in the table."""
    for port in range(50_000, 50_000 + 64):
        key = abi.pack_flow_key(flow_key(client=End("198.18.0.9", port)))
        if world.maps.flow_table.insert_noexist(key, abi.pack_flow_entry(entry(world))):
            return


OLD_SYN = (by(DSR), pending(seq=AGAIN.seq, ack=3))
PROVEN = {"flags": abi.PENDING_PROVEN}
LATE = (by(DSR), pending(PROVEN | {"seq": CLIENT_ISN + 15}, **PROVEN))
PROMOTION = [
    promoted("the second segment establishes the flow", FIRST_ACK,
             {"ack": SERVER_ISN + 1, "window": 500 << CLIENT_SCALE, "isn": CLIENT_ISN}),
    promoted("with data in it, too", DATA, {"seq_next": CLIENT_ISN + 15}),
    promoted("behind data that the SYN had", DATA.but(seq=CLIENT_ISN + 6),
             {"seq_next": CLIENT_ISN + 20}, given=(by(DSR), pending(syn_data=5))),
    promoted("a client that scales no window", FIRST_ACK, {"wscale": 0, "window": 500},
             given=(by(DSR), pending(wscale=abi.NO_WSCALE))),
    promoted(
        "behind a later SYN: its connection is the one", FIRST_ACK.but(seq=AGAIN.seq + 1),
        {"isn": AGAIN.seq, "seq_next": AGAIN.seq + 1, "wscale": 3, "window": 500 << 3},
        given=OLD_SYN, counters={"one_sided_promoted": 1, "flow_restarted": 1},
        event=ESTABLISHED_EVENT | {"seen_ns": NOW, "seq": AGAIN.seq + 1},
    ),
    promoted("one that was held back, by what comes next", DATA.but(seq=CLIENT_ISN + 15),
             {"seq_next": CLIENT_ISN + 29}, given=LATE),
    promoted("within its prefix's budget", FIRST_ACK, {}, given=(*PENDING, capped(SECOND))),
    promoted("within its prefix's budget, whatever UDP has spent", FIRST_ACK, {},
             given=(*PENDING, capped(0, OF_UDP))),
    stays("without ACK it says nothing", FIRST_ACK.but(flags=PSH)),
    stays("nor does another number", FIRST_ACK.but(seq=CLIENT_ISN + 2)),
    stays("a RST before the handshake ends it", FIRST_ACK.but(flags=RST | ACK),
          abi.PENDING_CLOSED),
    stays("a RST elsewhere does not", FIRST_ACK.but(flags=RST, seq=CLIENT_ISN + 9)),
    stays("a prefix beyond its budget waits", FIRST_ACK, abi.PENDING_PROVEN,
          given=(*PENDING, capped(0)), counters={"one_sided_capped": 1}),
    stays("and what comes next is known", DATA, abi.PENDING_PROVEN,
          given=(*PENDING, capped(0)), counters={"one_sided_capped": 1},
          then=(has_pending("REPLY", REPLY_KEY, seq=CLIENT_ISN + 15, flags=abi.PENDING_PROVEN),)),
    stays("of one held back, a number that is not next", DATA.but(seq=CLIENT_ISN + 16),
          abi.PENDING_PROVEN, given=LATE),
    stays("of one held back, a RST that is next", FIRST_ACK.but(flags=RST, seq=CLIENT_ISN + 15),
          abi.PENDING_CLOSED, given=LATE),
    stays("of one held back, a RST that is not", FIRST_ACK.but(flags=RST, seq=CLIENT_ISN + 14),
          abi.PENDING_PROVEN, given=LATE),
    stays("of one whose REPLY was lost, nothing is believed at once", DATA, abi.PENDING_PROVEN,
          given=(by(DSR), pending(PROVEN, **PROVEN)),
          then=(has_pending("REPLY", REPLY_KEY, seq=CLIENT_ISN + 15),)),
    stays("a full table has no room", FIRST_ACK, abi.PENDING_PROVEN, given=(*PENDING, full),
          counters={"promote_table_full": 1},
          then=(has_pending("FORWARD", flows.forward_key(), flags=abi.PENDING_PROVEN),)),
]  # fmt: skip

# --- established ----------------------------------------------------------------------------

NEXT = CLIENT_ISN + 1
CLOSING = abi.TcpState.CLOSING
ONE, FIN_SEEN, RST_SEEN = (
    abi.FLOW_ONE_SIDED,
    abi.FLOW_ONE_SIDED | abi.FLOW_FIN,
    abi.FLOW_ONE_SIDED | abi.FLOW_RST,
)
BY_FIN = {"state": CLOSING, "flags": FIN_SEEN}
BY_RST = {"state": CLOSING, "flags": RST_SEEN}


def old(**change: Any) -> Given:
    """An established flow without traffic for longer than ``pending_idle``."""

    def put(world: World) -> None:
        value = entry(world, last_seen_ns=world.now_ns - 200 * SECOND, **change)
        flows.put_flow(world, FLOW_KEY, value)

    return put


FIRST_EVENT = {
    "type": abi.EventType.FIRST_PACKET,
    "backend": NO_BACKEND,
    "seen_ns": NOW,
    "ifindex": lambda world: world.wires.client,
    "seq": AGAIN.seq,
    "wscale": 7,
    "frame": to_service(AGAIN),
}


def raced_anew(name: str, given: Given) -> Case:
    """A SYN that begins a new flow: held, and nothing is left of the old one."""
    return Case(
        name=f"dsr: {name}",
        frame=to_service(AGAIN),
        verdict=DROP,
        given=(by(DSR), given),
        counters={"syn_reopened": 1, "first_packet": 1},
        event=FIRST_EVENT,
        then=(tables_hold(1, 0),),
    )


MOVED = Hop(OTHER_MAC, ROUTER_MAC_C)
TRACKING = [
    dsr("data", DATA, then=(has_entry(seq_next=NEXT + 14, packets=3),)),
    dsr("a bare ACK", FIRST_ACK.but(ack=SERVER_ISN + 9000),
        then=(has_entry(ack=SERVER_ISN + 9000, window=500 << CLIENT_SCALE),)),
    dsr("a gap is followed", DATA.but(seq=NEXT + 100_000),
        then=(has_entry(seq_next=NEXT + 100_014),)),
    dsr("what was sent before moves nothing", DATA.but(seq=NEXT - 14), then=(has_entry(),)),
    dsr("a number far away moves nothing", DATA.but(seq=NEXT + (1 << 24)), then=(has_entry(),)),
    dsr("a RST that is next", FIRST_ACK.but(flags=RST), then=(has_entry(**BY_RST),)),
    dsr("a RST that is not", FIRST_ACK.but(flags=RST, seq=NEXT + 1), then=(has_entry(),),
        counters={"rst_inexact": 1}),
    dsr("a FIN", FIRST_ACK.but(flags=FIN | ACK), then=(has_entry(seq_next=NEXT + 1, **BY_FIN),)),
    dsr("a FIN far away", FIRST_ACK.but(flags=FIN | ACK, seq=NEXT + (1 << 24)),
        then=(has_entry(),), counters={"fin_outside_window": 1}),
    dsr("an ACK behind the FIN leaves it closing", FIRST_ACK.but(ack=SERVER_ISN + 500),
        given=(by(DSR), established(**BY_FIN)), then=(has_entry(ack=SERVER_ISN + 500, **BY_FIN),)),
    dsr("new data behind a FIN", DATA, given=(by(DSR), established(**BY_FIN)),
        counters={"closing_revoked": 1}, then=(has_entry(seq_next=NEXT + 14),)),
    dsr("new data behind a RST", DATA, given=(by(DSR), established(**BY_RST)),
        counters={"closing_revoked": 1}, then=(has_entry(seq_next=NEXT + 14),)),
    dsr("its own SYN again", SYNS, counters={"syn_retransmit": 1}, then=(has_entry(),)),
    dsr("another SYN on a live flow", AGAIN, counters={"syn_on_live_flow": 1},
        then=(has_entry(later_syn=AGAIN.seq),)),
    dsr("which changes nothing by itself", FIRST_ACK.but(seq=AGAIN.seq + 1),
        given=(by(DSR), established(later_syn=AGAIN.seq, seq_next=NEXT + (1 << 25))),
        then=(has_entry(later_syn=AGAIN.seq, seq_next=NEXT + (1 << 25)),)),
    dsr("another SYN soon after a FIN goes to the bound backend", AGAIN,
        given=(by(DSR), established(**BY_FIN)), counters={"syn_on_live_flow": 1},
        then=(has_entry(later_syn=AGAIN.seq, **BY_FIN),)),
    dsr("whose connection goes on", DATA.but(seq=AGAIN.seq + 1),
        given=(by(DSR), established(later_syn=AGAIN.seq, **BY_FIN)),
        counters={"flow_restarted": 1},
        then=(has_entry(isn=AGAIN.seq, seq_next=AGAIN.seq + 15, latency_ns=0, fppl_ns=0),)),
    dsr("another SYN soon after a RST goes to the bound backend", AGAIN,
        given=(by(DSR), established(**BY_RST)), counters={"syn_on_live_flow": 1},
        then=(has_entry(later_syn=AGAIN.seq, **BY_RST),)),
    raced_anew("another SYN long after a RST", old(**BY_RST)),
    raced_anew("another SYN long after a FIN", old(**BY_FIN)),
    forwarded("dsr: the client comes by another gateway", to_service(DATA, hop=MOVED), to_b1(DATA),
              given=FLOW, counters={"client_moved": 1},
              then=(has_entry(seq_next=NEXT + 14, dmac=OTHER_MAC, smac=ROUTER_MAC_C),)),
    dsr("a backend that is down keeps its flows", DATA,
        given=(lambda world: world.change_server(B1, flags=DSR), established())),
    Case(name="dsr: no path", frame=to_service(DATA), verdict=DROP, counters={"no_path": 1},
         given=(by(DSR, ifindex=0), established())),
]  # fmt: skip

CASES = [*DECIDING, *PROMOTION, *TRACKING]
