# SPDX-License-Identifier: Apache-2.0
"""Mode snapshot: decided in the packet's own pass, by the newest table of measurements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.frames import ACK, RST, End
from tests.support.instants import before
from tests.support.program import DROP
from xdp_router.core import abi
from xdp_router.core.flow_hash import choice_hash
from xdp_router.core.model import NO_BACKEND, Compared, Forwarding, Mode, Reason

from . import direct, fullnat, udp_flows
from .budget import deep, prefix
from .case import NOW, Case, Then, answered, forwarded, has_pending, tables_hold
from .degrade import (
    HOUR,
    SELF,
    bound,
    down,
    full_ring,
    hash_table,
    no_path,
    rst_to_client,
    silent,
)
from .first import OPEN, PLAIN, held
from .flows import decided, forward_key, reply, seen
from .fragments import cut
from .full import full
from .icmp_sent import expired
from .quic import HELLO, OTHER_PORT, forgotten, is_noted, known
from .udp_flows import ask, asked, has_forward, has_reply
from .wide import DENY_NET, PORT, affine, rules, service_of, usage
from .world import (
    B1,
    B2,
    B3,
    CLIENT,
    CLIENT_ISN,
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

AGE = 100 * SECOND
"""How old a pick table may be."""
SNAPSHOT: dict[str, Any] = {"mode": Mode.SNAPSHOT, "snapshot_age_ns": AGE}
OF_WEB = abi.TOKENS_SERVICE
FROM_TABLE = (Mode.SNAPSHOT, Reason.SNAPSHOT)
PICKED, STALE, NOBODY_FITS = {"decided_snapshot": 1}, {"snapshot_stale": 1}, {"pick_unusable": 1}
BY_FALLBACK, BY_HASH = {"decided_fallback": 1}, {"decided_hash": 1}


def service(**change: Any) -> Given:
    """The service over TCP, and the one over UDP, have these values."""

    def write(world: World) -> None:
        world.change_service(**change)
        udp_flows.service(**change)(world)

    return write


def table(*servers: Server | None, ago_ns: int = 0, first: Server | None = None) -> Given:
    """A pick table that names these in turn, measured so long ago; the one before named nobody.

    ``first``: has the one slot that the client's address is hashed to.
    """

    def write(world: World) -> None:
        world.touch()
        named = [each.id if each else NO_BACKEND for each in servers]
        slots = [named[slot % len(named)] for slot in range(abi.PICK_SLOTS)]
        if first is not None:
            hashed = choice_hash(service_of(affinity_ns=1), world.native_key(flow_key()))
            slots[hashed % abi.PICK_SLOTS] = first.id
        world.maps.pick_tables.publish(0, [NO_BACKEND] * abi.PICK_SLOTS, world.now_ns)
        world.maps.pick_tables.publish(0, slots, before(world.now_ns, ago_ns))

    return write


def snapshot(*servers: Server | None, ago_ns: int = 0, **change: Any) -> tuple[Given, ...]:
    """A service of mode snapshot with such a table."""
    return service(**SNAPSHOT | change), table(*servers, ago_ns=ago_ns)


def mostly(server: Server | None, other: Server) -> tuple[Given, ...]:
    """The same, of which ``other`` has one slot in eight: it is found behind any other one."""
    return snapshot(*(server,) * 7, other)


def spent(*servers: Server, ago_ns: int = 0, **change: Any) -> tuple[Given, ...]:
    """The same, with not one event left."""
    limits = {"event_interval_ns": HOUR, "event_burst_ns": HOUR}
    return (*snapshot(*servers, ago_ns=ago_ns, **limits | change),
            lambda world: world.maps.tokens.fill(OF_WEB, 0, world.now_ns))  # fmt: skip


def told(server: Server, mode: Mode, reason: Reason, **but: Any) -> dict[str, Any]:
    """The event of a decision that XDP made at once."""
    return {
        "type": abi.EventType.XDP_DECIDED,
        "backend": server.id,
        "ifindex": lambda world: world.wires.client,
        "seq": CLIENT_ISN,
        "detail": mode,
        "reason": reason,
        "seen_ns": NOW,
    } | but


def decides(
    name: str,
    how: tuple[Mode, Reason],
    *given: Given,
    server: Server = B3,
    counters: dict[str, int],
    event: bool = True,
    flood: bool = False,
    compared: Callable[[tuple[Compared, ...]], bool] | None = None,
    **rest: Any,
) -> Case:
    """The SYN goes on at once, the daemon is told, and who has it is noted."""
    more: dict[str, Any] = {"compared": compared} if compared is not None else {}
    then = (*bound(server, *how), tables_hold(0, 0, flood=2) if flood else tables_hold(2, 0))
    if flood:
        counters = counters | {"flood_entry": 1}
    return forwarded(name, to_service(OPEN), to_backend(OPEN, server), given=given,
                     counters=counters, event=told(server, *how, **more) if event else None,
                     then=(*then, *rest.pop("then", ())), **rest)  # fmt: skip


def drains(server: Server) -> Given:
    """The backend drains."""
    flags = abi.BACKEND_UP | abi.BACKEND_DRAINING
    return lambda world: world.change_server(server, flags=flags)


LONG_SYN = PLAIN.but(payload=bytes(1600))
LONG = HELLO.but(dont_fragment=False)
FRESH = [
    decides("snapshot: by the table", FROM_TABLE, *snapshot(B3), counters=PICKED),
    decides("snapshot: by a table that is not too old", FROM_TABLE,
            *snapshot(B3, ago_ns=AGE // 4), counters=PICKED),
    decides("snapshot: a daemon that is silent is not told", FROM_TABLE, *snapshot(B3), silent,
            counters=PICKED, event=False),
    decides("snapshot: without a fallback", FROM_TABLE, *snapshot(B3, fallback=NO_BACKEND),
            counters=PICKED),
    *(decides(f"snapshot: a backend that {what} is passed over", FROM_TABLE, *mostly(B2, B3),
              change, counters=PICKED)
      for what, change in (("is down", down(B2)), ("drains", drains(B2)),
                           ("has no path", no_path(B2)))),
    decides("snapshot: a number that is another service's by now is passed over", FROM_TABLE,
            *mostly(SHOP_B1, B3), counters=PICKED),
    decides("snapshot: a slot that is nobody's is passed over", FROM_TABLE, *mostly(None, B3),
            counters=PICKED),
    forwarded("snapshot: the client itself is passed over", to_service(OPEN, client=SELF),
              to_backend(OPEN, B3, SELF), given=mostly(B1, B3), counters=PICKED,
              event=told(B3, *FROM_TABLE, key=flow_key(client=SELF)), then=(tables_hold(2, 0),)),
    forwarded("snapshot: a SYN that is sent again", to_service(OPEN), to_backend(OPEN),
              given=(*snapshot(B3), *decided()), counters={"syn_retransmit": 1}),
    Case(name="snapshot: a SYN that was held in another mode",
         frame=to_service(OPEN), verdict=DROP, given=(*snapshot(B3), seen()),
         counters={"syn_held_again": 1}),
    expired("snapshot: a first packet, TTL 1", to_service(OPEN.but(ttl=1)), given=snapshot(B3),
            then=(tables_hold(0, 0),)),
    forwarded("snapshot: dsr", to_service(OPEN), direct.to_b1(OPEN),
              given=(direct.by(direct.DSR), *snapshot(B1, forwarding=Forwarding.DSR)),
              counters=PICKED, event=told(B1, *FROM_TABLE), then=(tables_hold(2, 0),)),
    forwarded("snapshot: fullnat", to_service(OPEN), fullnat.there(OPEN, B3),
              given=snapshot(B3, forwarding=Forwarding.FULLNAT), counters=PICKED,
              event=told(B3, *FROM_TABLE), then=fullnat.bound(*FROM_TABLE, B3)),
    forwarded("snapshot: a SYN with more data than an event holds", to_service(LONG_SYN),
              to_backend(LONG_SYN, B3), given=snapshot(B3), counters=PICKED,
              event=told(B3, *FROM_TABLE), then=(has_pending(
                  "FORWARD", forward_key(), syn_data=1600, wscale=abi.NO_WSCALE),)),
    forwarded("snapshot: fullnat, the client itself", to_service(OPEN, client=SELF),
              fullnat.there(OPEN, B1), given=snapshot(B1, forwarding=Forwarding.FULLNAT),
              counters=PICKED, event=told(B1, *FROM_TABLE, key=flow_key(client=SELF))),
]  # fmt: skip

# --- the table, or the pick, is of no use ---------------------------------------------------------

FALLBACK_STALE = (Mode.FALLBACK, Reason.SNAPSHOT_STALE)
NO_CANDIDATE = (Mode.FALLBACK, Reason.NO_CANDIDATE)
TAKEN = (Mode.FALLBACK, Reason.TUPLE_TAKEN)

CHAIN = [
    decides("snapshot: the table is too old", FALLBACK_STALE, *snapshot(B3, ago_ns=AGE + MS),
            server=B1, counters=STALE | BY_FALLBACK),
    decides("snapshot: there is no table yet", FALLBACK_STALE, service(**SNAPSHOT),
            lambda world: world.maps.pick_tables.reset(0), server=B1,
            counters=STALE | BY_FALLBACK),
    decides("snapshot: the table is too old, and so is the heartbeat", FALLBACK_STALE,
            *snapshot(B3, ago_ns=AGE + MS), silent, server=B1, counters=STALE | BY_FALLBACK,
            event=False),
    decides("snapshot: the table is too old, the fallback is down",
            (Mode.HASH, Reason.SNAPSHOT_STALE), *snapshot(B3, ago_ns=AGE + MS), down(B1),
            server=B2, counters=STALE | BY_HASH),
    answered("snapshot: the table is too old, and nobody is up", to_service(OPEN),
             rst_to_client(0, CLIENT_ISN + 1, RST | ACK),
             given=(*snapshot(B3, ago_ns=AGE + MS), down(B1), hash_table()),
             counters=STALE | {"refused_no_backend": 1}, then=(tables_hold(0, 0),)),
    decides("snapshot: none of the table is usable", NO_CANDIDATE, *snapshot(B2, B3), down(B2),
            down(B3), server=B1, counters=NOBODY_FITS | BY_FALLBACK),
    forwarded("snapshot: the reply tuple is taken there, and nobody else is in the table",
              to_service(OPEN), to_backend(OPEN, B2), event=told(B2, *TAKEN),
              given=(*snapshot(B3, fallback=B2.id), reply(B3, SHOP)),
              counters={"pending_reply_taken": 1} | NOBODY_FITS | BY_FALLBACK,
              then=(*bound(B2, *TAKEN), tables_hold(3, 0))),
    forwarded("snapshot: the reply tuple is taken there: another one of the table",
              to_service(OPEN), to_backend(OPEN, B2),
              given=(service(**SNAPSHOT, flags=abi.SERVICE_AFFINITY, affinity_ns=HOUR),
                     table(B2, first=B3), reply(B3, SHOP)),
              counters={"pending_reply_taken": 1} | PICKED,
              event=told(B2, Mode.SNAPSHOT, Reason.TUPLE_TAKEN),
              then=(*bound(B2, Mode.SNAPSHOT, Reason.TUPLE_TAKEN), tables_hold(3, 0))),
    forwarded("snapshot: fullnat, no port is free there: another one of the table",
              to_service(OPEN), fullnat.there(OPEN, B2),
              given=(service(**SNAPSHOT, flags=abi.SERVICE_AFFINITY, affinity_ns=HOUR,
                             forwarding=Forwarding.FULLNAT),
                     table(B2, first=B3), fullnat.reply(client=fullnat.STRANGER, server=B3)),
              counters=fullnat.EXHAUSTED | PICKED,
              event=told(B2, Mode.SNAPSHOT, Reason.TUPLE_TAKEN), then=(tables_hold(3, 0),)),
]  # fmt: skip

# --- what comes before ----------------------------------------------------------------------------

AFFINE = SNAPSHOT | {"flags": abi.SERVICE_AFFINITY, "affinity_ns": HOUR}

BEFORE = [
    decides("snapshot: where the source's flows go", (Mode.STICKY, Reason.AFFINITY),
            table(B3), affine(B2, **SNAPSHOT), server=B2, counters={"affinity_used": 1}),
    decides("snapshot: a new source is hashed into the table", FROM_TABLE,
            service(**AFFINE), table(B2, first=B3), counters=PICKED),
    forwarded("snapshot: the same source by another port, too", to_service(OPEN, client=PORT),
              to_backend(OPEN, B3, PORT), given=(service(**AFFINE), table(B2, first=B3)),
              counters=PICKED, event=told(B3, *FROM_TABLE, key=flow_key(client=PORT))),
    decides("snapshot: the source's backend drains", FROM_TABLE, table(B3),
            affine(B2, **SNAPSHOT), drains(B2), counters=PICKED),
    forwarded("snapshot: the source is its own backend: by the table",
              to_service(OPEN, client=SELF), to_backend(OPEN, B3, SELF),
              given=(table(B3), affine(B1, source=SELF, **SNAPSHOT)),
              counters={"client_is_backend": 1} | PICKED,
              event=told(B3, Mode.SNAPSHOT, Reason.STICKY_LOST, key=flow_key(client=SELF))),
    answered("snapshot: as many flows as it may have", to_service(OPEN),
             rst_to_client(0, CLIENT_ISN + 1, RST | ACK),
             given=(table(B3), usage(10), lambda world: world.change_service(
                 flow_limit=10, **SNAPSHOT)),
             counters={"flow_limit_reached": 1}, then=(tables_hold(0, 0),)),
    Case(name="snapshot: a source that may not", frame=to_service(OPEN), verdict=DROP,
         given=(rules(DENY_NET), table(B3), lambda world: world.change_service(
             flags=abi.SERVICE_SOURCES, **SNAPSHOT)),
         counters={"source_denied": 1}, then=(tables_hold(0, 0),)),
    decides("snapshot: the table of flows is full", (Mode.HASH, Reason.TABLE_FULL),
            *snapshot(B3), full(), server=B2, counters={"table_full": 1} | BY_HASH, event=False),
]  # fmt: skip

# --- flows of a source whose first one is not established yet ------------------------------------


def ahead(server: Server, age_ns: int = SECOND) -> Given:
    """A flow of the client was decided so long ago."""

    def write(world: World) -> None:
        world.touch()
        addr = world.native_addr(CLIENT.number)
        world.maps.companions.write(addr, 0, before(world.now_ns, age_ns), server.id)

    return write


def leads(server: Server | None) -> Then:
    """Where the client's next flows go; None: nowhere that is noted."""

    def look(world: World, started_ns: int) -> None:
        found = world.maps.companions.read(world.native_addr(CLIENT.number), 0)
        assert (found and found[1]) == (server and server.id)
        assert found is None or found[0] >= started_ns

    return look


