# SPDX-License-Identifier: Apache-2.0
"""The degrade chain: why XDP decides by itself, and for whom."""

from __future__ import annotations

from typing import Any

from tests.support.frames import ACK, RST, End, Segment
from tests.support.program import DROP
from xdp_router.core import abi
from xdp_router.core.flow_hash import flow_hash
from xdp_router.core.hash_tables import SLOT_STEP
from xdp_router.core.model import NO_BACKEND, Mode, Reason
from xdp_router.core.probe_sequence import probe_hash

from .case import NOW, RECENT, Case, answered, forwarded, has_pending, tables_hold
from .first import OPEN, PLAIN, of_length
from .flows import (
    AGE_NS,
    flow_keys,
    forward_key,
    forward_value,
    put_flow,
    put_pending,
    reply,
    reply_entry,
    reply_key,
    reply_value,
    seen,
    seen_key,
    seen_value,
)
from .world import (
    B1,
    B2,
    B3,
    CLIENT,
    CLIENT_ISN,
    CLIENT_MAC,
    IN,
    MARK,
    MS,
    PROBE_KEY,
    PROBE_SOURCE,
    ROUTER_MAC_C,
    SECOND,
    SHOP,
    SHOP_B1,
    WEB,
    Given,
    Server,
    World,
    flow_key,
    from_backend,
    to_backend,
    to_service,
)

SYN_FRAME = to_service(OPEN)
HOUR = 3600 * SECOND


def rst_to_client(seq: int, ack: int, flags: int, tags: tuple[tuple[int, int], ...] = ()) -> bytes:
    """The RST that we make for a client of the service, in every byte."""
    made = Segment(flags=flags, seq=seq, ack=ack, window=0, ident=0, tags=tags)
    return made.frame(WEB, CLIENT, IN.back)


def refusal(segment: Segment) -> bytes:
    """The RST that answers a client's SYN."""
    length = len(segment.payload) + 1
    return rst_to_client(0, segment.seq + length, RST | ACK, segment.tags)


def fallback_is(server: Server | None) -> Given:
    """Configure the fallback."""
    return lambda world: world.change_service(fallback=server.id if server else NO_BACKEND)


def down(server: Server, flags: int = 0) -> Given:
    """A backend is not up."""
    return lambda world: world.change_server(server, flags=flags)


def no_path(server: Server) -> Given:
    """A backend's route or neighbour is not resolved."""
    return lambda world: world.change_server(server, ifindex=0)


def silent(world: World) -> None:
    """The daemon gives no sign of life."""
    world.change_control(heartbeat_ns=world.now_ns - AGE_NS, heartbeat_stale_ns=MS)


def hash_table(*servers: Server | None) -> Given:
    """The flow's slot in the table, the next one that is tried, the one after; else nobody."""

    def write(world: World) -> None:
        slots = [NO_BACKEND] * abi.HASH_SLOTS
        slot = flow_hash(world.native_key(flow_key()))
        for server in servers:
            slots[slot % abi.HASH_SLOTS] = server.id if server else NO_BACKEND
            slot += SLOT_STEP
        world.change_hash(tuple(slots))

    return write


def bound(
    server: Server,
    mode: Mode,
    reason: Reason,
    held_ns: int = 0,
    syn_data: int = 0,
    wscale: int = 7,
) -> tuple[Any, ...]:
    """What XDP wrote: FORWARD and REPLY for one backend."""
    waited = range(held_ns, held_ns + HOUR) if held_ns else 0
    forwarded_after = range(held_ns, held_ns + HOUR)
    seen_ns = (lambda w: w.now_ns - held_ns) if held_ns else NOW
    common = {
        "seen_ns": seen_ns,
        "backend": server.id,
        "service": 0,
        "ifindex": lambda world: world.wires.client,
        "dmac": CLIENT_MAC,
        "smac": ROUTER_MAC_C,
        "flags": 0,
        "mode": mode,
        "reason": reason,
        "synack_us": 0,
        "window": 0,
    }
    there = has_pending(
        "FORWARD",
        forward_key(),
        packets=1,
        octets=range(40, 3000),
        isn=CLIENT_ISN,
        new_saddr=CLIENT.number,
        new_daddr=server.end.number,
        new_sport=CLIENT.port,
        new_dport=server.end.port,
        latency_ns=waited,
        last_seen_ns=RECENT,
        fppl_ns=forwarded_after,
        syn_data=syn_data,
        wscale=wscale,
        **common,
    )
    back = has_pending(
        "REPLY",
        reply_key(server),
        packets=0,
        octets=0,
        isn=0,
        new_saddr=WEB.number,
        new_daddr=CLIENT.number,
        new_sport=WEB.port,
        new_dport=CLIENT.port,
        last_seen_ns=NOW,
        latency_ns=0,
        fppl_ns=0,
        syn_data=0,
        wscale=abi.NO_WSCALE,
        **common,
    )
    return there, back


