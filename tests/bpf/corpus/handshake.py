# SPDX-License-Identifier: Apache-2.0
"""From decision to established flow: re-injection, SYN-ACK, the ACK that proves it was seen."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.frames import ACK, FIN, PSH, RST, SYN, URG, Options, Segment
from tests.support.program import DROP
from xdp_router.core import abi
from xdp_router.core.events import FirstPacket
from xdp_router.core.model import Backend, Mode, Reason

from .case import (
    NOW,
    RECENT,
    Case,
    Then,
    answered,
    flow_untouched,
    forwarded,
    has_flow,
    has_pending,
    tables_hold,
)
from .degrade import full_ring, refusal, rst_to_client
from .first import OPEN
from .flows import (
    AGE_NS,
    SYNACK_WINDOW,
    decided,
    flow_keys,
    forward,
    forward_key,
    put_flow,
    read_pending,
    refused,
    reply,
    reply_entry,
    reply_key,
    seen,
)
from .world import (
    B1,
    B2,
    CLIENT_ISN,
    CLIENT_SCALE,
    MARK,
    SERVER_ISN,
    SERVER_SCALE,
    SHOP,
    Given,
    Server,
    World,
    endpoint_of,
    flow_key,
    from_backend,
    to_backend,
    to_client,
    to_service,
)

ANSWER_OPTIONS: Options = (
    ("MSS", 1460), ("SAckOK", b""), ("Timestamp", (9, 12345)), ("NOP", None), ("WScale", 8),
)  # fmt: skip
SYNACK = Segment(
    flags=SYN | ACK, seq=SERVER_ISN, ack=CLIENT_ISN + 1, window=SYNACK_WINDOW,
    options=ANSWER_OPTIONS,
)  # fmt: skip
LAST_ACK = Segment(flags=ACK, seq=CLIENT_ISN + 1, ack=SERVER_ISN + 1, window=500)
PENDING, ANSWERED = decided(), decided(synack=True)


def daemon_decided(
    server: Server | None = B1, mode: Mode = Mode.RACE, reason: Reason = Reason.RACE_WON
) -> Given:
    """The daemon's own writing of a decision about the held first packet."""

    def write(world: World) -> None:
        seen()(world)
        first = FirstPacket(
            flow_key(), 0, world.wires.client, world.now_ns - AGE_NS, CLIENT_ISN, 0,
            CLIENT_SCALE, to_service(OPEN),
        )  # fmt: skip
        backend = Backend(server.id, "b", endpoint_of(server.end), 0) if server else None
        insert = world.maps.pending_flows.insert_noexist
        if backend is not None:
            assert insert(*abi.pack_reply_pending(first, backend, mode, reason)) == 0
        assert insert(*abi.pack_forward_pending(first, backend, mode, reason, 1_000_000)) == 0

    return write


def again(name: str, frame: bytes, out: bytes, **rest: Any) -> Case:
    """The held SYN comes through the program once more."""
    rest = {"given": (daemon_decided(),)} | rest
    return forwarded(name, frame, out, **rest)


SYN_FRAME, SYN_OUT = to_service(OPEN), to_backend(OPEN)
FIRST_TIME = has_pending(
    "FORWARD", forward_key(), packets=1, octets=len(SYN_FRAME) - 14, last_seen_ns=RECENT,
    fppl_ns=range(AGE_NS, 1 << 32), latency_ns=1_000_000,
)  # fmt: skip