ALSO = (Mode.STICKY, Reason.AFFINITY)

COMPANIONS = [
    decides("companions: the first one is noted", FROM_TABLE, service(**AFFINE), table(B3),
            counters=PICKED, then=(leads(B3),)),
    decides("companions: without affinity none is", FROM_TABLE, *snapshot(B3), counters=PICKED,
            then=(leads(None),)),
    decides("companions: the next one goes with it", ALSO, service(**AFFINE), table(B3),
            ahead(B2), server=B2, counters={"affinity_used": 1}),
    decides("companions: whatever the table has become", ALSO, service(**AFFINE),
            table(B3, ago_ns=AGE + MS), ahead(B2), server=B2,
            counters=STALE | {"affinity_used": 1}),
    decides("companions: an established one comes first", ALSO, table(B3), ahead(B1),
            affine(B2, **SNAPSHOT), server=B2, counters={"affinity_used": 1}),
    decides("companions: not for longer than a handshake takes", FROM_TABLE, service(**AFFINE),
            table(B3), ahead(B2, 11 * SECOND), counters=PICKED, then=(leads(B3),)),
    decides("companions: nor than an affinity lasts", FROM_TABLE,
            service(**AFFINE | {"affinity_ns": SECOND}), table(B3), ahead(B2, 2 * SECOND),
            counters=PICKED),
    decides("companions: its backend is down", FROM_TABLE, service(**AFFINE), table(B3), ahead(B2),
            down(B2), counters=PICKED, then=(leads(B3),)),
    decides("companions: over budget nobody is noted", FROM_TABLE,
            *spent(B3, **AFFINE), counters={"budget_service": 1} | PICKED, event=False,
            flood=True, then=(leads(None),)),
    held("companions: with mode race the daemon knows them", to_service(OPEN),
         given=(service(flags=abi.SERVICE_AFFINITY, affinity_ns=HOUR), ahead(B2))),
]  # fmt: skip

