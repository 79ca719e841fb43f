# SPDX-License-Identifier: Apache-2.0
"""What only IPv6 has: extension headers, its lengths and addresses, and what ICMPv6 is for.

Frames of IPv6 are given as they are; the rest is said as everywhere, see ``World.native``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scapy.layers.inet6 import IPv6

from tests.support.frames import RST, Hop, Segment, l3_offset
from tests.support.icmp_frames import UNREACHABLE, own_error6
from tests.support.ipv6_frames import (
    AUTHENTICATION,
    DESTINATION,
    FRAGMENT,
    HEADER,
    HOP_BY_HOP,
    ICMPV6,
    NO_NEXT,
    ROUTING,
    icmpv6,
    ipv6_addr,
    ipv6_frame,
    with_extensions,
)
from tests.support.program import DROP
from xdp_router.core.model import ProbeAnswer

from .bound import BACK, FLOW, THERE
from .case import Case, answered, flow_untouched, forwarded, only, passed, tables_hold
from .degrade import ALL_DOWN, refusal, rst_to_client, silent
from .first import OPEN, first_event
from .flows import decided, refused
from .icmp import SIDES, TO_BACKEND, Side
from .icmp_sent import BYTES, LAST, expired
from .orphans import DATA
from .probes import ANSWER, SEQ, icmp, probe_event, sent_probe, the_rst
from .world import (
    B1,
    CLIENT,
    IN,
    OURS_C,
    PROBE_SOURCE,
    WEB,
    World,
    endpoint_of,
    from_backend,
    to_backend,
    to_client,
    to_service,
)
from .world6 import PROBES

Header = tuple[int, bytes]


def six(frame: bytes) -> bytes:
    """The frame in IPv6."""
    return ipv6_frame(frame, PROBES)


def options(kind: int = DESTINATION, words: int = 1) -> Header:
    """A header of options, of so many 8 bytes, with nothing but padding in it."""
    body = b""
    while len(body) < words * 8 - 2:
        fill = min(words * 8 - 2 - len(body) - 2, 255)
        body += bytes([1, fill]) + bytes(fill)
    return kind, bytes([0, words - 1]) + body


def routing(kind: int = 4, left: int = 0) -> Header:
    """A routing header; type 4 is that of segment routing."""
    return ROUTING, bytes([0, 2, kind, left]) + bytes(20)


def fragment(offset: int = 0, more: bool = False) -> Header:
    """A fragment header; without offset and more it is that of an atomic fragment."""
    return FRAGMENT, b"\0\0" + (offset << 3 | more).to_bytes(2, "big") + b"\x01\x02\x03\x04"


def edited(frame: bytes, at: int, new: bytes) -> bytes:
    """The frame with other bytes at one place of its packet, and nothing else made to fit."""
    at += l3_offset(frame)
    return frame[:at] + new + frame[at + len(new) :]


ALL = (options(HOP_BY_HOP), options(), routing(), fragment(), options())
WALKED: tuple[tuple[str, tuple[Header, ...]], ...] = (
    ("hop-by-hop options", (options(HOP_BY_HOP),)),
    ("destination options", (options(),)),
    ("a routing header", (routing(),)),
    ("a fragment header of an atomic fragment", (fragment(),)),
    ("all that RFC 8200 knows", ALL),
    ("six headers", (*ALL, options())),
    ("a header of 984 bytes", (options(words=123),)),
    ("984 bytes of six headers", (options(HOP_BY_HOP, 118), *(options(),) * 5)),
)
NOT_WALKED: tuple[tuple[str, tuple[Header, ...], str], ...] = (
    ("seven headers", (*ALL, options(), options()), "extension_headers"),
    ("a header of 992 bytes", (options(words=124),), "extension_headers"),
    ("the longest header there is, and one more", (options(words=128), options()),
     "extension_headers"),
    *((f"a routing header of type {kind}, {left} segments left", (options(), routing(kind, left)),
       "extension_headers") for kind, left in ((0, 1), (2, 1), (4, 1), (4, 255))),
    ("an authentication header", ((AUTHENTICATION, bytes([0, 4]) + bytes(22)),),
     "pass_other_protocol"),
    ("an encrypted packet", ((50, bytes(24)),), "pass_other_protocol"),
    ("mobility", ((135, bytes(8)),), "pass_other_protocol"),
    ("nothing behind", ((NO_NEXT, bytes(8)),), "pass_other_protocol"),
    ("a header of experiments", ((253, bytes(8)),), "pass_other_protocol"),
    ("a later fragment", (fragment(8),), "fragment_unknown"),
    ("the last fragment behind options", (options(HOP_BY_HOP), fragment(8, False)),
     "fragment_unknown"),
)  # fmt: skip


def chained(frame: bytes, headers: tuple[Header, ...]) -> bytes:
    """The frame in IPv6 with headers in front of TCP."""
    return with_extensions(six(frame), *headers)


def _expired(frame: bytes, size: int) -> Case:
    error = own_error6(3, 0, frame, OURS_C.number)
    counters = {"ttl_exceeded": 1, "icmp_time_exceeded": 1}
    return answered(f"extension headers are quoted, {size} bytes of payload", frame, error,
                    given=FLOW, counters=counters)  # fmt: skip


CHAINS = [
    *(case for name, headers in WALKED for case in (
        forwarded(f"{name}, client to backend", chained(to_service(THERE), headers),
                  chained(to_backend(THERE), headers), given=FLOW),
        forwarded(f"{name}, backend to client", chained(from_backend(BACK), headers),
                  chained(to_client(BACK), headers), given=FLOW, at="backend"),
        Case(name=f"{name}, first packet", frame=chained(to_service(OPEN), headers), verdict=DROP,
             counters={"first_packet": 1}, then=(tables_hold(1, 0),),
             event=first_event(chained(to_service(OPEN), headers))),
        answered(f"{name}, refused: the RST has none", chained(to_service(OPEN), headers),
                 six(refusal(OPEN)), given=(silent, *ALL_DOWN),
                 counters={"heartbeat_stale": 1, "refused_no_backend": 1}),
        answered(f"{name}, orphan: the RST has none", chained(to_service(DATA), headers),
                 six(rst_to_client(DATA.ack, 0, RST)), counters={"orphan_reset": 1}),
        answered(f"{name}, answer to a probe", chained(
                     from_backend(ANSWER, client=PROBE_SOURCE), headers),
                 six(the_rst(SEQ + 1)), at="backend", counters={"probe_synack": 1},
                 event=probe_event(ProbeAnswer.SYNACK)),
    )),
    *(case for name, headers, counter in NOT_WALKED for case in (
        passed(f"{name}, bound flow", chained(to_service(THERE), headers), counter, given=FLOW,
               then=(flow_untouched("there"),)),
        passed(f"{name}, first packet", chained(to_service(OPEN), headers), counter,
               then=(tables_hold(0, 0),)),
    )),
    *(forwarded(f"first fragment behind {name}",
                chained(to_service(THERE), (*headers, fragment(0, True))),
                chained(to_backend(THERE), (*headers, fragment(0, True))), given=FLOW,
                counters={"fragment_first": 1})
      for name, headers in (("hop-by-hop options", (options(HOP_BY_HOP),)),
                            ("routing", (routing(),)))),
    *(_expired(chained(to_service(LAST.but(payload=BYTES[:size])), ALL), size)
      for size in (0, 1000, 2000)),
]  # fmt: skip

# --- the header ---------------------------------------------------------------------------

FRAME, PADDED = six(to_service(DATA)), six(to_service(DATA.but(pad=bytes(60))))
BOUND = six(to_service(THERE))
LENGTH = int.from_bytes(FRAME[18:20], "big")


def _length(frame: bytes, length: int) -> bytes:
    return edited(frame, 4, length.to_bytes(2, "big"))


def _header_length(frame: bytes, words: int) -> bytes:
    """The first extension header claims another length."""
    return edited(frame, HEADER + 1, bytes([words]))


CHAINED = chained(to_service(DATA), (options(),))
JUMBO = (HOP_BY_HOP, bytes([0, 0, 0xC2, 4]) + (70_000).to_bytes(4, "big"))
MALFORMED = [
    passed(f"malformed: {name}", frame, "pass_malformed", then=(tables_hold(0, 0),))
    for name, frame in (
        ("IP version 4 in an IPv6 frame", edited(FRAME, 0, b"\x45")),
        ("version 0 of IPv6", edited(FRAME, 0, b"\x00")),
        ("IP version 7", edited(FRAME, 0, b"\x70")),
        ("an IPv6 type and nothing", FRAME[:14]),
        ("39 bytes of a header", FRAME[:53]),
        ("payload length 0", _length(FRAME, 0)),
        ("payload length without TCP, padding behind", _length(PADDED, 0)),
        ("payload length cuts TCP's header", _length(FRAME, 19)),
        ("payload length one more than there is", _length(FRAME, LENGTH + 1)),
        ("payload length 65535", _length(FRAME, 0xFFFF)),
        ("extension header longer than the packet", _header_length(CHAINED, 20)),
        ("extension header longer than the packet, in padding",
         _header_length(CHAINED + bytes(200), 4)),
        ("extension header over TCP's", _header_length(CHAINED, 1)),
        ("packet ends in an extension header", _length(CHAINED, 7)),
        ("packet ends with an extension header", _length(CHAINED, 8)),
        ("7 bytes of an extension header", _length(CHAINED, 7)[: 14 + HEADER + 7]),
        ("a jumbogram", _length(chained(to_service(DATA), (JUMBO,)), 0)),
    )
] + [
    passed(f"malformed on a bound flow: {name}", frame, "pass_malformed", given=FLOW,
           then=(flow_untouched("there"),))
    for name, frame in (
        ("payload length one more than there is",
         _length(BOUND, int.from_bytes(BOUND[18:20], "big") + 1)),
        ("IP version 4", edited(BOUND, 0, b"\x45")),
    )
]  # fmt: skip


def _both(name: str, change: Callable[[bytes], bytes]) -> list[Case]:
    """The same change to what comes in, and to what goes out, both ways."""
    return [
        forwarded(f"{name}, client to backend", change(six(to_service(THERE))),
                  change(six(to_backend(THERE))), given=FLOW),
        forwarded(f"{name}, backend to client", change(six(from_backend(BACK))),
                  change(six(to_client(BACK))), given=FLOW, at="backend"),
    ]  # fmt: skip


KEPT = [
    *_both("all of traffic class and flow label", lambda f: edited(f, 0, b"\x6f\xff\xff\xff")),
    *_both("flow label of five digits", lambda f: edited(f, 0, bytes([0x60, 0x0A, 0xBC, 0xDE]))),
    *_both("no flow label", lambda f: edited(f, 0, bytes([0x60, 0, 0, 0]))),
    *_both("padding behind the packet", lambda f: f + b"\xff\xfe\xfd"),
    *_both("hop limit 255", lambda f: edited(f, 7, bytes([f[21] + 191]))),
]  # fmt: skip


def _corner_sums() -> list[Case]:
    """TCP's sum is 0 where a frame comes in, or goes out."""
    cases = []
    for segment, made, other, side in (
        (THERE, to_service, to_backend, "client"),
        (BACK, from_backend, to_client, "backend"),
    ):
        for where, zero in (("comes in", made), ("goes out", other)):
            frame = six(zero(segment.but(payload=b"\0\0")))
            at = l3_offset(frame) + HEADER + 16
            given: Segment = segment.but(payload=frame[at : at + 2])
            assert six(zero(given))[at : at + 2] == b"\0\0"
            cases.append(forwarded(f"IPv6, tcp checksum 0 {where} at the {side}'s side",
                                   made(given), other(given), given=FLOW, at=side))  # fmt: skip
            if where == "comes in":
                frame = edited(six(made(given)), HEADER + 16, b"\xff\xff")
                cases.append(forwarded(f"IPv6, tcp checksum 0xffff at the {side}'s side", frame,
                                       other(given), given=FLOW, at=side))  # fmt: skip
    return cases


