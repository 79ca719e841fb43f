# SPDX-License-Identifier: Apache-2.0
"""Floods of datagrams, and of what gets a port of ours: in flood_flows, as those of SYNs."""

from __future__ import annotations

import dataclasses

from xdp_router.core import abi
from xdp_router.core.model import Forwarding, Mode, Reason

from . import fullnat, udp, udp_bound
from .budget import spend
from .case import NOW, Case, forwarded, tables_hold
from .degrade import full_ring, hash_table, silent
from .first import OPEN
from .flood import flooded
from .flows import put_pending, seen_value
from .udp import FRAME, HELLO, first
from .udp_flows import (
    answer,
    answered,
    asked,
    forward,
    has_forward,
    has_reply,
    reply,
    seen,
    service,
)
from .world import B2, B3, SECOND, World, flow_key, to_service

SPENT = spend(abi.TOKENS_EVENTS)
HOUR = 3600 * SECOND
OVER = {"budget_global": 1, "decided_hash": 1, "flood_entry": 1}


def _moved(case: Case) -> Case:
    return dataclasses.replace(case, name=f"of a flood: {case.name}", given=(*case.given, flooded))


def _is_of_entries(case: Case) -> bool:
    """Whether a case is about pending entries that a flood may have made."""
    return ", pending" in case.name or case in (*udp_bound.PENDING, *udp_bound.PROMOTED)


MOVED = [
    _moved(case)
    for case in (*udp_bound.CASES, *udp.REINJECTED, *fullnat.REST, *fullnat.PACKETS)
    if "evicted" not in case.name
    and "refused" not in case.name
    and "decision is gone" not in case.name
    and "as does its REPLY" not in case.name  # a port rests in pending_flows, where no flood is
    and (case not in udp_bound.CASES or _is_of_entries(case))
]


def only_ours(world: World) -> None:
    """Of the flows of the case those in ``flood_flows`` count for themselves."""
    flooded(world)
    world.flooded = False


def honest(world: World) -> None:
    """A packet of another client is held."""
    key = abi.pack_flow_key(flow_key(client=fullnat.STRANGER), abi.Kind.SEEN)
    put_pending(world, key, seen_value(world))


def nearly_over(world: World) -> None:
    """The flood is over, but for handshakes that it has begun."""
    world.write_pressure(flood_ns=world.now_ns + 60 * SECOND)


def looked_for(world: World, started_ns: int) -> None:
    """From now on, for as long as a flow of UDP may be silent."""
    ahead_ns = abi.unpack_pressure(world.pressure())[1] - started_ns
    assert ahead_ns >= world.control().udp_idle_ns


# --- datagrams --------------------------------------------------------------------------------

BY_HASH = has_forward(backend=B2.id, mode=Mode.HASH, reason=Reason.BUDGET)
DATAGRAMS = [
    forwarded("UDP: over budget: what honest clients have in pending_flows stays", FRAME,
              asked(HELLO, B2), given=(service(), SPENT, honest),
              counters=OVER, then=(BY_HASH, tables_hold(1, 0, flood=2))),
    forwarded("UDP: over budget, and no room in the ring", FRAME, asked(HELLO, B2),
              given=(service(), full_ring), then=(tables_hold(0, 0, flood=2),),
              counters={"ring_full": 1, "decided_hash": 1, "flood_entry": 1}),
    forwarded("UDP, of a flood: one that comes behind those that are held goes at once", FRAME,
              asked(HELLO), given=(service(), seen(2), reply(), forward(packets=1), only_ours),
              then=(has_forward(packets=2), tables_hold(1, 0, flood=2))),
    forwarded("UDP, of a flood: an answer", answer(HELLO), answered(HELLO), at="backend",
              given=(service(), reply(), forward(), only_ours),
              then=(has_reply(packets=1), tables_hold(0, 0, flood=2))),
    forwarded("UDP, of a flood: REPLY was evicted: it comes back, and the flow stays where it is",
              FRAME, asked(HELLO), given=(service(), forward(), only_ours),
              then=(has_reply(packets=0, last_seen_ns=NOW), tables_hold(0, 0, flood=2))),
    first("of a flood: the reply tuple is another flow's by now",
          given=(service(), forward(), reply(new_saddr=1), only_ours),
          then=(tables_hold(1, 0, flood=1),)),
    first("of a flood: it was idle for its time", then=(tables_hold(1, 0),),
          given=(service(), reply(idle_ns=HOUR), forward(idle_ns=HOUR), only_ours)),
    first("of a flood that is long over: nobody looks there",
          given=(service(), reply(), forward(), only_ours,
                 lambda world: world.write_pressure()), then=(tables_hold(1, 0, flood=2),)),
    forwarded("UDP, of a flood: it is looked for as long as it may last", FRAME, asked(HELLO),
              given=(service(), reply(), forward(), only_ours, nearly_over),
              then=(looked_for,)),
    forwarded("UDP, of a flood: nor is it lost while its backend alone speaks", answer(HELLO),
              answered(HELLO), at="backend",
              given=(service(), reply(), forward(), only_ours, nearly_over), then=(looked_for,)),
]  # fmt: skip

# --- ports of ours ----------------------------------------------------------------------------

OVER_WEB = {"budget_global": 1, "decided_hash": 1, "flood_entry": 1}
STRANGERS = fullnat.reply(client=fullnat.STRANGER, server=B2)
TAKEN = fullnat.EXHAUSTED | OVER_WEB
PORTS = [
    forwarded("fullnat, over budget: what honest clients have in pending_flows stays",
              to_service(OPEN), fullnat.there(OPEN, B2), given=(fullnat.fullnat, SPENT, honest),
              counters=OVER_WEB,
              then=(*fullnat.bound(Mode.HASH, Reason.BUDGET, B2), tables_hold(1, 0, flood=2))),
    forwarded("fullnat, over budget: a port is taken in pending_flows: next backend",
              to_service(OPEN), fullnat.there(OPEN, B3),
              given=(fullnat.fullnat, SPENT, hash_table(B2, B3), STRANGERS), counters=TAKEN,
              then=(*fullnat.bound(Mode.HASH, Reason.BUDGET, B3), tables_hold(1, 0, flood=2))),
    forwarded("fullnat, over budget: a port is taken in flood_flows: next backend",
              to_service(OPEN), fullnat.there(OPEN, B3),
              given=(fullnat.fullnat, SPENT, hash_table(B2, B3), STRANGERS, only_ours),
              counters=TAKEN, then=(tables_hold(0, 0, flood=3),)),
    forwarded("fullnat: a port is taken by a flood's flow: next backend", to_service(OPEN),
              fullnat.there(OPEN, B2),
              given=(fullnat.fullnat, silent, fullnat.reply(client=fullnat.STRANGER), only_ours),
              counters=fullnat.STALE | fullnat.EXHAUSTED | {"decided_hash": 1},
              then=(*fullnat.bound(Mode.HASH, Reason.NO_HEARTBEAT, B2),
                    tables_hold(2, 0, flood=1))),
    forwarded("fullnat: UDP over budget", FRAME, HELLO.but(ttl=63).frame(
                  fullnat.OURS, B2.end, B2.hop),
              given=(service(forwarding=Forwarding.FULLNAT), SPENT), counters=OVER,
              then=(tables_hold(0, 0, flood=2),
                    has_forward(backend=B2.id, new_sport=fullnat.OURS.port,
                                flags=abi.PENDING_FULLNAT))),
]  # fmt: skip

CASES = [*MOVED, *DATAGRAMS, *PORTS]