REINJECTED = [
    again("held SYN, decided, marked", SYN_FRAME, SYN_OUT, mark=MARK, egress="backend",
          counters={"reinjected": 1}, then=(FIRST_TIME, tables_hold(3, 0))),
    again("held SYN to another backend", SYN_FRAME, to_backend(OPEN, B2), mark=MARK,
          egress="backend", counters={"reinjected": 1}, given=(daemon_decided(B2),)),
    again("held SYN with a wrong mark is forwarded, and not as ours", SYN_FRAME, SYN_OUT,
          mark=MARK + 1, then=(FIRST_TIME,)),
    again("held SYN with mark 0 while no mark is set", SYN_FRAME, SYN_OUT, mark=0,
          given=(daemon_decided(), lambda world: world.change_control(reinject_mark=0))),
    again("SYN sent again before the held one is re-injected", SYN_FRAME, SYN_OUT,
          then=(FIRST_TIME,)),
    again("held SYN, re-injected after its retransmit", SYN_FRAME, SYN_OUT, mark=MARK,
          egress="backend", given=PENDING, counters={"reinjected": 1, "syn_retransmit": 1}),
    Case(name="held SYN whose backend lost its path", frame=SYN_FRAME, verdict=DROP, mark=MARK,
         counters={"no_path": 1},
         given=(daemon_decided(), lambda world: world.change_server(B1, ifindex=0))),
    forwarded("held SYN that is refused goes back, marked", SYN_FRAME, refusal(OPEN), mark=MARK,
              egress="client", given=(daemon_decided(None, Mode.REFUSED, Reason.ALL_REFUSED),),
              counters={"refused_by_daemon": 1, "reinjected": 1}),
    again("held SYN with VLAN tags and IP options",
          to_service(OPEN.but(tags=((0x8100, 9),), ip_options=bytes([1, 1, 1, 0]))),
          to_backend(OPEN.but(tags=((0x8100, 9),), ip_options=bytes([1, 1, 1, 0]))),
          mark=MARK, egress="backend", counters={"reinjected": 1}),
]  # fmt: skip

SYN_AGAIN = [
    forwarded("SYN sent again after the decision", SYN_FRAME, SYN_OUT, given=PENDING,
              counters={"syn_retransmit": 1},
              then=(has_pending("FORWARD", forward_key(), packets=2, octets=120, fppl_ns=2_000_000,
                                last_seen_ns=RECENT),)),
    forwarded("SYN sent again after XDP decided: the time that the first one took stays",
              SYN_FRAME, SYN_OUT, counters={"syn_retransmit": 1},
              given=(reply(), forward(latency_ns=0, fppl_ns=0)),
              then=(has_pending("FORWARD", forward_key(), packets=2, fppl_ns=0),)),
    forwarded("SYN sent again after the SYN-ACK", SYN_FRAME, SYN_OUT, given=ANSWERED,
              counters={"syn_retransmit": 1}),
    forwarded("SYN sent again needs no daemon", SYN_FRAME, SYN_OUT,
              given=(*PENDING, lambda world: world.change_control(heartbeat_ns=0)),
              counters={"syn_retransmit": 1}),
    *(answered(name, to_service(OPEN), refusal(OPEN), given=(refused(),),
               counters={"refused_by_daemon": 1}, then=(tables_hold(1, 0),))
      for name in ("SYN of a refused flow",)),
    answered("segment of a refused flow", to_service(LAST_ACK),
             rst_to_client(SERVER_ISN + 1, 0, RST), given=(refused(),),
             counters={"refused_by_daemon": 1}),
    Case(name="RST of a refused flow", frame=to_service(LAST_ACK.but(flags=RST)), verdict=DROP,
         given=(refused(),), counters={"orphan_dropped": 1}),
    answered("SYN of a flow that is refused although the service was drained", to_service(OPEN),
             refusal(OPEN), given=(refused(), lambda world: world.change_server(B1, flags=0)),
             counters={"refused_by_daemon": 1}),
]  # fmt: skip


def from_server(
    name: str,
    segment: Segment,
    *then: Then,
    given: tuple[Given, ...] = PENDING,
    server: Server = B1,
) -> Case:
    """A backend's frame goes to the client while the flow is pending."""
    return forwarded(name, from_backend(segment, server), to_client(segment), given=given,
                     at="backend", then=then)  # fmt: skip


def reply_has(**wanted: Any) -> Then:
    """REPLY has these values."""
    return has_pending("REPLY", reply_key(), **wanted)