# --- addresses ----------------------------------------------------------------------------


def with_addrs(frame: bytes, source: str = "", target: str = "") -> bytes:
    """The frame in IPv6 with other addresses; its TCP sum does not matter here."""
    made = six(frame)
    raw = bytes(IPv6(src=source or "::2", dst=target or "::2"))
    made = edited(made, 8, raw[8:24]) if source else made
    return edited(made, 24, raw[24:40]) if target else made


NOBODY = ("ff02::1", "ff0e::5", "::", "::1", "::5", "::ffff:198.18.0.2", "::ffff:0.0.0.0")


def _ipv4_too(world: World) -> None:
    """The same service and backend are there with IPv4 addresses as well."""
    world.touch()
    maps = world.program.maps
    service = world.service()
    maps.services.write(endpoint_of(WEB), service)
    maps.backend_index.write(endpoint_of(B1.end), B1.id, 0)


def _mapped(addr: str) -> str:
    return f"::ffff:{addr}"


ADDRESSES = [
    *(passed(f"{what} from {source}", with_addrs(to_service(segment), source), "pass_not_service",
             then=(tables_hold(0, 0),))
      for source in NOBODY for what, segment in (("SYN", OPEN), ("data", DATA),
                                                 ("TTL 1", OPEN.but(ttl=1)))),
    passed("first fragment from ::1",
           chained(to_service(DATA), (fragment(0, True),))[:22] + bytes(15) + b"\1"
           + chained(to_service(DATA), (fragment(0, True),))[38:], "pass_fragment"),
    *(passed(f"{what} to the IPv4 address of a service, mapped",
             with_addrs(to_service(segment), target=_mapped(WEB.addr)), "pass_not_service",
             given=(_ipv4_too,), then=(tables_hold(0, 0),))
      for what, segment in (("SYN", OPEN), ("data", DATA))),
    passed("first fragment to the IPv4 address of a service, mapped", with_extensions(
               with_addrs(to_service(DATA), target=_mapped(WEB.addr)), fragment(0, True)),
           "pass_fragment", given=(_ipv4_too,)),
    passed("from the IPv4 address of a backend, mapped",
           with_addrs(from_backend(BACK), source=_mapped(B1.end.addr)), "pass_not_service",
           given=(_ipv4_too,), at="backend"),
    passed("SYN to the address of the service beside it",
           with_addrs(to_service(OPEN), target="2001:db8:c612:645a:1122:3344:5566:7801"),
           "pass_not_service"),
    *(passed(f"SYN to an address that differs in word {word}", edited(
        six(to_service(OPEN)), 24 + 4 * word, bytes([six(to_service(OPEN))[38 + 4 * word] ^ 1])),
        "pass_not_service") for word in range(4)),
    *(passed(f"bound flow of an address that differs in word {word}", edited(
        six(from_backend(BACK)), 24 + 4 * word,
        bytes([six(from_backend(BACK))[38 + 4 * word] ^ 1])), "pass_not_service", given=FLOW,
        at="backend") for word in range(4)),
]  # fmt: skip

