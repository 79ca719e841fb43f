# SPDX-License-Identifier: Apache-2.0
"""Two services share a backend, a client uses one port for both: whose flow is over gives way."""

from __future__ import annotations

from typing import Any

from tests.support.frames import Segment
from xdp_router.core import abi
from xdp_router.core.model import Reason

from .case import Case, Then, answered, forwarded, has_pending, tables_hold
from .degrade import decides, hash_table, refusal, silent
from .first import OPEN, given_up_unattended
from .flows import (
    flow_keys,
    forward_entry,
    forward_key,
    forward_value,
    put_flow,
    put_pending,
    reply_entry,
    reply_key,
    reply_value,
    seen_key,
    seen_value,
)
from .isn import CLOSING, flows_idle, flows_idle_unattended
from .world import (
    B1,
    B2,
    SHOP,
    SHOP_B1,
    Given,
    World,
    from_backend,
    to_backend,
    to_client,
    to_service,
)

STALE = ("heartbeat_stale", Reason.NO_HEARTBEAT, silent)
ALONE = hash_table()
"""B1, the fallback, is all that the service has."""


def theirs(
    there: dict[str, Any] | None = None, back: dict[str, Any] | None = None, *, alone: bool = False
) -> Given:
    """The same client's established flow with the other service, on B1, from the same port."""

    def put(world: World) -> None:
        keys = flow_keys(SHOP_B1, SHOP)
        put_flow(world, keys[1], reply_entry(world, SHOP_B1, service=SHOP, **(back or {})))
        if not alone:
            put_flow(world, keys[0], forward_entry(world, SHOP_B1, service=SHOP, **(there or {})))

    return put


def theirs_pending(*kinds: str, **change: Any) -> Given:
    """Such entries of a pending flow of theirs."""

    def put(world: World) -> None:
        if "SEEN" in kinds:
            put_pending(world, seen_key(SHOP), seen_value(world, service=1))
        if "FORWARD" in kinds:
            value = forward_value(world, SHOP_B1, **change)
            put_pending(world, forward_key(SHOP), value)
        if "REPLY" in kinds:
            put_pending(world, reply_key(SHOP_B1), reply_value(world, SHOP_B1, SHOP))

    return put


ALL = ("SEEN", "FORWARD", "REPLY")
OVER = theirs(CLOSING, CLOSING)


def takes(name: str, *given: Given, pending: int = 2, **rest: Any) -> Case:
    """XDP gives B1 to the flow, and nothing of the other one is left."""
    return decides(f"taken over: {name}", *STALE, ALONE, *given,
                   extra={"pending_reply_taken": 1, "reply_tuple_freed": 1},
                   then=(tables_hold(pending, 0), *rest.pop("then", ())), **rest)  # fmt: skip


def keeps(name: str, *given: Given, entries: tuple[int, int], stale: Given = silent) -> Case:
    """The other flow lives: this one has nobody."""
    return answered(f"not taken over: {name}", to_service(OPEN), refusal(OPEN),
                    given=(stale, ALONE, *given), then=(tables_hold(*entries),),
                    counters={"heartbeat_stale": 1, "pending_reply_taken": 1,
                              "refused_no_backend": 1})  # fmt: skip


def shared(world: World) -> None:
    """XDP looks for established flows only where two services have one backend."""
    world.change_server(B1, flags=abi.BACKEND_UP | abi.BACKEND_SHARED)


def _idle_attended(world: World) -> None:
    """Established flows are idle by now; the daemon lives, and XDP decides for want of room."""
    flows_idle(world)
    world.write_pressure(full_ns=world.now_ns)
    hash_table(B1)(world)


def _on_b2(world: World) -> None:
    put_pending(world, forward_key(SHOP), forward_value(world, B2, backend=B2.id, service=1))


TAKES = [
    takes("an established flow that is closing", shared, OVER),
    takes("a closing flow with its pending entries", shared, OVER, theirs_pending(*ALL)),
    takes("half a closing flow", shared, theirs(back=CLOSING, alone=True)),
    takes("a pending flow that was refused", shared,
          theirs_pending(*ALL, flags=abi.PENDING_CLOSED)),
    takes("an idle pending flow", theirs_pending(*ALL), given_up_unattended),
    takes("REPLY without a FORWARD", theirs_pending("REPLY")),
    takes("REPLY without a FORWARD; a first packet that is held since stays",
          theirs_pending("REPLY", "SEEN"), pending=3),
    takes("REPLY whose flow is on another backend by now", theirs_pending("REPLY"), _on_b2,
          pending=3, then=(has_pending("FORWARD", forward_key(SHOP), backend=B2.id),)),
    forwarded("taken over: an established flow that is idle", to_service(OPEN), to_backend(OPEN),
              given=(shared, theirs(), _idle_attended), then=(tables_hold(2, 0),),
              counters={"table_full": 1, "pending_reply_taken": 1, "reply_tuple_freed": 1,
                        "decided_hash": 1}),
    decides("a free backend is better than one to take over", *STALE, shared, OVER, server=B2,
            extra={"pending_reply_taken": 1}, then=(tables_hold(2, 2),)),
]  # fmt: skip

KEEPS = [
    keeps("an established flow", shared, theirs(), entries=(0, 2)),
    keeps("an established flow with its pending entries", shared, theirs(), theirs_pending(*ALL),
          entries=(3, 2)),
    keeps("an idle flow while the daemon is silent: no time to go by", shared, theirs(),
          entries=(0, 2), stale=flows_idle_unattended),
    keeps("a pending flow", theirs_pending(*ALL), entries=(3, 0)),
    keeps("a proven flow is not over as soon as a pending one",
          theirs_pending(*ALL, flags=abi.PENDING_PROVEN), entries=(3, 0),
          stale=given_up_unattended),
]  # fmt: skip


def _reply_of_another_backend(*then: Then) -> Case:
    """REPLY is a stray: the flow it names is bound to another backend."""
    segment = Segment(flags=0x12, seq=77, ack=1_000_000_001)
    return forwarded("SYN-ACK by a backend that the flow left says nothing about it",
                     from_backend(segment), to_client(segment), at="backend",
                     given=(_stray,), then=then)  # fmt: skip


def _stray(world: World) -> None:
    put_pending(world, forward_key(), forward_value(world, B2))
    put_pending(world, reply_key(), reply_value(world))


STRAY = [
    _reply_of_another_backend(has_pending("REPLY", reply_key(), isn=0, flags=0),
                              has_pending("FORWARD", forward_key(), flags=0)),
]  # fmt: skip

CASES = [*TAKES, *KEEPS, *STRAY]
