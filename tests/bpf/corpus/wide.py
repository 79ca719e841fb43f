# SPDX-License-Identifier: Apache-2.0
"""Whose packet it is when services have many ports, and who may have a flow."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.frames import ACK, PSH, RST, End, Segment
from tests.support.instants import before
from tests.support.ipv6_frames import LONGER
from tests.support.program import DROP
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.core import abi
from xdp_router.core.flow_hash import choice_hash
from xdp_router.core.hash_tables import SLOT_STEP
from xdp_router.core.model import (
    NO_BACKEND,
    Endpoint,
    Mode,
    Orphans,
    ProbeAnswer,
    Reason,
    Service,
    SourcePrefix,
)

from .case import Case, Then, answered, forwarded, has_pending, passed, tables_hold
from .degrade import bound, fallback_is, rst_to_client
from .first import OPEN, held
from .flows import (
    AGE_NS,
    decided,
    established,
    forward_key,
    forward_value,
    put_pending,
    reply,
    reply_value,
)
from .handshake import LAST_ACK, SYNACK, promoted_event
from .isn import OTHER
from .probes import SEQ, probe_event
from .world import (
    B1,
    B2,
    B3,
    CLIENT,
    CLIENT_ISN,
    IN,
    MS,
    NAT_PORT,
    PROBE_SOURCE,
    SECOND,
    SERVER_ISN,
    SHOP,
    SHOP_B1,
    WEB,
    Given,
    Server,
    World,
    flow_key,
    from_backend,
    to_backend,
    to_client,
    to_service,
)

WIDE = End(WEB.addr, 8050)
"""In the middle of the ranges of WEB's address."""
DATA = Segment(flags=PSH | ACK, seq=CLIENT_ISN + 1, ack=SERVER_ISN + 1, payload=b"data")


def at(port: int) -> End:
    """A port of WEB's address."""
    return End(WEB.addr, port)


def ranged(first: int, last: int, addr: End = WEB) -> Endpoint:
    """A service's endpoint of many ports."""
    return Endpoint(addr.number, first, ranged=True, last=last)


def ranges(*services: tuple[Endpoint, int | None], flag: bool = True, proto: int = 6) -> Given:
    """Services of many ports, in their order; by id, or None: they are left out."""

    def write(world: World) -> None:
        world.touch()
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for endpoint, number in services:
            value = world.service(number or 0)
            if number is None:
                value = dataclasses.replace(value, backend_count=0)
            world.maps.services.write(endpoint, value)
            if endpoint.ranged:
                where = world.native_addr(endpoint.addr), proto
                found.setdefault(where, []).append((endpoint.port, endpoint.last))
        world.maps.service_ranges.replace(found)
        if flag:
            world.limit(flags=abi.CONTROL_RANGES)

    return write


ALL = ranged(0, 65535)
RANGE = ranged(8000, 8100)


def chosen(name: str, port: int, service: int, *given: Given) -> Case:
    """A SYN to a port of WEB's address is held for a service."""
    frame = to_service(OPEN, at(port))
    fields = {"service": service, "key": flow_key(at(port))}
    return held(f"ports: {name}", frame, fields, given=given)


def nobodys(name: str, port: int, *given: Given) -> Case:
    """A SYN to a port of WEB's address is no service's."""
    frame = to_service(OPEN, at(port))
    return passed(f"ports: {name}", frame, "pass_not_service", given=given)


