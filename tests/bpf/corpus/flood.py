# SPDX-License-Identifier: Apache-2.0
"""Flows of a flood are in ``flood_flows``; all that holds for pending ones holds for them, too."""

from __future__ import annotations

import dataclasses

from tests.support.frames import ACK, PSH, Segment
from tests.support.program import DROP
from xdp_router.core import abi
from xdp_router.core.model import Mode, Reason

from . import handshake, icmp, isn, restart
from .budget import spend
from .case import Case, Then, forwarded, has_pending, tables_hold
from .degrade import SYN_FRAME, TAKEN, UP_AND_SHARED, fallback_is, hash_table
from .first import OPEN, first_event
from .flows import forward, forward_key, reply, reply_key
from .orphans import DATA
from .world import B1, B2, B3, SECOND, SHOP, Given, Server, World, to_backend, to_service

SPENT = spend(abi.TOKENS_SERVICE)


def flooded(world: World) -> None:
    """The flows of the case are of a flood."""
    world.move_to_flood()


def _has_pending(case: Case) -> bool:
    """Whether a case is about a pending flow that a flood may have made."""
    return not case.mark and bool(case.given) and "evicted" not in case.name


MOVED = [
    dataclasses.replace(case, name=f"of a flood: {case.name}", given=(*case.given, flooded))
    for case in [*handshake.CASES, *isn.CASES, *icmp.CASES, *restart.CASES]
    if _has_pending(case)
]


def _looked_into(world: World, started_ns: int) -> None:
    """From now on, for as long as a handshake may take."""
    window_ns = world.control().pending_idle_ns * 9 // 8
    until_ns = abi.unpack_pressure(world.pressure())[1]
    assert 0 <= until_ns - window_ns - started_ns < SECOND


def _lately(ahead_ns: int) -> Given:
    return lambda world: world.write_pressure(
        stateless_ns=world.now_ns + 3600 * SECOND, flood_ns=world.now_ns + ahead_ns
    )


def left(server: Server) -> Given:
    """What an earlier flood has left of a client that comes again: a decision for ``server``."""

    def write(world: World) -> None:
        forward(server, isn=OPEN.seq - 1, reason=Reason.BUDGET)(world)
        reply(server)(world)
        world.move_to_flood()
        world.flooded = False
        world.write_pressure(flood_ns=1)

    return write


def _shared(*servers: Server) -> Given:
    def write(world: World) -> None:
        for server in servers:
            world.change_server(server, flags=UP_AND_SHARED)

    return write


def _over(name: str, *given: Given, counters: dict[str, int] | None = None,
          then: tuple[Then, ...] = ()) -> Case:  # fmt: skip
    return forwarded(name, SYN_FRAME, to_backend(OPEN, B2), given=given,
                     counters={"budget_service": 1, "decided_hash": 1, "flood_entry": 1}
                     | (counters or {}), then=then)  # fmt: skip


OWN = [
    _over("over budget: flood_flows is looked into from now on", SPENT, then=(_looked_into,)),
    _over("over budget: what honest clients have in pending_flows stays", SPENT,
          reply(B1, SHOP), then=(tables_hold(1, 0, flood=2),)),
    _over("over budget: what an earlier flood has left does not come to light", SPENT, left(B3),
          then=(tables_hold(0, 0, flood=3),
                has_pending("FORWARD", forward_key(), backend=B2.id, isn=OPEN.seq))),
    _over("over budget: another service's pending flow has the reply tuple",
          SPENT, hash_table(B1, B2), TAKEN, _shared(B1), counters={"pending_reply_taken": 1},
          then=(tables_hold(1, 0, flood=2),)),
    Case(name="a flow of a flood that is over is not looked for", frame=SYN_FRAME,
         verdict=DROP, counters={"first_packet": 1},
         given=(forward(), reply(), flooded, lambda world: world.write_pressure()),
         event=first_event(SYN_FRAME)),
    forwarded("an orphan while there is a flood has its entries there", to_service(DATA),
              to_backend(DATA, B2), given=(_lately(SECOND),),
              counters={"orphan_hashed": 1, "decided_hash": 1, "flood_entry": 1},
              then=(tables_hold(0, 0, flood=2),
                    has_pending("FORWARD", forward_key(), reason=Reason.ORPHAN))),
    forwarded("REPLY was evicted by the flood: it comes back to where FORWARD is",
              to_service(Segment(flags=PSH | ACK, seq=DATA.seq, ack=1, payload=b"x")),
              to_backend(Segment(flags=PSH | ACK, seq=DATA.seq, ack=1, payload=b"x")),
              given=(forward(mode=Mode.HASH, reason=Reason.BUDGET), flooded,
                     lambda world: setattr(world, "flooded", False)),
              then=(tables_hold(0, 0, flood=2), has_pending("REPLY", reply_key(), backend=B1.id))),
]  # fmt: skip

TAKES_FLOODS = [
    forwarded("daemon silent: a flow of a flood of another service has the reply tuple",
              SYN_FRAME, to_backend(OPEN, B3),
              given=(lambda world: world.change_control(heartbeat_ns=0, heartbeat_stale_ns=1),
                     fallback_is(None), hash_table(B1, B3), TAKEN, _shared(B1), flooded,
                     lambda world: setattr(world, "flooded", False)),
              counters={"heartbeat_stale": 1, "decided_hash": 1, "pending_reply_taken": 1},
              then=(tables_hold(2, 0, flood=1),)),
]  # fmt: skip

CASES = [*MOVED, *OWN, *TAKES_FLOODS]