# --- ICMPv6 -------------------------------------------------------------------------------

ALL_NODES = Hop(IN.src, bytes.fromhex("333300000001"))
HOUSEKEEPING = {
    "router solicitation": 133, "router advertisement": 134, "neighbour solicitation": 135,
    "neighbour advertisement": 136, "redirect": 137, "echo request": 128, "echo reply": 129,
    "MLD query": 130, "MLD report": 131, "MLD done": 132, "MLDv2 report": 143,
    "an unknown one": 200,
}  # fmt: skip


def message(kind: int, target: str, *headers: Header, hop: Hop = IN, ttl: int = 255,
            code: int = 0, rest: bytes = bytes(20)) -> bytes:  # fmt: skip
    """A frame with an ICMPv6 message of the client's."""
    addrs = bytes(IPv6(src="fe80::2", dst=target))[8:40]
    body = icmpv6(kind, code, rest, addrs[:16], addrs[16:])
    head = bytes([0x60, 0, 0, 0]) + len(body).to_bytes(2, "big") + bytes([ICMPV6, ttl])
    frame = hop.dst + hop.src + b"\x86\xdd" + head + addrs + body
    return with_extensions(frame, *headers)


ALERT = (HOP_BY_HOP, bytes([0, 0, 5, 2, 0, 0, 1, 0]))
SERVICE_ADDR = "2001:db8:c612:645a:1122:3344:5566:7701"
WHILE: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("", ()), (", bound flow", FLOW), (", pending flow", decided()),
    (", refused flow", (refused(),)), (", daemon silent", (silent,)),
)  # fmt: skip
ERROR = six(TO_BACKEND.error(UNREACHABLE, 1, TO_BACKEND.embedded(TO_BACKEND.there)))
LEFT_ALONE = [
    *(passed(f"{name} to {target}{when}", message(kind, target, hop=hop), "pass_other_protocol",
             given=given)
      for name, kind in HOUSEKEEPING.items() for when, given in WHILE
      for target, hop in (("ff02::1", ALL_NODES), (SERVICE_ADDR, IN))),
    *(passed(f"{name} with router alert", message(kind, "ff02::16", ALERT, hop=ALL_NODES, ttl=1),
             "pass_other_protocol") for name, kind in HOUSEKEEPING.items()),
    *(passed(f"ICMPv6 type {kind}, an error of which nothing is known", edited(
             ERROR, HEADER, bytes([kind])), "pass_other_protocol", given=FLOW, at="backend",
             then=(flow_untouched("there"), flow_untouched("back")))
      for kind in (0, 5, 100, 127)),
    passed("ICMPv6 of 7 bytes", message(1, SERVICE_ADDR, rest=b"\0" * 3), "pass_other_protocol"),
    passed("ICMPv6 of 4 bytes, more in the padding", message(1, SERVICE_ADDR, rest=b"")
           + ERROR[58:],
           "pass_other_protocol", given=FLOW),
]  # fmt: skip


