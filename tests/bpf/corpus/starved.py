# SPDX-License-Identifier: Apache-2.0
"""When the kernel has no memory for an entry of ``pending_flows`` or ``fragments``.

An LRU hash gives the oldest entry away and fails only in the rarest of moments. These cases run
over a plain hash with room for one entry, which fails when it is full.
"""

from __future__ import annotations

from tests.support.program import DROP

from .bound import FLOW
from .case import Case, answered, forwarded, tables_hold
from .degrade import overdue, refusal, silent
from .first import OPEN
from .flows import put_pending, reply_key, reply_value
from .fragments import LONG, cut
from .world import B3, World, to_backend, to_service


def full(world: World) -> None:
    """Another flow's entry takes the only place."""
    put_pending(world, reply_key(B3), reply_value(world, B3))


def noted_else(world: World) -> None:
    """Another datagram's fragment takes the only place."""
    world.run(cut(to_service(LONG.but(ident=99)))[0])


FRAGMENT = cut(to_service(LONG))[0], cut(to_backend(LONG))[0]
FAILED = {"pending_insert_failed": 1}

CASES = [
    Case(name="no memory for SEEN", frame=to_service(OPEN), verdict=DROP, counters=FAILED,
         given=(full,), then=(tables_hold(1, 0),)),
    answered("no memory for REPLY", to_service(OPEN), refusal(OPEN), given=(full, silent),
             counters={"heartbeat_stale": 1, "refused_no_backend": 1} | FAILED,
             then=(tables_hold(1, 0),)),
    answered("no memory for FORWARD: REPLY is taken back", to_service(OPEN), refusal(OPEN),
             given=(silent,), counters={"heartbeat_stale": 1, "refused_no_backend": 1} | FAILED,
             then=(tables_hold(0, 0),)),
    answered("no memory for a decision at the deadline: SEEN goes, too", to_service(OPEN),
             refusal(OPEN), given=(overdue,),
             counters={"deadline_passed": 1, "refused_no_backend": 1} | FAILED,
             then=(tables_hold(0, 0),)),
    forwarded("no memory for a fragment: it goes its way", *FRAGMENT, given=(*FLOW, noted_else),
              counters={"fragments_full": 1}),
]  # fmt: skip
