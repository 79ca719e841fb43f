# SPDX-License-Identifier: Apache-2.0
"""A full flow_table: new flows by hash, without a place; when there is room again, they get it."""

from __future__ import annotations

import time
from typing import Any

from tests.support.frames import ACK, FIN, PSH, RST, Segment
from tests.support.instants import before
from xdp_router.core import abi
from xdp_router.core.model import Mode, Reason

from .case import (
    Case,
    Then,
    answered,
    forwarded,
    has_flow,
    has_pending,
    tables_hold,
)
from .degrade import decides, hash_table, rst_to_client, silent
from .first import OPEN, held
from .flows import (
    CLIENT_WINDOW,
    flow_keys,
    forward,
    forward_key,
    put_flow,
    reply,
    reply_entry,
    reply_key,
    seen,
)
from .handshake import fill_table, promoted_event, stateless_ahead
from .world import (
    B1,
    B2,
    B3,
    CLIENT_ISN,
    CLIENT_SCALE,
    MS,
    SECOND,
    SERVER_ISN,
    SERVER_SCALE,
    SHOP,
    Given,
    World,
    from_backend,
    to_backend,
    to_client,
    to_service,
)

PROVEN, KNOWN = abi.PENDING_PROVEN, abi.PENDING_SYNACK | abi.PENDING_PROVEN
SENT, TAKEN = SERVER_ISN + 5001, CLIENT_ISN + 3001
"""The backend's next number, and what it has acknowledged, of a flow that goes on for a while."""

WINDOW = 250 << SERVER_SCALE
NEXT = Segment(flags=PSH | ACK, seq=TAKEN, ack=SENT, window=500, payload=b"on")
FROM_B1 = Segment(flags=PSH | ACK, seq=SENT, ack=TAKEN, window=77, payload=b"answer")


def full(ago_ns: int = 0) -> Given:
    """A proven flow found no room so long before now, which is not when the case began."""
    return lambda world: world.write_pressure(full_ns=before(time.monotonic_ns(), ago_ns))


def full_beside(world: World) -> None:
    """A proven flow of the other family found no room just now."""
    world.write_pressure(other_full_ns=time.monotonic_ns())


def proven(
    there: dict[str, Any] | None = None, back: dict[str, Any] | None = None
) -> tuple[Given, ...]:
    """A flow that is in pending_flows alone, though it is proven, for a while now."""
    known = {"synack": True, "flags": KNOWN, "seq": SENT, "ack": TAKEN, "window": WINDOW}
    return forward(**{"flags": PROVEN} | (there or {})), reply(**known | (back or {}))


FIRST = [
    decides("table full: hashed at once, and not to the fallback", "table_full",
            Reason.TABLE_FULL, full(), server=B2, then=(tables_hold(2, 0),)),
    decides("table full a moment ago: hashed at once", "table_full", Reason.TABLE_FULL,
            full(900 * MS), server=B2),
    decides("table full, daemon silent: the same", "table_full", Reason.TABLE_FULL, full(),
            silent, server=B2),
    decides("table full: as an orphan is hashed", "table_full", Reason.TABLE_FULL, full(),
            hash_table(B3, B2), server=B3),
    held("table was full more than a second ago: held again", to_service(OPEN),
         given=(full(1100 * MS),)),
    held("the other family's table is full: held", to_service(OPEN), given=(full_beside,)),
]  # fmt: skip


def _there(**wanted: Any) -> Then:
    return has_pending("FORWARD", forward_key(), **wanted)


def _back(**wanted: Any) -> Then:
    return has_pending("REPLY", reply_key(), **wanted)


def late(name: str, segment: Segment, *then: Then, given: tuple[Given, ...] = (),
         fins: tuple[int, int] = (0, 0)) -> Case:  # fmt: skip
    """The client's segment moves a proven flow into the table."""
    return forwarded(
        f"late: {name}", to_service(segment), to_backend(segment), given=given or proven(),
        counters={"promoted": 1, "promoted_late": 1}, event=promoted_event(seq=segment.seq),
        then=(*then, _there(flags=abi.PENDING_PROMOTED | fins[0]),
              _back(flags=abi.PENDING_SYNACK | abi.PENDING_PROMOTED | fins[1]),
              tables_hold(2, 2)),
    )  # fmt: skip


def stays(name: str, segment: Segment, *then: Then, given: tuple[Given, ...] = (),
          counters: dict[str, int] | None = None) -> Case:  # fmt: skip
    """The client's segment is forwarded, and the flow stays without a place."""
    return forwarded(f"not late: {name}", to_service(segment), to_backend(segment),
                     given=given or proven(), counters=counters or {}, then=then)  # fmt: skip


def _full_still(ago_ns: int = 0) -> tuple[Given, ...]:
    return (*proven(), fill_table(0), full(ago_ns))


