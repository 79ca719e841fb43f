# SPDX-License-Identifier: Apache-2.0
"""Flows of UDP in the tables, and the service that they are of: WEB's address, and its backends.

Its id and theirs are those of the service over TCP, so that values and hash tables serve both.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.frames import End, Hop
from tests.support.instants import before
from tests.support.udp_frames import PROTOCOL, Datagram
from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, FlowKey, Mode, Reason

from .case import Then, check
from .flows import (
    AGE_NS,
    forward_entry,
    forward_value,
    put_flow,
    put_pending,
    read_flow,
    read_pending,
    reply_entry,
    reply_value,
    seen_value,
)
from .world import B1, B2, B3, CLIENT, IN, WEB, Given, Server, World, endpoint_of, flow_key

EMPTY = 28
"""Bytes of the IP packet with no payload; a frame has 14 more."""


def key(client: End = CLIENT, service: End = WEB) -> FlowKey:
    """The flow of a client."""
    return dataclasses.replace(flow_key(service, client), proto=PROTOCOL)


def pending_key(kind: abi.Kind, client: End = CLIENT) -> bytes:
    """Key of SEEN or FORWARD."""
    return abi.pack_flow_key(key(client), kind)


def back_key(server: Server = B1, kind: abi.Kind = abi.Kind.REPLY, client: End = CLIENT) -> bytes:
    """Key of the backend's direction."""
    return abi.pack_reply_key(endpoint_of(server.end, PROTOCOL), key(client), kind)


# --- frames ---------------------------------------------------------------------------------


def ask(datagram: Datagram, client: End = CLIENT, service: End = WEB, hop: Hop = IN) -> bytes:
    """A client's datagram."""
    return datagram.frame(client, service, hop)


def asked(datagram: Datagram, server: Server = B1, client: End = CLIENT) -> bytes:
    """The same on its way to a backend."""
    return datagram.but(ttl=datagram.ttl - 1).frame(client, server.end, server.hop)


def answer(datagram: Datagram, server: Server = B1, client: End = CLIENT) -> bytes:
    """A backend's datagram."""
    return datagram.frame(server.end, client, server.hop.back)


def answered(datagram: Datagram, client: End = CLIENT) -> bytes:
    """The same on its way to the client."""
    return datagram.but(ttl=datagram.ttl - 1).frame(WEB, client, IN.back)


# --- states ---------------------------------------------------------------------------------


def service(**change: Any) -> Given:
    """The service is there. Other values may be given."""

    def write(world: World) -> None:
        world.touch()
        value = dataclasses.replace(world.service(), **change)
        world.maps.services.write(endpoint_of(WEB, PROTOCOL), value)
        for server in (B1, B2, B3):
            world.maps.backend_index.write(
                endpoint_of(server.end, PROTOCOL), server.id, server.service
            )

    return write


def seen(held: int = 1, octets: int = 100, age_ns: int = AGE_NS) -> Given:
    """So many datagrams are held, frames of ``octets`` bytes in all."""

    def put(world: World) -> None:
        then_ns = before(world.now_ns, age_ns)
        value = seen_value(
            world, isn=0, packets=held, octets=octets, seen_ns=then_ns, last_seen_ns=then_ns
        )
        put_pending(world, pending_key(abi.Kind.SEEN), value)

    return put


def _as_udp(value: abi.PendingValue, **change: Any) -> abi.PendingValue:
    return dataclasses.replace(value, isn=0, wscale=abi.NO_WSCALE, **change)


def forward(
    server: Server = B1,
    packets: int = 1,
    idle_ns: int = AGE_NS,
    client: End = CLIENT,
    **change: Any,
) -> Given:
    """FORWARD alone: decided, and so many datagrams of 60 bytes have passed."""

    def put(world: World) -> None:
        value = _as_udp(
            forward_value(world, server, client),
            packets=packets,
            octets=60 * packets,
            last_seen_ns=before(world.now_ns, idle_ns),
        )
        value = dataclasses.replace(value, **change)
        put_pending(world, pending_key(abi.Kind.FORWARD, client), value)

    return put


def reply(
    server: Server = B1,
    packets: int = 0,
    idle_ns: int = AGE_NS,
    client: End = CLIENT,
    **change: Any,
) -> Given:
    """REPLY alone: so many answers of 60 bytes have passed."""

    def put(world: World) -> None:
        value = _as_udp(
            reply_value(world, server, client=client),
            packets=packets,
            octets=60 * packets,
            last_seen_ns=before(world.now_ns, idle_ns),
            synack_us=3000 if packets else 0,
        )
        value = dataclasses.replace(value, **change)
        put_pending(world, back_key(server, client=client), value)

    return put


def decided(packets: int = 1, answers: int = 0, server: Server = B1) -> tuple[Given, ...]:
    """A pending flow of the service: so many datagrams and answers have passed."""
    return (
        service(),
        seen(),
        reply(server, answers),
        forward(server, packets, fppl_ns=2_000_000 if packets else 0),
    )


def refused(age_ns: int = AGE_NS) -> Given:
    """The daemon found nobody for the flow."""

    def put(world: World) -> None:
        value = seen_value(
            world,
            isn=0,
            last_seen_ns=before(world.now_ns, age_ns),
            flags=abi.PENDING_REFUSED,
            mode=Mode.REFUSED,
            reason=Reason.ALL_REFUSED,
            ifindex=0,
        )
        assert value.backend == NO_BACKEND
        put_pending(world, pending_key(abi.Kind.FORWARD), value)

    return put


_NO_NUMBERS = {"seq_next": 0, "ack": 0, "window": 0, "wscale": 0, "isn": 0}


def there_entry(world: World, **change: Any) -> abi.FlowEntryValue:
    """The client's direction of an established flow."""
    return dataclasses.replace(forward_entry(world), **{**_NO_NUMBERS, **change})


def back_entry(world: World, **change: Any) -> abi.FlowEntryValue:
    """The backend's."""
    return dataclasses.replace(reply_entry(world), **{**_NO_NUMBERS, **change})


def established(there: dict[str, Any] | None = None, back: dict[str, Any] | None = None) -> Given:
    """A flow in ``flow_table``; the values given replace the usual ones."""

    def put(world: World) -> None:
        service()(world)
        put_flow(world, abi.pack_flow_key(key()), there_entry(world, **(there or {})))
        put_flow(world, back_key(kind=abi.Kind.NONE), back_entry(world, **(back or {})))

    return put


# --- looks at the tables --------------------------------------------------------------------


def has_seen(**wanted: Any) -> Then:
    """SEEN has these values."""
    return _has_pending("SEEN", pending_key(abi.Kind.SEEN), wanted)


def has_forward(client: End = CLIENT, **wanted: Any) -> Then:
    """FORWARD has these values."""
    return _has_pending("FORWARD", pending_key(abi.Kind.FORWARD, client), wanted)


def has_reply(server: Server = B1, client: End = CLIENT, **wanted: Any) -> Then:
    """REPLY has these values."""
    return _has_pending("REPLY", back_key(server, client=client), wanted)


def _has_pending(what: str, which: bytes, wanted: dict[str, Any]) -> Then:
    def look(world: World, started_ns: int) -> None:
        check(read_pending(world, which), what, world, started_ns, wanted)

    return look


def has_flow(side: str, **wanted: Any) -> Then:
    """The entry of that direction ("there", "back") has these values."""
    which = abi.pack_flow_key(key()) if side == "there" else back_key(kind=abi.Kind.NONE)

    def look(world: World, started_ns: int) -> None:
        check(read_flow(world, which), side, world, started_ns, wanted)

    return look
