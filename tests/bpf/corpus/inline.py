# SPDX-License-Identifier: Apache-2.0
"""Mode inline: the better of two, by what flows themselves have shown of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.instants import before
from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, Compared, Forwarding, Mode, Reason

from . import direct, fullnat
from .case import NOW, Case, Then, forwarded, tables_hold
from .degrade import HOUR, SELF, down, silent
from .first import OPEN
from .flows import reply
from .picks import BUDGET, BY_FALLBACK, NOBODY_FITS, OF_WEB, datagram, decides, service, told
from .world import (
    B1,
    B2,
    B3,
    MS,
    SECOND,
    SHOP,
    SHOP_B1,
    Given,
    Server,
    World,
    flow_key,
    to_backend,
    to_service,
)

OF_TWO = (Mode.INLINE, Reason.INLINE)
INLINE, TRIED = {"decided_inline": 1}, {"inline_tried": 1}


def among(*servers: Server | None, **change: Any) -> tuple[Given, ...]:
    """A service of mode inline whose hash table names these in turn."""

    def write(world: World) -> None:
        named = [each.id if each else NO_BACKEND for each in servers]
        world.change_hash(tuple(named[slot % len(named)] for slot in range(abi.HASH_SLOTS)))

    return service(mode=Mode.INLINE, **change), write


def load(
    server: Server,
    ewma_ns: int = 0,
    *,
    open_: int = 0,
    old: bool = False,
    waiting_ns: int = 0,
    tried_ns: int = 0,
    aged: int = 0,
) -> Given:
    """What is known of a backend. ``old``: the newest sample is; ``waiting_ns``: for so long;
    ``tried_ns``: so long ago."""

    def write(world: World) -> None:
        world.touch()
        now_ns = world.now_ns
        last_ns = now_ns + (-2 * SECOND if old else HOUR) if ewma_ns else 0
        world.maps.backend_loads.reset(server.id)
        world.maps.backend_loads.write(
            server.id,
            abi.LoadValue(
                ewma_ns=ewma_ns,
                last_ns=last_ns,
                waiting_ns=before(now_ns, waiting_ns) if waiting_ns else 0,
                tried_ns=before(now_ns, tried_ns) if tried_ns else 0,
                opened=max(open_, 0) + aged,
                closed=max(-open_, 0),
            ),
        )
        world.maps.backend_loads.age(server.id, aged)

    return write


def has_load(server: Server, **wanted: Any) -> Then:
    """What the program has written of a backend."""

    def look(world: World, started_ns: int) -> None:
        found = world.maps.backend_loads.read(server.id)
        for name, value in wanted.items():
            have = getattr(found, name)
            assert have >= started_ns if value == NOW else have == value, (name, have, value)

    return look


BOTH = {B2.id, B3.id}


def both(pair: tuple[Compared, ...]) -> bool:
    """B2 and B3 were compared, in the order in which they were drawn."""
    return {each.backend for each in pair} == BOTH


def as_known(**known: tuple[int, int]) -> Callable[[tuple[Compared, ...]], bool]:
    """``B2`` and ``B3``: the wait, in ns to 128 of them, and the open flows that are told."""
    wanted = {"B2": B2.id, "B3": B3.id}

    def look(pair: tuple[Compared, ...]) -> bool:
        found = {each.backend: (each.wait_ns, each.open) for each in pair}
        return found == {
            wanted[name]: (wait_ns & ~127, flows) for name, (wait_ns, flows) in known.items()
        }

    return look


def better(
    name: str,
    *given: Given,
    server: Server = B3,
    more: dict[str, int] | None = None,
    then: tuple[Then, ...] = (),
    compared: Callable[[tuple[Compared, ...]], bool] = both,
) -> Case:
    """Of B2 and B3 it is this one."""
    return decides(f"inline: {name}", OF_TWO, *among(B2, B3), *given, server=server,
                   counters=INLINE | (more or {}), then=then, compared=compared)  # fmt: skip


CHOSEN = [
    better("who answers sooner", load(B2, 2 * MS), load(B3, 1 * MS),
           compared=as_known(B2=(2 * MS, 0), B3=(1 * MS, 0))),
    better("who answers sooner, though it has more flows", load(B2, 20 * MS),
           load(B3, 1 * MS, open_=9), compared=as_known(B2=(20 * MS, 0), B3=(1 * MS, 9))),
    better("who has fewer flows for its answers", load(B2, 1 * MS, open_=9), load(B3, 2 * MS)),
    better("flows that were aged out do not count", load(B3, 1 * MS, open_=0, aged=90),
           load(B2, 2 * MS)),
    better("flows that were counted in excess are none", load(B2, 2 * MS),
           load(B3, 1 * MS, open_=-5)),
    better("who has more weight for its flows", load(B2, 1 * MS, open_=3),
           load(B3, 1 * MS, open_=5), lambda world: world.change_server(B3, weight=2)),
    better("who keeps nobody waiting", load(B2, 1 * MS, waiting_ns=10 * MS), load(B3, 5 * MS)),
    better("a packet that is on its way is no sign", load(B3, 400 * MS, waiting_ns=5 * MS),
           load(B2, 800 * MS)),
    better("who waits for longer than a second is no worse than that",
           load(B2, 1 * MS, waiting_ns=100 * SECOND, open_=1),
           load(B3, 1 * MS, waiting_ns=200 * SECOND),
           compared=as_known(B2=(SECOND, 1), B3=(SECOND, 0))),
    better("a sample that is old, and was just tried again", load(B2, 2 * MS),
           load(B3, 1 * MS, old=True, tried_ns=MS)),
    better("who was never asked: to get a sample", load(B2, 1 * MS), load(B3), more=TRIED,
           then=(has_load(B3, tried_ns=NOW, waiting_ns=NOW),)),
    better("who was never asked is, once a second", load(B2, 1 * MS, open_=1),
           load(B3, tried_ns=MS), compared=as_known(B2=(1 * MS, 1), B3=(0, 0))),
    better("of whom nothing is known counts as the other one", load(B2, 1 * MS),
           load(B3, open_=1, tried_ns=MS), server=B2),
    better("neither is known", load(B2, open_=2, tried_ns=MS), load(B3, open_=1, tried_ns=MS)),
    better("who is asked waits for an answer", load(B2, 2 * MS), load(B3, 1 * MS),
           then=(has_load(B3, waiting_ns=NOW, tried_ns=0), has_load(B2, waiting_ns=0))),
    better("who waits already goes on waiting", load(B2, 20 * MS),
           load(B3, 1 * MS, waiting_ns=MS), then=(
               lambda world, started_ns: has_load(B3, waiting_ns=world.now_ns - MS)(
                   world, started_ns),)),
    *(decides(f"inline: one that {what} is passed over", OF_TWO, *among(B2, B3),
              load(B2, 1 * MS), load(B3, 50 * MS), change, counters=INLINE)
      for what, change in (
          ("is down", down(B2)),
          ("drains", lambda world: world.change_server(
              B2, flags=abi.BACKEND_UP | abi.BACKEND_DRAINING)))),
    decides("inline: a number that is another service's is passed over", OF_TWO,
            *among(SHOP_B1, B3), load(B3, 9 * MS), load(SHOP_B1, 1 * MS), counters=INLINE),
    decides("inline: the only one", OF_TWO, *among(B3), load(B3, MS), counters=INLINE),
    decides("inline: a daemon that is silent is not told", OF_TWO, *among(B3), load(B3, MS),
            silent, counters=INLINE, event=False),
    decides("inline: nobody is usable", (Mode.FALLBACK, Reason.NO_CANDIDATE), *among(B2, B3),
            down(B2), down(B3), server=B1, counters=NOBODY_FITS | BY_FALLBACK),
    decides("inline, over budget", OF_TWO,
            *among(B3, event_interval_ns=HOUR, event_burst_ns=HOUR), load(B3, MS),
            lambda world: world.maps.tokens.fill(OF_WEB, 0, world.now_ns),
            counters=BUDGET | INLINE, event=False, flood=True),
    forwarded("inline: the client itself is passed over", to_service(OPEN, client=SELF),
              to_backend(OPEN, B3, SELF), counters=INLINE,
              given=(*among(B1, B3), load(B1, 1 * MS), load(B3, 9 * MS)),
              event=told(B3, *OF_TWO, key=flow_key(client=SELF))),
    forwarded("inline: the reply tuple of the better one is taken: the other one",
              to_service(OPEN), to_backend(OPEN, B2),
              given=(*among(B2, B3), load(B2, 2 * MS), load(B3, MS), reply(B3, SHOP)),
              counters={"pending_reply_taken": 1} | INLINE,
              event=told(B2, Mode.INLINE, Reason.TUPLE_TAKEN), then=(tables_hold(3, 0),)),
    forwarded("inline: dsr: nobody waits for an answer that is not seen",
              to_service(OPEN), direct.to_b1(OPEN), counters=INLINE, event=told(B1, *OF_TWO),
              given=(direct.by(direct.DSR), *among(B1, forwarding=Forwarding.DSR), load(B1)),
              then=(has_load(B1, waiting_ns=0),)),
    forwarded("inline: fullnat", to_service(OPEN), fullnat.there(OPEN, B3),
              given=(*among(B3, forwarding=Forwarding.FULLNAT), load(B3, MS)), counters=INLINE,
              event=told(B3, *OF_TWO), then=(has_load(B3, waiting_ns=NOW),)),
    datagram("inline: who answers sooner", OF_TWO, *among(B2, B3), load(B2, 2 * MS),
             load(B3, MS), counters=INLINE, then=(has_load(B3, waiting_ns=NOW),), compared=both),
]  # fmt: skip

CASES = CHOSEN
