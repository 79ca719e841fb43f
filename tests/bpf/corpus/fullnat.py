# SPDX-License-Identifier: Apache-2.0
"""fullnat: flows whose source towards the backend is an address and port of ours.

The world has one such port, so that it is known beforehand which one a flow gets.
"""

from __future__ import annotations

from typing import Any

from tests.support.frames import ACK, FIN, RST, End, Segment
from tests.support.icmp_frames import FRAG_NEEDED, UNREACHABLE
from tests.support.program import DROP
from xdp_router.core import abi
from xdp_router.core.model import Forwarding, Mode, Orphans, Reason

from .bound import BACK, THERE
from .case import (
    RECENT,
    Case,
    Then,
    answered,
    forwarded,
    has_pending,
    passed,
    tables_hold,
)
from .degrade import SELF, hash_table, refusal, rst_to_client, silent
from .first import OPEN, first_event
from .flows import (
    flow_keys,
    forward_entry,
    forward_key,
    forward_value,
    put_flow,
    put_pending,
    read_flow,
    reply_entry,
    reply_value,
)
from .handoff import interfaces
from .handshake import LAST_ACK, SYNACK, promoted_event
from .icmp import HOP_B, HOP_C, Side
from .isn import CLOSING, OTHER
from .world import (
    B1,
    B2,
    CLIENT,
    IN,
    NAT_PORT,
    OURS_C,
    PROBE_SOURCE,
    SERVER_ISN,
    WEB,
    Given,
    Server,
    World,
    deltas,
    endpoint_of,
    flow_key,
    from_backend,
    to_client,
    to_service,
)

OURS = End(PROBE_SOURCE.addr, NAT_PORT)
"""What the backends see in place of the client."""
STRANGER = End("198.18.0.77", 4000)
TRIES = 16


def fullnat(world: World) -> None:
    """The service's forwarding."""
    world.change_service(forwarding=Forwarding.FULLNAT)


def nat_reply_key(server: Server = B1, kind: int = abi.Kind.REPLY) -> bytes:
    """Key of what a backend sends to our port."""
    return abi.pack_reply_key(endpoint_of(server.end), flow_key(), kind, endpoint_of(OURS))


def there(segment: Segment, server: Server = B1) -> bytes:
    """The client's segment on its way to a backend."""
    return segment.but(ttl=segment.ttl - 1).frame(OURS, server.end, server.hop)


def from_server(segment: Segment, server: Server = B1, to: End = OURS) -> bytes:
    """A backend's segment to our port."""
    return segment.frame(server.end, to, server.hop.back)


def rst_to_server(seq: int, ack: int = 0, flags: int = RST) -> bytes:
    """The RST that makes a backend let go of its socket."""
    made = Segment(flags=flags, seq=seq, ack=ack, window=0, ident=0)
    return made.frame(OURS, B1.end, B1.hop)


# --- states ---------------------------------------------------------------------------------

OF_OURS: dict[str, Any] = {"new_saddr": OURS.number, "new_sport": OURS.port}


def forward(flags: int = 0, server: Server = B1, **change: Any) -> Given:
    """FORWARD that gives the flow our source."""
    change = OF_OURS | {"flags": flags | abi.PENDING_FULLNAT} | change
    return lambda world: put_pending(world, forward_key(), forward_value(world, server, **change))


def reply(flags: int = 0, client: End = CLIENT, server: Server = B1, **change: Any) -> Given:
    """REPLY that has the port."""

    def put(world: World) -> None:
        value = reply_value(
            world, server, client=client, flags=flags | abi.PENDING_FULLNAT, **change
        )
        put_pending(world, nat_reply_key(server), value)

    return put


SYNACK_SEEN: dict[str, Any] = {
    "isn": SERVER_ISN, "wscale": 8, "window": 65160, "synack_us": 3000, "packets": 1,
    "octets": 60,
}  # fmt: skip
RESTING = reply(abi.PENDING_CLOSED)
PENDING = (fullnat, reply(), forward())
ANSWERED = (fullnat, reply(abi.PENDING_SYNACK, **SYNACK_SEEN), forward())


