# SPDX-License-Identifier: Apache-2.0
"""UDP: first datagrams held, those behind them, decisions of XDP, and refusals."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from tests.support.frames import End
from tests.support.icmp_frames import PORT, TIME_EXCEEDED, UNREACHABLE, own_error
from tests.support.program import DROP, PASS, TX
from tests.support.udp_frames import Datagram
from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, Mode, Reason

from .budget import deep, spend
from .case import NOW, RECENT, Case, Then, forwarded, only, passed, tables_hold
from .degrade import down, fallback_is, full_ring, hash_table, silent
from .flows import AGE_NS
from .foreign import without_stage
from .full import full
from .udp_flows import (
    answer,
    ask,
    asked,
    decided,
    forward,
    has_forward,
    has_reply,
    has_seen,
    key,
    refused,
    reply,
    seen,
    service,
)
from .world import (
    B1,
    B2,
    CLIENT,
    IN,
    MARK,
    OTHER_MAC,
    OURS_C,
    SECOND,
    SHOP,
    WEB,
    Given,
    Server,
    World,
)

HELLO = Datagram(payload=b"anybody?")
FRAME = ask(HELLO)
SERVICE = (service(),)
HOUR = 3600 * SECOND


def held_event(frame: bytes, kind: abi.EventType, **fields: object) -> dict[str, object]:
    """The event of a held datagram."""
    return {
        "type": kind,
        "key": key(),
        "frame": frame,
        "seen_ns": NOW,
        "backend": NO_BACKEND,
        "ifindex": lambda world: world.wires.client,
        "wscale": abi.NO_WSCALE,
        "syn_data": len(HELLO.payload),
    } | fields


def first(name: str, frame: bytes = FRAME, fields: dict[str, object] | None = None,
          **rest: Any) -> Case:  # fmt: skip
    """A case whose frame is the first of a flow."""
    rest = {"counters": {"datagram_first": 1}, "given": SERVICE} | rest
    event = held_event(frame, abi.EventType.FIRST_PACKET, **(fields or {}))
    return Case(name=f"UDP: {name}", frame=frame, verdict=DROP, event=event, **rest)


def leaving(world: World) -> None:
    """The daemon is between a datagram's run and its departure."""
    world.program.leaving.write(bytes(4), (1).to_bytes(8, sys.byteorder))


def is_leaving(world: World, _started_ns: int) -> None:
    """The run has noted that the datagram has still to be sent; in a flood nobody waits for it."""
    assert world.flooded or world.program.leaving.read(bytes(4)) != bytes(8)


def later(name: str, *given: Given, datagram: Datagram = HELLO, **rest: Any) -> Case:
    """A case whose frame is held behind others."""
    frame = ask(datagram)
    event = held_event(frame, abi.EventType.DATAGRAM, syn_data=len(datagram.payload))
    rest = {"counters": {"datagram_held": 1}, "then": ()} | rest
    return Case(name=f"UDP: {name}", frame=frame, verdict=DROP, event=event,
                given=(*SERVICE, *given), **rest)  # fmt: skip


SEEN = has_seen(
    seen_ns=NOW, last_seen_ns=NOW, isn=0, backend=NO_BACKEND, service=0, packets=1,
    octets=len(FRAME), ifindex=lambda world: world.wires.client,
)  # fmt: skip


def of_length(length: int) -> Datagram:
    return Datagram(payload=bytes(i & 255 for i in range(length)))


FIRST = [
    first("the first of a flow is held", then=(SEEN, tables_hold(1, 0))),
    *(first(f"a first one of {length} bytes", ask(of_length(length)), {"syn_data": length})
      for length in (0, 1, 2, 3, 1200, 1440)),
    first("a first one without a checksum", ask(HELLO.but(check=0))),
    first("a first one with tags", ask(HELLO.but(tags=((0x8100, 7),)))),
    first("a first one with options", ask(HELLO.but(ip_options=bytes([1, 1, 1, 0])))),
    first("a first one, padded", ask(HELLO.but(pad=bytes(18)))),
    first("a first one that is longer in IP than in UDP",
          ask(HELLO.but(payload=b"anybody?more", length=16)), then=(tables_hold(1, 0),)),
    first("a first one after another was given up", given=(
        *SERVICE, seen(age_ns=200 * SECOND)), then=(SEEN, tables_hold(1, 0))),
    first("a first one after a flow that is over", given=(
        *SERVICE, seen(age_ns=HOUR), reply(idle_ns=HOUR), forward(idle_ns=HOUR)),
        then=(SEEN, tables_hold(1, 0))),
    first("a first one after an old refusal", given=(*SERVICE, refused(200 * SECOND)),
          then=(SEEN, tables_hold(1, 0))),
    first("the reply tuple is another flow's by now", given=(
        *SERVICE, forward(), reply(new_saddr=SHOP.number)), then=(SEEN, tables_hold(2, 0))),
]  # fmt: skip

