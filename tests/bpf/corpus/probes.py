# SPDX-License-Identifier: Apache-2.0
"""Answers to probes: known by a keyed hash and by who sends them, and by nothing else."""

from __future__ import annotations

from typing import Any

from scapy.utils import checksum

from tests.support.frames import ACK, FIN, PSH, RST, SYN, End, Hop, Options, Segment, ethernet
from tests.support.program import DROP, PASS, REDIRECT
from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, FlowKey, ProbeAnswer
from xdp_router.core.probe_sequence import probe_hash, probe_seq

from .case import Case, answered, forwarded, passed, tables_hold
from .degrade import full_ring
from .flows import put_pending, reply_value
from .world import (
    B1,
    B2,
    IN,
    MARK,
    OTHER_MAC,
    PROBE_KEY,
    PROBE_PORTS,
    PROBE_SOURCE,
    Server,
    World,
    endpoint_of,
    from_backend,
    to_client,
)

OPTIONS: Options = (("MSS", 1460), ("SAckOK", b""), ("Timestamp", (9, 1)), ("WScale", 7))


def number(server: Server = B1, source: End = PROBE_SOURCE, nonce: int = 5) -> int:
    """The sequence number of a probe to ``server``."""
    return probe_seq(
        probe_hash(PROBE_KEY, server.end.number, server.end.port, source.port, source.number),
        nonce,
    )


SEQ = number()
ANSWER = Segment(flags=SYN | ACK, seq=0xDEADBEEF, ack=SEQ + 1, options=OPTIONS, window=65160)


def probe_event(
    answer: ProbeAnswer,
    seq: int = SEQ,
    server: Server = B1,
    source: End = PROBE_SOURCE,
    side: str = "backend",
) -> dict[str, Any]:
    """The event of an answer."""
    return {
        "type": abi.EventType.PROBE_REPLY,
        "key": FlowKey(server.end.number, server.end.port, source.number, source.port),
        "backend": NO_BACKEND,
        "detail": answer,
        "seq": seq,
        "ifindex": lambda world: getattr(world.wires, side),
    }  # fmt: skip


def the_rst(
    seq: int,
    server: Server = B1,
    source: End = PROBE_SOURCE,
    tags: tuple[tuple[int, int], ...] = (),
) -> bytes:
    """What frees the half-open connection at the backend: a bare RST, in every byte."""
    made = Segment(flags=RST, seq=seq, window=0, ident=0, tags=tags)
    return made.frame(source, server.end, server.hop)  # fmt: skip


def recognised(
    name: str, segment: Segment, *, server: Server = B1, source: End = PROBE_SOURCE, **rest: Any
) -> Case:
    """A SYN-ACK that answers a probe becomes an event and a RST."""
    seq = (segment.ack - 1) & 0xFFFFFFFF
    rest = {
        "counters": {"probe_synack": 1},
        "event": probe_event(ProbeAnswer.SYNACK, seq, server, source),
        "then": (tables_hold(0, 0),),
    } | rest
    frame = from_backend(segment, server, source)
    return answered(name, frame, the_rst(segment.ack, server, source, segment.tags), at="backend",
                    **rest)  # fmt: skip


def unknown(
    name: str,
    segment: Segment,
    counter: str = "probe_unverified",
    *,
    server: Server = B1,
    source: End = PROBE_SOURCE,
    **rest: Any,
) -> Case:
    """Looks like an answer and is none: left to the kernel."""
    rest = {"at": "backend"} | rest
    return passed(name, from_backend(segment, server, source), counter, **rest)


def _port(number: int) -> End:
    return End(PROBE_SOURCE.addr, number)


def _of_port(number_: int) -> Segment:
    return ANSWER.but(ack=number(source=_port(number_)) + 1)