def back_entry(world: World, client: End = CLIENT, **change: Any) -> abi.FlowEntryValue:
    """The backend's direction in ``flow_table``."""
    l3, l4 = deltas((B1.end, OURS), (WEB, client))
    change = {"l3_delta": l3, "l4_delta": l4, "flags": abi.FLOW_FULLNAT} | change
    return reply_entry(world, client=client, **change)


def there_entry(world: World, **change: Any) -> abi.FlowEntryValue:
    """The client's."""
    l3, l4 = deltas((CLIENT, WEB), (OURS, B1.end))
    change = OF_OURS | {"l3_delta": l3, "l4_delta": l4, "flags": abi.FLOW_FULLNAT} | change
    return forward_entry(world, **change)


def established(**change: Any) -> Given:
    """The flow in ``flow_table``, nothing of it pending."""

    def put(world: World) -> None:
        fullnat(world)
        put_flow(world, flow_keys()[0], there_entry(world, **change))
        put_flow(world, nat_reply_key(kind=0), back_entry(world, **change))

    return put


def strangers_flow(world: World) -> None:
    """Another client's established flow has the port; its pending entries have aged."""
    put_flow(world, nat_reply_key(kind=0), back_entry(world, STRANGER))


def lone_half(world: World) -> None:
    """The client's direction of a closed flow, whose other one is gone."""
    fullnat(world)
    put_flow(world, flow_keys()[0], there_entry(world, **CLOSING))


def bound(mode: Mode, reason: Reason, server: Server = B1) -> tuple[Then, ...]:
    """Both entries of a decision, with our source."""
    return (
        has_pending("FORWARD", forward_key(), backend=server.id, mode=mode, reason=reason,
                    flags=abi.PENDING_FULLNAT, new_daddr=server.end.number, **OF_OURS),
        has_pending("REPLY", nat_reply_key(server), backend=server.id, mode=mode, reason=reason,
                    flags=abi.PENDING_FULLNAT, new_saddr=WEB.number, new_sport=WEB.port,
                    new_daddr=CLIENT.number, new_dport=CLIENT.port),
    )  # fmt: skip


rests = has_pending(
    "REPLY",
    nat_reply_key(),
    flags=abi.PENDING_FULLNAT | abi.PENDING_CLOSED,
    backend=B1.id,
    new_daddr=CLIENT.number,
    last_seen_ns=RECENT,
)


def entries_are(world: World, _started_ns: int) -> None:
    """Both directions in ``flow_table`` as if the daemon had written them."""
    for key, made in (
        (flow_keys()[0], there_entry(world)),
        (nat_reply_key(kind=0), back_entry(world)),
    ):
        entry = read_flow(world, key)
        assert entry is not None
        for name in ("new_saddr", "new_daddr", "new_sport", "new_dport", "l3_delta", "l4_delta",
                     "flags", "direction", "in_mac", "dmac", "smac", "ifindex"):  # fmt: skip
            assert getattr(entry, name) == getattr(made, name), name


# --- who gets a port ------------------------------------------------------------------------

STALE = {"heartbeat_stale": 1}
EXHAUSTED = {"nat_port_taken": TRIES, "nat_ports_exhausted": 1}
ALONE = hash_table()

