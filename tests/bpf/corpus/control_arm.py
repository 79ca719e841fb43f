# SPDX-License-Identifier: Apache-2.0
"""The control arm in modes of XDP's own: in turns, or by hash, whatever was measured."""

from __future__ import annotations

from typing import Any

from tests.support.frames import ACK, RST
from xdp_router.core import abi
from xdp_router.core.model import Forwarding, Mode, Reason

from . import fullnat
from .case import answered, forwarded, tables_hold
from .degrade import HOUR, SELF, down, hash_table, rst_to_client, silent
from .first import OPEN, held
from .flows import reply
from .full import full
from .inline import among, has_load, load
from .picks import (
    AGE,
    BUDGET,
    BY_FALLBACK,
    BY_HASH,
    FROM_TABLE,
    NOBODY_FITS,
    OF_WEB,
    PICKED,
    SNAPSHOT,
    datagram,
    decides,
    service,
    table,
    told,
)
from .wide import affine, usage
from .world import (
    B1,
    B2,
    B3,
    CLIENT_ISN,
    MS,
    SHOP,
    Given,
    Server,
    World,
    flow_key,
    to_backend,
    to_service,
)

ALL = 100
"""Percent: more than a configuration may say, so that every flow is in the arm."""
BY = {"hash": (Mode.HASH, Reason.CONTROL_ARM), "turns": (Mode.ROUND_ROBIN, Reason.CONTROL_ARM)}
ARM = {"decided_control_arm": 1}
TAKEN = {"pending_reply_taken": 1}


def arm(by: str = "hash", **change: Any) -> Given:
    """A service of mode snapshot, of whose flows all are in the control arm."""
    return service(**SNAPSHOT | {"control_arm": ALL, "control_arm_by": BY[by][0]} | change)


def everywhere(server: Server) -> Given:
    """Each slot of the hash table is one backend's."""
    return lambda world: world.change_hash((server.id,) * abi.HASH_SLOTS)


def by_turns(server: Server) -> Given:
    """It has half of the slots, B3 the others: of two steps one leads to B3."""
    return lambda world: world.change_hash(
        tuple(B3.id if slot % 2 else server.id for slot in range(abi.HASH_SLOTS))
    )


def spent(world: World) -> None:
    """Not one event is left."""
    world.maps.tokens.fill(OF_WEB, 0, world.now_ns)


PRICE: dict[str, Any] = {"event_interval_ns": HOUR, "event_burst_ns": HOUR}