# --- over budget ----------------------------------------------------------------------------------

BUDGET, PRICE = {"budget_service": 1}, {"event_interval_ns": HOUR, "event_burst_ns": HOUR}


def paid(world: World, _started_ns: int) -> None:
    """One CPU has spent the service's credit."""
    assert sum(left_ns < HOUR // 2 for left_ns, _, _ in world.buckets(OF_WEB)) == 1


OVER = [
    decides("snapshot: a decision costs what an event does", FROM_TABLE,
            *snapshot(B3, **PRICE), lambda world: world.maps.tokens.fill(
                OF_WEB, HOUR, world.now_ns), counters=PICKED, then=(paid,)),
    decides("snapshot, over budget: picked, and the daemon is not told", FROM_TABLE, *spent(B3),
            counters=BUDGET | PICKED, event=False, flood=True),
    decides("snapshot: over the prefix's budget", FROM_TABLE, *snapshot(B3), prefix(0),
            counters={"budget_prefix": 1} | PICKED, event=False, flood=True),
    decides("snapshot: too much waits in the ring", FROM_TABLE, deep, *snapshot(B3),
            counters={"ring_deep": 1} | PICKED, event=False, flood=True),
    decides("snapshot: the ring is full", FROM_TABLE, full_ring, *snapshot(B3),
            counters={"event_lost": 1} | PICKED, event=False),
    decides("snapshot, over budget, and the table is too old: hashed",
            (Mode.HASH, Reason.BUDGET), *spent(B3, ago_ns=AGE + MS), server=B2,
            counters=STALE | BUDGET | BY_HASH, event=False, flood=True),
    decides("snapshot, over budget: nobody of the table is usable: hashed, not to the fallback",
            (Mode.HASH, Reason.NO_CANDIDATE), *spent(B3), down(B3), server=B2,
            counters=BUDGET | NOBODY_FITS | BY_HASH, event=False, flood=True),
    decides("snapshot, over budget: where the source's flows go", (Mode.STICKY, Reason.AFFINITY),
            *spent(B3), affine(B1, **SNAPSHOT | PRICE), server=B1,
            counters=BUDGET | {"affinity_used": 1}, event=False, flood=True),
    forwarded("snapshot, over budget, stateless: hashed", to_service(OPEN), to_backend(OPEN, B2),
              given=spent(B3, flags=abi.SERVICE_STATELESS),
              counters=BUDGET | {"stateless_forwarded": 1}, then=(tables_hold(0, 0),)),
]  # fmt: skip

# --- UDP ------------------------------------------------------------------------------------------


def datagram(
    name: str,
    how: tuple[Mode, Reason],
    *given: Given,
    server: Server = B3,
    counters: dict[str, int],
    flood: bool = False,
    client: End = CLIENT,
    compared: Callable[[tuple[Compared, ...]], bool] | None = None,
    **rest: Any,
) -> Case:
    """The first datagram goes on at once."""
    more: dict[str, Any] = {"compared": compared} if compared is not None else {}
    noted = {"backend": server.id, "mode": how[0], "reason": how[1]}
    if flood:
        counters = counters | {"flood_entry": 1}
    return forwarded(
        f"snapshot, UDP: {name}", ask(HELLO, client), asked(HELLO, server, client), given=given,
        counters=counters,
        event=None if flood else told(server, *how, key=udp_flows.key(client), seq=0, **more),
        then=(has_forward(client, packets=1, **noted), has_reply(server, client, **noted),
              tables_hold(0, 0, flood=2) if flood else tables_hold(2, 0), *rest.pop("then", ())),
        **rest)  # fmt: skip


MOVED = (service(flags=abi.SERVICE_QUIC, **SNAPSHOT), table(B3), forgotten)

UDP = [
    forwarded("snapshot, UDP: the first fragment", cut(ask(LONG))[0], cut(asked(LONG, B3))[0],
              given=snapshot(B3), counters={"fragment_first": 1} | PICKED,
              event=told(B3, *FROM_TABLE, key=udp_flows.key(), seq=0),
              then=(has_forward(packets=1, backend=B3.id), tables_hold(2, 0))),
    datagram("by the table", FROM_TABLE, *snapshot(B3), counters=PICKED),
    datagram("the table is too old", FALLBACK_STALE, *snapshot(B3, ago_ns=AGE + MS), server=B1,
             counters=STALE | BY_FALLBACK),
    datagram("over budget", FROM_TABLE, *spent(B3), counters=BUDGET | PICKED, flood=True),
    datagram("QUIC, its ID is noted", FROM_TABLE, *MOVED, counters=PICKED, then=(is_noted(B3),)),
    datagram("QUIC, moved: where its connection is", (Mode.STICKY, Reason.CONNECTION_ID), *MOVED,
             known(B2), server=B2, client=OTHER_PORT, counters={"connection_id_known": 1}),
    datagram("QUIC, moved: where its connection is, over budget, too",
             (Mode.STICKY, Reason.CONNECTION_ID),
             *spent(B3, flags=abi.SERVICE_QUIC), forgotten, known(B2), server=B2,
             client=OTHER_PORT, counters=BUDGET | {"connection_id_known": 1}, flood=True),
    Case(name="snapshot, UDP: a second one, of a flow that was held in another mode",
         frame=ask(HELLO), verdict=DROP, given=(*snapshot(B3), udp_flows.seen()),
         counters={"datagram_held": 1},
         event={"type": abi.EventType.DATAGRAM, "key": udp_flows.key(), "frame": ask(HELLO),
                "backend": NO_BACKEND, "seen_ns": NOW, "wscale": abi.NO_WSCALE,
                "syn_data": 1200, "ifindex": lambda world: world.wires.client}),
]  # fmt: skip

CASES = [*FRESH, *CHAIN, *BEFORE, *COMPANIONS, *OVER, *UDP]
