# SPDX-License-Identifier: Apache-2.0
"""Flows as entries of ``pending_flows`` and ``flow_table``: putting them there, reading them."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.frames import End
from tests.support.instants import before
from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, Mode, Reason

from .world import (
    B1,
    CLIENT,
    CLIENT_ISN,
    CLIENT_MAC,
    CLIENT_SCALE,
    MS,
    ROUTER_MAC_B,
    ROUTER_MAC_C,
    SERVER_ISN,
    SERVER_SCALE,
    WEB,
    Given,
    Server,
    World,
    deltas,
    endpoint_of,
    flow_key,
)

AGE_NS = 50 * MS
"""How long ago the first packet of a flow in the tables arrived."""

CLIENT_WINDOW, SERVER_WINDOW = 500 << CLIENT_SCALE, 250 << SERVER_SCALE
SYNACK_WINDOW = 65160


def seen_value(world: World, **change: Any) -> abi.PendingValue:
    """SEEN: the first packet was handed to the daemon."""
    value = abi.PendingValue(
        seen_ns=world.now_ns - AGE_NS,
        last_seen_ns=world.now_ns - AGE_NS,
        packets=0,
        octets=0,
        isn=CLIENT_ISN,
        backend=NO_BACKEND,
        service=0,
        ifindex=world.wires.client,
        new_saddr=0,
        new_daddr=0,
        new_sport=0,
        new_dport=0,
        dmac=bytes(6),
        smac=bytes(6),
        latency_ns=0,
        fppl_ns=0,
        synack_us=0,
        syn_data=0,
        wscale=0,
        flags=0,
        mode=Mode.RACE,
        reason=Reason.NONE,
        window=0,
    )
    return dataclasses.replace(value, **change)


def forward_value(
    world: World, server: Server = B1, client: End = CLIENT, **change: Any
) -> abi.PendingValue:
    """FORWARD: decided for ``server``, the SYN was sent on."""
    value = dataclasses.replace(
        seen_value(world),
        packets=1,
        octets=60,
        backend=server.id,
        service=server.service,
        ifindex=0,
        new_saddr=client.number,
        new_daddr=server.end.number,
        new_sport=client.port,
        new_dport=server.end.port,
        latency_ns=1 * MS,
        fppl_ns=2 * MS,
        wscale=CLIENT_SCALE,
        reason=Reason.RACE_WON,
    )
    return dataclasses.replace(value, **change)


def reply_value(
    world: World,
    server: Server = B1,
    service: End = WEB,
    client: End = CLIENT,
    synack: bool = False,
    **change: Any,
) -> abi.PendingValue:
    """REPLY beside that FORWARD; with ``synack`` the SYN-ACK has passed."""
    value = dataclasses.replace(
        forward_value(world, server, client),
        packets=0,
        octets=0,
        isn=0,
        ifindex=world.wires.client,
        new_saddr=service.number,
        new_daddr=client.number,
        new_sport=service.port,
        new_dport=client.port,
        dmac=CLIENT_MAC,
        smac=ROUTER_MAC_C,
        latency_ns=0,
        fppl_ns=0,
        wscale=abi.NO_WSCALE,
    )
    if synack:
        value = dataclasses.replace(
            value,
            packets=1,
            octets=60,
            isn=SERVER_ISN,
            wscale=SERVER_SCALE,
            window=SYNACK_WINDOW,
            synack_us=3000,
            flags=abi.PENDING_SYNACK,
        )
    return dataclasses.replace(value, **change)


def is_open(state: abi.TcpState) -> int:
    """Whether a flow in this state is one of its backend's open ones, as FORWARD has it."""
    return int(state is not abi.TcpState.CLOSING)


def forward_entry(
    world: World, server: Server = B1, client: End = CLIENT, service: End = WEB, **change: Any
) -> abi.FlowEntryValue:
    """The client's direction of an established flow, nothing sent since the handshake."""
    l3, l4 = deltas((client, service), (client, server.end))
    value = abi.FlowEntryValue(
        last_seen_ns=world.now_ns - AGE_NS,
        packets=2,
        octets=100,
        seq_next=CLIENT_ISN + 1,
        ack=SERVER_ISN + 1,
        window=CLIENT_WINDOW,
        state=abi.TcpState.ESTABLISHED,
        flags=0,
        wscale=CLIENT_SCALE,
        direction=abi.Direction.FORWARD,
        new_saddr=client.number,
        new_daddr=server.end.number,
        new_sport=client.port,
        new_dport=server.end.port,
        l3_delta=l3,
        l4_delta=l4,
        backend=server.id,
        ifindex=world.wires.client,
        in_mac=ROUTER_MAC_C,
        dmac=CLIENT_MAC,
        smac=ROUTER_MAC_C,
        mode=Mode.RACE,
        reason=Reason.RACE_WON,
        service=server.service,
        seen_ns=world.now_ns - AGE_NS,
        established_us=0,
        isn=CLIENT_ISN,
        latency_ns=1 * MS,
        fppl_ns=2 * MS,
        synack_us=3000,
        first_data_us=0,
    )
    value = dataclasses.replace(value, **change)
    return dataclasses.replace(value, open=change.get("open", is_open(value.state)))


