# SPDX-License-Identifier: Apache-2.0
"""What is not certainly ours passes untouched; missing stages of what is."""

from __future__ import annotations

import struct
from typing import Any

from tests.support.frames import End, Hop, ethernet
from tests.support.program import DROP, PASS, REDIRECT
from xdp_router.core import abi

from .bound import FLOW, THERE, no_interface
from .case import Case, forwarded, only, passed, tables_hold
from .degrade import silent
from .first import OPEN
from .flows import decided
from .handshake import LAST_ACK, SYNACK
from .orphans import DATA, hash_orphans
from .probes import ANSWER, icmp, sent_probe
from .world import (
    B1,
    CLIENT,
    CLIENT_MAC,
    IN,
    OTHER_MAC,
    PROBE_SOURCE,
    VIRTUAL_MAC,
    WEB,
    Given,
    WithoutStage,
    endpoint_of,
    from_backend,
    to_backend,
    to_service,
)

ELSEWHERE = End("198.18.9.9", 80)


def hop_to(mac: bytes) -> Hop:
    """The client's frame for a MAC."""
    return Hop(CLIENT_MAC, mac)


def edited(frame: bytes, at: int, new: bytes) -> bytes:
    """The frame with other bytes at one place, and nothing else made to fit."""
    return frame[:at] + new + frame[at + len(new) :]


MACS = [
    passed(f"{what} for {whose}", to_service(segment, hop=hop_to(mac)), "pass_other_mac",
           given=given)
    for what, segment, given in (
        ("SYN", OPEN, ()), ("orphan", DATA, ()), ("last ACK", LAST_ACK, decided(synack=True)),
    )
    for whose, mac in (
        ("another MAC", OTHER_MAC), ("broadcast", b"\xff" * 6),
        ("multicast", bytes.fromhex("01005e000001")), ("a virtual MAC not ours", VIRTUAL_MAC),
    )
] + [
    passed("SYN on an interface that is not ours", to_service(OPEN), "pass_other_mac",
           given=(no_interface,)),
    passed("SYN that comes by the backend's interface", to_service(OPEN), "pass_other_mac",
           at="backend"),
]  # fmt: skip

OTHERS = [
    passed("SYN to another address", to_service(OPEN, ELSEWHERE), "pass_not_service"),
    passed("SYN to another port of the service", to_service(OPEN, End(WEB.addr, 81)),
           "pass_not_service"),
    passed("data to another address", to_service(DATA, ELSEWHERE), "pass_not_service"),
    passed("from another port of a backend", DATA.frame(End(B1.end.addr, 22), CLIENT, B1.hop.back),
           "pass_not_service", at="backend"),
    passed("TTL 1 of other traffic", to_service(DATA.but(ttl=1), ELSEWHERE), "pass_not_service"),
    passed("IP options of other traffic", to_service(
        DATA.but(ip_options=bytes([1, 1, 1, 0])), ELSEWHERE), "pass_not_service"),
    passed("a service that was removed meanwhile", to_service(DATA), "pass_not_service",
           given=(lambda world: (world.touch(), world.maps.services.delete(endpoint_of(WEB))),)),
]  # fmt: skip


def raw_ip(protocol: int, body: bytes, total: int | None = None) -> bytes:
    """A raw IPv4 frame to the service."""
    length = 20 + len(body) if total is None else total
    return ethernet(IN, struct.pack(
        ">BBHHHBBHII", 0x45, 0, length, 1, 0, 64, protocol, 0, CLIENT.number, WEB.number
    ) + body)  # fmt: skip


UDP = struct.pack(">HHHH", CLIENT.port, WEB.port, 12, 0) + b"data"
NOT_TCP = [
    passed("UDP to the service's port", raw_ip(17, UDP), "pass_not_service"),
    passed("SCTP", raw_ip(132, bytes(20)), "pass_other_protocol"),
    passed("IP without anything behind", raw_ip(255, b""), "pass_other_protocol"),
    passed("ARP", ethernet(IN, bytes(28), proto=0x0806), "pass_not_ip"),
    passed("802.3 length instead of a type", ethernet(IN, bytes(46), proto=46), "pass_not_ip"),
    passed("an empty frame", ethernet(IN, b"", proto=0x9000), "pass_not_ip"),
    passed("three VLAN tags", to_service(OPEN.but(tags=((0x8100, 1),) * 3)), "pass_not_ip"),
    passed("QinQ of the old type", ethernet(IN, bytes(60), proto=0x9100), "pass_not_ip"),
    passed("ICMP to the service", icmp(8, 0, bytes(56), hop=IN), "pass_other_protocol"),
]  # fmt: skip

NOT_TCP += only(4, [
    passed("protocol 0", raw_ip(0, bytes(40)), "pass_other_protocol"),
    passed("IPv6", ethernet(IN, b"\x60" + bytes(59), proto=0x86DD), "pass_no_ipv6"),
    passed("IPv6 in a VLAN", ethernet(IN, bytes(40), ((0x8100, 1),), 0x86DD), "pass_no_ipv6"),
])  # fmt: skip

