# SPDX-License-Identifier: Apache-2.0
"""ICMP errors about packets of a flow: translated to the side that sent them, or left alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.frames import End, Hop, Segment
from tests.support.icmp_frames import (
    FRAG_NEEDED,
    PARAMETER_PROBLEM,
    TIME_EXCEEDED,
    UNREACHABLE,
    icmp_error,
    quote,
)
from tests.support.program import DROP

from .bound import BACK, FLOW, THERE
from .case import Case, flow_untouched, forwarded, only, passed, tables_hold
from .first import OPEN
from .flows import decided, refused
from .handshake import SYNACK
from .world import B1, B2, CLIENT, IN, OTHER_MAC, SHOP, WEB, World

HOP_C, HOP_B = "198.18.77.1", "198.19.77.1"
"""Routers on the way to the client, and on the way to the backend."""


@dataclass(frozen=True)
class Side:
    """From where an error comes: what it embeds left us there, and its sender is beyond us."""

    at: str
    hop: str
    sent: Segment
    there: tuple[End, End]
    """The embedded packet's ends as it left us ..."""
    here: tuple[End, End]
    """... and as it came to us."""
    came: Hop
    goes: Hop

    def embedded(self, ends: tuple[End, End], segment: Segment | None = None) -> bytes:
        """The packet as a hop behind us quotes it."""
        segment = segment or self.sent
        return quote(segment.but(ttl=segment.ttl - 1).frame(*ends, self.came))

    def error(self, kind: int, code: int, quoted: bytes, source: str = "", **ip: Any) -> bytes:
        """The error as it comes in."""
        fields: dict[str, Any] = {"target": self.there[0].addr, "hop": self.came} | ip
        return icmp_error(kind, code, quoted, source or self.hop, **fields)

    def translated(
        self,
        name: str,
        kind: int = UNREACHABLE,
        code: int = 1,
        *,
        segment: Segment | None = None,
        length: int | None = None,
        source: str = "",
        out_source: str = "",
        ip: dict[str, Any] | None = None,
        **rest: Any,
    ) -> Case:
        """A case whose error goes on to the side that sent the embedded packet."""
        ip = {"ttl": 64} | (ip or {})
        frame = self.error(kind, code, self.embedded(self.there, segment)[:length], source, **ip)
        out = icmp_error(
            kind, code, self.embedded(self.here, segment)[:length],
            out_source or source or self.hop, self.here[0].addr, self.goes,
            **{**ip, "ttl": ip["ttl"] - 1},
        )  # fmt: skip
        rest = {"given": FLOW, "then": UNTOUCHED} | rest
        return forwarded(f"ICMP about the {self.at}'s side: {name}", frame, out, at=self.at,
                         counters={"icmp_translated": 1}, **rest)  # fmt: skip

    def left(self, name: str, frame: bytes, **rest: Any) -> Case:
        """A case whose error passes as it is."""
        rest = {"given": FLOW, "then": UNTOUCHED, "at": self.at} | rest
        return passed(
            f"ICMP about the {self.at}'s side: {name}", frame, "pass_other_protocol", **rest
        )


UNTOUCHED = (flow_untouched("there"), flow_untouched("back"))
TO_BACKEND = Side("backend", HOP_B, THERE, (CLIENT, B1.end), (CLIENT, WEB), B1.hop.back, IN.back)
TO_CLIENT = Side("client", HOP_C, BACK, (WEB, CLIENT), (B1.end, CLIENT), IN, B1.hop)
SIDES = (TO_BACKEND, TO_CLIENT)

KINDS = [
    *((UNREACHABLE, code) for code in (*range(16), 255)),
    (TIME_EXCEEDED, 0), (TIME_EXCEEDED, 1), (PARAMETER_PROBLEM, 0), (PARAMETER_PROBLEM, 2),
]  # fmt: skip
OPTION = bytes([1, 1, 1, 0])