KNOWN = [
    recognised("SYN-ACK of a probe", ANSWER),
    *(recognised(f"SYN-ACK of a probe with nonce {nonce}",
                 ANSWER.but(ack=number(nonce=nonce) + 1 & 0xFFFFFFFF))
      for nonce in (0, 1, 128, 255)),
    recognised("SYN-ACK of a probe from another backend", ANSWER.but(ack=number(B2) + 1),
               server=B2),
    recognised("SYN-ACK to the first probe port", _of_port(PROBE_PORTS[0]),
               source=_port(PROBE_PORTS[0])),
    recognised("SYN-ACK to the last probe port", _of_port(PROBE_PORTS[1]),
               source=_port(PROBE_PORTS[1])),
    recognised("SYN-ACK of a probe with VLAN tags", ANSWER.but(tags=((0x88A8, 1), (0x8100, 2)))),
    recognised("SYN-ACK of a probe with IP options", ANSWER.but(ip_options=bytes([1, 1, 1, 0]))),
    recognised("SYN-ACK of a probe with data and padding",
               ANSWER.but(payload=b"hi", pad=bytes(3), options=())),
    recognised("SYN-ACK of a probe with TTL 1", ANSWER.but(ttl=1)),
    recognised("SYN-ACK of a probe with other flags", ANSWER.but(flags=SYN | ACK | PSH | FIN)),
    recognised("SYN-ACK of a probe to a backend that is down", ANSWER,
               given=(lambda world: world.change_server(B1, flags=0),)),
    recognised("SYN-ACK of a probe while the ring is full", ANSWER, given=(full_ring,), event=None,
               counters={"probe_synack": 1, "event_lost": 1}),
    Case(name="RST of a probe", frame=from_backend(
            Segment(flags=RST | ACK, ack=SEQ + 1), client=PROBE_SOURCE),
         verdict=DROP, at="backend", counters={"probe_rst": 1},
         event=probe_event(ProbeAnswer.RST)),
    Case(name="RST with SYN of a probe", frame=from_backend(
            Segment(flags=RST | SYN | ACK, ack=SEQ + 1), client=PROBE_SOURCE),
         verdict=DROP, at="backend", counters={"probe_rst": 1},
         event=probe_event(ProbeAnswer.RST)),
    Case(name="RST of a probe while the ring is full", frame=from_backend(
            Segment(flags=RST | ACK, ack=SEQ + 1), client=PROBE_SOURCE),
         verdict=DROP, at="backend", given=(full_ring,),
         counters={"probe_rst": 1, "event_lost": 1}),
]  # fmt: skip


def _pending_reply(world: World) -> None:
    """A client that happens to use the probes' address and a port beyond their range."""
    source = _port(PROBE_PORTS[1] + 1)
    key = FlowKey(source.number, source.port, 0, 0)
    put_pending(
        world,
        abi.pack_reply_key(endpoint_of(B1.end), key, abi.Kind.REPLY),
        reply_value(world, client=source),
    )


UNKNOWN = [
    *(unknown(f"not the probe's: hash differs in bit {bit}",
              ANSWER.but(ack=((SEQ ^ 1 << bit) + 1) & 0xFFFFFFFF))
      for bit in (0, 1, 7, 8, 15, 16, 22, 23)),
    unknown("not the probe's: its own number is acknowledged", ANSWER.but(ack=SEQ)),
    unknown("not the probe's: one too many", ANSWER.but(ack=SEQ + 2)),
    unknown("not the probe's: the hash of another port", ANSWER.but(ack=number(
        source=_port(61006)) + 1)),
    unknown("not the probe's: the hash of another backend", ANSWER.but(ack=number(B2) + 1)),
    unknown("not the probe's: bare ACK", ANSWER.but(flags=ACK)),
    unknown("not the probe's: SYN without ACK", ANSWER.but(flags=SYN)),
    unknown("not the probe's: RST without ACK", ANSWER.but(flags=RST)),
    unknown("not the probe's: FIN", ANSWER.but(flags=FIN | ACK)),
    unknown("right number, one port below the range", _of_port(PROBE_PORTS[0] - 1),
            "pass_not_service", source=_port(PROBE_PORTS[0] - 1)),
    unknown("right number, one port above the range", _of_port(PROBE_PORTS[1] + 1),
            "pass_not_service", source=_port(PROBE_PORTS[1] + 1)),
    unknown("right number, not a backend's port", ANSWER.but(ack=number(
        Server(9, End(B1.end.addr, 8081), B1.mac)) + 1), "pass_not_service",
            server=Server(9, End(B1.end.addr, 8081), B1.mac)),
    unknown("right number, not a backend's address", ANSWER.but(ack=number(
        Server(9, End("198.18.1.3", 8080), B1.mac)) + 1), "pass_not_service",
            server=Server(9, End("198.18.1.3", 8080), B1.mac)),
    unknown("right number, to an address that sends no probes",
            ANSWER.but(ack=number(source=End("198.18.1.9", 61005)) + 1), "pass_not_service",
            source=End("198.18.1.9", 61005)),
    passed("right number, for another MAC",
           ANSWER.frame(B1.end, PROBE_SOURCE, Hop(B1.mac, OTHER_MAC)), "pass_other_mac",
           at="backend"),
    unknown("the key was changed since", ANSWER,
            given=(lambda world: world.change_control(probe_key=(1, 2)),)),
    forwarded("a client with the probes' address", from_backend(
                  ANSWER.but(ack=1), client=_port(PROBE_PORTS[1] + 1)),
              to_client(ANSWER.but(ack=1), client=_port(PROBE_PORTS[1] + 1)), at="backend",
              given=(_pending_reply,)),
    Case(name="SYN-ACK of a probe, marked as ours", frame=from_backend(
            ANSWER, client=PROBE_SOURCE),
         verdict=REDIRECT, out=the_rst(SEQ + 1), at="backend", mark=MARK, egress="backend",
         event=probe_event(ProbeAnswer.SYNACK), counters={"probe_synack": 1, "reinjected": 1}),
]  # fmt: skip