def decides(
    name: str,
    why: str,
    reason: Reason,
    *given: Given,
    server: Server = B1,
    frame: bytes = SYN_FRAME,
    out: bytes | None = None,
    **rest: Any,
) -> Case:
    """XDP takes ``server`` in the same pass: B1 as fallback, another by hash."""
    mode, how = (Mode.FALLBACK, "decided_fallback") if server is B1 else (Mode.HASH, "decided_hash")
    held_ns = rest.pop("held_ns", 0)
    syn: dict[str, int] = rest.pop("syn", {})
    extra = rest.pop("extra", {})
    if reason in (Reason.BUDGET, Reason.BACKLOG, Reason.RING_FULL):
        extra = {"flood_entry": 1} | extra
    return forwarded(
        name,
        frame,
        to_backend(OPEN, server) if out is None else out,
        given=given,
        counters={why: 1, how: 1} | extra,
        then=(*bound(server, mode, reason, held_ns, **syn), *rest.pop("then", ())),
        **rest,
    )


def full_ring(world: World) -> None:
    """The daemon does not take its events."""
    number = probe_hash(
        PROBE_KEY, B1.end.number, B1.end.port, PROBE_SOURCE.port, PROBE_SOURCE.number
    )
    answer = Segment(flags=RST | ACK, ack=number + 1)
    frame = from_backend(answer, client=PROBE_SOURCE)
    world.program.fill_ring(world.native(frame), world.wires.backend)


STALE = ("heartbeat_stale", Reason.NO_HEARTBEAT, silent)
TAKEN = reply(B1, SHOP)
UP_AND_SHARED = abi.BACKEND_UP | abi.BACKEND_SHARED


def shop_flow(world: World) -> None:
    """The same client has an established flow to the other service, on B1 from the same port."""
    put_flow(world, flow_keys(B1, SHOP)[1], reply_entry(world, B1, service=SHOP))


def shop_flow_pending(world: World) -> None:
    """A pending one, which lives."""
    put_pending(world, forward_key(SHOP), forward_value(world, SHOP_B1))
    put_pending(world, reply_key(SHOP_B1), reply_value(world, SHOP_B1, SHOP))


CHAIN = [
    decides("daemon silent: the fallback", *STALE, then=(tables_hold(2, 0),)),
    decides("daemon never came: the fallback", "heartbeat_stale", Reason.NO_HEARTBEAT,
            lambda world: world.change_control(heartbeat_ns=0, heartbeat_stale_ns=1)),
    decides("fallback down: hash", *STALE, down(B1), server=B2),
    decides("fallback draining: hash", *STALE, down(B1, abi.BACKEND_UP | abi.BACKEND_DRAINING),
            server=B2),
    decides("fallback without a path: hash", *STALE, no_path(B1), server=B2),
    decides("no fallback: hash", *STALE, fallback_is(None), server=B2),
    decides("fallback that is not there: hash", *STALE,
            lambda world: world.change_service(fallback=70_000), server=B2),
    decides("hash: the table that is in use", *STALE,
            lambda world: world.change_service(fallback=NO_BACKEND, hash_active=1), server=B3),
    decides("hash: a backend that is down is left out", *STALE, fallback_is(None), down(B3),
            hash_table(B3, B2), server=B2),
    decides("hash: two that are down are left out", *STALE, fallback_is(None), down(B1), down(B3),
            hash_table(B3, B1, B2), server=B2),
    decides("hash: of a heavy one that is down nine slots are left out", *STALE, fallback_is(None),
            down(B3), hash_table(*[B3] * 9, B2), server=B2),
    decides("hash: an empty slot is left out", *STALE, fallback_is(None), hash_table(None, B2),
            server=B2),
    decides("fallback's reply tuple taken: hash", *STALE, TAKEN, server=B2,
            extra={"pending_reply_taken": 1}, then=(tables_hold(3, 0),)),
    decides("REPLY of an earlier flow is left: answers go the way that the client comes by", *STALE,
            reply(B1, dmac=b"\2\0\0\0\x0c\x77", ifindex=0, last_seen_ns=1),
            then=(tables_hold(2, 0),)),
    decides("an established flow of another service has the tuple: hash", *STALE, shop_flow,
            down(B1, UP_AND_SHARED), server=B2, extra={"pending_reply_taken": 1},
            then=(tables_hold(2, 1),)),
    decides("B1 is shared, and nobody has the tuple", *STALE, down(B1, UP_AND_SHARED)),
    decides("hashed backend's reply tuple taken: the next one", *STALE, fallback_is(None), TAKEN,
            hash_table(B1, B2), server=B2, extra={"pending_reply_taken": 1}),
]  # fmt: skip


def _nobody(
    name: str, *given: Given, counters: dict[str, int], entries: int = 0, **rest: Any
) -> Case:
    segment = rest.pop("segment", OPEN)
    return answered(
        f"nobody can take it: {name}",
        to_service(segment) + rest.pop("pad", b""),
        rest.pop("out", refusal(segment)),
        given=given,
        counters={"refused_no_backend": 1} | counters,
        then=(tables_hold(entries, 0),),
        **rest,
    )


ALL_DOWN = (down(B1), down(B2))


