# SPDX-License-Identifier: Apache-2.0
"""UDP: flows that are decided, answered, promoted, established; errors about them."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.frames import End, Hop
from tests.support.icmp_frames import (
    FRAG_NEEDED,
    TIME_EXCEEDED,
    UNREACHABLE,
    icmp_error,
    own_error,
    quote,
)
from tests.support.program import DROP, PASS, TX
from tests.support.udp_frames import Datagram
from xdp_router.core import abi
from xdp_router.core.model import Mode, Reason

from .case import NOW, RECENT, Case, Then, forwarded, only, passed, tables_hold
from .direct import OF_UDP, capped
from .flows import AGE_NS
from .fragments import came, cut
from .full import full
from .handoff import CAN_FORWARD, CAN_REPLY, by_kernel
from .handshake import fill_table
from .udp import HELLO, first, leaving
from .udp_flows import (
    answer,
    answered,
    ask,
    asked,
    decided,
    established,
    forward,
    has_flow,
    has_forward,
    has_reply,
    key,
    reply,
    seen,
    service,
)
from .world import (
    B1,
    CLIENT,
    IN,
    OTHER_MAC,
    OURS_B,
    OURS_C,
    ROUTER_MAC_C,
    SECOND,
    WEB,
    Given,
    World,
)

ANSWER = Datagram(payload=b"I am here")
FLOW = (established(),)
HOUR = 3600 * SECOND
GATEWAY = Hop(bytes.fromhex("020000000c77"), ROUTER_MAC_C)
"""The client's packets by another router."""


def sends(name: str, datagram: Datagram = HELLO, *then: Then, given: tuple[Given, ...] = FLOW,
          hop: Hop = IN, **rest: Any) -> Case:  # fmt: skip
    """The client's datagram goes to the backend."""
    return forwarded(f"UDP, client: {name}", ask(datagram, hop=hop), asked(datagram), given=given,
                     then=then, **rest)  # fmt: skip


def answers(name: str, datagram: Datagram = ANSWER, *then: Then, given: tuple[Given, ...] = FLOW,
            **rest: Any) -> Case:  # fmt: skip
    """The backend's goes to the client."""
    return forwarded(f"UDP, backend: {name}", answer(datagram), answered(datagram), given=given,
                     at="backend", then=then, **rest)  # fmt: skip


def summing_to_zero(datagram: Datagram, source: End, target: End) -> Datagram:
    """One that has such a last word that the sum of ``source`` to ``target`` comes out as 0."""
    blank = datagram.but(payload=datagram.payload + bytes(2))
    at = 34 + 6
    check = int.from_bytes(blank.frame(source, target, IN)[at : at + 2], "big")
    return datagram.but(payload=datagram.payload + check.to_bytes(2, "big"))


ZERO_AFTER = summing_to_zero(HELLO, CLIENT, B1.end)
ZERO_BEFORE = summing_to_zero(HELLO, CLIENT, WEB)
NONE = HELLO.but(check=0)

SUMS = [
    case
    for given, when in ((FLOW, ""), (decided(), ", pending"))
    for case in (
        sends(f"no checksum stays none{when}", NONE, given=given),
        answers(f"no checksum stays none{when}", ANSWER.but(check=0), given=given),
        *only(4, [
            sends(f"a sum that comes out as 0 is sent as 0xffff{when}", ZERO_AFTER, given=given),
            sends(f"a sum that was sent as 0xffff{when}", ZERO_BEFORE, given=given),
        ]),
    )
]  # fmt: skip