ELSEWHERE = End("198.18.1.9", PROBE_SOURCE.port)

# --- ICMP ---------------------------------------------------------------------------------


def icmp(
    kind: int,
    code: int,
    embedded: bytes,
    *,
    hop: Hop = B1.hop.back,
    options: bytes = b"",
    rest: bytes = bytes([0, 0, 5, 220]),
    tags: tuple[tuple[int, int], ...] = (),
) -> bytes:
    """An ICMP error of a router on the way to a backend."""
    body = bytes([kind, code, 0, 0]) + rest + embedded
    body = body[:2] + checksum(body).to_bytes(2, "big") + body[4:]
    total = 20 + len(options) + len(body)
    head = (
        bytes([0x45 + len(options) // 4, 0])
        + total.to_bytes(2, "big")
        + bytes([0, 1, 0, 0, 64, 1, 0, 0, 198, 18, 1, 254])
        + PROBE_SOURCE.number.to_bytes(4, "big")
        + options
    )
    head = head[:10] + checksum(head).to_bytes(2, "big") + head[12:]
    return ethernet(hop, head + body, tags)  # fmt: skip


def sent_probe(
    server: Server = B1, seq: int = SEQ, source: End = PROBE_SOURCE, length: int = 28
) -> bytes:
    """The head of a probe as an ICMP error embeds it: IP header and 8 bytes."""
    frame = Segment(flags=SYN, seq=seq, ttl=1).frame(source, server.end, server.hop)
    return frame[14 : 14 + length]  # fmt: skip


def _inner(at: int, value: int) -> bytes:
    changed = bytearray(sent_probe(length=40))
    changed[at] = value
    return bytes(changed)


def unreachable(name: str, frame: bytes, **rest: Any) -> Case:
    """An error about a probe: an event, and the packet passes as every ICMP does."""
    rest = {"at": "backend"} | rest
    side = rest["at"]
    return passed(f"ICMP: {name}", frame, "probe_unreachable",
                  event=probe_event(ProbeAnswer.UNREACHABLE, side=side), **rest)  # fmt: skip


def other_icmp(name: str, frame: bytes, **rest: Any) -> Case:
    """An ICMP that is no news about a probe."""
    rest = {"at": "backend"} | rest
    return passed(f"ICMP: {name}", frame, "pass_other_protocol", **rest)


ICMP = [
    *(unreachable(f"unreachable with code {code}", icmp(3, code, sent_probe()))
      for code in (0, 1, 2, 3, 5, 9, 10, 13)),
    unreachable("unreachable with more of the probe", icmp(3, 1, sent_probe(length=40))),
    unreachable("unreachable in a VLAN", icmp(3, 1, sent_probe(), tags=((0x8100, 4),))),
    unreachable("unreachable that comes by another interface",
                icmp(3, 1, sent_probe(), hop=IN), at="client"),
    unreachable("unreachable with outer options",
                icmp(3, 1, sent_probe(), options=bytes([1, 1, 1, 0]))),
    other_icmp("fragmentation needed", icmp(3, 4, sent_probe())),
    other_icmp("time exceeded", icmp(11, 0, sent_probe())),
    other_icmp("echo", icmp(8, 0, sent_probe())),
    other_icmp("one byte too few", icmp(3, 1, sent_probe(length=27))),
    other_icmp("header only", icmp(3, 1, b"")),
    other_icmp("about a probe from another address",
               icmp(3, 3, sent_probe(seq=number(source=ELSEWHERE), source=ELSEWHERE))),
    other_icmp("about a probe from another port",
               icmp(3, 3, sent_probe(seq=number(source=_port(80)), source=_port(80)))),
    other_icmp("outer options that look like the error themselves",
               icmp(8, 0, sent_probe()[4:], rest=sent_probe()[:4], options=bytes([3, 1, 0, 0]))),
    other_icmp("inner options", icmp(3, 1, _inner(0, 0x46))),
    other_icmp("about UDP", icmp(3, 3, _inner(9, 17))),
    other_icmp("about another address", icmp(3, 3, _inner(19, 99))),
    other_icmp("about another port", icmp(3, 3, _inner(23, 99))),
    other_icmp("about no probe port", icmp(3, 3, _inner(20, 1))),
    other_icmp("not from our address", icmp(3, 3, _inner(15, 99))),
    other_icmp("with a wrong number", icmp(3, 3, sent_probe(seq=SEQ + 1))),
    other_icmp("for another MAC", icmp(3, 1, sent_probe(), hop=Hop(B1.mac, OTHER_MAC))),
    Case(name="ICMP: unreachable while the ring is full", frame=icmp(3, 1, sent_probe()),
         verdict=PASS, at="backend", given=(full_ring,),
         counters={"probe_unreachable": 1, "event_lost": 1}),
]  # fmt: skip

CASES = [*KNOWN, *UNKNOWN, *ICMP]
