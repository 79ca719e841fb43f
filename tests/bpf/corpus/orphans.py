# SPDX-License-Identifier: Apache-2.0
"""Segments without a binding: the RST that fits, or a backend by hash; never for a RST."""

from __future__ import annotations

from typing import Any

from tests.support.frames import ACK, ECE, FIN, PSH, RST, SYN, URG, Hop, Segment
from tests.support.instants import before
from tests.support.program import DROP, REDIRECT
from xdp_router.core import abi
from xdp_router.core.model import Mode, Orphans, Reason

from .case import NOW, Case, answered, forwarded, has_pending, passed, tables_hold
from .degrade import ALL_DOWN, TAKEN, down, hash_table, rst_to_client
from .flows import forward_key, reply_key, seen
from .world import (
    B1,
    B2,
    CLIENT,
    CLIENT_ISN,
    IN,
    MARK,
    ROUTER_MAC_C,
    SECOND,
    SERVER_ISN,
    WEB,
    Given,
    World,
    from_backend,
    to_backend,
    to_service,
)

DATA = Segment(flags=PSH | ACK, seq=CLIENT_ISN + 1000, ack=SERVER_ISN + 2000, payload=b"orphan")
TOP = 0xFFFFFFFF


def reset(name: str, segment: Segment, seq: int, ack: int, flags: int, **rest: Any) -> Case:
    """The segment is answered by exactly this RST."""
    rest = {"counters": {"orphan_reset": 1}, "then": (tables_hold(0, 0),)} | rest
    out = rst_to_client(seq, ack, flags, segment.tags)
    return answered(f"orphan: {name}", to_service(segment), out, **rest)


def with_ack(name: str, segment: Segment, **rest: Any) -> Case:
    """With ACK: RST alone, at the number that was acknowledged."""
    return reset(name, segment, segment.ack, 0, RST, **rest)


def without_ack(name: str, segment: Segment, length: int, **rest: Any) -> Case:
    """Without: RST|ACK, number 0, acknowledging all that the segment takes."""
    return reset(name, segment, 0, (segment.seq + length) & TOP, RST | ACK, **rest)


RESETS = [
    with_ack("data", DATA),
    with_ack("bare ACK", DATA.but(flags=ACK, payload=b"")),
    with_ack("FIN with ACK", DATA.but(flags=FIN | ACK)),
    with_ack("SYN-ACK", DATA.but(flags=SYN | ACK, payload=b"")),
    with_ack("ACK of 0", DATA.but(ack=0)),
    with_ack("with a VLAN tag", DATA.but(tags=((0x8100, 0x6005),))),
    with_ack("with two VLAN tags", DATA.but(tags=((0x88A8, 1), (0x8100, 2)))),
    with_ack("with IP options", DATA.but(ip_options=bytes([7, 39, 4]) + bytes(37))),
    with_ack("with TCP options", DATA.but(options=(("Timestamp", (1, 2)),) * 4)),
    with_ack("long", DATA.but(payload=bytes(2800))),
    with_ack("padded", DATA.but(flags=ACK, payload=b"", pad=bytes(6))),
    with_ack("TTL 1", DATA.but(ttl=1)),
    with_ack("ECN bits of it are not sent back", DATA.but(flags=ACK | ECE, tos=3)),
    with_ack("while its SYN is held", DATA, given=(seen(),), then=(tables_hold(1, 0),)),
    without_ack("no flags, no data", DATA.but(flags=0, payload=b""), 0),
    without_ack("no flags, data", DATA.but(flags=0), 6),
    without_ack("PSH and URG", DATA.but(flags=PSH | URG), 6),
    without_ack("FIN", DATA.but(flags=FIN, payload=b""), 1),
    without_ack("FIN with data", DATA.but(flags=FIN), 7),
    without_ack("SYN and FIN", DATA.but(flags=SYN | FIN, payload=b""), 2),
    without_ack("SYN, FIN and data", DATA.but(flags=SYN | FIN), 8),
    without_ack("padded, and padding is no data", DATA.but(flags=FIN, payload=b"", pad=bytes(6)),
                1),
    without_ack("numbers go round", DATA.but(flags=FIN, seq=TOP - 3), 7),
    *(
        Case(name=f"orphan: {name} is never answered", frame=to_service(DATA.but(flags=flags)),
             verdict=DROP, counters={"orphan_dropped": 1})
        for name, flags in (("RST", RST), ("RST with ACK", RST | ACK), ("RST with SYN", RST | SYN),
                            ("RST with all flags", 0xFF))
    ),
]  # fmt: skip


def bounced(world: World) -> None:
    """Answers leave the client's interface by redirect."""
    world.change_interface(ROUTER_MAC_C, flags=abi.IF_BOUNCE_REDIRECT)


def _other_mac_known(world: World) -> None:
    world.change_interface(bytes(6), b"\2\0\0\0\0\x77", abi.IF_VIRTUAL_MAC)


