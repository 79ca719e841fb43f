# SPDX-License-Identifier: Apache-2.0
"""fullnat: fragments of all clients have one source, and so get IDs of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from scapy.utils import checksum

from tests.support.frames import l3_offset
from tests.support.program import DROP, REDIRECT
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.core import abi

from . import fullnat
from .case import Case, Then, only, tables_hold
from .first import OPEN, first_event
from .fragments import BODY, FIRST, FOLLOWED, LONG, LONG_BACK, THERE_CUT, aged, came, cut
from .ipv6 import six
from .world import MARK, Given, World, to_client, to_service

Frames = Callable[[bytes], bytes]


def with_id(frame: bytes, ident: int) -> bytes:
    """A fragment with another ID; of IPv6 the fragment header is the first."""
    made, l3 = bytearray(frame), l3_offset(frame)
    if made[l3] >> 4 == 6:
        made[l3 + 44 : l3 + 48] = ident.to_bytes(4, "big")
    else:
        made[l3 + 4 : l3 + 6] = (ident & 0xFFFF).to_bytes(2, "big")
        made[l3 + 10 : l3 + 12] = bytes(2)
        made[l3 + 10 : l3 + 12] = checksum(bytes(made[l3 : l3 + 20])).to_bytes(2, "big")
    return bytes(made)


def both(make: Callable[[Frames], Case]) -> list[Case]:
    """A case for each family; the ID is not what IPv6's flow label is made of, as elsewhere."""
    of_six = make(six)
    of_six = dataclasses.replace(of_six, name=f"{of_six.name}, IPv6")
    return [*only(4, [make(lambda frame: frame)]), *only(6, [of_six])]


def renumbered(name: str, frame: bytes, out: bytes, ident: int, **rest: Any) -> list[Case]:
    """It goes its way with that ID."""
    return both(lambda native: Case(
        name=f"fullnat: {name}", frame=native(frame), verdict=REDIRECT,
        out=with_id(native(out), ident), **rest))  # fmt: skip


def ids(last: int) -> Given:
    """The last one that was given."""

    def write(world: World) -> None:
        table = bpf.BpfMap(world.program.plane.maps["pressure"])
        table.write(bytes(4), abi.pack_pressure(0, fragment_ids=last))

    return write


def notes(*wanted: int) -> Then:
    """The new IDs of the datagrams that are known."""

    def look(world: World, _started_ns: int) -> None:
        table = world.program.fragments
        found = [abi.unpack_fragment(table.read(key) or b"")[4] for key in list(table.each_key())]
        assert sorted(found) == list(wanted)

    return look


FLOW = (fullnat.established(), ids(0x1FFFE))
BEFORE, AFTER = THERE_CUT
FIRST_OUT, LATER_OUT = cut(fullnat.there(LONG))
LAST, LAST_OUT = (cut(side, 128)[1] for side in (to_service(LONG), fullnat.there(LONG)))
OTHERS = cut(to_service(LONG.but(ident=78)))[0]
BACK, BACK_OUT = cut(fullnat.from_server(LONG_BACK))[0], cut(to_client(LONG_BACK))[0]
SYN, SYN_LATER = cut(to_service(OPEN.but(payload=BODY, fragment=0)))
SYN_OUT, SYN_LATER_OUT = cut(fullnat.there(OPEN.but(payload=BODY, fragment=0)))
CASES = [
    *renumbered("a first fragment gets an ID of ours", BEFORE, FIRST_OUT, 0x1FFFF,
                given=FLOW, counters=FIRST, then=(notes(0x1FFFF),)),
    *renumbered("a later one gets the same", AFTER, LATER_OUT, 0x1FFFF,
                given=(*FLOW, came(BEFORE)), counters=FOLLOWED),
    *renumbered("so does the last", LAST, LAST_OUT, 0x1FFFF, given=(*FLOW, came(BEFORE)),
                counters=FOLLOWED),
    *renumbered("another datagram gets another", BEFORE, FIRST_OUT, 0x20000,
                given=(*FLOW, came(OTHERS)), counters=FIRST, then=(notes(0x1FFFF, 0x20000),)),
    *renumbered("a first fragment that comes twice keeps what it got", BEFORE, FIRST_OUT,
                0x1FFFF, given=(*FLOW, came(BEFORE)), counters=FIRST, then=(notes(0x1FFFF),)),
    *renumbered("but not what it got long ago", BEFORE, FIRST_OUT, 0x20000,
                given=(*FLOW, came(BEFORE), aged), counters=FIRST, then=(notes(0x20000),)),
    *renumbered("0 is none", BEFORE, FIRST_OUT, 1, given=(*FLOW, ids(0xFFFFFFFF)),
                counters=FIRST, then=(notes(1),)),
    *renumbered("a later fragment of a pending flow", AFTER, LATER_OUT, 0x1FFFF,
                given=(*fullnat.PENDING, ids(0x1FFFE), came(BEFORE)), counters=FOLLOWED),
    *both(lambda native: Case(
        name="fullnat: a backend's fragment keeps its ID", frame=native(BACK),
        verdict=REDIRECT, out=native(BACK_OUT), at="backend", given=FLOW, counters=FIRST,
        then=(notes(0),))),
    *both(lambda native: Case(
        name="fullnat: a SYN in fragments is held with its new ID", frame=native(SYN),
        verdict=DROP, out=with_id(native(SYN), 1), given=(fullnat.fullnat,),
        counters={"first_packet": 1, "fragment_first": 1},
        event=first_event(with_id(native(SYN), 1), syn_data=24),
        then=(tables_hold(1, 0), notes(1)))),
    *both(lambda native: Case(
        name="fullnat: it keeps that when the daemon sends it", frame=with_id(native(SYN), 1),
        verdict=REDIRECT, out=with_id(native(SYN_OUT), 1), mark=MARK, egress="backend",
        given=(fullnat.fullnat, came(SYN), fullnat.reply(), fullnat.forward(packets=0)),
        counters={"reinjected": 1},
        then=(notes(1),))),
    *renumbered("and its later fragments have it, too", SYN_LATER, SYN_LATER_OUT, 1,
                given=(fullnat.fullnat, came(SYN), *fullnat.PENDING), counters=FOLLOWED),
]  # fmt: skip