DECIDED = [
    forwarded("fullnat: XDP takes a port", to_service(OPEN), there(OPEN), given=(fullnat, silent),
              counters=STALE | {"decided_fallback": 1},
              then=(*bound(Mode.FALLBACK, Reason.NO_HEARTBEAT), tables_hold(2, 0))),
    forwarded("fullnat: a port is taken by a pending flow: next backend", to_service(OPEN),
              there(OPEN, B2), given=(fullnat, silent, reply(client=STRANGER)),
              counters=STALE | EXHAUSTED | {"decided_hash": 1},
              then=(*bound(Mode.HASH, Reason.NO_HEARTBEAT, B2), tables_hold(3, 0))),
    forwarded("fullnat: a port is taken by an established flow alone: next backend",
              to_service(OPEN), there(OPEN, B2), given=(fullnat, silent, strangers_flow),
              counters=STALE | EXHAUSTED | {"decided_hash": 1},
              then=(*bound(Mode.HASH, Reason.NO_HEARTBEAT, B2), tables_hold(2, 1))),
    forwarded("fullnat: the client's own former port rests: next backend", to_service(OPEN),
              there(OPEN, B2), given=(fullnat, silent, RESTING),
              counters=STALE | EXHAUSTED | {"decided_hash": 1},
              then=(*bound(Mode.HASH, Reason.NO_HEARTBEAT, B2), tables_hold(3, 0))),
    answered("fullnat: all ports are taken", to_service(OPEN), refusal(OPEN),
             given=(fullnat, silent, ALONE, strangers_flow), then=(tables_hold(0, 1),),
             counters=STALE | EXHAUSTED | {"refused_no_backend": 1}),
    answered("fullnat: nobody's port is taken over, though its flow is over", to_service(OPEN),
             refusal(OPEN), given=(fullnat, silent, ALONE, reply(client=STRANGER)),
             counters=STALE | EXHAUSTED | {"refused_no_backend": 1}, then=(tables_hold(1, 0),)),
    answered("fullnat: no ports are configured", to_service(OPEN), refusal(OPEN),
             given=(fullnat, silent, ALONE, lambda world: world.limit(
                 nat_port_min=0, nat_port_max=0, heartbeat_ns=1, heartbeat_stale_ns=1)),
             counters=STALE | {"nat_ports_exhausted": 1, "refused_no_backend": 1}),
    forwarded("fullnat: a backend may be its own client", to_service(OPEN, client=SELF),
              there(OPEN), given=(fullnat, silent),
              counters=STALE | {"decided_fallback": 1}, then=(tables_hold(2, 0),)),
    forwarded("fullnat: a SYN that is sent again keeps its port", to_service(OPEN), there(OPEN),
              given=PENDING, counters={"syn_retransmit": 1}, then=(tables_hold(2, 0),)),
]  # fmt: skip


def reopens(name: str, *given: Given, then: tuple[Then, ...]) -> Case:
    """A SYN with another number is a first packet, and the old port rests."""
    frame = to_service(OTHER)
    return Case(name=f"fullnat: {name}", frame=frame, verdict=DROP, given=given, then=then,
                event=first_event(frame, seq=OTHER.seq),
                counters={"syn_reopened": 1, "first_packet": 1})  # fmt: skip


REST = [
    reopens("a refused flow's port rests", fullnat, reply(), forward(abi.PENDING_CLOSED),
            then=(rests, tables_hold(2, 0))),
    reopens("a closed flow's port rests", established(**CLOSING), then=(rests, tables_hold(2, 0))),
    reopens("a closed flow's port rests, as does its REPLY", established(**CLOSING), reply(),
            forward(), then=(rests, tables_hold(2, 0))),
    reopens("half a closed flow leaves its port to who has it", lone_half, strangers_flow,
            reply(client=STRANGER),
            then=(has_pending("REPLY", nat_reply_key(), flags=abi.PENDING_FULLNAT),
                  tables_hold(2, 1))),
    forwarded("fullnat: and the new flow gets another", to_service(OTHER), there(OTHER, B2),
              given=(established(**CLOSING), silent),
              counters=STALE | EXHAUSTED | {"syn_reopened": 1, "decided_hash": 1},
              then=(rests, *bound(Mode.HASH, Reason.NO_HEARTBEAT, B2), tables_hold(3, 0))),
]  # fmt: skip

# --- the flow's packets -----------------------------------------------------------------------