BOUNCES = [
    Case(name="answer by redirect", frame=to_service(DATA), verdict=REDIRECT,
         out=rst_to_client(DATA.ack, 0, RST), given=(bounced,), counters={"orphan_reset": 1}),
    Case(name="answer by redirect, marked", frame=to_service(DATA), verdict=REDIRECT, mark=MARK,
         egress="client", out=rst_to_client(DATA.ack, 0, RST), given=(bounced,),
         counters={"orphan_reset": 1, "reinjected": 1}),
    Case(name="answer to a marked frame is never XDP_TX", frame=to_service(DATA), verdict=REDIRECT,
         mark=MARK, egress="client", out=rst_to_client(DATA.ack, 0, RST),
         counters={"orphan_reset": 1, "reinjected": 1}),
    answered("answer to a frame for the virtual MAC comes from it",
             to_service(DATA, hop=Hop(IN.src, b"\2\0\0\0\0\x77")),
             Segment(flags=RST, seq=DATA.ack, window=0, ident=0).frame(
                 WEB, CLIENT, Hop(b"\2\0\0\0\0\x77", IN.src)),
             given=(_other_mac_known,), counters={"orphan_reset": 1}),
]  # fmt: skip


def hash_orphans(world: World) -> None:
    """The service says that orphans are hashed."""
    world.change_service(orphans=Orphans.HASH)


def _stateless(ahead_ns: int) -> Given:
    return lambda world: world.write_pressure(stateless_ns=world.now_ns + ahead_ns)


def hashed(
    name: str,
    *given: Given,
    segment: Segment = DATA,
    entries: int = 2,
    extra: dict[str, int] | None = None,
    **rest: Any,
) -> Case:
    """The orphan goes to the hash table's backend and leaves a pending binding."""
    common = {"mode": Mode.HASH, "reason": Reason.ORPHAN, "backend": B2.id, "seen_ns": NOW}
    then = (
        has_pending(
            "FORWARD",
            forward_key(),
            isn=segment.seq,
            packets=1,
            wscale=abi.NO_WSCALE,
            latency_ns=0,
            **common,
        ),
        has_pending("REPLY", reply_key(B2), flags=0, packets=0, **common),
        tables_hold(entries, 0),
    )
    return forwarded(f"orphan hashed: {name}", to_service(segment), to_backend(segment, B2),
                     given=given, counters={"orphan_hashed": 1, "decided_hash": 1} | (extra or {}),
                     then=then, **rest)  # fmt: skip


HASHED = [
    hashed("the service wants it", hash_orphans),
    Case(name="orphan to be hashed, while its SYN is held, decides nothing",
         frame=to_service(DATA), verdict=DROP, counters={"orphan_dropped": 1},
         given=(seen(), hash_orphans), then=(tables_hold(1, 0),)),
    hashed("a SEEN that nobody waits for any more does not keep it", hash_orphans,
           lambda world: seen(seen_ns=before(world.now_ns, 101 * SECOND))(world)),
    hashed("flows were forwarded without an entry lately", _stateless(3600 * SECOND)),
    with_ack("stateless time is over", DATA, given=(_stateless(-1),)),
    hashed("the fallback was not meant for it", hash_orphans,
           lambda world: world.change_service(orphans=Orphans.HASH, fallback=B1.id)),
    hashed("FIN", hash_orphans, segment=DATA.but(flags=FIN | ACK)),
    hashed("without ACK", hash_orphans, segment=DATA.but(flags=PSH)),
    hashed("SYN-ACK", hash_orphans, segment=DATA.but(flags=SYN | ACK)),
    hashed("needs no daemon", hash_orphans, lambda world: world.change_control(heartbeat_ns=0)),
    hashed("its slot's reply tuple is taken", hash_orphans, TAKEN, hash_table(B1, B2), entries=3,
           extra={"pending_reply_taken": 1}),
    hashed("its slot's backend is down", hash_orphans, down(B1), hash_table(B1, B2)),
    with_ack("hashed, but nobody is up", DATA, given=(hash_orphans, *ALL_DOWN),
             counters={"refused_no_backend": 1}),
    Case(name="orphan RST is not hashed", frame=to_service(DATA.but(flags=RST)), verdict=DROP,
         given=(hash_orphans,), counters={"orphan_dropped": 1}),
]  # fmt: skip

BACK = Segment(flags=PSH | ACK, seq=SERVER_ISN + 7, ack=CLIENT_ISN + 7, payload=b"unasked")
FROM_BACKEND = [
    passed(f"backend to client without entries: {name}", from_backend(BACK.but(**change)),
           "pass_not_service", at="backend")
    for name, change in (
        ("data", {}),
        ("RST", {"flags": RST}),
        ("SYN", {"flags": SYN}),
        ("SYN-ACK", {"flags": SYN | ACK}),
        ("FIN", {"flags": FIN | ACK}),
        ("TTL 1", {"ttl": 1}),
        ("VLAN tag", {"tags": ((0x8100, 2),)}),
    )
]  # fmt: skip

CASES = [*RESETS, *BOUNCES, *HASHED, *FROM_BACKEND]
