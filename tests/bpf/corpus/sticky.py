# SPDX-License-Identifier: Apache-2.0
"""Flows that have a backend before anybody is asked, where a budget, ports or that one say no."""

from __future__ import annotations

from typing import Any

from tests.support.frames import End
from xdp_router.core import abi
from xdp_router.core.model import Forwarding, Mode, Reason

from . import fullnat
from .budget import spend
from .case import Then, forwarded, has_pending, tables_hold
from .degrade import HOUR, bound, down
from .first import OPEN
from .quic import HELLO, OTHER_PORT, QUIC, connection, forgotten, is_noted, known
from .udp_flows import ask, asked, forward, has_forward, reply, seen, service
from .wide import affine
from .world import (
    B1,
    B2,
    B3,
    SECOND,
    SHOP_B1,
    Given,
    Server,
    World,
    flow_key,
    to_backend,
    to_service,
)

OF_WEB = abi.TOKENS_SERVICE
PRICED: dict[str, Any] = {"event_interval_ns": HOUR, "event_burst_ns": 2 * HOUR}
"""A service's limits: an event an hour."""


def credit(left_ns: int) -> Given:
    """What the service has left of them."""
    return lambda world: world.maps.tokens.fill(OF_WEB, left_ns, world.now_ns)


def still_known(server: Server) -> Then:
    """Nobody has taken the connection away."""

    def look(world: World, _started_ns: int) -> None:
        assert connection(world) == server.id

    return look


def binding(client: End, server: Server, mode: Mode, reason: Reason) -> Then:
    """FORWARD of a client, as XDP decided."""
    key = abi.pack_flow_key(flow_key(client=client), abi.Kind.FORWARD)
    return has_pending("FORWARD", key, backend=server.id, mode=mode, reason=reason)


def paid(world: World, _started_ns: int) -> None:
    """One CPU has spent the service's credit."""
    assert sum(left_ns < 60 * SECOND for left_ns, _, _ in world.buckets(OF_WEB)) == 1


OVER_ALL = {"budget_global": 1, "decided_hash": 1, "flood_entry": 1}
OVER = {"budget_service": 1, "decided_hash": 1, "flood_entry": 1}
PRICED_QUIC = (service(flags=abi.SERVICE_QUIC, **PRICED), forgotten, known(B3))
BY_HASH = has_forward(OTHER_PORT, backend=B2.id, mode=Mode.HASH, reason=Reason.BUDGET)
BUDGETS = [
    forwarded("affinity: over budget a source is hashed as any other", to_service(OPEN),
              to_backend(OPEN, B2), given=(affine(B3, **PRICED), credit(0)), counters=OVER,
              then=(*bound(B2, Mode.HASH, Reason.BUDGET), tables_hold(0, 0, flood=2))),
    forwarded("affinity: a flow costs what an event does", to_service(OPEN),
              to_backend(OPEN, B3), given=(affine(B3, **PRICED), credit(HOUR)),
              counters={"affinity_used": 1},
              then=(*bound(B3, Mode.STICKY, Reason.AFFINITY), paid)),
    forwarded("affinity: over the budget of all", to_service(OPEN), to_backend(OPEN, B2),
              given=(affine(B3), spend(abi.TOKENS_EVENTS)), counters=OVER_ALL,
              then=bound(B2, Mode.HASH, Reason.BUDGET)),
    forwarded("QUIC, moved: over budget it is hashed as any other", ask(HELLO, OTHER_PORT),
              asked(HELLO, B2, OTHER_PORT), given=(*PRICED_QUIC, credit(0)), counters=OVER,
              then=(BY_HASH, tables_hold(0, 0, flood=2), still_known(B3))),
    forwarded("QUIC, moved: it costs what an event does", ask(HELLO, OTHER_PORT),
              asked(HELLO, B3, OTHER_PORT), given=(*PRICED_QUIC, credit(HOUR)),
              counters={"connection_id_known": 1}, then=(is_noted(B3), paid)),
]  # fmt: skip

# --- with a port of ours ----------------------------------------------------------------------

NATTED: dict[str, Any] = {"forwarding": Forwarding.FULLNAT}
PORTS = [
    forwarded("fullnat: where the source's flows go", to_service(OPEN), fullnat.there(OPEN, B2),
              given=(affine(B2, **NATTED),), counters={"affinity_used": 1},
              then=(*fullnat.bound(Mode.STICKY, Reason.AFFINITY, B2), tables_hold(2, 0))),
    forwarded("fullnat: no port is free where the source's flows go: the next one",
              to_service(OPEN), fullnat.there(OPEN),
              given=(affine(B2, **NATTED), fullnat.reply(client=fullnat.STRANGER, server=B2)),
              counters=fullnat.EXHAUSTED | {"decided_fallback": 1},
              then=(*fullnat.bound(Mode.FALLBACK, Reason.TUPLE_TAKEN), tables_hold(3, 0))),
]  # fmt: skip

# --- it cannot have the flow ------------------------------------------------------------------

ITSELF = End(B3.end.addr, 40000)
LOST = [
    forwarded("affinity: the source is that backend itself: the next one, and that is told",
              to_service(OPEN, client=ITSELF), to_backend(OPEN, B1, ITSELF),
              given=(affine(B3, source=ITSELF),),
              counters={"client_is_backend": 1, "decided_fallback": 1},
              then=(binding(ITSELF, B1, Mode.FALLBACK, Reason.STICKY_LOST),)),
    forwarded("affinity: neither it nor the fallback: by hash, and that is told",
              to_service(OPEN, client=ITSELF), to_backend(OPEN, B2, ITSELF),
              given=(affine(B3, source=ITSELF), down(B1)),
              counters={"client_is_backend": 1, "decided_hash": 1},
              then=(binding(ITSELF, B2, Mode.HASH, Reason.STICKY_LOST),)),
    forwarded("QUIC, moved: to that backend itself: the next one, and that is told",
              ask(HELLO, ITSELF), asked(HELLO, B1, ITSELF), given=(*QUIC, known(B3)),
              counters={"client_is_backend": 1, "decided_fallback": 1},
              then=(has_forward(ITSELF, backend=B1.id, mode=Mode.FALLBACK,
                                reason=Reason.STICKY_LOST), still_known(B3))),
]  # fmt: skip

# --- numbers that are another one's by now ------------------------------------------------------

RENUMBERED = [
    forwarded("QUIC: a flow whose backend's number is another service's by now notes nothing",
              ask(HELLO), asked(HELLO), then=(is_noted(None),),
              given=(*QUIC, seen(0), reply(packets=0), forward(packets=0),
                     lambda world: world.change_server(B1, service=SHOP_B1.service))),
]  # fmt: skip

CASES = [*BUDGETS, *PORTS, *LOST, *RENUMBERED]