CHOSEN = [
    chosen("the first of a range", 8000, 1, ranges((RANGE, 1))),
    chosen("one of a range", 8050, 1, ranges((RANGE, 1))),
    chosen("the last of a range", 8100, 1, ranges((RANGE, 1))),
    nobodys("one below a range", 7999, ranges((RANGE, 1))),
    nobodys("one above a range", 8101, ranges((RANGE, 1))),
    nobodys("a range, and nobody says that there are any", 8050, ranges((RANGE, 1), flag=False)),
    nobodys("a range of another protocol", 8050, ranges((RANGE, 1), proto=17)),
    nobodys("a range of another address", 8050, ranges((ranged(8000, 8100, SHOP), 1))),
    nobodys("a range whose service is just being taken away", 8050, ranges((RANGE, 1)),
            lambda world: world.maps.services.delete(RANGE)),
    chosen("the lowest of a whole address", 1, 1, ranges((ALL, 1))),
    chosen("the highest of a whole address", 65535, 1, ranges((ALL, 1))),
    chosen("just this one, in a range", 80, 0, ranges((ranged(1, 1000), 1))),
    chosen("just this one, in a whole address", 80, 0, ranges((ALL, 1))),
    chosen("a narrow range in a wide one", 8050, 0, ranges((RANGE, 0), (ALL, 1))),
    chosen("beside a narrow range, in a wide one", 9000, 1, ranges((RANGE, 0), (ALL, 1))),
    chosen("the eighth range", 8050, 1,
           *(ranges(*((ranged(100 * n, 100 * n + 9), 0) for n in range(1, 8)), (RANGE, 1)),)),
    nobodys("left out of a whole address", 22,
            ranges((Endpoint(WEB.number, 22), None), (ALL, 1))),
    chosen("beside one that is left out", 23, 1,
           ranges((Endpoint(WEB.number, 22), None), (ALL, 1))),
    nobodys("of a range that is left out", 8050, ranges((RANGE, None), (ALL, 1))),
    chosen("beside a range that is left out", 8101, 1, ranges((RANGE, None), (ALL, 1))),
]  # fmt: skip


def own_ports(server: Server, port: int) -> Server:
    """A backend as it is reached by a port that it takes from the packet."""
    return dataclasses.replace(server, end=End(server.end.addr, port))


def takes_ports(world: World) -> None:
    """B1 has no port of its own."""
    world.change_server(B1, port=0)
    world.maps.backend_index.write(Endpoint(B1.end.number, 0), B1.id, B1.service)


def put_decided(world: World) -> None:
    """A pending flow with a port of a range, on B1, which takes it."""
    server = own_ports(B1, WIDE.port)
    put_pending(world, forward_key(WIDE), forward_value(world, server))
    put_pending(world, _reply_key(server), reply_value(world, server, WIDE))


def _reply_key(server: Server) -> bytes:
    endpoint = Endpoint(server.end.number, server.end.port)
    return abi.pack_reply_key(endpoint, flow_key(WIDE), abi.Kind.REPLY)


SWALLOWED = ranges((ranged(0, 65535, PROBE_SOURCE), 0))
"""All ports of the address that probes come from are a service's."""


def unattended(world: World) -> None:
    """The daemon gives no sign of life."""
    world.limit(heartbeat_ns=world.now_ns - AGE_NS, heartbeat_stale_ns=MS)


FALLEN_BACK = {"heartbeat_stale": 1, "decided_fallback": 1}
OWN = own_ports(B1, WIDE.port)
OURS = End(PROBE_SOURCE.addr, NAT_PORT)

BACKENDS = [
    forwarded("ports: a backend with a port of its own", to_service(OPEN, WIDE), to_backend(OPEN),
              given=(ranges((RANGE, 0)), unattended), counters=FALLEN_BACK,
              then=(has_pending("FORWARD", forward_key(WIDE), new_dport=B1.end.port),)),
    forwarded("ports: a backend that takes the packet's", to_service(OPEN, WIDE),
              to_backend(OPEN, OWN), given=(ranges((RANGE, 0)), unattended, takes_ports),
              counters=FALLEN_BACK,
              then=(has_pending("FORWARD", forward_key(WIDE), new_dport=WIDE.port),
                    has_pending("REPLY", _reply_key(OWN), new_sport=WIDE.port))),
    forwarded("ports: the answer of a backend that takes the packet's", from_backend(SYNACK, OWN),
              to_client(SYNACK, WIDE), at="backend",
              given=(ranges((RANGE, 0)), takes_ports, put_decided)),
    passed("ports: the same, and nobody says that there are any", from_backend(SYNACK, OWN),
           "pass_not_service", at="backend", given=(takes_ports, put_decided)),
    passed("ports: what a backend says that is no answer", from_backend(DATA, own_ports(B1, 9000)),
           "pass_not_service", at="backend", given=(ranges((RANGE, 0)), takes_ports)),
    answered("ports: a segment without a binding", to_service(DATA, WIDE),
             Segment(flags=RST, seq=DATA.ack, window=0, ident=0).frame(WIDE, CLIENT, IN.back),
             given=(ranges((RANGE, 0)),), counters={"orphan_reset": 1}),
    held("ports: a backend's host as a client, to a port that is ours elsewhere",
         to_service(OPEN, at(NAT_PORT), own_ports(B1, 4000).end),
         {"service": 1, "key": flow_key(at(NAT_PORT), own_ports(B1, 4000).end)},
         given=(ranges((ALL, 1)), takes_ports)),
    answered("ports: what comes to a port of ours is no service's",
             from_backend(DATA, client=OURS), Segment(
                 flags=RST, seq=DATA.ack, window=0, ident=0).frame(OURS, B1.end, B1.hop),
             at="backend", given=(SWALLOWED,), counters={"nat_reply_unknown": 1}),
    Case(name="ports: an answer to a probe is no service's", verdict=DROP, at="backend",
         frame=from_backend(Segment(flags=RST | ACK, ack=SEQ + 1), client=PROBE_SOURCE),
         given=(SWALLOWED,), counters={"probe_rst": 1}, event=probe_event(ProbeAnswer.RST)),
]  # fmt: skip