NEXT = [
    # In the tables' words a frame of IPv6 counts 20 bytes less: what fits differs by as much.
    *only(4, [
        later("the second one is held", seen(),
              then=(has_seen(packets=2, octets=150), tables_hold(1, 0))),
        later("the fourth one is held", seen(3, 1000), then=(has_seen(packets=4, octets=1050),)),
        later("the last one that fits is held", seen(2, 6144 - 50),
              then=(has_seen(packets=3, octets=6144),)),
    ]),
    *only(6, [
        later("the second one is held (IPv6)", seen(), then=(has_seen(packets=2),)),
        later("the fourth one is held (IPv6)", seen(3, 1000), then=(has_seen(packets=4),)),
    ]),
    later("a long one is held", seen(), datagram=of_length(1440)),
    later("while its flow is decided, and the first has not left: in its order",
          seen(), reply(), forward(packets=0), then=(has_forward(packets=0), has_seen(packets=2))),
    later("while another that was held has not left",
          seen(3), reply(), forward(packets=2), then=(has_forward(packets=2),)),
    later("when the last of the held may not have left the daemon",
          seen(), reply(), forward(packets=1, idle_ns=-SECOND), then=(has_forward(packets=1),)),
    later("when the daemon has one in its hands, however long, and another was answered",
          leaving, seen(2), reply(packets=1), forward(packets=2), then=(has_forward(packets=2),)),
]  # fmt: skip


def xdp_decided(server: Server, mode: Mode, reason: Reason) -> dict[str, object]:
    """Told about a flow whose first datagram the daemon holds."""
    return {
        "type": abi.EventType.XDP_DECIDED,
        "key": key(),
        "backend": server.id,
        "detail": mode,
        "reason": reason,
        "ifindex": lambda world: world.wires.client,
        "seen_ns": lambda world: world.now_ns - AGE_NS,
    }


def decides(
    name: str,
    why: str,
    reason: Reason,
    *given: Given,
    server: Server = B1,
    waits: bool = False,
    datagram: Datagram = HELLO,
    then: tuple[Then, ...] = (),
    **rest: Any,
) -> Case:
    """XDP takes ``server`` in this pass. ``waits``: the first datagram is held meanwhile."""
    mode, how = (Mode.FALLBACK, "decided_fallback") if server is B1 else (Mode.HASH, "decided_hash")
    event = xdp_decided(server, mode, reason) if waits and "event" not in rest else None
    many = reason in (Reason.BUDGET, Reason.BACKLOG, Reason.RING_FULL)
    rest = {"event": event} | rest
    return forwarded(
        f"UDP: {name}",
        ask(datagram),
        asked(datagram, server),
        given=(*SERVICE, *given),
        counters={why: 1, how: 1} | ({"flood_entry": 1} if many else {}),
        then=(
            has_forward(backend=server.id, mode=mode, reason=reason, packets=1, isn=0,
                        last_seen_ns=RECENT, new_daddr=server.end.number,
                        new_dport=server.end.port, new_saddr=CLIENT.number),
            has_reply(server, packets=0, new_saddr=WEB.number, new_sport=WEB.port),
            *then,
        ),
        **rest,
    )  # fmt: skip


