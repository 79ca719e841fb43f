# SPDX-License-Identifier: Apache-2.0
"""QUIC: connection IDs of clients are noted as their packets pass, and found from other ports."""

from __future__ import annotations

from typing import Any

from tests.support.frames import End
from tests.support.instants import before
from tests.support.program import DROP
from tests.support.udp_frames import Datagram
from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, Mode, Reason

from .case import Case, Then, forwarded
from .degrade import silent
from .flows import AGE_NS
from .udp import held_event
from .udp_bound import PROMOTED_EVENT
from .udp_flows import ask, asked, forward, has_forward, has_reply, key, reply, seen, service
from .world import B1, B2, B3, CLIENT, SECOND, SHOP, SHOP_B1, Given, Server, World

V1, V2, GREASE, NEGOTIATION = (
    bytes.fromhex(version) for version in ("00000001", "6b3343cf", "1a2a3a4a", "00000000")
)
CHOSEN = bytes.fromhex("a1b2c3d4e5f60718")
OTHER_PORT = End(CLIENT.addr, CLIENT.port + 1)
OTHER_HOST = End("198.18.0.77", 443)


def initial(dcid: bytes = CHOSEN, version: bytes = V1, first: int = 0xC3, size: int = 1200,
            length: int | None = None) -> Datagram:  # fmt: skip
    """A packet with a long header."""
    head = bytes([first]) + version + bytes([len(dcid) if length is None else length]) + dcid
    return Datagram(payload=(head + bytes([8]) + bytes(range(8))).ljust(size, b"\x55"))


HELLO = initial()


def _table(world: World) -> BpfMap:
    return BpfMap(world.program.plane.maps["quic_ids"])


def forgotten(world: World) -> None:
    """No connection ID is known."""
    table = _table(world)
    for each in list(table.each_key()):
        table.delete(each)


def known(server: Server, dcid: bytes = CHOSEN, age_ns: int = AGE_NS, service: int = 0) -> Given:
    """A connection that a backend has."""

    def write(world: World) -> None:
        value = abi.pack_sticky(before(world.now_ns, age_ns), server.id)
        _table(world).write(abi.pack_quic_key(service, dcid), value)

    return write


def connection(world: World, dcid: bytes = CHOSEN) -> int | None:
    """The backend that has it."""
    raw = _table(world).read(abi.pack_quic_key(0, dcid))
    return None if raw is None else abi.unpack_sticky(raw)[1]


def is_noted(server: Server | None, dcid: bytes = CHOSEN) -> Then:
    """Who has the connection; None: nobody knows."""

    def look(world: World, started_ns: int) -> None:
        raw = _table(world).read(abi.pack_quic_key(0, dcid))
        if server is None:
            assert raw is None
            return
        assert raw is not None
        seen_ns, backend = abi.unpack_sticky(raw)
        assert backend == server.id
        assert started_ns <= seen_ns

    return look


QUIC: tuple[Given, ...] = (service(flags=abi.SERVICE_QUIC), forgotten)


def passes(name: str, datagram: Datagram, *then: Then, packets: int = 0, answers: int = 0,
           given: tuple[Given, ...] = (), server: Server = B1, **rest: Any) -> Case:  # fmt: skip
    """A decided flow's datagram."""
    return forwarded(
        f"QUIC: {name}", ask(datagram), asked(datagram, server), then=then,
        given=(*QUIC, *given, seen(packets), reply(server, answers),
               forward(server, packets, fppl_ns=2_000_000)), **rest,
    )  # fmt: skip