# --- who may have a flow -------------------------------------------------------------------


def service_of(**change: Any) -> Service:
    """The first service as the daemon knows it."""
    made = Service(0, "web", Endpoint(WEB.number, WEB.port), ())
    return dataclasses.replace(made, **change)


def rules(*prefixes: tuple[str, int, bool], allowed_only: bool = False) -> Given:
    """Source rules of the first service: address, length, whether it is denied."""

    def write(world: World) -> None:
        world.touch()
        sources = tuple(
            SourcePrefix(
                world.native_addr(End(addr, 0).number),
                length + (0 if world.family == 4 else 96),
                denied,
            )
            for addr, length, denied in prefixes
        )
        service = service_of(sources=sources, allowed_only=allowed_only)
        at = Endpoint(world.native_addr(WEB.number), WEB.port)
        world.maps.source_rules.add([dataclasses.replace(service, endpoint=at)])
        world.change_service(flags=abi.SERVICE_SOURCES)

    return write


def admitted(name: str, *given: Given) -> Case:
    """The client's SYN is held."""
    return held(f"sources: {name}", to_service(OPEN), given=given)


def denied(name: str, *given: Given, frame: bytes = to_service(OPEN), **rest: Any) -> Case:
    """It is dropped, and nothing is left of it."""
    then = rest.pop("then", (tables_hold(0, 0),))
    return Case(name=f"sources: {name}", frame=frame, verdict=DROP, given=given,
                counters={"source_denied": 1}, then=then)  # fmt: skip


NET, HOST, ELSEWHERE = ("198.18.0.0", 24), (CLIENT.addr, 32), ("198.18.7.0", 24)
DENY_NET, DENY_HOST = (*NET, True), (*HOST, True)

SOURCES = [
    admitted("none of its prefixes", rules((*ELSEWHERE, True))),
    denied("a denied prefix", rules(DENY_NET)),
    denied("a denied host", rules(DENY_HOST)),
    admitted("an allowed prefix", rules((*NET, False), allowed_only=True)),
    denied("not in the allowed ones", rules((*ELSEWHERE, False), allowed_only=True)),
    admitted("an allowed host of a denied prefix", rules(DENY_NET, (*HOST, False))),
    denied("a denied host of an allowed prefix",
           rules(DENY_HOST, (*NET, False), allowed_only=True)),
    admitted("rules that the service does not have", rules(DENY_NET),
             lambda world: world.change_service(flags=0)),
    denied("a segment without a binding", rules(DENY_NET),
           lambda world: world.change_service(flags=abi.SERVICE_SOURCES, orphans=Orphans.HASH),
           frame=to_service(DATA)),
    forwarded("sources: a SYN that is decided", to_service(OPEN), to_backend(OPEN),
              given=(*decided(), rules(DENY_NET)), counters={"syn_retransmit": 1}),
    forwarded("sources: an established flow", to_service(DATA), to_backend(DATA),
              given=(established(), rules(DENY_NET))),
]  # fmt: skip