def overdue(world: World) -> None:
    """The first packet has been held for longer than the service wants to wait."""
    seen()(world)
    world.change_service(deadline_ns=AGE_NS // 2)


NOBODY = [
    _nobody("all down", silent, *ALL_DOWN, counters={"heartbeat_stale": 1}),
    _nobody("an empty table", silent, fallback_is(None), hash_table(),
            counters={"heartbeat_stale": 1}),
    _nobody("the eleventh slot would fit", silent, fallback_is(None), down(B3),
            hash_table(*[B3] * 10, B2), counters={"heartbeat_stale": 1}),
    _nobody("all reply tuples taken", silent, hash_table(), shop_flow_pending,
            entries=2,
            counters={"heartbeat_stale": 1, "pending_reply_taken": 1}),
    _nobody("and the held first packet is forgotten", overdue, *ALL_DOWN,
            counters={"deadline_passed": 1}),
    _nobody("SYN with data, the acknowledgement counts it", silent, *ALL_DOWN,
            segment=OPEN.but(payload=b"hello"), counters={"heartbeat_stale": 1}),
    _nobody("padding is not data", silent, *ALL_DOWN, segment=PLAIN, pad=bytes(6),
            counters={"heartbeat_stale": 1}),
    _nobody("IP options are not data and are cut", silent, *ALL_DOWN,
            segment=OPEN.but(ip_options=bytes([1, 1, 1, 0])), counters={"heartbeat_stale": 1}),
    _nobody("the VLAN tags stay", silent, *ALL_DOWN,
            segment=OPEN.but(tags=((0x88A8, 5), (0x8100, 0xE006))),
            counters={"heartbeat_stale": 1}),
    _nobody("the numbers go round", silent, *ALL_DOWN, segment=OPEN.but(seq=0xFFFFFFFF),
            counters={"heartbeat_stale": 1}),
]  # fmt: skip


def _held_for_5_s(world: World) -> None:
    overdue_ns = world.now_ns - 5 * SECOND
    put_pending(world, seen_key(), seen_value(world, seen_ns=overdue_ns))
    world.change_service(deadline_ns=SECOND)


REASONS = [
    decides("ring full: hash, not the fallback", "ring_full", Reason.RING_FULL, full_ring,
            server=B2, then=(tables_hold(0, 0, flood=2),)),
    decides("ring full, the large record", "ring_full", Reason.RING_FULL, full_ring, server=B2,
            frame=of_length(1000), out=to_backend(PLAIN.but(payload=bytes(946)), B2),
            syn={"syn_data": 946, "wscale": abi.NO_WSCALE}),
    *(
        decides(f"frame of {length} bytes fits no event", "frame_too_long", Reason.FRAME_TOO_LONG,
                frame=of_length(length), out=to_backend(PLAIN.but(payload=bytes(length - 54))),
                syn={"syn_data": length - 54, "wscale": abi.NO_WSCALE})
        for length in (1521, 3000)
    ),
    decides(
        "deadline passed, seen as the SYN is sent again",
        "deadline_passed", Reason.DEADLINE, overdue, held_ns=AGE_NS,
        event={
            "type": abi.EventType.XDP_DECIDED,
            "backend": B1.id,
            "ifindex": lambda world: world.wires.client,
            "seq": CLIENT_ISN,
            "detail": Mode.FALLBACK,
            "reason": Reason.DEADLINE,
            "seen_ns": lambda world: world.now_ns - AGE_NS,
        },
        then=(tables_hold(3, 0),),
    ),
    forwarded(
        "held for more than 32 bits of nanoseconds: the most that fits",
        SYN_FRAME, to_backend(OPEN), given=(_held_for_5_s, full_ring),
        counters={"deadline_passed": 1, "decided_fallback": 1, "event_lost": 1},
        then=(has_pending("FORWARD", forward_key(), latency_ns=0xFFFFFFFF, fppl_ns=0xFFFFFFFF),),
    ),
    Case(name="deadline not passed", frame=SYN_FRAME, verdict=DROP,
         counters={"syn_held_again": 1}, given=(seen(),)),
    decides("a marked frame that XDP decides about", "heartbeat_stale", Reason.NO_HEARTBEAT,
            silent, mark=MARK, egress="backend", extra={"reinjected": 1}),
]  # fmt: skip

SELF = End(B1.end.addr, CLIENT.port)
"""B1 as a client of its own service."""

OWN = [
    forwarded("a backend that is the client itself is passed over", to_service(OPEN, client=SELF),
              to_backend(OPEN, B2, SELF), given=(silent, down(B3)),
              counters={"heartbeat_stale": 1, "client_is_backend": 1, "decided_hash": 1},
              then=(tables_hold(2, 0),)),
    answered("and is not taken when it is the only one", to_service(OPEN, client=SELF),
             Segment(flags=RST | ACK, ack=CLIENT_ISN + 1, window=0, ident=0)
             .frame(WEB, SELF, IN.back),
             given=(silent, hash_table(B1, B1, B1)),
             counters={"heartbeat_stale": 1, "client_is_backend": 1, "refused_no_backend": 1},
             then=(tables_hold(0, 0),)),
]  # fmt: skip

CASES = [*CHAIN, *OWN, *NOBODY, *REASONS]