def _error(side: Side, quoted: bytes, ends: tuple[int, int], hop: Hop, ttl: int) -> bytes:
    """An ICMPv6 error, "time exceeded"."""
    saddr, daddr = (ipv6_addr(each).to_bytes(16, "big") for each in ends)
    body = icmpv6(3, 0, bytes(4) + quoted, saddr, daddr)
    head = bytes([0x60, 0, 0, 0]) + len(body).to_bytes(2, "big") + bytes([ICMPV6, ttl])
    return hop.dst + hop.src + b"\x86\xdd" + head + saddr + daddr + body


def _quoting(side: Side, name: str, headers: tuple[Header, ...], cut: int | None = None) -> Case:
    """An error that embeds a packet with extension headers."""
    embedded = [
        chained(side.sent.frame(*ends, side.came), headers)[14:][:cut]
        for ends in (side.there, side.here)
    ]
    far = B1.end.number if side.at == "backend" else CLIENT.number
    out_far = WEB.number if side.at == "backend" else CLIENT.number
    return forwarded(
        f"ICMPv6 from the {side.at}'s side that embeds {name}",
        _error(side, embedded[0], (far, side.there[0].number), side.came, 64),
        _error(side, embedded[1], (out_far, side.here[0].number), side.goes, 63),
        at=side.at, given=FLOW, counters={"icmp_translated": 1},
        then=(flow_untouched("there"), flow_untouched("back")),
    )  # fmt: skip