LATER_SYNACK = SYNACK.but(ack=OTHER.seq + 1)
PACKETS = [
    forwarded("fullnat: SYN-ACK", from_server(SYNACK), to_client(SYNACK), at="backend",
              given=PENDING, then=(has_pending(
                  "REPLY", nat_reply_key(), isn=SERVER_ISN,
                  flags=abi.PENDING_FULLNAT | abi.PENDING_SYNACK),)),
    forwarded("fullnat: SYN-ACK to a later SYN: begun anew, with the same port",
              from_server(LATER_SYNACK), to_client(LATER_SYNACK), at="backend",
              given=(fullnat, reply(), forward(seq=OTHER.seq, ack=7)),
              counters={"flow_restarted": 1}, then=(
                  has_pending("FORWARD", forward_key(), isn=OTHER.seq, flags=abi.PENDING_FULLNAT),
                  has_pending("REPLY", nat_reply_key(), isn=SERVER_ISN,
                              flags=abi.PENDING_FULLNAT | abi.PENDING_SYNACK))),
    forwarded("fullnat: the ACK that proves it", to_service(LAST_ACK), there(LAST_ACK),
              given=ANSWERED, counters={"promoted": 1}, event=promoted_event(),
              then=(entries_are, tables_hold(2, 2))),
    forwarded("fullnat: the client's segment", to_service(THERE), there(THERE),
              given=(established(),)),
    forwarded("fullnat: the backend's segment", from_server(BACK), to_client(BACK), at="backend",
              given=(established(),)),
    forwarded("fullnat: REPLY was evicted, and comes back with its port",
              to_service(LAST_ACK), there(LAST_ACK), given=(fullnat, forward()),
              then=(has_pending("REPLY", nat_reply_key(), flags=abi.PENDING_FULLNAT),)),
    answered("fullnat: REPLY was evicted, and another flow has its port", to_service(LAST_ACK),
             rst_to_client(SERVER_ISN + 1, 0, RST),
             given=(fullnat, forward(), reply(client=STRANGER)), counters={"orphan_reset": 1}),
    answered("fullnat: REPLY was evicted, and an established flow has its port",
             to_service(LAST_ACK), rst_to_client(SERVER_ISN + 1, 0, RST),
             given=(fullnat, forward(), strangers_flow), counters={"orphan_reset": 1}),
    answered("fullnat: a segment without a binding is never hashed", to_service(THERE),
             rst_to_client(THERE.ack, 0, RST), counters={"orphan_reset": 1},
             given=(lambda world: world.change_service(
                 forwarding=Forwarding.FULLNAT, orphans=Orphans.HASH),)),
]  # fmt: skip

# --- what comes to a port that no flow has ----------------------------------------------------

UNKNOWN = {"nat_reply_unknown": 1}
STRAY = BACK.but(flags=ACK | FIN)
FIN_ALONE = Segment(flags=FIN, seq=7)


def no_ports(world: World) -> None:
    """No service is fullnat."""
    world.change_control(nat_port_min=0, nat_port_max=0)