FRAME = to_service(DATA)
IP_AT, TCP_AT = 14, 34
MALFORMED = [
    passed(f"malformed: {name}", frame, "pass_malformed")
    for name, frame in (
        ("IP length without TCP", edited(FRAME, IP_AT + 2, b"\0\x14")),
        ("IP length cuts the TCP header", edited(FRAME, IP_AT + 2, b"\0\x27")),
        ("TCP header of 16 bytes", edited(FRAME, TCP_AT + 12, b"\x40")),
        ("TCP header of 0 bytes", edited(FRAME, TCP_AT + 12, b"\x00")),
        ("TCP header beyond the packet", edited(FRAME, TCP_AT + 12, b"\x70")),
        ("TCP header beyond the packet, in padding",
         edited(to_service(DATA.but(pad=bytes(40))), TCP_AT + 12, b"\x70")),
        ("IP options over the TCP header", edited(FRAME, IP_AT, b"\x47")),
        ("one byte of a VLAN tag", ethernet(IN, b"\0", proto=0x8100)),
        ("a VLAN tag and half of the next",
         ethernet(IN, b"\0\1", ((0x88A8, 1),), 0x8100)),
        ("TCP of 19 bytes", raw_ip(6, bytes(19))),
    )
] + [
    passed(f"malformed on a bound flow: {name}", edited(to_service(THERE), at, new),
           "pass_malformed", given=FLOW, then=(tables_hold(0, 2),))
    for name, at, new in (
        ("TCP header of 16 bytes", TCP_AT + 12, b"\x40"),
    )
] + [
    forwarded("longest TCP header that fits", to_service(
        THERE.but(payload=bytes([1]) * 40, words=15)), to_backend(
        THERE.but(payload=bytes([1]) * 40, words=15)), given=FLOW),
]  # fmt: skip

MALFORMED += only(4, [
    passed(f"malformed: {name}", frame, "pass_malformed")
    for name, frame in (
        ("IP version 6 in an IPv4 frame", edited(FRAME, IP_AT, b"\x65")),
        ("IP version 0", edited(FRAME, IP_AT, b"\x05")),
        ("IP header of 16 bytes", edited(FRAME, IP_AT, b"\x44")),
        ("IP header of 16 bytes, and what follows would do as a TCP header",
         edited(to_service(DATA.but(ack=0x50000000)), IP_AT, b"\x44")),
        ("IP header of 0 bytes", edited(FRAME, IP_AT, b"\x40")),
        ("IP header longer than the packet", edited(raw_ip(6, bytes(20)), IP_AT, b"\x4f")),
        ("IP length 0", edited(FRAME, IP_AT + 2, b"\0\0")),
        ("IP length 19", edited(FRAME, IP_AT + 2, b"\0\x13")),
        ("IP length one more than there is", edited(FRAME, IP_AT + 2, b"\0\x2f")),
        ("IP length 65535", edited(FRAME, IP_AT + 2, b"\xff\xff")),
        ("an IPv4 type and nothing", ethernet(IN, b"")),
    )
])  # fmt: skip
MALFORMED += only(4, [
    passed("malformed on a bound flow: IP length one more than there is",
           edited(to_service(THERE), IP_AT + 2, b"\0\x37"), "pass_malformed", given=FLOW,
           then=(tables_hold(0, 2),)),
])  # fmt: skip


def dropped(name: str, frame: bytes, counter: str, **rest: Any) -> Case:
    """A frame of service traffic that goes nowhere."""
    return Case(name=name, frame=frame, verdict=DROP, counters={counter: 1}, **rest)


def without_stage(stage: abi.Stage) -> Given:
    """A slow path is missing, as while programs are exchanged."""
    return WithoutStage(stage)


MISSING = [
    dropped(f"without its stage: {name}", frame, "tail_call_missed",
            given=(*given, without_stage(stage)), at=at,
            then=(tables_hold(*((0, 2) if given is FLOW else (len(given), 0))),))
    for name, frame, stage, given, at in (
        ("SYN to the service", to_service(OPEN), abi.Stage.SYN, (), "client"),
        ("SYN on an established flow", to_service(OPEN), abi.Stage.SYN_BOUND, FLOW, "client"),
        ("segment to the service", to_service(DATA), abi.Stage.SEGMENT, (), "client"),
        ("answer to a probe", from_backend(ANSWER, client=PROBE_SOURCE), abi.Stage.PROBE, (),
         "backend"),
    )
] + [
    Case(name="without its stage: decision of XDP", frame=to_service(OPEN), verdict=DROP,
         counters={"heartbeat_stale": 1, "tail_call_missed": 1},
         given=(silent, without_stage(abi.Stage.DECIDE))),
    Case(name="without its stage: hashed orphan", frame=to_service(DATA), verdict=DROP,
         counters={"tail_call_missed": 1},
         given=(hash_orphans, without_stage(abi.Stage.DECIDE))),
    Case(name="without its stage: from a backend, maybe not ours, passes",
         frame=from_backend(SYNACK), verdict=PASS, counters={"tail_call_missed": 1},
         given=(*decided(), without_stage(abi.Stage.REPLY)), at="backend",
         then=(tables_hold(3, 0),)),
    Case(name="without its stage: ICMP passes all the same", frame=icmp(3, 1, sent_probe()),
         verdict=PASS, counters={"tail_call_missed": 1}, given=(without_stage(abi.Stage.ICMP),),
         at="backend"),
    *(
        Case(name=f"without any stage: {name}", frame=frame, verdict=verdict, out=out,
             counters=counters, given=(*given, *map(without_stage, abi.Stage)))
        for name, frame, verdict, out, counters, given in (
            ("other traffic", to_service(OPEN, ELSEWHERE), PASS, None, {"pass_not_service": 1}, ()),
            ("another MAC", to_service(OPEN, hop=hop_to(OTHER_MAC)), PASS, None,
             {"pass_other_mac": 1}, ()),
            ("a bound flow", to_service(THERE), REDIRECT, to_backend(THERE), {}, FLOW),
        )
    ),
]  # fmt: skip

CASES = [*MACS, *OTHERS, *NOT_TCP, *MALFORMED, *MISSING]
