# SPDX-License-Identifier: Apache-2.0
"""Fragments: the first says whose they are, the later ones follow, what is not known passes."""

from __future__ import annotations

import struct
from typing import Any

from scapy.utils import checksum

from tests.support.frames import ACK, FIN, RST, End, Segment, l3_offset
from tests.support.program import DROP, PASS
from xdp_router.core import abi

from .bound import BACK, FLOW, THERE
from .case import (
    Case,
    Then,
    answered,
    flow_untouched,
    forwarded,
    has_pending,
    passed,
    tables_hold,
)
from .degrade import rst_to_client
from .first import OPEN, first_event
from .flows import decided, flow_keys, forward_key, read_flow, refused
from .foreign import ELSEWHERE, IP_AT, UDP, dropped, edited, hop_to, raw_ip, without_stage
from .handoff import CAN_FORWARD, CAN_REPLY, by_kernel
from .handshake import daemon_decided
from .icmp_sent import long, refused_as_long
from .orphans import DATA
from .world import (
    B1,
    CLIENT,
    IN,
    MARK,
    OTHER_MAC,
    WEB,
    Given,
    World,
    from_backend,
    to_backend,
    to_client,
    to_service,
)

MORE = 0x2000
OLD_NS = 31_000_000_000
BODY = bytes(range(200))
LONG = THERE.but(payload=BODY, fragment=0, ident=77)
LONG_BACK = BACK.but(payload=BODY, fragment=0, ident=78)
FIRST, FOLLOWED = {"fragment_first": 1}, {"fragment_followed": 1}