# --- how many --------------------------------------------------------------------------------


def usage(opened: int, closed: int = 0, aged: int = 0, limit: int = 10) -> Given:
    """The first service has had so many flows, and may have so many."""

    def write(world: World) -> None:
        world.touch()
        table = bpf.BpfMap(world.program.plane.maps["usage"])
        table.write((0).to_bytes(4, "little"), abi.pack_usage(opened, closed))
        world.maps.usage.age(0, aged)
        world.change_service(flow_limit=limit)

    return write


def counted(opened: int, closed: int) -> Then:
    """So many were opened and closed since ``usage``."""

    def look(world: World, started_ns: int) -> None:
        assert world.maps.usage.read(0)[:2] == (opened, closed)

    return look


HAD = {"packets": 5, "octets": 500}
HAD_BACK = {"packets": 4, "octets": 400}


def nothing_carried(world: World) -> None:
    """What flows to the first backend carried before is forgotten."""
    world.touch()
    world.maps.traffic.reset(B1.id)


def carried(*totals: int) -> Then:
    """Flows, packets, bytes, and those of replies, of flows that XDP has taken out since."""

    def look(world: World, started_ns: int) -> None:
        found = world.maps.traffic.read(B1.id)
        if world.family == 6:  # whose packets are longer
            found = dataclasses.replace(
                found,
                octets=found.octets - LONGER * found.packets,
                reply_octets=found.reply_octets - LONGER * found.reply_packets,
            )
        assert found == abi.TrafficValue(*totals), found

    return look


def refused_at(name: str, *given: Given, **rest: Any) -> Case:
    """The SYN is answered by a RST, and nothing is left of it."""
    out = rst_to_client(0, CLIENT_ISN + 1, RST | ACK)
    return answered(f"limit: {name}", to_service(OPEN), out, given=given,
                    counters={"flow_limit_reached": 1}, then=(tables_hold(0, 0),))  # fmt: skip


OVER: dict[str, Any] = {"state": abi.TcpState.CLOSING}

LIMIT = [
    held("limit: one below", to_service(OPEN), given=(usage(9),)),
    refused_at("reached", usage(10)),
    refused_at("passed", usage(100)),
    held("limit: reached before", to_service(OPEN), given=(usage(30, 15, 6),)),
    refused_at("closed and aged ones are gone", usage(30, 14, 6)),
    held("limit: counted in excess", to_service(OPEN), given=(usage(3, 2, 5),)),
    held("limit: a correction that is negative", to_service(OPEN), given=(usage(3, 2, -8),)),
    refused_at("reached by a correction that is negative", usage(3, 2, -9)),
    held("limit: none", to_service(OPEN), given=(usage(100, limit=0),)),
    forwarded("limit: a SYN that is decided", to_service(OPEN), to_backend(OPEN),
              given=(*decided(), usage(10)), counters={"syn_retransmit": 1}),
    forwarded("limit: a flow is counted as it is established", to_service(LAST_ACK),
              to_backend(LAST_ACK), given=(*decided(synack=True), usage(9)),
              counters={"promoted": 1}, event=promoted_event(), then=(counted(10, 0),)),
    held("limit: one that is over is gone with its SYN", to_service(OTHER),
         {"seq": OTHER.seq},
         given=(established(OVER | HAD, OVER | HAD_BACK), usage(10), nothing_carried),
         counters={"syn_reopened": 1, "first_packet": 1},
         then=(counted(10, 1), carried(1, 5, 500, 4, 400))),
]  # fmt: skip


# --- the source's backend --------------------------------------------------------------------


def affine(
    server: Server = B2,
    age_ns: int = SECOND,
    number: int | None = None,
    source: End = CLIENT,
    **change: Any,
) -> Given:
    """The newest flow of ``source`` went to ``server`` so long ago; affinity lasts 10 s."""

    def write(world: World) -> None:
        world.touch()
        backend = server.id if number is None else number
        addr = world.native_addr(source.number)
        world.maps.affinity.write(addr, 0, before(world.now_ns, age_ns), backend)
        _affine_service(world, **change)

    return write


def _affine_service(world: World, **change: Any) -> None:
    change = {"flags": abi.SERVICE_AFFINITY, "affinity_ns": 10 * SECOND} | change
    world.change_service(**change)


