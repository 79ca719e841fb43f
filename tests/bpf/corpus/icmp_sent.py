# SPDX-License-Identifier: Apache-2.0
"""ICMP errors that we send: the TTL ends here, or the packet does not fit on its way out."""

from __future__ import annotations

import time
from typing import Any

from tests.support.frames import ACK, RST, End, Segment, l3_offset
from tests.support.icmp_frames import FRAG_NEEDED, TIME_EXCEEDED, UNREACHABLE, own_error
from tests.support.program import DROP, REDIRECT, TX
from xdp_router.core import abi

from .bound import BACK, FLOW, THERE
from .case import Case, answered, flow_untouched, forwarded, only, tables_hold
from .degrade import silent
from .first import OPEN
from .flows import decided
from .foreign import without_stage
from .handshake import SYNACK
from .orphans import DATA, hash_orphans
from .world import (
    MARK,
    OURS_B,
    OURS_C,
    SECOND,
    Given,
    World,
    from_backend,
    to_backend,
    to_client,
    to_service,
)

UNTOUCHED = (flow_untouched("there"), flow_untouched("back"))


def expired(name: str, frame: bytes, at: str = "client", **rest: Any) -> Case:
    """A packet whose TTL ends here, answered by time exceeded."""
    source = OURS_C if at == "client" else OURS_B
    counters = {"ttl_exceeded": 1, "icmp_time_exceeded": 1} | rest.pop("extra", {})
    return answered(f"time exceeded: {name}", frame, own_error(TIME_EXCEEDED, 0, frame, source),
                    at=at, counters=counters, **rest)  # fmt: skip


def unanswered(name: str, frame: bytes, counters: dict[str, int], **rest: Any) -> Case:
    """A packet that is dropped, and nothing is said about it."""
    return Case(name=f"no ICMP: {name}", frame=frame, verdict=DROP, counters=counters, **rest)


def _budget(credit_ns: int, interval_ns: int = SECOND) -> Given:
    """So much credit in this CPU's bucket, and a token costs an interval."""

    def put(world: World) -> None:
        world.maps.tokens.fill(abi.TOKENS_ICMP, credit_ns, time.monotonic_ns())
        world.change_control(icmp_interval_ns=interval_ns, icmp_burst_ns=2 * interval_ns)

    return put


def _no_address(world: World) -> None:
    world.change_side("client", addr=0)


def _by_redirect(world: World) -> None:
    world.change_side("client", flags=abi.IF_BOUNCE_REDIRECT)


LAST = THERE.but(ttl=1)
BYTES = bytes(range(250)) * 12
EXPIRED = [
    *(expired(f"TTL {ttl} of an established flow", to_service(THERE.but(ttl=ttl)), given=FLOW)
      for ttl in (0, 1)),
    *(expired(f"TTL {ttl} of a backend's packet", from_backend(BACK.but(ttl=ttl)), "backend",
              given=FLOW) for ttl in (0, 1)),
    *(expired(f"{size} bytes of payload", to_service(LAST.but(payload=BYTES[:size])), given=FLOW)
      for size in (0, 1, 2, 3, 4, 507, 508, 509, 1000, 3000)),
    expired("IP options are quoted", to_service(LAST.but(ip_options=bytes([1]) * 40)), given=FLOW),
    expired("TCP options are quoted", to_service(LAST.but(options=(("Timestamp", (1, 2)),) * 3)),
            given=FLOW),
    expired("a VLAN tag stays", to_service(LAST.but(tags=((0x8100, 0x2007),))), given=FLOW),
    expired("two VLAN tags stay", to_service(LAST.but(tags=((0x88A8, 9), (0x8100, 7)))),
            given=FLOW),
    expired("padding is not quoted", to_service(LAST.but(payload=b"", pad=bytes([9]) * 6)),
            given=FLOW),
    expired("a RST", to_service(LAST.but(flags=RST | ACK)), given=FLOW),
    expired("a first packet, which is not held", to_service(OPEN.but(ttl=1)),
            then=(tables_hold(0, 0),)),
    expired("a first packet while the daemon is silent", to_service(OPEN.but(ttl=1)),
            given=(silent,), then=(tables_hold(0, 0),)),
    expired("a pending flow", to_service(THERE.but(ttl=1)), given=decided()),
    expired("SYN-ACK", from_backend(SYNACK.but(ttl=1)), "backend", given=decided()),
    expired("a hashed orphan", to_service(DATA.but(ttl=1)), given=(hash_orphans,),
            extra={"orphan_hashed": 1, "decided_hash": 1}),
    expired("the last token", to_service(LAST), given=(*FLOW, _budget(SECOND))),
    Case(name="time exceeded: by redirect, where XDP_TX does not do", frame=to_service(LAST),
         out=own_error(TIME_EXCEEDED, 0, to_service(LAST), OURS_C), verdict=REDIRECT,
         given=(*FLOW, _by_redirect), counters={"ttl_exceeded": 1, "icmp_time_exceeded": 1}),
    Case(name="time exceeded: about a frame of the daemon's", frame=to_service(LAST),
         out=own_error(TIME_EXCEEDED, 0, to_service(LAST), OURS_C), verdict=REDIRECT, mark=MARK,
         egress="client", given=FLOW,
         counters={"ttl_exceeded": 1, "icmp_time_exceeded": 1, "reinjected": 1}),
    unanswered("over budget", to_service(LAST), {"ttl_exceeded": 1, "icmp_over_budget": 1},
               given=(*FLOW, _budget(0))),
    unanswered("an interface without address", to_service(LAST),
               {"ttl_exceeded": 1, "icmp_no_source": 1}, given=(*FLOW, _no_address)),
    unanswered("its stage is missing", to_service(LAST),
               {"ttl_exceeded": 1, "tail_call_missed": 1},
               given=(*FLOW, without_stage(abi.Stage.ICMP_ERROR))),
]  # fmt: skip