LATE = [
    late("both numbers are those that the backend waits for", NEXT,
         has_flow("there", seq_next=TAKEN + 2, ack=SENT, window=CLIENT_WINDOW, packets=2,
                  wscale=CLIENT_SCALE, isn=CLIENT_ISN, flags=0),
         has_flow("back", seq_next=SENT, ack=TAKEN, window=WINDOW, wscale=SERVER_SCALE,
                  isn=SERVER_ISN, flags=0)),
    late("more data than was acknowledged is under way", NEXT.but(seq=TAKEN + 9000),
         has_flow("there", seq_next=TAKEN + 9002)),
    late("more was sent to it than it has acknowledged", NEXT.but(ack=SENT - 4000),
         has_flow("there", ack=SENT - 4000), has_flow("back", seq_next=SENT)),
    late("a FIN", NEXT.but(flags=FIN | ACK), has_flow("there", flags=abi.FLOW_FIN)),
    late("after the client's FIN", NEXT, has_flow("there", flags=abi.FLOW_FIN),
         given=proven(there={"flags": PROVEN | abi.PENDING_FIN}), fins=(abi.PENDING_FIN, 0)),
    late("after the backend's FIN", NEXT, has_flow("back", flags=abi.FLOW_FIN),
         given=proven(back={"flags": KNOWN | abi.PENDING_FIN}), fins=(0, abi.PENDING_FIN)),
    late("full was longer ago than a new try takes", NEXT, given=(*proven(), full(50 * MS))),
    *(stays(name, NEXT.but(**change), tables_hold(2, 0), _there(flags=PROVEN)) for name, change in (
        ("neither number is exact", {"seq": TAKEN + 1, "ack": SENT - 1}),
        ("beyond the backend's window", {"seq": TAKEN + WINDOW + 1}),
        ("all of it was acknowledged", {"seq": TAKEN - 3}),
        ("acknowledges what was never sent", {"ack": SENT + 1}),
        ("acknowledges what was sent ages ago", {"ack": SENT - (1 << 30)}),
        ("no ACK", {"flags": PSH}),
        ("a stale handshake", {"seq": CLIENT_ISN + 1, "ack": SERVER_ISN + 1}),
    )),
    stays("full a moment ago: nobody asks again", NEXT, given=_full_still()),
    stays("full all the same: noted", NEXT, stateless_ahead, given=_full_still(50 * MS),
          counters={"promote_table_full": 1}),
    stays("REPLY was made anew and knows no numbers", NEXT, tables_hold(2, 0),
          given=proven(back={"flags": PROVEN})),
]  # fmt: skip


def hears(name: str, segment: Segment, *then: Then, given: tuple[Given, ...] = (), **rest: Any
          ) -> Case:  # fmt: skip
    """A backend's segment of a proven flow goes to the client."""
    return forwarded(f"proven: {name}", from_backend(segment), to_client(segment),
                     given=given or proven(), at="backend", then=then, **rest)  # fmt: skip


def _elsewhere(world: World) -> None:
    world.change_server(B1, ifindex=world.wires.client)


SAME = _back(seq=SENT, ack=TAKEN, window=WINDOW, flags=KNOWN)
ENDED = (_there(flags=abi.PENDING_CLOSED), _back(flags=abi.PENDING_SYNACK))

FOLLOWED = [
    hears("data is followed", FROM_B1,
          _back(seq=SENT + 6, ack=TAKEN, window=77 << SERVER_SCALE, flags=KNOWN)),
    hears("an acknowledgement is followed", FROM_B1.but(payload=b"", ack=TAKEN + 100),
          _back(seq=SENT, ack=TAKEN + 100)),
    hears("old data changes nothing", FROM_B1.but(seq=SENT - 100, ack=TAKEN - 1), SAME),
    hears("numbers from nowhere change nothing",
          FROM_B1.but(seq=SENT + (1 << 31), ack=TAKEN + (1 << 31)), SAME),
    hears("by another way than the backend's: it says nothing", FROM_B1, SAME,
          given=(*proven(), _elsewhere)),
    hears("FIN", FROM_B1.but(flags=FIN | ACK), _there(flags=PROVEN),
          _back(flags=KNOWN | abi.PENDING_FIN, seq=SENT + 7)),
    hears("FIN after the client's", FROM_B1.but(flags=FIN | ACK),
          _there(flags=abi.PENDING_CLOSED | abi.PENDING_FIN),
          given=proven(there={"flags": PROVEN | abi.PENDING_FIN})),
    hears("RST", FROM_B1.but(flags=RST | ACK), *ENDED),
    hears("RST at another number", FROM_B1.but(flags=RST, seq=SENT + 1), SAME),
    hears("SYN-ACK again", Segment(flags=0x12, seq=SERVER_ISN, ack=CLIENT_ISN + 1, window=9), SAME),
    stays("FIN of the client is noted", NEXT.but(flags=FIN | ACK),
          _there(flags=PROVEN | abi.PENDING_FIN), given=_full_still()),
    stays("FIN of the client beyond the window", NEXT.but(flags=FIN | ACK, seq=TAKEN + WINDOW + 1),
          _there(flags=PROVEN), given=_full_still()),
    stays("FIN after the backend's", NEXT.but(flags=FIN | ACK),
          _there(flags=abi.PENDING_CLOSED | abi.PENDING_FIN),
          given=(*proven(back={"flags": KNOWN | abi.PENDING_FIN}), full())),
    stays("RST of the client ends it", NEXT.but(flags=RST), *ENDED),
    stays("RST of the client at another number", NEXT.but(flags=RST, seq=TAKEN + 1),
          _there(flags=PROVEN)),
    stays("RST at the number that ends a flow without an answer",
          NEXT.but(flags=RST, seq=CLIENT_ISN + 1), _there(flags=PROVEN)),
]  # fmt: skip