NOBODYS = [
    answered("fullnat: to a port without a flow", from_server(STRAY),
             rst_to_server(STRAY.ack), at="backend", counters=UNKNOWN),
    answered("fullnat: SYN-ACK to a port without a flow", from_server(SYNACK),
             rst_to_server(SYNACK.ack), at="backend", counters=UNKNOWN),
    answered("fullnat: without ACK to a port without a flow", from_server(FIN_ALONE),
             rst_to_server(0, 8, RST | ACK), at="backend", counters=UNKNOWN),
    Case(name="fullnat: RST to a port without a flow", frame=from_server(BACK.but(flags=RST)),
         verdict=DROP, at="backend", counters={"orphan_dropped": 1}),
    answered("fullnat: to a port that rests", from_server(STRAY), rst_to_server(STRAY.ack),
             at="backend", given=(fullnat, RESTING), counters=UNKNOWN),
    answered("fullnat: to a port that rests, of a client that is back", from_server(STRAY),
             rst_to_server(STRAY.ack), at="backend", counters=UNKNOWN,
             given=(fullnat, RESTING, forward(new_sport=NAT_PORT + 1))),
    answered("fullnat: to a port that its client's flow has left", from_server(SYNACK),
             rst_to_server(SYNACK.ack), at="backend", counters=UNKNOWN,
             given=(fullnat, reply(), forward(new_sport=NAT_PORT + 1)),
             then=(has_pending("REPLY", nat_reply_key(), isn=0, flags=abi.PENDING_FULLNAT),)),
    passed("fullnat: to a port outside of the range",
           from_server(STRAY, to=End(OURS.addr, NAT_PORT + 1)), "pass_not_service", at="backend"),
    passed("fullnat: to another address of ours",
           from_server(STRAY, to=End(OURS_C.addr, NAT_PORT)), "pass_not_service", at="backend"),
    passed("fullnat: by somebody who is no backend",
           STRAY.frame(STRANGER, OURS, B1.hop.back), "pass_not_service", at="backend"),
    passed("fullnat: to such a port where no service needs one", from_server(STRAY),
           "pass_not_service", at="backend", given=(no_ports,)),
    forwarded("nat: a client with the number of such a port", from_backend(
        BACK, client=End(CLIENT.addr, NAT_PORT)), to_client(BACK, client=End(
            CLIENT.addr, NAT_PORT)), at="backend", given=(lambda world: put_flow(
                world, flow_keys(client=End(CLIENT.addr, NAT_PORT))[1],
                reply_entry(world, client=End(CLIENT.addr, NAT_PORT))),)),
]  # fmt: skip

# --- ICMP, hand-off -----------------------------------------------------------------------------

TO_BACKEND = Side("backend", HOP_B, THERE, (OURS, B1.end), (CLIENT, WEB), B1.hop.back, IN.back)
TO_CLIENT = Side("client", HOP_C, BACK, (WEB, CLIENT), (B1.end, OURS), IN, B1.hop)


def _icmp(side: Side) -> list[Case]:
    far = side.there[1].addr
    rest: dict[str, Any] = {"given": (established(),), "then": (tables_hold(0, 2),)}
    pending: dict[str, Any] = {"given": ANSWERED, "then": (tables_hold(2, 0),)}
    return [
        side.translated("fullnat, path MTU", UNREACHABLE, FRAG_NEEDED, ip={"rest": 1280}, **rest),
        side.translated("fullnat, the other end speaks itself", UNREACHABLE, 3, source=far,
                        out_source=side.here[1].addr, **rest),
        side.translated("fullnat, 28 bytes quoted", length=28, **rest),
        side.translated("fullnat, pending", UNREACHABLE, FRAG_NEEDED, ip={"rest": 1280},
                        **pending),
    ]  # fmt: skip


def by_kernel(world: World) -> None:
    """The backend's packets are the kernel's."""
    world.change_server(B1, flags=abi.BACKEND_UP | abi.BACKEND_KERNEL)


BOTH = abi.IF_HANDOFF_FORWARD4 | abi.IF_HANDOFF_REPLY4
HANDOFF = [
    passed("fullnat: handed to the kernel, which takes our address for a source",
           to_service(THERE), "handed_to_kernel", out=THERE.frame(OURS, B1.end, IN),
           given=(established(), by_kernel, interfaces(client=BOTH))),
    Case(name="fullnat: not to a kernel that forwards, but not what bears its own address",
         frame=to_service(THERE), verdict=DROP, counters={"no_path": 1},
         given=(established(), by_kernel, interfaces(client=abi.IF_HANDOFF_FORWARD4))),
]  # fmt: skip

CASES = [
    *DECIDED, *REST, *PACKETS, *NOBODYS, *_icmp(TO_BACKEND), *_icmp(TO_CLIENT), *HANDOFF,
]  # fmt: skip