def _not_quoting(side: Side, name: str, headers: tuple[Header, ...], cut: int | None) -> Case:
    frame = _quoting(side, name, headers, cut).frame
    return passed(f"ICMPv6 from the {side.at}'s side, left alone: it embeds {name}", frame,
                  "pass_other_protocol", at=side.at, given=FLOW)  # fmt: skip


EMBEDDED = [
    *(_quoting(side, name, headers) for side in SIDES for name, headers in WALKED),
    *(_quoting(side, f"all headers and {more} bytes of TCP", ALL, HEADER + 56 + more)
      for side in SIDES for more in (8, 9, 16, 18, 19, 20, 30)),
    *(_not_quoting(side, name, headers, None) for side in SIDES for name, headers, _ in NOT_WALKED),
    *(_not_quoting(side, f"all headers and {more} bytes of TCP", ALL, HEADER + 56 + more)
      for side in SIDES for more in (0, 7)),
    *(_not_quoting(side, f"{cut} bytes of its header", (), cut) for side in SIDES
      for cut in (1, 39)),
    passed("ICMPv6 that embeds IP version 4", edited(
        _quoting(TO_BACKEND, "IPv4", ()).frame, HEADER + 8, b"\x45"), "pass_other_protocol",
        given=FLOW, at="backend"),
]  # fmt: skip

PROBE_ERROR = six(icmp(3, 1, sent_probe()))
ABOUT_PROBES = [
    passed("ICMPv6 about a probe that embeds an extension header", edited(
        PROBE_ERROR, HEADER + 8 + 6, bytes([DESTINATION])), "pass_other_protocol", at="backend"),
    *(passed(f"ICMPv6 type {kind} about a probe", edited(PROBE_ERROR, HEADER, bytes([kind])),
             "pass_other_protocol", at="backend") for kind in (2, 3, 4)),
]  # fmt: skip

SENT = [
    *(expired(f"as much as 1,280 bytes hold, {size} of payload",
              to_service(LAST.but(payload=BYTES[:size])), given=FLOW)
      for size in (1169, 1170, 1171, 1172, 1173, 1174, 1200)),
]  # fmt: skip

CASES = only(6, [
    *CHAINS, *MALFORMED, *KEPT, *_corner_sums(), *ADDRESSES, *LEFT_ALONE, *EMBEDDED,
    *ABOUT_PROBES, *SENT,
])  # fmt: skip