RECORDED = reply_has(
    isn=SERVER_ISN, window=SYNACK_WINDOW, wscale=SERVER_SCALE, flags=abi.PENDING_SYNACK, packets=1,
    octets=60, last_seen_ns=NOW, synack_us=range(AGE_NS // 1000, 60_000_000),
)  # fmt: skip
NOTHING = reply_has(isn=0, flags=0, wscale=abi.NO_WSCALE, packets=1, last_seen_ns=NOW)


def _closed(yes: bool) -> Then:
    return has_pending("FORWARD", forward_key(), flags=abi.PENDING_CLOSED if yes else 0)


WITH_DATA = (seen(), reply(), forward(syn_data=5))
REFUSAL = Segment(flags=RST | ACK, seq=0, ack=CLIENT_ISN + 1)

FROM_BACKEND = [
    from_server("SYN-ACK is noted", SYNACK, RECORDED, _closed(False), tables_hold(3, 0)),
    from_server("SYN-ACK by another backend", SYNACK, given=decided(server=B2), server=B2),
    from_server("SYN-ACK without scaling", SYNACK.but(options=()),
                reply_has(wscale=abi.NO_WSCALE, flags=abi.PENDING_SYNACK)),
    from_server("SYN-ACK with VLAN tag", SYNACK.but(tags=((0x8100, 3),)), RECORDED),
    from_server("SYN-ACK that takes the SYN's data", SYNACK.but(ack=CLIENT_ISN + 6), RECORDED,
                given=WITH_DATA),
    from_server("SYN-ACK that leaves the SYN's data", SYNACK, RECORDED, given=WITH_DATA),
    from_server("SYN-ACK that acknowledges half of the SYN's data", SYNACK.but(ack=CLIENT_ISN + 3),
                NOTHING, given=WITH_DATA),
    from_server("SYN-ACK that acknowledges too little", SYNACK.but(ack=CLIENT_ISN), NOTHING),
    from_server("SYN-ACK that acknowledges too much", SYNACK.but(ack=CLIENT_ISN + 2), NOTHING),
    from_server("SYN without ACK from the backend", SYNACK.but(flags=SYN), NOTHING),
    from_server("SYN-ACK sent again keeps its first time", SYNACK,
                reply_has(synack_us=3000, packets=2, octets=120), given=ANSWERED),
    from_server("SYN-ACK before FORWARD is there", SYNACK, NOTHING, given=(reply(),)),
    from_server("RST that refuses the SYN", REFUSAL, _closed(True), NOTHING),
    from_server("RST that acknowledges something else", REFUSAL.but(ack=CLIENT_ISN),
                _closed(False)),
    from_server("RST without ACK", REFUSAL.but(flags=RST), _closed(False)),
    from_server("SYN-ACK with RST is a RST", SYNACK.but(flags=SYN | ACK | RST), _closed(True),
                NOTHING),
    from_server("data of the backend before the client's ACK",
                Segment(flags=PSH | ACK, seq=SERVER_ISN + 1, ack=CLIENT_ISN + 1, payload=b"220"),
                reply_has(packets=2, octets=60 + 43), given=ANSWERED),
]  # fmt: skip


def promoted_event(**but: Any) -> dict[str, Any]:
    """The event of a flow that got into flow_table."""
    return {
        "type": abi.EventType.ESTABLISHED,
        "backend": B1.id,
        "ifindex": lambda world: world.wires.client,
        "seq": CLIENT_ISN + 1,
        "detail": Mode.RACE,
        "reason": Reason.RACE_WON,
        "fppl_ns": 2_000_000,
        "synack_us": 3000,
        "seen_ns": lambda world: world.now_ns - AGE_NS,
    } | but


def counted_there(world: World, started_ns: int) -> None:
    """Whoever ages the pending entries knows that flow_table has what the flow has carried."""
    for key in (forward_key(), reply_key(B1)):
        entry = read_pending(world, key)
        assert entry is not None
        assert entry.flags & abi.PENDING_PROMOTED


def promotes(
    name: str,
    segment: Segment,
    *then: Then,
    given: tuple[Given, ...] = ANSWERED,
    event: dict[str, Any] | None = None,
    **rest: Any,
) -> Case:
    """The client's segment gets the flow into flow_table, and goes on."""
    event = promoted_event(seq=segment.seq) | (event or {})
    return forwarded(name, to_service(segment), to_backend(segment), given=given,
                     counters={"promoted": 1}, event=event, then=(*then, counted_there),
                     **rest)  # fmt: skip


def waits(
    name: str,
    segment: Segment,
    *then: Then,
    given: tuple[Given, ...] = ANSWERED,
    counters: dict[str, int] | None = None,
) -> Case:
    """The client's segment goes on, and the flow stays pending."""
    return forwarded(name, to_service(segment), to_backend(segment), given=given,
                     counters=counters or {}, then=(tables_hold(3, 0), *then))  # fmt: skip


def new_flow(**but: Any) -> tuple[Then, Then]:
    """Both entries just after promotion by a bare ACK, in every field."""
    both = {"established_us": range(AGE_NS // 1000, 60_000_000)}
    return (
        flow_untouched("there", packets=2, octets=100, last_seen_ns=RECENT,
                       window=500 << CLIENT_SCALE, **both, **but),
        flow_untouched("back", packets=1, octets=60, window=SYNACK_WINDOW, last_seen_ns=NOW,
                       **both),
    )  # fmt: skip


def _scales(client: int, server: int) -> tuple[Given, ...]:
    return (seen(), reply(synack=True, wscale=server), forward(wscale=client))


NONE = abi.NO_WSCALE
SCALED = [
    promotes(f"window scale: {name}", LAST_ACK,
             has_flow("there", wscale=there, window=500 << there),
             has_flow("back", wscale=back, window=SYNACK_WINDOW), given=_scales(client, server))
    for name, client, server, there, back in (
        ("both", 7, 8, 7, 8),
        ("only the client", 7, NONE, 0, 0),
        ("only the backend", NONE, 8, 0, 0),
        ("none", NONE, NONE, 0, 0),
        ("both 0", 0, 0, 0, 0),
        ("the largest", 14, 14, 14, 14),
    )
]  # fmt: skip

PROMOTED = [
    promotes("ACK with the right numbers", LAST_ACK, *new_flow(), tables_hold(3, 2)),
    promotes("first data with the right numbers", LAST_ACK.but(flags=PSH | ACK, payload=b"hello"),
             has_flow("there", packets=2, octets=105, seq_next=CLIENT_ISN + 6,
                      first_data_us=range(AGE_NS // 1000, 60_000_000))),
    promotes("FIN with the right numbers", LAST_ACK.but(flags=FIN | ACK),
             has_flow("there", flags=abi.FLOW_FIN, seq_next=CLIENT_ISN + 2)),
    promotes("ACK behind the SYN's data", LAST_ACK.but(seq=CLIENT_ISN + 6),
             has_flow("there", seq_next=CLIENT_ISN + 6), has_flow("back", ack=CLIENT_ISN + 6),
             given=(seen(), reply(synack=True), forward(syn_data=5))),
    promotes("ACK although the SYN's data was left", LAST_ACK,
             given=(seen(), reply(synack=True), forward(syn_data=5))),
    promotes("ACK whose numbers go round", LAST_ACK.but(seq=0, ack=0),
             given=(seen(), reply(synack=True, isn=0xFFFFFFFF), forward(isn=0xFFFFFFFF))),
    promotes("ACK with VLAN tag, IP options and padding",
             LAST_ACK.but(tags=((0x8100, 4),), ip_options=bytes([1, 1, 1, 0]), pad=b"\1\2")),
    promotes("ACK without SEEN, which was evicted", LAST_ACK, tables_hold(2, 2),
             given=(reply(synack=True), forward())),
    promotes("ACK of a flow that XDP decided", LAST_ACK,
             has_flow("there", mode=Mode.FALLBACK, reason=Reason.BUDGET, fppl_ns=0),
             given=(reply(synack=True),
                    forward(mode=Mode.FALLBACK, reason=Reason.BUDGET, fppl_ns=0)),
             event={"detail": Mode.FALLBACK, "reason": Reason.BUDGET, "fppl_ns": 0}),
    promotes("ACK needs no daemon", LAST_ACK,
             given=(*ANSWERED, lambda world: world.change_control(heartbeat_ns=0))),
    forwarded("ACK while the ring is full", to_service(LAST_ACK), to_backend(LAST_ACK),
              given=(*ANSWERED, full_ring), counters={"promoted": 1, "event_lost": 1},
              then=(tables_hold(3, 2),)),
    *SCALED,
]  # fmt: skip

NOT_PROMOTED = [
    *(
        waits(f"not promoted: {name}", LAST_ACK.but(**change))
        for name, change in (
            ("sequence number one less", {"seq": CLIENT_ISN}),
            ("sequence number one more", {"seq": CLIENT_ISN + 2}),
            ("acknowledgement one less", {"ack": SERVER_ISN}),
            ("acknowledgement one more", {"ack": SERVER_ISN + 2}),
            ("both numbers exchanged", {"seq": SERVER_ISN + 1, "ack": CLIENT_ISN + 1}),
            ("no ACK flag", {"flags": PSH | URG}),
            ("no flags", {"flags": 0}),
        )
    ),
    waits("not promoted: no SYN-ACK has passed", LAST_ACK, given=PENDING),
    waits("not promoted: the entry's zero is no SYN-ACK", LAST_ACK.but(ack=1), given=PENDING),
    waits("not promoted: half of the SYN's data", LAST_ACK.but(seq=CLIENT_ISN + 3),
          given=(seen(), reply(synack=True), forward(syn_data=5))),
    answered("REPLY is another flow's: this one is lost", to_service(LAST_ACK),
             rst_to_client(SERVER_ISN + 1, 0, RST), counters={"orphan_reset": 1},
             given=(seen(), reply(B1, SHOP, synack=True), forward()), then=(tables_hold(3, 0),)),
    waits("RST with the right numbers closes, and does not promote", LAST_ACK.but(flags=RST | ACK),
          _closed(True)),
    waits("RST with another number closes nothing",
          LAST_ACK.but(flags=RST, seq=CLIENT_ISN + 2, ack=0), _closed(False)),
    waits("counted while pending", LAST_ACK.but(seq=CLIENT_ISN + 9, payload=b"late"),
          has_pending("FORWARD", forward_key(), packets=2, octets=104, last_seen_ns=RECENT)),
]  # fmt: skip


def _foreign_reply_flow(world: World) -> None:
    """The reply tuple is in flow_table as that of a flow of the second service."""
    put_flow(world, flow_keys()[1], reply_entry(world, service=SHOP))


def fill_table(leave: int) -> Given:
    """Other flows take flow_table, but for some places."""

    def fill(world: World) -> None:
        value = reply_entry(world)
        for port in range(world.maps.flow_table.max_entries - leave):
            key = dataclasses.replace(flow_key(), client_port=50_000 + port)
            put_flow(world, abi.pack_flow_key(key), value)

    return fill


def stateless_ahead(world: World, started_ns: int) -> None:
    """The table was found full, and from then on the service is stateless for its time."""
    until_ns = world.maps.pressure.stateless_until_ns(0)
    ahead_ns = world.control().orphan_window_ns * 9 // 8
    assert 0 <= until_ns - ahead_ns - started_ns < 60_000_000_000
    assert until_ns - ahead_ns == world.full_ns()


def _table_full(leave: int) -> Case:
    def entries(world: World, started_ns: int) -> None:
        tables_hold(3, world.maps.flow_table.max_entries - leave)(world, started_ns)

    proven = has_pending("FORWARD", forward_key(), flags=abi.PENDING_PROVEN)
    both = abi.PENDING_SYNACK | abi.PENDING_PROVEN
    known = reply_has(flags=both, seq=SERVER_ISN + 1, ack=CLIENT_ISN + 1)
    return forwarded(
        f"ACK when flow_table has room for {leave}",
        to_service(LAST_ACK),
        to_backend(LAST_ACK),
        given=(*ANSWERED, fill_table(leave)),
        counters={"promote_table_full": 1},
        then=(entries, stateless_ahead, proven, known),
    )


TROUBLE = [
    forwarded("ACK when the reply tuple is an established flow's", to_service(LAST_ACK),
              to_backend(LAST_ACK), given=(*ANSWERED, _foreign_reply_flow),
              counters={"promote_conflict": 1}, then=(tables_hold(3, 1),)),
    _table_full(0),
    _table_full(1),
    promotes("ACK when flow_table has room for 2", LAST_ACK, given=(*ANSWERED, fill_table(2))),
]  # fmt: skip

CASES = [*REINJECTED, *SYN_AGAIN, *FROM_BACKEND, *PROMOTED, *NOT_PROMOTED, *TROUBLE]