CASES = [
    decides("control arm: by hash, whoever is the best", BY["hash"], arm(), table(B2),
            hash_table(B3), counters=ARM),
    decides("control arm: in turns", BY["turns"], arm("turns"), table(B2), everywhere(B3),
            counters=ARM),
    decides("control arm: with a share of 0 there is none", FROM_TABLE, arm(control_arm=0),
            table(B3), hash_table(B2), counters=PICKED),
    decides("control arm: of mode inline, which learns from it", BY["turns"],
            arm("turns", mode=Mode.INLINE), everywhere(B3), load(B3, 900 * MS), counters=ARM,
            then=(has_load(B3, tried_ns=0),)),
    decides("control arm: of mode inline, by hash", BY["hash"], *among(B2),
            arm(mode=Mode.INLINE), hash_table(B3), load(B3, 900 * MS), counters=ARM),
    decides("control arm: a table that is too old is not looked at", BY["hash"], arm(),
            table(B2, ago_ns=AGE + MS), hash_table(B3), counters=ARM),
    decides("control arm: without a daemon", BY["hash"], arm(), table(B2), hash_table(B3), silent,
            counters=ARM, event=False),
    *(decides(f"control arm, {by}: a slot whose backend cannot have it", how, arm(by), table(B1),
              given, down(B2), counters=ARM)
      for by, how, given in (
          ("hash", BY["hash"], hash_table(B2, B3)),
          ("turns", BY["turns"], by_turns(B2)))),
    decides("control arm: nobody that its slots name is up", (Mode.FALLBACK, Reason.NO_CANDIDATE),
            arm(), table(B3), hash_table(B2, B2, B2, B2), down(B2), server=B1,
            counters=NOBODY_FITS | BY_FALLBACK),
    answered("control arm: nobody is up", to_service(OPEN),
             rst_to_client(0, CLIENT_ISN + 1, RST | ACK),
             given=(arm(), table(B3), hash_table(), down(B1), down(B3)),
             counters=NOBODY_FITS | {"refused_no_backend": 1}, then=(tables_hold(0, 0),)),
    forwarded("control arm: the client itself is passed over", to_service(OPEN, client=SELF),
              to_backend(OPEN, B3, SELF), given=(arm("turns"), table(B1), by_turns(B1)),
              counters=ARM, event=told(B3, *BY["turns"], key=flow_key(client=SELF))),
    forwarded("control arm: the reply tuple is taken there: the next slot", to_service(OPEN),
              to_backend(OPEN, B2), given=(arm(), table(B1), hash_table(B3, B2), reply(B3, SHOP)),
              counters=TAKEN | ARM, event=told(B2, Mode.HASH, Reason.TUPLE_TAKEN),
              then=(tables_hold(3, 0),)),
    forwarded("control arm: the reply tuple is taken, and nobody else has a slot",
              to_service(OPEN), to_backend(OPEN, B1),
              given=(arm(), table(B2), everywhere(B3), reply(B3, SHOP)),
              counters=TAKEN | NOBODY_FITS | BY_FALLBACK,
              event=told(B1, Mode.FALLBACK, Reason.TUPLE_TAKEN), then=(tables_hold(3, 0),)),
    forwarded("control arm: fullnat", to_service(OPEN), fullnat.there(OPEN, B3),
              given=(arm("turns", forwarding=Forwarding.FULLNAT), table(B2), everywhere(B3)),
              counters=ARM, event=told(B3, *BY["turns"]), then=fullnat.bound(*BY["turns"], B3)),
    forwarded("control arm: fullnat, no port is free there: the next slot", to_service(OPEN),
              fullnat.there(OPEN, B2),
              given=(arm(forwarding=Forwarding.FULLNAT), table(B1), hash_table(B3, B2),
                     fullnat.reply(client=fullnat.STRANGER, server=B3)),
              counters=fullnat.EXHAUSTED | ARM, event=told(B2, Mode.HASH, Reason.TUPLE_TAKEN),
              then=(tables_hold(3, 0),)),
    decides("control arm: where the source's flows go", (Mode.STICKY, Reason.AFFINITY),
            table(B3), hash_table(B1), affine(B2, **SNAPSHOT, control_arm=ALL), server=B2,
            counters={"affinity_used": 1}),
    decides("control arm: the table of flows is full", (Mode.HASH, Reason.TABLE_FULL), arm("turns"),
            table(B1), hash_table(B3), full(), counters={"table_full": 1} | BY_HASH, event=False),
    decides("control arm, over budget: all the same, and the daemon is not told", BY["hash"],
            arm(**PRICE), table(B2), hash_table(B3), spent, counters=BUDGET | ARM, event=False,
            flood=True),
    forwarded("control arm, over budget, stateless: hashed", to_service(OPEN),
              to_backend(OPEN, B3), given=(arm("turns", flags=abi.SERVICE_STATELESS, **PRICE),
                                           table(B2), hash_table(B3), spent),
              counters=BUDGET | {"stateless_forwarded": 1}, then=(tables_hold(0, 0),)),
    answered("control arm: as many flows as the service may have", to_service(OPEN),
             rst_to_client(0, CLIENT_ISN + 1, RST | ACK),
             given=(arm(flow_limit=10), table(B3), usage(10)),
             counters={"flow_limit_reached": 1}, then=(tables_hold(0, 0),)),
    held("control arm: with mode race it is the daemon's", to_service(OPEN),
         given=(service(control_arm=ALL), hash_table(B3))),
    datagram("control arm, in turns", BY["turns"], arm("turns"), table(B2), everywhere(B3),
             counters=ARM),
]  # fmt: skip