def reply_entry(
    world: World, server: Server = B1, client: End = CLIENT, service: End = WEB, **change: Any
) -> abi.FlowEntryValue:
    """The backend's direction of it."""
    l3, l4 = deltas((server.end, client), (service, client))
    value = dataclasses.replace(
        forward_entry(world, server, client, service),
        packets=1,
        octets=60,
        seq_next=SERVER_ISN + 1,
        ack=CLIENT_ISN + 1,
        window=SERVER_WINDOW,
        wscale=SERVER_SCALE,
        direction=abi.Direction.REPLY,
        new_saddr=service.number,
        new_daddr=client.number,
        new_sport=service.port,
        new_dport=client.port,
        l3_delta=l3,
        l4_delta=l4,
        in_mac=ROUTER_MAC_B,
        isn=SERVER_ISN,
        open=0,
    )
    return dataclasses.replace(value, **change)


# --- keys -----------------------------------------------------------------------------------


def seen_key(service: End = WEB, client: End = CLIENT) -> bytes:
    """Key of SEEN."""
    return abi.pack_flow_key(flow_key(service, client), abi.Kind.SEEN)


def forward_key(service: End = WEB, client: End = CLIENT) -> bytes:
    """Key of FORWARD."""
    return abi.pack_flow_key(flow_key(service, client), abi.Kind.FORWARD)


def reply_key(server: Server = B1, client: End = CLIENT) -> bytes:
    """Key of REPLY."""
    return abi.pack_reply_key(endpoint_of(server.end), flow_key(client=client), abi.Kind.REPLY)


def flow_keys(server: Server = B1, service: End = WEB, client: End = CLIENT) -> tuple[bytes, bytes]:
    """Keys of both directions in ``flow_table``."""
    return (
        abi.pack_flow_key(flow_key(service, client)),
        abi.pack_reply_key(endpoint_of(server.end), flow_key(service, client)),
    )


# --- steps ----------------------------------------------------------------------------------


def put_pending(world: World, key: bytes, value: abi.PendingValue) -> None:
    """Insert an entry that must not be there yet."""
    assert world.maps.pending_flows.insert_noexist(key, abi.pack_pending(value)) == 0


def put_flow(world: World, key: bytes, value: abi.FlowEntryValue) -> None:
    """Insert an entry that must not be there yet."""
    assert world.maps.flow_table.insert_noexist(key, abi.pack_flow_entry(value)) == 0


def seen(**change: Any) -> Given:
    """The first packet is held."""
    return lambda world: put_pending(world, seen_key(), seen_value(world, **change))


def forward(server: Server = B1, idle_ns: int = AGE_NS, **change: Any) -> Given:
    """FORWARD alone; the last packet passed ``idle_ns`` ago."""

    def put(world: World) -> None:
        value = forward_value(world, server, last_seen_ns=before(world.now_ns, idle_ns), **change)
        put_pending(world, forward_key(), value)

    return put


def reply(server: Server = B1, service: End = WEB, synack: bool = False, **change: Any) -> Given:
    """REPLY alone; with another ``service`` it is another flow's."""

    def put(world: World) -> None:
        value = reply_value(world, server, service, synack=synack, **change)
        put_pending(world, reply_key(server), value)

    return put


def decided(synack: bool = False, server: Server = B1) -> tuple[Given, ...]:
    """A pending flow whose SYN was sent on; with ``synack`` its answer has passed, too."""
    return seen(), reply(server, synack=synack), forward(server)


def refused(**change: Any) -> Given:
    """The daemon found nobody for the flow."""

    def put(world: World) -> None:
        value = dataclasses.replace(
            forward_value(world),
            packets=0,
            octets=0,
            backend=NO_BACKEND,
            new_saddr=0,
            new_daddr=0,
            new_sport=0,
            new_dport=0,
            fppl_ns=0,
            flags=abi.PENDING_REFUSED,
            mode=Mode.REFUSED,
            reason=Reason.ALL_REFUSED,
        )
        put_pending(world, forward_key(), dataclasses.replace(value, **change))

    return put


def established(
    client_side: dict[str, Any] | None = None, server_side: dict[str, Any] | None = None
) -> Given:
    """A flow in ``flow_table``; the values given replace the usual ones."""

    def put(world: World) -> None:
        there, back = flow_keys()
        put_flow(world, there, forward_entry(world, **(client_side or {})))
        put_flow(world, back, reply_entry(world, **(server_side or {})))

    return put


# --- reading --------------------------------------------------------------------------------


def read_pending(world: World, key: bytes) -> abi.PendingValue | None:
    """An entry of ``pending_flows`` or ``flood_flows``."""
    raw = world.maps.by_family[world.family].read_pending(key)
    return None if raw is None else abi.unpack_pending(raw)


def read_flow(world: World, key: bytes) -> abi.FlowEntryValue | None:
    """An entry of ``flow_table``."""
    raw = world.maps.flow_table.read(key)
    return None if raw is None else abi.unpack_flow_entry(raw)