def _both(side: Side) -> list[Case]:
    """What holds from either side."""
    far = side.there[1].addr
    return [
        *(side.translated(f"type {kind} code {code}", kind, code) for kind, code in KINDS),
        *(side.translated(f"{length} bytes quoted", length=length)
          for length in (28, 29, 36, 38, 39, 40, 41)),
        forwarded(f"ICMP about the {side.at}'s side: half of TCP's checksum stays as it is",
                  side.error(3, 1, side.embedded(side.there)[:37]),
                  icmp_error(3, 1, side.embedded(side.here)[:36] + side.embedded(side.there)[36:37],
                             side.hop, side.here[0].addr, side.goes, ttl=63),
                  at=side.at, given=FLOW, counters={"icmp_translated": 1}),
        side.translated("path MTU", UNREACHABLE, FRAG_NEEDED, ip={"rest": 1280}),
        side.translated("the other end speaks itself", UNREACHABLE, 3, source=far,
                        out_source=side.here[1].addr),
        side.translated("RFC 4884 length and extension words", TIME_EXCEEDED,
                        segment=side.sent.but(payload=bytes(200)), length=136,
                        ip={"rest": 0x00220000}),
        side.translated("options in the embedded header",
                        segment=side.sent.but(ip_options=OPTION)),
        side.translated("40 bytes of options in the embedded header, 8 bytes behind",
                        segment=side.sent.but(ip_options=bytes([1]) * 40), length=68),
        side.translated("options in the outer header", ip={"options": OPTION}),
        side.translated("40 bytes of options in either header",
                        segment=side.sent.but(ip_options=bytes([1]) * 40),
                        ip={"options": bytes([1]) * 40}),
        side.translated("a large one", segment=side.sent.but(payload=bytes(range(250)) * 5)),
        side.translated("first fragment embedded", segment=side.sent.but(fragment=0x2000)),
        side.translated("VLAN tag", ip={"tags": ((0x8100, 5),)}),
        side.translated("two VLAN tags", ip={"tags": ((0x88A8, 5), (0x8100, 6))}),
        side.translated("TTL 2 leaves with 1", ip={"ttl": 2}),
        side.translated("padding", ip={"pad": b"\1\2\3"}),
        side.translated("precedence and no DF", ip={"tos": 0xC0, "id": 7}),
        side.translated("padding holds what the quote does not", length=28,
                        ip={"pad": bytes(range(40))}),
        Case(name=f"ICMP about the {side.at}'s side: TTL 1 is the end, and no error about it",
             frame=side.error(UNREACHABLE, 1, side.embedded(side.there), ttl=1), verdict=DROP,
             at=side.at, given=FLOW, counters={"ttl_exceeded": 1}),
        side.left("one byte too few", side.error(3, 1, side.embedded(side.there)[:27])),
        side.left("27 bytes, and padding", side.error(
            3, 1, side.embedded(side.there)[:27], pad=bytes(40))),
        side.left("header only", side.error(3, 1, b"")),
        *(side.left(f"type {kind}", side.error(kind, 0, side.embedded(side.there)))
          for kind in (0, 4, 5, 8, 13, 40)),
        side.left("for somebody else than the embedded sender", side.error(
            3, 1, side.embedded(side.there), target="198.18.55.5")),
        side.left("later fragment embedded", side.error(3, 1, side.embedded(
            side.there, side.sent.but(fragment=5)))),
        side.left("UDP embedded", side.error(3, 1, _with(side.embedded(side.there), 9, 17))),
        side.left("other port embedded", side.error(3, 1, _with(
            side.embedded(side.there), 23, 99))),
        side.left("other source port embedded", side.error(3, 1, _with(
            side.embedded(side.there), 21, 99))),
        side.left("of a flow that is not there", side.error(3, 1, side.embedded(side.there)),
                  given=(), then=(tables_hold(0, 0),)),
        side.left("with a packet that came, not one that went", side.error(
            3, 1, side.embedded(side.here), target=side.here[0].addr)),
        side.left("for another MAC", side.error(
            3, 1, side.embedded(side.there), hop=Hop(side.came.src, OTHER_MAC))),
        side.left("first fragment of an error", side.error(
            3, 1, side.embedded(side.there), flags="MF")),
        passed(f"ICMP about the {side.at}'s side: later fragment of an error", side.error(
            3, 1, side.embedded(side.there), frag=9), "fragment_unknown", at=side.at, given=FLOW),
    ]  # fmt: skip


def _bad_headers(side: Side) -> list[Case]:
    """What the header of IPv4 can be like, and that of IPv6 cannot."""
    return [
        side.left("IP version 6 embedded", side.error(
            3, 1, _with(side.embedded(side.there), 0, 0x65))),
        side.left("header of 16 bytes embedded", side.error(
            3, 1, _with(side.embedded(side.there), 0, 0x44))),
        side.left("embedded header longer than the quote", side.error(
            3, 1, _with(side.embedded(side.there)[:28], 0, 0x4F))),
    ]  # fmt: skip


def _with(packet: bytes, at: int, value: int) -> bytes:
    """The packet with another byte at one place."""
    return packet[:at] + bytes([value]) + packet[at + 1 :]


def _no_backend(world: World) -> None:
    world.change_server(B1, ifindex=0)


PENDING: tuple[Any, ...] = (tables_hold(3, 0),)
OTHERS = [
    TO_BACKEND.translated("the SYN of a pending flow", segment=OPEN, given=decided(),
                          then=PENDING),
    TO_BACKEND.translated("pending flow, host itself", UNREACHABLE, 2, source=B1.end.addr,
                          out_source=WEB.addr, segment=OPEN, given=decided(), then=PENDING),
    TO_CLIENT.translated("the SYN-ACK of a pending flow", segment=SYNACK,
                         given=decided(synack=True), then=PENDING),
    TO_CLIENT.translated("pending flow, path MTU", UNREACHABLE, FRAG_NEEDED, ip={"rest": 1280},
                         given=decided(synack=True), then=PENDING),
    TO_CLIENT.left("a flow that the daemon refused", TO_CLIENT.error(
        3, 1, TO_CLIENT.embedded(TO_CLIENT.there)), given=(refused(),),
        then=(tables_hold(1, 0),)),
    Case(name="ICMP for a backend without path", at="client", given=(*FLOW, _no_backend),
         frame=TO_CLIENT.error(3, 1, TO_CLIENT.embedded(TO_CLIENT.there)), verdict=DROP,
         counters={"no_path": 1}),
    TO_BACKEND.left("another backend's", TO_BACKEND.error(
        3, 1, quote(THERE.frame(CLIENT, B2.end, B2.hop)))),
    TO_CLIENT.left("another service's", TO_CLIENT.error(
        3, 1, quote(BACK.frame(SHOP, CLIENT, IN)), target=SHOP.addr)),
]  # fmt: skip

CASES = [
    *(case for side in SIDES for case in _both(side)),
    *only(4, (case for side in SIDES for case in _bad_headers(side))),
    *OTHERS,
]