LONGEST = bytes(range(20))
NOTED = [
    passes("the first one's ID is noted", HELLO, is_noted(B1)),
    passes("another backend's", HELLO, is_noted(B2), server=B2),
    passes("of 20 bytes", initial(LONGEST), is_noted(B1, LONGEST)),
    passes("of version 2", initial(version=V2, first=0xD3), is_noted(B1)),
    passes("of a version that is not known", initial(version=GREASE), is_noted(B1)),
    passes("a 0-RTT packet's", initial(first=0xD0), is_noted(B1)),
    passes("the second one's, too", HELLO, is_noted(B1), packets=1),
    passes("a later one's is not", HELLO, is_noted(None), packets=8),
    passes("as its flow is established", HELLO, is_noted(B1), packets=1, answers=1,
           counters={"promoted": 1}, event=PROMOTED_EVENT),
    passes("of 7 bytes: not a client's choice", initial(CHOSEN[:7]), is_noted(None, CHOSEN[:7])),
    passes("of 21 bytes: no version has that", initial(bytes(21)), is_noted(None, bytes(20))),
    passes("a short header has none", initial(first=0x43), is_noted(None)),
    passes("version negotiation has none", initial(version=NEGOTIATION), is_noted(None)),
    passes("what ends before", initial(size=25), is_noted(None)),
    passes("as short as may be", initial(size=26), is_noted(B1)),
    passes("of another backend's live connection: stays there", HELLO, given=(known(B2),)),
    passes("of another backend's that is long over", HELLO, is_noted(B1),
           given=(known(B2, age_ns=2000 * SECOND),)),
    forwarded("QUIC: a service that is none", ask(HELLO), asked(HELLO), then=(is_noted(None),),
              given=(service(), forgotten, seen(0), reply(), forward(packets=0))),
]  # fmt: skip


def moved(name: str, *given: Given, client: End = OTHER_PORT, server: Server = B3,
          datagram: Datagram = HELLO, **rest: Any) -> Case:  # fmt: skip
    """A first datagram whose connection a backend has."""
    return forwarded(
        f"QUIC, moved: {name}", ask(datagram, client), asked(datagram, server, client),
        given=(*QUIC, known(server), *given), counters={"connection_id_known": 1},
        then=(has_forward(client, backend=server.id, mode=Mode.STICKY,
                          reason=Reason.CONNECTION_ID, packets=1),
              has_reply(server, client, backend=server.id), is_noted(server)), **rest,
    )  # fmt: skip


def raced(name: str, *given: Given, datagram: Datagram = HELLO, quic: bool = True) -> Case:
    """One that is decided like any other."""
    frame = ask(datagram, OTHER_PORT)
    event = held_event(frame, abi.EventType.FIRST_PACKET, key=key(OTHER_PORT),
                       syn_data=len(datagram.payload))  # fmt: skip
    setting = QUIC if quic else (service(), forgotten)
    return Case(name=f"QUIC, moved: {name}", frame=frame, verdict=DROP, event=event,
                given=(*setting, *given), counters={"datagram_first": 1})  # fmt: skip


MOVED = [
    moved("to another port"),
    moved("to another host", client=OTHER_HOST),
    moved("without a daemon", silent),
    moved("its backend drains", lambda world: world.change_server(
        B3, flags=abi.BACKEND_UP | abi.BACKEND_DRAINING)),
    moved("by a Handshake packet", datagram=initial(first=0xE3)),
    forwarded("QUIC, moved: and its backend's tuple is taken: by the degrade chain",
              ask(HELLO, OTHER_PORT), asked(HELLO, B1, OTHER_PORT),
              given=(*QUIC, known(B3), reply(B3, client=OTHER_PORT, new_saddr=SHOP.number)),
              counters={"pending_reply_taken": 1, "decided_fallback": 1},
              then=(has_forward(OTHER_PORT, backend=B1.id, mode=Mode.FALLBACK,
                                reason=Reason.TUPLE_TAKEN),)),
    raced("nobody knows the ID"),
    raced("another ID", known(B3), datagram=initial(CHOSEN[::-1])),
    raced("a longer ID", known(B3), datagram=initial(CHOSEN + b"\0")),
    raced("another service's", known(B3, service=1)),
    raced("its number is another service's backend now", known(SHOP_B1)),
    raced("long over", known(B3, age_ns=2000 * SECOND)),
    raced("its backend is down", known(B3), lambda world: world.change_server(B3, flags=0)),
    raced("its backend has no path", known(B3), lambda world: world.change_server(B3, ifindex=0)),
    raced("a short header", known(B3), datagram=initial(first=0x43)),
    raced("a service that is none", known(B3), quic=False),
    raced("a backend that there is not", lambda world: _table(world).write(
        abi.pack_quic_key(0, CHOSEN), abi.pack_sticky(world.now_ns, NO_BACKEND - 1))),
]  # fmt: skip

CASES = [*NOTED, *MOVED]