def _ends_in(ahead_ns: int) -> Then:
    def look(world: World, started_ns: int) -> None:
        until_ns = world.maps.pressure.stateless_until_ns(0)
        assert (until_ns - started_ns > 0) == (ahead_ns > 0)
        if ahead_ns > 0:
            assert 0 <= until_ns - ahead_ns - started_ns < SECOND

    return look


WINDOW_NS = 50 * SECOND
EXTENDED, UNTOUCHED = _ends_in(WINDOW_NS * 9 // 8), _ends_in(0)


def _answered(reason: Reason) -> tuple[Given, ...]:
    return forward(reason=reason), reply(reason=reason)


def _ahead(world: World, started_ns: int) -> None:
    assert world.maps.pressure.stateless_until_ns(0) == world.now_ns + WINDOW_NS + SECOND


STATELESS = [
    hears("its backend speaks: the service stays stateless", FROM_B1, EXTENDED),
    hears("an orphan's backend speaks: as good as proven", FROM_B1, EXTENDED,
          _there(flags=PROVEN), _back(flags=PROVEN, seq=SENT + 6, ack=TAKEN, window=77),
          given=_answered(Reason.ORPHAN)),
    hears("a flow that was hashed as the table was full is answered", FROM_B1, EXTENDED,
          given=_answered(Reason.TABLE_FULL)),
    hears("an orphan's backend resets it", FROM_B1.but(flags=RST), UNTOUCHED, _there(flags=0),
          given=_answered(Reason.ORPHAN)),
    hears("any other pending flow's backend speaks", FROM_B1, UNTOUCHED,
          given=_answered(Reason.RACE_WON)),
    hears("time enough is left: nothing is written", FROM_B1, _ahead, given=(
          *proven(), lambda world: world.write_pressure(
              stateless_ns=world.now_ns + WINDOW_NS + SECOND))),
]  # fmt: skip


def _shop_owns(world: World) -> None:
    put_flow(world, flow_keys(B1, SHOP)[1], reply_entry(world, B1, service=SHOP))


def _stateless(world: World) -> None:
    world.write_pressure(stateless_ns=world.now_ns + 3600 * SECOND)


def _restored(flags: int = 0) -> Then:
    return _back(flags=flags, isn=0, wscale=abi.NO_WSCALE, packets=0, backend=B1.id)


LOST_REPLY = [
    stays("REPLY was evicted: it is made anew", NEXT, _restored(), tables_hold(2, 0),
          given=(forward(),)),
    stays("REPLY of a proven flow was evicted: as proven as it was", NEXT, _restored(PROVEN),
          given=(forward(flags=PROVEN),)),
    answered("REPLY was evicted, and an established flow has the tuple", to_service(NEXT),
             rst_to_client(SENT, 0, RST), counters={"orphan_reset": 1},
             given=(forward(), _shop_owns), then=(tables_hold(1, 1),)),
    answered("REPLY was evicted, and a pending flow has the tuple", to_service(NEXT),
             rst_to_client(SENT, 0, RST), counters={"orphan_reset": 1},
             given=(forward(), reply(B1, SHOP)), then=(tables_hold(2, 0),)),
    forwarded("REPLY was evicted, another flow has the tuple: hashed while stateless",
              to_service(NEXT), to_backend(NEXT, B2),
              given=(seen(), forward(), reply(B1, SHOP), _stateless),
              counters={"orphan_hashed": 1, "decided_hash": 1},
              then=(_there(backend=B2.id, mode=Mode.HASH, reason=Reason.ORPHAN),
                    tables_hold(3, 0))),
]  # fmt: skip

CASES = [*FIRST, *LATE, *FOLLOWED, *STATELESS, *LOST_REPLY]