def slow(world: World) -> None:
    """The service has a deadline that is over soon."""
    service(deadline_ns=AGE_NS // 2)(world)


OVER = Reason.DATAGRAMS
DECIDED = [
    decides("daemon silent", "heartbeat_stale", Reason.NO_HEARTBEAT, silent),
    decides("daemon silent: no fallback", "heartbeat_stale", Reason.NO_HEARTBEAT, silent, down(B1),
            server=B2),
    decides("more than are held", "datagrams_over", OVER, seen(4), waits=True),
    decides("more bytes than are held", "datagrams_over", OVER, seen(2, 6144 - 49), waits=True),
    decides("decision overdue", "deadline_passed", Reason.DEADLINE, slow, seen(), waits=True),
    decides("daemon silent since the first", "heartbeat_stale", Reason.NO_HEARTBEAT, silent, seen(),
            waits=True),
    decides("budget of all spent", "budget_global", Reason.BUDGET, spend(abi.TOKENS_EVENTS),
            hash_table(B2), server=B2),
    decides("budget spent on the first", "budget_global", Reason.BUDGET,
            spend(abi.TOKENS_EVENTS), hash_table(B2), seen(), server=B2, waits=True),
    decides("too much waits for the daemon", "ring_deep", Reason.BACKLOG, deep, hash_table(B2),
            server=B2, event=None),
    decides("no room in the ring", "ring_full", Reason.RING_FULL, full_ring, hash_table(B2),
            server=B2),
    decides("table full", "table_full", Reason.TABLE_FULL, full(), hash_table(B2), server=B2),
    decides("longer than an event", "frame_too_long", Reason.FRAME_TOO_LONG,
            datagram=of_length(1490)),
    decides("half of it is left: decided anew", "heartbeat_stale", Reason.NO_HEARTBEAT, silent,
            forward(B2), reply(B2, new_saddr=SHOP.number)),
]  # fmt: skip


def unreachable(name: str, counter: str, *given: Given, datagram: Datagram = HELLO,
                **rest: Any) -> Case:  # fmt: skip
    """Answered as by a host that has no such port."""
    frame = ask(datagram)
    out = own_error(UNREACHABLE, PORT, frame, OURS_C)
    counters = {counter: 1, "unreachable_sent": 1} | rest.pop("extra", {})
    return Case(name=f"UDP: {name}", frame=frame, verdict=TX, out=out, counters=counters,
                given=(*SERVICE, *given), **rest)  # fmt: skip


NOBODY = (hash_table(None), fallback_is(None))


def nobody(world: World) -> None:
    """There is no backend."""
    hash_table(None)(world)
    service(fallback=NO_BACKEND)(world)


REFUSED = [
    unreachable("nobody is there", "refused_no_backend", silent, nobody,
                extra={"heartbeat_stale": 1}, then=(tables_hold(0, 0),)),
    unreachable("nobody is there, and one is held", "refused_no_backend", seen(4), nobody,
                extra={"datagrams_over": 1}, then=(tables_hold(0, 0),)),
    unreachable("the daemon found nobody", "refused_by_daemon", refused()),
    unreachable("the daemon found nobody for a long one", "refused_by_daemon", refused(),
                datagram=of_length(1400)),
    unreachable("refused, with tags", "refused_by_daemon", refused(),
                datagram=HELLO.but(tags=((0x8100, 9),))),
    unreachable("refused, with an odd length", "refused_by_daemon", refused(),
                datagram=of_length(3)),
    Case(name="UDP: refused, and there is no budget for that", frame=FRAME, verdict=DROP,
         given=(*SERVICE, refused(), lambda world: world.limit(
             icmp_interval_ns=SECOND, icmp_burst_ns=SECOND),
             lambda world: world.maps.tokens.fill(abi.TOKENS_ICMP, 0, world.now_ns)),
         counters={"refused_by_daemon": 1, "icmp_over_budget": 1}),
    Case(name="UDP: refused, and we have no address", frame=FRAME, verdict=DROP,
         given=(*SERVICE, refused(), lambda world: world.change_side("client", addr=0)),
         counters={"refused_by_daemon": 1, "icmp_no_source": 1}),
    Case(name="UDP: refused, and nobody may be answered", verdict=DROP,
         frame=ask(HELLO, End("224.0.0.9", 4000)), counters={
             "heartbeat_stale": 1, "refused_no_backend": 1},
         given=(*SERVICE, silent, nobody), families=(4,)),
]  # fmt: skip

TIMES_OUT = [
    Case(name="UDP: the first one's TTL ends here", frame=ask(HELLO.but(ttl=1)), verdict=TX,
         out=own_error(TIME_EXCEEDED, 0, ask(HELLO.but(ttl=1)), OURS_C), given=SERVICE,
         counters={"ttl_exceeded": 1, "icmp_time_exceeded": 1}, then=(tables_hold(0, 0),)),
    Case(name="UDP: a decided one's TTL ends here", frame=ask(HELLO.but(ttl=1)), verdict=TX,
         out=own_error(TIME_EXCEEDED, 0, ask(HELLO.but(ttl=1)), OURS_C), given=decided(),
         counters={"ttl_exceeded": 1, "icmp_time_exceeded": 1}),
]  # fmt: skip

REINJECTED = [
    forwarded("UDP: the held one goes to its backend", FRAME, asked(HELLO), given=(
        *SERVICE, seen(), reply(), forward(packets=0)), mark=MARK, egress="backend",
        counters={"reinjected": 1},
        then=(has_forward(packets=1, octets=len(FRAME) - 14, fppl_ns=range(AGE_NS, 1 << 32)),)),
    forwarded("UDP: the next of the held follows", FRAME, asked(HELLO), given=(
        *SERVICE, seen(3), reply(), forward(packets=1)), mark=MARK, egress="backend",
        counters={"reinjected": 1}, then=(has_forward(packets=2), is_leaving)),
    Case(name="UDP: a held one whose decision is gone", frame=FRAME, verdict=DROP, mark=MARK,
         given=(*SERVICE, seen()), counters={"datagram_dropped": 1}, then=(tables_hold(1, 0),)),
    Case(name="UDP: a held one of a refused flow", frame=FRAME, mark=MARK, egress="client",
         verdict=4, out=own_error(UNREACHABLE, PORT, FRAME, OURS_C), given=(*SERVICE, refused()),
         counters={"refused_by_daemon": 1, "unreachable_sent": 1, "reinjected": 1}),
]  # fmt: skip

NOT_HELD = [
    forwarded(f"UDP: nothing waits for the held ones: {name}", FRAME, asked(HELLO),
              given=(*SERVICE, *given), then=(has_forward(packets=packets),))
    for name, packets, given in (
        ("all of them have left", 3, (seen(2), reply(), forward(packets=2))),
        ("others have gone by them", 5, (leaving, seen(3), reply(), forward(packets=4))),
        ("XDP decided", 1, (seen(), reply(), forward(packets=0, reason=Reason.DATAGRAMS))),
        ("there are as many as may be", 1, (seen(4), reply(), forward(packets=0))),
        ("their time is over", 1, (slow, seen(2), reply(), forward(packets=0))),
        ("the daemon is gone", 1, (silent, seen(2), reply(), forward(packets=0))),
        ("nobody knows of any", 1, (reply(), forward(packets=0))),
    )
]  # fmt: skip

FOREIGN = [
    passed("UDP: to another port of the service", ask(HELLO, service=End(WEB.addr, 81)),
           "pass_not_service", given=SERVICE),
    passed("UDP: to a service of TCP alone", ask(HELLO, service=SHOP), "pass_not_service",
           given=SERVICE),
    passed("UDP: for another MAC", ask(HELLO, hop=dataclasses.replace(IN, dst=OTHER_MAC)),
           "pass_other_mac", given=SERVICE),
    passed("UDP: from a backend, of no flow", answer(HELLO), "pass_not_service", given=SERVICE,
           at="backend"),
    passed("UDP: from another port of a backend",
           HELLO.frame(End(B1.end.addr, 1), CLIENT, B1.hop.back), "pass_not_service",
           given=decided(), at="backend"),
    *(passed(f"UDP: malformed: {name}", ask(datagram), "pass_malformed", given=SERVICE)
      for name, datagram in (("length 7", HELLO.but(length=7)), ("length 0", HELLO.but(length=0)),
                             ("longer than the packet", HELLO.but(length=17)))),
    *(passed(f"UDP: without its stage: {stage.name}", frame, "tail_call_missed", at=at,
             given=(*given, without_stage(stage)))
      for stage, frame, given, at in ((abi.Stage.UDP, FRAME, decided(), "client"),
                                      (abi.Stage.UDP_REPLY, answer(HELLO), decided(), "backend"))),
    Case(name="UDP: without its stage: DATAGRAM", frame=FRAME, verdict=DROP,
         counters={"tail_call_missed": 1}, given=(*decided(), without_stage(abi.Stage.DATAGRAM))),
    Case(name="UDP: without its stage: DECIDE", frame=FRAME, verdict=DROP,
         counters={"tail_call_missed": 1, "heartbeat_stale": 1},
         given=(*SERVICE, silent, without_stage(abi.Stage.DECIDE))),
    Case(name="UDP: without its stage: ICMP_ERROR", frame=FRAME, verdict=DROP,
         counters={"tail_call_missed": 1, "refused_by_daemon": 1},
         given=(*SERVICE, refused(), without_stage(abi.Stage.ICMP_ERROR))),
    Case(name="UDP: a stage alone leaves TCP alone", frame=ask(HELLO, service=SHOP), verdict=PASS,
         given=SERVICE, program="stage_datagram", counters={"pass_not_service": 1}),
]  # fmt: skip

CASES = [*FIRST, *NEXT, *DECIDED, *REFUSED, *TIMES_OUT, *REINJECTED, *NOT_HELD, *FOREIGN]