def noted(server: Server | None) -> Then:
    """Where the client's next flows go."""

    def look(world: World, started_ns: int) -> None:
        found = world.maps.affinity.read(world.native_addr(CLIENT.number), 0)
        if server is None:
            assert found is None
        else:
            assert found is not None
            assert found[1] == server.id
            assert found[0] >= started_ns

    return look


def with_source(name: str, server: Server, *given: Given, **rest: Any) -> Case:
    """The SYN goes where the source's flows go."""
    return forwarded(f"affinity: {name}", to_service(OPEN), to_backend(OPEN, server), given=given,
                     counters={"affinity_used": 1},
                     then=(*bound(server, Mode.STICKY, Reason.AFFINITY), tables_hold(2, 0)),
                     **rest)  # fmt: skip


def anew(name: str, *given: Given) -> Case:
    """Nothing says where it goes: it is held."""
    return held(f"affinity: {name}", to_service(OPEN), given=given)


def source_slot(*servers: Server) -> Given:
    """The slot of the client's address, whatever its port is, and those that are tried then."""

    def write(world: World) -> None:
        slots = [NO_BACKEND] * abi.HASH_SLOTS
        slot = choice_hash(service_of(affinity_ns=1), world.native_key(flow_key()))
        for server in servers:
            slots[slot % abi.HASH_SLOTS] = server.id
            slot += SLOT_STEP
        world.change_hash(tuple(slots))

    return write


PORT = End(CLIENT.addr, 51515)

AFFINITY = [
    with_source("known", B2, affine()),
    with_source("known, and nobody attends", B2, affine(), unattended),
    with_source("known and just not too old", B3, affine(B3, 9 * SECOND)),
    anew("too old", affine(B2, 11 * SECOND)),
    anew("not known", lambda world: _affine_service(world)),
    anew("the service wants none", affine(flags=0)),
    anew("its backend is down", affine(), lambda world: world.change_server(B2, flags=0)),
    anew("its backend drains", affine(), lambda world: world.change_server(
        B2, flags=abi.BACKEND_UP | abi.BACKEND_DRAINING)),
    anew("its backend has no path", affine(), lambda world: world.change_server(B2, ifindex=0)),
    anew("its backend is another service's", affine(SHOP_B1)),
    anew("its backend is not there", affine(number=70_000)),
    forwarded("affinity: its backend's reply tuple is taken", to_service(OPEN),
              to_backend(OPEN, B3),
              given=(affine(B1), fallback_is(B2), lambda world: _affine_service(world),
                     reply(B1, SHOP), source_slot(B3)),
              counters={"pending_reply_taken": 1, "decided_hash": 1},
              then=bound(B3, Mode.HASH, Reason.TUPLE_TAKEN)),
    forwarded("affinity: by hash of the source alone", to_service(OPEN), to_backend(OPEN, B3),
              given=(lambda world: _affine_service(world, fallback=NO_BACKEND), source_slot(B3),
                     unattended),
              counters={"heartbeat_stale": 1, "decided_hash": 1}),
    forwarded("affinity: the same by another port", to_service(OPEN, client=PORT),
              to_backend(OPEN, B3, PORT),
              given=(lambda world: _affine_service(world, fallback=NO_BACKEND), source_slot(B3),
                     unattended),
              counters={"heartbeat_stale": 1, "decided_hash": 1}),
    forwarded("affinity: noted as a flow is established", to_service(LAST_ACK),
              to_backend(LAST_ACK), counters={"promoted": 1}, event=promoted_event(),
              given=(*decided(synack=True), affine(B2, 11 * SECOND)), then=(noted(B1),)),
    forwarded("affinity: not noted where none is wanted", to_service(LAST_ACK),
              to_backend(LAST_ACK), counters={"promoted": 1}, event=promoted_event(),
              given=decided(synack=True), then=(noted(None),)),
    held("affinity: a SYN that nobody has answered notes nothing", to_service(OPEN),
         given=(lambda world: _affine_service(world),), then=(noted(None),)),
]  # fmt: skip

CASES = [*CHOSEN, *BACKENDS, *SOURCES, *LIMIT, *AFFINITY]