# --- longer than the egress takes ---------------------------------------------------------

SMALL, WIDE = 1280, 9000


def _mtu(side: str, mtu: int = SMALL, other: int = WIDE) -> Given:
    """The interface of ``side`` has this MTU, the other one ``other``."""

    def put(world: World) -> None:
        for name in ("client", "backend"):
            world.change_side(name, mtu=mtu if name == side else other)
        world.change_control(min_mtu=min(mtu, other))

    return put


def long(segment: Segment, length: int) -> Segment:
    """The segment with as much payload as makes its packet that long."""
    empty = to_service(segment.but(payload=b""))
    return segment.but(payload=BYTES[: length - len(empty) + l3_offset(empty)])


def refused_as_long(name: str, frame: bytes, at: str = "client", mtu: int = SMALL,
                    **rest: Any) -> Case:  # fmt: skip
    """A packet that is answered by fragmentation needed."""
    source = OURS_C if at == "client" else OURS_B
    out = own_error(UNREACHABLE, FRAG_NEEDED, frame, source, mtu)
    rest = {"then": UNTOUCHED, "given": (*FLOW, _mtu("backend" if at == "client" else "client"))
            } | rest  # fmt: skip
    counters = {"icmp_too_big": 1} | rest.pop("extra", {})
    return answered(f"too big: {name}", frame, out, at=at, counters=counters, **rest)


QINQ = ((0x88A8, 9), (0x8100, 7))
TOO_LONG = [
    refused_as_long("one byte, client to backend", to_service(long(THERE, SMALL + 1))),
    refused_as_long("one byte, backend to client", from_backend(long(BACK, SMALL + 1)), "backend"),
    refused_as_long("a full one", to_service(long(THERE, 1500))),
    refused_as_long("with options", to_service(long(THERE.but(ip_options=bytes([1]) * 40), 1500))),
    refused_as_long("with a tag", to_service(long(THERE.but(tags=((0x8100, 7),)), SMALL + 1))),
    refused_as_long("a second tag takes of the MTU", to_service(long(
        THERE.but(tags=QINQ), SMALL - 3)), mtu=SMALL - 4),
    refused_as_long("a pending flow", to_service(long(THERE, 1500)),
                    given=(*decided(), _mtu("backend")), then=(tables_hold(3, 0),)),
    refused_as_long("a pending flow, from the backend", from_backend(long(BACK, 1500)), "backend",
                    given=(*decided(), _mtu("client")), then=(tables_hold(3, 0),)),
    *(forwarded(f"fits exactly: {name}", frame, out, given=(*FLOW, _mtu(side)), at=at)
      for name, frame, out, side, at in (
          ("client to backend", to_service(long(THERE, SMALL)), to_backend(long(THERE, SMALL)),
           "backend", "client"),
          ("backend to client", from_backend(long(BACK, SMALL)), to_client(long(BACK, SMALL)),
           "client", "backend"),
          ("with two tags", to_service(long(THERE.but(tags=QINQ), SMALL - 4)),
           to_backend(long(THERE.but(tags=QINQ), SMALL - 4)), "backend", "client"),
          ("only the other interface is small", to_service(long(THERE, 1500)),
           to_backend(long(THERE, 1500)), "client", "client"),
          ("only the other interface is small, back", from_backend(long(BACK, 1500)),
           to_client(long(BACK, 1500)), "backend", "backend"),
      )),
    forwarded("fits: a pending flow by the wider one", to_service(long(THERE, 1500)),
              to_backend(long(THERE, 1500)), given=(*decided(), _mtu("client"))),
    unanswered("too long, and merged on its way in", to_service(long(THERE, 1500)),
               {"too_big_dropped": 1}, given=(*FLOW, _mtu("backend", SMALL, SMALL)),
               then=UNTOUCHED),
    unanswered("too long, over budget", to_service(long(THERE, 1500)), {"icmp_over_budget": 1},
               given=(*FLOW, lambda world: (
                   _mtu("backend")(world), world.maps.tokens.fill(
                       abi.TOKENS_ICMP, 0, time.monotonic_ns()),
                   world.change_control(min_mtu=SMALL, icmp_interval_ns=SECOND,
                                        icmp_burst_ns=SECOND)))),
    unanswered("too long, without its stage", to_service(long(THERE, 1500)),
               {"tail_call_missed": 1},
               given=(*FLOW, _mtu("backend"), without_stage(abi.Stage.BOUND)), then=UNTOUCHED),
    expired("a packet that is too long as well", to_service(long(THERE.but(ttl=1), 1500)),
            given=(*FLOW, _mtu("backend"))),
    Case(name="too big: the TTL ends first where it fits", frame=to_service(
            long(THERE.but(ttl=1), 1500)), verdict=TX, at="client",
         out=own_error(TIME_EXCEEDED, 0, to_service(long(THERE.but(ttl=1), 1500)), OURS_C),
         given=(*FLOW, _mtu("client")), counters={"ttl_exceeded": 1, "icmp_time_exceeded": 1}),
]  # fmt: skip

OF_IPV4 = only(4, [
    *(unanswered(f"a SYN from {source}", to_service(OPEN.but(ttl=1), client=End(source, 5)),
                 {"ttl_exceeded": 1})
      for source in ("224.0.0.5", "255.255.255.255", "127.0.0.1", "0.0.0.0")),
    unanswered("too long, may be fragmented", to_service(long(THERE.but(fragment=0), 1500)),
               {"too_big_dropped": 1}, given=(*FLOW, _mtu("backend")), then=UNTOUCHED),
])  # fmt: skip

CASES = [*EXPIRED, *TOO_LONG, *OF_IPV4]