LONG = HELLO.but(payload=bytes(200), dont_fragment=False)
PENDING = [
    forwarded("UDP, client: a later fragment is no datagram of its own, pending",
              cut(ask(LONG))[1], cut(asked(LONG))[1], given=(*decided(), came(cut(ask(LONG))[0])),
              counters={"fragment_followed": 1}, then=(has_forward(packets=2),)),
    forwarded("UDP, backend: a later fragment is no datagram of its own, pending",
              cut(answer(LONG))[1], cut(answered(LONG))[1], at="backend",
              given=(*decided(), came(cut(answer(LONG))[0], "backend")),
              counters={"fragment_followed": 1}, then=(has_reply(packets=1),)),
    sends("again before any answer: stays pending", HELLO,
          has_forward(packets=2, octets=60 + 36, last_seen_ns=NOW), has_reply(packets=0),
          tables_hold(3, 0), given=decided()),
    answers("the first answer", ANSWER,
            has_reply(packets=1, octets=37, last_seen_ns=NOW,
                      synack_us=range(AGE_NS // 1000, 60_000_000)),
            tables_hold(3, 0), given=decided()),
    answers("another answer", ANSWER, has_reply(packets=2, synack_us=3000), given=decided(1, 1)),
    answers("an answer without a FORWARD", given=(service(), reply())),
    sends("REPLY was evicted: it comes back", HELLO, has_reply(packets=0, last_seen_ns=NOW),
          given=(service(), seen(), forward())),
    sends("by another router, while the first is heard", HELLO,
          has_reply(dmac=IN.src), given=decided(), hop=GATEWAY),
    sends("by another router, after a silence", HELLO, has_reply(dmac=GATEWAY.src), hop=GATEWAY,
          given=(service(), seen(), reply(), forward(idle_ns=2 * SECOND)),
          counters={"client_moved": 1}),
    first("the flow was idle for its time", given=(
        service(), reply(idle_ns=HOUR), forward(idle_ns=HOUR))),
    sends("one side alone was idle", given=(
        service(), reply(packets=0), forward(idle_ns=HOUR, fppl_ns=1)),
        counters={}, hop=IN),
    sends("idle for longer than a handshake may take", given=(
        service(), reply(idle_ns=200 * SECOND), forward(idle_ns=200 * SECOND))),
]  # fmt: skip

PROMOTED_EVENT = {
    "type": abi.EventType.ESTABLISHED,
    "key": key(),
    "backend": B1.id,
    "ifindex": lambda world: world.wires.client,
    "detail": Mode.RACE,
    "reason": Reason.RACE_WON,
    "fppl_ns": 2_000_000,
    "synack_us": 3000,
    "seen_ns": lambda world: world.now_ns - AGE_NS,
}
NUMBERS: dict[str, Any] = {
    "seq_next": 0, "ack": 0, "window": 0, "wscale": 0, "isn": 0, "flags": 0,
    "state": abi.TcpState.ESTABLISHED, "backend": B1.id, "service": 0, "mode": Mode.RACE,
    "reason": Reason.RACE_WON,
}  # fmt: skip


def proven(idle_ns: int = AGE_NS) -> tuple[Given, ...]:
    """A flow that found no room in the table."""
    flags: dict[str, Any] = {"flags": abi.PENDING_PROVEN, "idle_ns": idle_ns}
    return service(), seen(), reply(packets=1, **flags), forward(fppl_ns=2_000_000, **flags)


PROMOTED = [
    sends("after an answer: established", HELLO,
          has_flow("there", packets=2, octets=60 + 36, last_seen_ns=RECENT,
                   direction=abi.Direction.FORWARD, in_mac=ROUTER_MAC_C, dmac=IN.src, **NUMBERS),
          has_flow("back", packets=1, octets=60, direction=abi.Direction.REPLY, dmac=IN.src,
                   **NUMBERS),
          tables_hold(3, 2), given=decided(1, 1), counters={"promoted": 1}, event=PROMOTED_EVENT),
    # Whoever guesses the tuple would have the answers sent to himself.
    sends("after an answer, from elsewhere: pending still", HELLO, tables_hold(3, 0),
          given=decided(1, 1), hop=Hop(OTHER_MAC, IN.dst)),
    sends("at once after an answer: the first has left", HELLO, tables_hold(3, 2),
          given=(service(), seen(), reply(packets=1),
                 forward(idle_ns=-SECOND, fppl_ns=2_000_000)),
          counters={"promoted": 1}, event=PROMOTED_EVENT),
    sends("the first has left: another flow's is leaving", HELLO, tables_hold(3, 2),
          given=(leaving, service(), seen(), reply(packets=1),
                 forward(idle_ns=-SECOND, fppl_ns=2_000_000)),
          counters={"promoted": 1}, event=PROMOTED_EVENT),
    sends("after an answer, and the table is full", HELLO,
          has_forward(packets=2, flags=abi.PENDING_PROVEN), has_reply(flags=abi.PENDING_PROVEN),
          given=(*decided(1, 1), fill_table(1)), counters={"promote_table_full": 1}),
    sends("the table is full still: not asked for each of them", HELLO,
          has_forward(packets=2, flags=abi.PENDING_PROVEN), given=(*proven(), full())),
    sends("the table has room again", HELLO, has_flow("there", **NUMBERS), tables_hold(3, 2),
          given=(*proven(), full(SECOND)), counters={"promoted": 1, "promoted_late": 1},
          event=PROMOTED_EVENT),
    first("without a place, and idle for its time", given=proven(HOUR)),
    sends("within its prefix's budget, whatever TCP has spent", HELLO, tables_hold(3, 2),
          given=(*decided(1, 1), capped(0)), counters={"promoted": 1}, event=PROMOTED_EVENT),
    sends("a prefix beyond its budget waits", HELLO, tables_hold(3, 0),
          given=(*decided(1, 1), capped(0, OF_UDP)), counters={"one_sided_capped": 1}),
    sends("half of another flow is in the way: pending still", HELLO,
          has_forward(packets=2, flags=0), given=(*decided(1, 1), lambda world: _half(world)),
          counters={"promote_conflict": 1}),
]  # fmt: skip


def _half(world: World) -> None:
    established()(world)
    assert world.maps.flow_table.delete(abi.pack_flow_key(key())) == 0


def silence(ns: int) -> tuple[Given, ...]:
    """An established flow that was silent for so long, by the heartbeat."""
    return (established({"last_seen_ns": 1}, {"last_seen_ns": 1}),
            lambda world: world.change_control(heartbeat_ns=1 + ns))  # fmt: skip


BOUND = [
    sends("established", HELLO,
          has_flow("there", packets=3, octets=100 + 36, last_seen_ns=lambda world: world.now_ns,
                   first_data_us=range(AGE_NS // 1000, 60_000_000), **NUMBERS),
          has_flow("back", packets=1, octets=60)),
    answers("established", ANSWER,
            has_flow("back", packets=2, octets=60 + 37, last_seen_ns=lambda world: world.now_ns,
                     **NUMBERS),
            has_flow("there", packets=2)),
    *(made(f"{length} bytes", Datagram(payload=bytes(length)))
      for made in (sends, answers) for length in (0, 1, 3, 1472, 2000)),
    *(made(f"with {name}", ANSWER.but(**change))
      for made in (sends, answers)
      for name, change in (("a tag", {"tags": ((0x8100, 5),)}),
                           ("options", {"ip_options": bytes([1, 1, 1, 0])}),
                           ("padding", {"pad": bytes(9)}), ("ECN", {"tos": 3}))),
    sends("the first data is noted once", HELLO, has_flow("there", first_data_us=77),
          given=(established({"first_data_us": 77}),)),
    sends("nothing in it: no first data", Datagram(), has_flow("there", first_data_us=0)),
    sends("without a daemon", given=(*FLOW, lambda world: world.change_control(heartbeat_ns=7)),
          ),
    sends("by another router, while the first is heard: replies stay", HELLO,
          has_flow("back", dmac=IN.src), has_flow("there", last_seen_ns=1, packets=3),
          given=silence(SECOND - 1), hop=GATEWAY),
    sends("by another router, after a silence: replies follow", HELLO,
          has_flow("back", dmac=GATEWAY.src), has_flow("there", dmac=GATEWAY.src, packets=3),
          given=silence(SECOND + 2), hop=GATEWAY, counters={"client_moved": 1}),
    sends("by another interface, whose former one is gone: replies follow", HELLO,
          has_flow("back", ifindex=lambda world: world.wires.client),
          given=(established({"ifindex": 999_999}, {"ifindex": 999_999}),),
          counters={"client_moved": 1}),
    *(Case(name=f"UDP: the TTL of an established flow ends here, {at}", frame=frame, verdict=TX,
           out=own_error(TIME_EXCEEDED, 0, frame, ours), given=FLOW, at=at,
           counters={"ttl_exceeded": 1, "icmp_time_exceeded": 1})
      for at, frame, ours in (("client", ask(HELLO.but(ttl=1)), OURS_C),
                              ("backend", answer(ANSWER.but(ttl=0)), OURS_B))),
    passed("UDP: an established flow's, for another MAC",
           ask(HELLO, hop=dataclasses.replace(IN, dst=OTHER_MAC)), "pass_other_mac", given=FLOW),
    Case(name="UDP: an established flow's backend lost its path", frame=ask(HELLO), verdict=DROP,
         given=(*FLOW, lambda world: world.change_server(B1, ifindex=0)), counters={"no_path": 1}),
    Case(name="UDP: handed to the kernel", frame=ask(HELLO), verdict=PASS,
         out=HELLO.frame(CLIENT, B1.end, IN), given=(*FLOW, by_kernel(), CAN_FORWARD),
         counters={"handed_to_kernel": 1}),
    Case(name="UDP: handed to the kernel, pending", frame=ask(HELLO), verdict=PASS,
         out=HELLO.frame(CLIENT, B1.end, IN), given=(*decided(), by_kernel(), CAN_FORWARD),
         counters={"handed_to_kernel": 1}),
    *(Case(name=f"UDP: an answer handed to the kernel{when}", frame=answer(ANSWER), verdict=PASS,
           out=ANSWER.frame(WEB, CLIENT, B1.hop.back), given=(*given, CAN_REPLY), at="backend",
           counters={"handed_to_kernel": 1})
      for given, when in ((FLOW, ""), (decided(), ", pending"))),
]  # fmt: skip


def narrow(side: str) -> Given:
    """One side takes 1,500 bytes, the other 9,000."""

    def write(world: World) -> None:
        world.change_side(side, mtu=1500)
        world.limit(min_mtu=1500)

    return write


LONG = Datagram(payload=bytes(1473))
TOO_LONG = [
    case
    for given, when in ((FLOW, ""), (decided(1), ", pending"))
    for case in (
        Case(name=f"UDP: too long for the backend's side{when}", frame=ask(LONG), verdict=TX,
             out=own_error(UNREACHABLE, FRAG_NEEDED, ask(LONG), OURS_C, mtu=1500),
             given=(*given, narrow("backend")), counters={"icmp_too_big": 1}),
        Case(name=f"UDP: too long for the client's side{when}", frame=answer(LONG), verdict=TX,
             out=own_error(UNREACHABLE, FRAG_NEEDED, answer(LONG), OURS_B, mtu=1500), at="backend",
             given=(*given, narrow("client")), counters={"icmp_too_big": 1}),
        sends(f"as long as may be{when}", Datagram(payload=bytes(1472)),
              given=(*given, narrow("backend"))),
        sends(f"long, and the other side is the narrow one{when}", LONG,
              given=(*given, narrow("client"))),
        *only(4, [Case(name=f"UDP: too long, and may be fragmented{when}", verdict=DROP,
                       frame=ask(LONG.but(dont_fragment=False)),
                       given=(*given, narrow("backend")), counters={"too_big_dropped": 1})]),
    )
]  # fmt: skip

HOP_C, HOP_B = "198.18.77.1", "198.19.77.1"


def _about(
    name: str,
    datagram: Datagram,
    kind: int,
    code: int,
    given: tuple[Given, ...],
    from_backend: bool = True,
    length: int | None = None,
    end: bool = False,
) -> Case:
    """An ICMP error about a datagram that left us, by a hop behind us or (``end``) its target."""
    gone = datagram.but(ttl=datagram.ttl - 1)
    if from_backend:
        there, here, hop, at = (CLIENT, B1.end), (CLIENT, WEB), B1.hop, "backend"
        source, out_source, back = HOP_B, HOP_B, IN.back
    else:
        there, here, hop, at = (WEB, CLIENT), (B1.end, CLIENT), IN.back, "client"
        source, out_source, back = HOP_C, HOP_C, B1.hop
    if end:
        source, out_source = there[1].addr, here[1].addr
    frame = icmp_error(kind, code, quote(gone.frame(*there, hop))[:length], source, there[0].addr,
                       hop.back)  # fmt: skip
    told = quote(gone.frame(*here, hop))[:length]
    out = icmp_error(kind, code, told, out_source, here[0].addr, back, ttl=63)
    return forwarded(f"UDP: ICMP {kind}/{code} {name}", frame, out, given=given, at=at,
                     counters={"icmp_translated": 1})  # fmt: skip


ERRORS = [
    case
    for given, when in ((FLOW, "established"), (decided(), "pending"))
    for side in (True, False)
    for where in ("backend" if side else "client",)
    for case in (
        _about(f"from the {where}'s side, {when}", HELLO, 3, 1, given, side),
        _about(f"from the {where} itself, {when}", HELLO, 3, 3, given, side, end=True),
        _about(f"from the {where}'s side, cut, {when}", HELLO, 11, 0, given, side, 28),
        _about(f"from the {where}'s side, no checksum, {when}", NONE, 3, 13, given, side),
    )
] + [
    _about("whose sum comes out as 0", ZERO_AFTER, 3, 1, FLOW),
]  # fmt: skip
ERRORS[-1:] = only(4, ERRORS[-1:])

CASES = [*SUMS, *PENDING, *PROMOTED, *BOUND, *TOO_LONG, *ERRORS]