def cut(frame: bytes, at: int = 64, end: int | None = None) -> tuple[bytes, bytes]:
    """The first ``at`` bytes of what an IPv4 packet carries as one fragment, the rest as another.

    With ``end`` the second one is not the last.
    """
    l3 = l3_offset(frame)
    total = int.from_bytes(frame[l3 + 2 : l3 + 4], "big")
    header = (frame[l3] & 15) * 4
    body = frame[l3 + header : l3 + total]
    pieces = []
    for part, more, offset in ((body[:at], True, 0), (body[at:end], end is not None, at)):
        flags = struct.pack(">H", (MORE if more else 0) | offset // 8)
        head = bytearray(frame[l3 : l3 + header])
        head[2:4] = (header + len(part)).to_bytes(2, "big")
        head[6:8] = flags
        head[10:12] = b"\0\0"
        head[10:12] = checksum(bytes(head)).to_bytes(2, "big")
        pieces.append(frame[:l3] + bytes(head) + part)
    return pieces[0], pieces[1]


def came(frame: bytes, at: str = "client") -> Given:
    """A frame has come before."""
    return lambda world: world.run(frame, at)


def aged(world: World) -> None:
    """What is known of fragments is too old."""
    for key, raw in _entries(world):
        seen_ns, *rest = abi.unpack_fragment(raw)
        world.program.fragments.write(key, abi.pack_fragment(seen_ns - OLD_NS, *rest))


def narrow(side: str) -> Given:
    """The interface of a side has a small MTU."""

    def write(world: World) -> None:
        world.change_side(side, mtu=1280)
        world.change_control(min_mtu=1280)

    return write


def _entries(world: World) -> list[tuple[bytes, bytes]]:
    table = world.program.fragments
    return [(key, table.read(key) or b"") for key in list(table.each_key())]


def known(*wanted: tuple[int, int, int]) -> Then:
    """So many fragments are noted: ports and protocol."""

    def look(world: World, started_ns: int) -> None:
        found = [abi.unpack_fragment(raw) for _, raw in _entries(world)]
        assert [tuple(each[1:4]) for each in found] == list(wanted)
        # by the coarse clock
        assert all(each[0] > started_ns - 10_000_000 for each in found)

    return look


HERS = (CLIENT.port, WEB.port, 6)


def there(name: str, segment: Segment = LONG, *, given: tuple[Given, ...] = FLOW,
          at: int = 64, end: int | None = None, **rest: Any) -> list[Case]:  # fmt: skip
    """Both fragments of the client's packet go to the backend."""
    before, after = cut(to_service(segment), at, end), cut(to_backend(segment), at, end)
    return [
        forwarded(f"fragments: {name}, client's first", before[0], after[0], given=given,
                  counters=FIRST, then=(known(HERS),)),
        forwarded(f"fragments: {name}, client's later", before[1], after[1], counters=FOLLOWED,
                  given=(*given, came(before[0])), **rest),
    ]  # fmt: skip


def back(name: str, segment: Segment = LONG_BACK, *, given: tuple[Given, ...] = FLOW,
         at: int = 64, end: int | None = None, **rest: Any) -> list[Case]:  # fmt: skip
    """Both fragments of the backend's packet go to the client."""
    before, after = cut(from_backend(segment), at, end), cut(to_client(segment), at, end)
    theirs = (B1.end.port, CLIENT.port, 6)
    return [
        forwarded(f"fragments: {name}, backend's first", before[0], after[0], at="backend",
                  given=given, counters=FIRST, then=(known(theirs),)),
        forwarded(f"fragments: {name}, backend's later", before[1], after[1], at="backend",
                  counters=FOLLOWED, given=(*given, came(before[0], "backend")), **rest),
    ]  # fmt: skip


THERE_CUT, BACK_CUT = cut(to_service(LONG)), cut(from_backend(LONG_BACK))
PENDING = decided(synack=True)
SCENES = [
    *there("of a flow"),
    *back("of a flow"),
    *there("as short as may be", LONG.but(payload=bytes(12)), at=24),
    *there("in the middle", end=128),
    *back("in the middle", end=128),
    *there("odd end", LONG.but(payload=BODY[:51])),
    *there("with IP options", LONG.but(ip_options=bytes([1, 1, 1, 0]))),
    *there("behind a tag", LONG.but(tags=((0x8100, 5),))),
    *back("behind two tags", LONG_BACK.but(tags=((0x88A8, 5), (0x8100, 6)))),
    *there("don't fragment", LONG.but(fragment=0x4000)),
    *there("of a pending flow", given=decided()),
    *back("of a pending flow", given=PENDING),
    *there("its last TTL but one", LONG.but(ttl=2)),
]


def counted(direction: str) -> Then:
    """Both fragments are in the flow's account."""

    def look(world: World, _started_ns: int) -> None:
        key = 0 if direction == "there" else 1
        entry = flows_of(world)[key]
        packets, octets = (2, 100) if direction == "there" else (1, 60)
        assert entry.packets == packets + 2
        more = 16 if world.family == 6 else 0  # their fragment headers
        assert entry.octets == octets + 20 + len(BODY) + 20 + 20 + more

    return look


def flows_of(world: World) -> tuple[abi.FlowEntryValue, abi.FlowEntryValue]:
    """Both entries of the one flow."""
    there_entry, back_entry = (read_flow(world, key) for key in flow_keys())
    assert there_entry is not None
    assert back_entry is not None
    return there_entry, back_entry


ACCOUNT = [
    forwarded("fragments are counted in their direction only", THERE_CUT[1],
              cut(to_backend(LONG))[1], counters=FOLLOWED, given=(*FLOW, came(THERE_CUT[0])),
              then=(counted("there"), flow_untouched("back"))),
    forwarded("fragments of a backend are counted in their direction only", BACK_CUT[1],
              cut(to_client(LONG_BACK))[1], counters=FOLLOWED, at="backend",
              given=(*FLOW, came(BACK_CUT[0], "backend")),
              then=(counted("back"), flow_untouched("there"))),
    forwarded("a pending flow counts its fragments", THERE_CUT[1], cut(to_backend(LONG))[1],
              counters=FOLLOWED, given=(*decided(), came(THERE_CUT[0])),
              then=(has_pending("FORWARD", forward_key(), packets=3),)),
]  # fmt: skip


def later(name: str, frame: bytes, counters: dict[str, int], **rest: Any) -> Case:
    """A later fragment that does not get far; as it came."""
    verdict = PASS if "fragment_unknown" in counters or "pass_other_mac" in counters else DROP
    return Case(name=f"fragments: {name}", frame=frame, verdict=verdict, counters=counters, **rest)


UNKNOWN, DROPPED = {"fragment_unknown": 1}, {"fragment_dropped": 1}
KNOWN = (*FLOW, came(THERE_CUT[0]))
HELD_CUT = cut(to_service(OPEN.but(payload=BODY, fragment=0)))
NOT_FOLLOWED = [
    later("its first was not seen", THERE_CUT[1], UNKNOWN, given=FLOW),
    later("to the service, of no flow", THERE_CUT[1], UNKNOWN),
    later("its first is too old", THERE_CUT[1], UNKNOWN, given=(*KNOWN, aged)),
    later("of another datagram", cut(to_service(LONG.but(ident=76)))[1], UNKNOWN, given=KNOWN),
    later("of another protocol", edited(THERE_CUT[1], IP_AT + 9, b"\x11"), UNKNOWN, given=KNOWN),
    later("from somebody else", edited(THERE_CUT[1], IP_AT + 15, b"\x09"), UNKNOWN, given=KNOWN),
    later("for another MAC", OTHER_MAC + THERE_CUT[1][6:], {"pass_other_mac": 1}, given=KNOWN),
    later("of a flow that has gone meanwhile", THERE_CUT[1], DROPPED,
          given=(*KNOWN, lambda world: world.program.clear_flows())),
    later("while the first packet is held", HELD_CUT[1], DROPPED, given=(came(HELD_CUT[0]),)),
    later("of a flow that was refused", THERE_CUT[1], DROPPED,
          given=(refused(), came(THERE_CUT[0]))),
    later("TTL 1 is not answered", cut(to_service(LONG.but(ttl=1)))[1], {"ttl_exceeded": 1},
          given=KNOWN),
    later("TTL 1 of a backend's is not answered", cut(from_backend(LONG_BACK.but(ttl=1)))[1],
          {"ttl_exceeded": 1}, given=(*FLOW, came(BACK_CUT[0], "backend")), at="backend"),
    later("longer than the way to the backend",
          cut(to_service(LONG.but(payload=bytes(2000))))[1], {"too_big_dropped": 1},
          given=(*KNOWN, narrow("backend"))),
    later("longer than the way to the client",
          cut(from_backend(LONG_BACK.but(payload=bytes(2000))))[1], {"too_big_dropped": 1},
          given=(*FLOW, came(BACK_CUT[0], "backend"), narrow("client")), at="backend"),
    later("of a backend without a path", THERE_CUT[1], {"fragment_followed": 1, "no_path": 1},
          given=(*KNOWN, lambda world: world.change_server(B1, ifindex=0))),
]  # fmt: skip

CUT_ORPHAN = cut(to_service(DATA.but(payload=BODY, fragment=0)))
FIRSTS = [
    Case(name="fragments: a SYN is held with its data", frame=HELD_CUT[0], verdict=DROP,
         counters={"first_packet": 1, "fragment_first": 1},
         event=first_event(HELD_CUT[0], syn_data=24), then=(tables_hold(1, 0), known(HERS))),
    forwarded("fragments: a held one comes again", HELD_CUT[0],
              cut(to_backend(OPEN.but(payload=BODY, fragment=0)))[0], mark=MARK, egress="backend",
              given=(daemon_decided(),), counters={"reinjected": 1}),
    answered("fragments: an orphan is reset by its first", CUT_ORPHAN[0],
             rst_to_client(DATA.ack, 0, RST), counters={"fragment_first": 1, "orphan_reset": 1}),
    forwarded("fragments: SYN of a live flow", cut(to_service(OPEN.but(payload=BODY)))[0],
              cut(to_backend(OPEN.but(payload=BODY)))[0], given=FLOW,
              counters={"fragment_first": 1, "syn_retransmit": 1}),
    forwarded("fragments: a FIN closes this side", cut(to_service(LONG.but(flags=FIN | ACK)))[0],
              cut(to_backend(LONG.but(flags=FIN | ACK)))[0], given=FLOW, counters=FIRST),
]  # fmt: skip

TOO_LONG = [
    refused_as_long("a first fragment, which nobody cuts again",
                    cut(to_service(long(LONG, 3000)), 1480)[0], extra={"fragment_first": 1}),
    refused_as_long("a backend's first fragment", cut(from_backend(long(LONG_BACK, 3000)), 1480)[0],
                    "backend", extra={"fragment_first": 1}),
]  # fmt: skip

TINY = [
    dropped("a first fragment of 8 bytes to the service",
            cut(to_service(DATA.but(fragment=0)), 8)[0], "fragment_dropped"),
    dropped("a first fragment of 16 bytes of a flow", cut(to_service(LONG), 16)[0],
            "fragment_dropped", given=FLOW, then=(known(),)),
    dropped("a first fragment that ends in the TCP options",
            cut(to_service(OPEN.but(fragment=0)), 24)[0], "fragment_dropped"),
    passed("a first fragment of 8 bytes of other traffic",
           cut(to_service(DATA.but(fragment=0), ELSEWHERE), 8)[0], "pass_fragment"),
    later("later one of what was too short at first", cut(to_service(LONG), 16)[1], UNKNOWN,
          given=(*FLOW, came(cut(to_service(LONG), 16)[0]))),
]  # fmt: skip

OTHERS = [
    passed("first fragment of other traffic", cut(to_service(LONG, ELSEWHERE))[0],
           "pass_fragment", then=(known(),)),
    passed("later fragment of other traffic", cut(to_service(LONG, ELSEWHERE))[1],
           "fragment_unknown", given=(came(cut(to_service(LONG, ELSEWHERE))[0]),)),
    passed("later fragment of other traffic that has the id of a service's", THERE_CUT[1],
           "fragment_unknown",
           given=(*FLOW, came(THERE_CUT[0]),
                  came(cut(to_service(LONG, End(WEB.addr, 4321)))[0]))),
    passed("first fragment from a backend without a flow", BACK_CUT[0], "pass_fragment",
           at="backend"),
    passed("first fragment to the service for another MAC",
           cut(to_service(LONG, hop=hop_to(OTHER_MAC)))[0], "pass_other_mac"),
    passed("first fragment of UDP to the service of TCP", edited(raw_ip(17, UDP), 20, b"\x20\0"),
           "pass_fragment"),
    passed("later fragment of UDP", edited(raw_ip(17, UDP), 20, b"\0\2"), "fragment_unknown"),
    passed("without its stage: a fragment passes", THERE_CUT[0], "tail_call_missed",
           given=(*FLOW, without_stage(abi.Stage.FRAGMENT))),
]  # fmt: skip


def _handed(name: str, frame: bytes, out: bytes, **rest: Any) -> Case:
    return Case(name=f"hand-off: {name}", frame=frame, verdict=PASS, out=out,
                counters={"fragment_followed": 1, "handed_to_kernel": 1}, **rest)  # fmt: skip


HANDED = [
    _handed("later fragment to a backend", THERE_CUT[1], cut(LONG.frame(CLIENT, B1.end, IN))[1],
            given=(*KNOWN, by_kernel(), CAN_FORWARD)),
    _handed("later fragment to the client", BACK_CUT[1],
            cut(LONG_BACK.frame(WEB, CLIENT, B1.hop.back))[1],
            given=(*FLOW, came(BACK_CUT[0], "backend"), CAN_REPLY), at="backend"),
    later("later one, and the kernel does not forward", THERE_CUT[1],
          {"fragment_followed": 1, "no_path": 1}, given=(*KNOWN, by_kernel())),
]  # fmt: skip

CASES = [*SCENES, *ACCOUNT, *NOT_FOLLOWED, *FIRSTS, *TOO_LONG, *TINY, *OTHERS, *HANDED]
