# SPDX-License-Identifier: Apache-2.0
"""Entries of ``pending_flows`` and ``flow_table`` as bytes, of both address families.

Those of IPv6 (``pending_flow6``, ``flow_entry6``) differ by the length of the addresses only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from struct import Struct

from .abi_keys import (
    KEY,
    Buffer,
    from_slots,
    pack_flow_key,
    pack_reply_key,
    read_enum,
    read_fields,
    slot_values,
)
from .abi_values import Direction, FlowEntryValue, Kind, PendingValue, TcpState
from .abi_vlan import vlan_to_client
from .events import FirstPacket
from .model import NO_BACKEND, ONE_SIDED, Backend, Endpoint, FlowKey, Mode, Reason

NO_WSCALE = 0xFF
PENDING_SYNACK = 0x01
PENDING_REFUSED = 0x02
PENDING_CLOSED = 0x04
PENDING_PROVEN = 0x08
PENDING_FIN = 0x10
PENDING_PROMOTED = 0x20
PENDING_AGAIN = 0x40
PENDING_FULLNAT = 0x80
FLOW_FIN = 0x01
FLOW_RST = 0x02
FLOW_ONE_SIDED = 0x04
FLOW_STAGE = 0x08
FLOW_KILLED = 0x10
FLOW_FULLNAT = 0x80

NAT_REST_S = 60
"""How long a port of fullnat rests: its backend may have the connection in TIME_WAIT."""

# Four-tuples are big-endian in every struct; they are packed apart and put in as bytes.
_TUPLE = Struct(">IIHH")
_TUPLE6 = Struct(">16s16sHH")
_NO_MAC = bytes(6)
_U32 = 0xFFFFFFFF
_FLAGS_AT = 37
"""Where the flags of a flow entry are, in both families."""
_IS_ONE_SIDED = bytes(bool(flags & FLOW_ONE_SIDED) for flags in range(256))


class _FlowLayout:
    """The structs of one address family's flows; ``tuple`` bytes are what differs."""

    def __init__(self, tuple_size: int) -> None:
        more = tuple_size - _TUPLE.size
        self.pending = Struct(f"=4Q4I{tuple_size}s6s6s3IH4BHIII")
        self.flow = Struct(f"=3Q3I4B{tuple_size}sHHII6s6s6sBBIQIHxB6I")
        self.pending_aging = Struct(f"=8xQ{71 + more}xB16x")
        self.flow_aging = Struct(f"=Q28xBBxB{88 + more}x")
        self.pending_backend = Struct(f"=36xI{64 + more}x")
        self.flow_backend = Struct(f"={56 + more}xI68x")
        self.flow_open = Struct(f"={56 + more}xI43xB24x")
        self.flow_service = Struct(f"=39xB{44 + more}xI40x")
        self.flow_traffic = Struct(f"=8xQQ15xB{16 + more}xI68x")
        self.flow_client = Struct(f"=39xB{20 + more}xI64x")


_FLOWS = {4: _FlowLayout(_TUPLE.size), 6: _FlowLayout(_TUPLE6.size)}
_BY_PENDING_SIZE = {each.pending.size: each for each in _FLOWS.values()}
_BY_FLOW_SIZE = {each.flow.size: each for each in _FLOWS.values()}

PENDING_FLOW_SIZE = _FLOWS[4].pending.size
PENDING_FLOW6_SIZE = _FLOWS[6].pending.size
FLOW_ENTRY_SIZE = _FLOWS[4].flow.size
FLOW_ENTRY6_SIZE = _FLOWS[6].flow.size


def pack_forward_pending(
    first: FirstPacket,
    backend: Backend | None,
    mode: int,
    reason: int,
    latency_ns: int,
    source: Endpoint | None = None,
) -> tuple[bytes, bytes]:
    """Key and value of a held flow's FORWARD entry, the decision.

    It was last heard of when it was decided, however long that took: a deadline may be longer
    than a flow lives without traffic.
    ``backend`` None refuses the flow: such an entry has no REPLY beside it. ``source``: ours, that
    fullnat gives the flow.
    """
    key = first.key
    if backend is None:
        new, number, flags = None, NO_BACKEND, PENDING_REFUSED
    else:
        to, by = _target(backend, key), source or Endpoint(key.client_addr, key.client_port)
        new = (by.addr, to.addr, by.port, to.port)
        number, flags = backend.id, PENDING_FULLNAT if source else 0
    return pack_flow_key(key, Kind.FORWARD), _pack_pending(
        key,
        first,
        first.isn,
        number,
        0,
        new,
        _NO_MAC,
        _NO_MAC,
        min(max(latency_ns, 0), _U32),
        first.syn_data,
        first.wscale,
        flags,
        mode,
        reason,
        waited_ns=max(latency_ns, 0),
    )


def _target(backend: Backend, key: FlowKey) -> Endpoint:
    """Whom the flow's packets are addressed to when they leave us, and its replies come from."""
    if backend.forwarding in ONE_SIDED:
        return Endpoint(key.service_addr, key.service_port, key.proto)
    to = backend.endpoint
    return to if to.port else Endpoint(to.addr, key.service_port, to.proto)


def _pack_pending(
    key: FlowKey,
    first: FirstPacket,
    isn: int,
    backend: int,
    ifindex: int,
    new: tuple[int, int, int, int] | None,
    dmac: bytes,
    smac: bytes,
    latency_ns: int,
    syn_data: int,
    wscale: int,
    flags: int,
    mode: int,
    reason: int,
    vlan: int = 0,
    waited_ns: int = 0,
) -> bytes:
    six = key.service_addr >> 32 != 0
    if new is None:
        packed = bytes(_TUPLE6.size if six else _TUPLE.size)
    else:
        packed = _pack_tuple(new, six)
    return _FLOWS[6 if six else 4].pending.pack(
        first.seen_ns,
        first.seen_ns + waited_ns,
        0,
        0,
        isn,
        backend,
        first.service,
        ifindex,
        packed,
        dmac,
        smac,
        latency_ns,
        0,
        0,
        syn_data,
        wscale,
        flags,
        mode,
        reason,
        vlan,
        0,
        0,
        0,
    )


def _pack_tuple(new: tuple[int, int, int, int], six: bool) -> bytes:
    if not six:
        return _TUPLE.pack(*new)
    saddr, daddr, sport, dport = new
    return _TUPLE6.pack(saddr.to_bytes(16, "big"), daddr.to_bytes(16, "big"), sport, dport)


def _unpack_tuple(data: bytes) -> tuple[int, int, int, int]:
    if len(data) == _TUPLE.size:
        saddr, daddr, sport, dport = _TUPLE.unpack(data)
        return saddr, daddr, sport, dport
    source, destination, sport, dport = _TUPLE6.unpack(data)
    return int.from_bytes(source, "big"), int.from_bytes(destination, "big"), sport, dport


def pack_reply_pending(
    first: FirstPacket,
    backend: Backend,
    mode: int,
    reason: int,
    source: Endpoint | None = None,
    vlan: int = 0,
) -> tuple[bytes, bytes]:
    """Key and value of a held flow's REPLY entry, which owns the backend-to-client tuple.

    Replies go back the way the first packet came: its interface and its two MAC addresses.
    What only the SYN-ACK tells (ISN, window, scale) is left for XDP to fill in. ``source``: as
    in ``pack_forward_pending``. ``vlan``: of the backend (``VLAN_*``); unless it is VLAN_KEEP, the
    entry gets the tag of the first packet.
    """
    key, frame = first.key, first.frame
    back = pack_reply_key(_target(backend, key), key, Kind.REPLY, source)
    return back, _pack_pending(
        key,
        first,
        0,
        backend.id,
        first.ifindex,
        (key.service_addr, key.client_addr, key.service_port, key.client_port),
        frame[6:12],
        frame[0:6],
        0,
        0,
        NO_WSCALE,
        PENDING_FULLNAT if source else 0,
        mode,
        reason,
        vlan_to_client(frame, vlan) if vlan else 0,
    )


def pending_reply_key(key: FlowKey, forward: PendingValue) -> bytes:
    """Key of the REPLY that belongs to a FORWARD of ``pending_flows``."""
    to = Endpoint(forward.new_daddr, forward.new_dport, key.proto)
    source = Endpoint(forward.new_saddr, forward.new_sport, key.proto)
    return pack_reply_key(to, key, Kind.REPLY, source)


def pack_pending(value: PendingValue, family: int = 4) -> bytes:
    """Bytes of a ``pending_flows`` value."""
    fields = slot_values(value)
    new = _pack_tuple((fields[8], fields[9], fields[10], fields[11]), family == 6)
    return _FLOWS[family].pending.pack(*fields[:8], new, *fields[12:])


def unpack_pending(data: Buffer) -> PendingValue:
    """Read a ``pending_flows`` value; its length tells the family."""
    layout = _BY_PENDING_SIZE.get(len(data), _FLOWS[4])
    fields = read_fields(layout.pending, data, "pending_flow")
    fields[17] = read_enum(Mode, fields[17], "pending_flow")
    fields[18] = read_enum(Reason, fields[18], "pending_flow")
    fields[8:9] = _unpack_tuple(fields[8])
    return from_slots(PendingValue, fields)


def pack_flow_entry(value: FlowEntryValue, family: int = 4) -> bytes:
    """Bytes of a ``flow_table`` value."""
    fields = slot_values(value)
    new = _pack_tuple((fields[10], fields[11], fields[12], fields[13]), family == 6)
    return _FLOWS[family].flow.pack(*fields[:10], new, *fields[14:])


def unpack_flow_entry(data: Buffer) -> FlowEntryValue:
    """Read a ``flow_table`` value; its length tells the family."""
    layout = _BY_FLOW_SIZE.get(len(data), _FLOWS[4])
    fields = read_fields(layout.flow, data, "flow_entry")
    fields[6] = read_enum(TcpState, fields[6], "flow_entry")
    fields[9] = read_enum(Direction, fields[9], "flow_entry")
    fields[18] = read_enum(Mode, fields[18], "flow_entry")
    fields[19] = read_enum(Reason, fields[19], "flow_entry")
    fields[10:11] = _unpack_tuple(fields[10])
    return from_slots(FlowEntryValue, fields)


def peer_key(key: Buffer, value: Buffer) -> bytes:
    """``flow_table`` key of the other direction of an entry: its new tuple, turned round."""
    size = 4 if len(key) == KEY.size else 16
    new = bytes(value[40 : 44 + 2 * size])
    source, destination, ports = new[:size], new[size : 2 * size], new[2 * size :]
    return destination + source + ports[2:] + ports[:2] + bytes(key[-4:])


def iter_pending_aging(values: Buffer, family: int = 4) -> Iterator[tuple[int, int]]:
    """``(last_seen_ns, flags)`` of each of many ``pending_flows`` values in a row; for aging."""
    return _FLOWS[family].pending_aging.iter_unpack(values)


def iter_flow_aging(values: Buffer, family: int = 4) -> Iterator[tuple[int, int, int, int]]:
    """``(last_seen_ns, state, flags, direction)`` of each of many ``flow_table`` values in a row.

    For aging, which looks at each entry of a large table and needs no more than this.
    """
    return _FLOWS[family].flow_aging.iter_unpack(values)


def iter_flow_clients(values: Buffer, family: int = 4) -> Iterator[tuple[int, int]]:
    """``(direction, ifindex)`` of each of many ``flow_table`` values in a row."""
    return _FLOWS[family].flow_client.iter_unpack(values)


def iter_flow_traffic(values: Buffer, family: int = 4) -> Iterator[tuple[int, int, int, int]]:
    """``(packets, bytes, direction, backend)`` of each of many ``flow_table`` values in a row."""
    return _FLOWS[family].flow_traffic.iter_unpack(values)


def count_one_sided(values: bytes, family: int = 4) -> int:
    """How many of many ``flow_table`` values in a row are one-sided: of flows with one entry."""
    flags = values[_FLAGS_AT :: _FLOWS[family].flow.size]
    return flags.translate(_IS_ONE_SIDED).count(1)


def flow_backends(values: Buffer, family: int = 4) -> set[int]:
    """Ids of the backends that many ``flow_table`` values in a row name."""
    return {backend for (backend,) in _FLOWS[family].flow_backend.iter_unpack(values)}


def flows_heard(values: Buffer, since_ns: Mapping[int, int], family: int = 4) -> set[int]:
    """Of which backends, by id, many ``flow_table`` values in a row have something that came after
    that instant: a reply, or, where replies do not come by, a packet of the client's."""
    layout = _FLOWS[family]
    ways = layout.flow_aging.iter_unpack(values)
    found = layout.flow_backend.iter_unpack(values)
    return {
        backend
        for (backend,), (seen_ns, _, flags, way) in zip(found, ways, strict=True)
        if backend in since_ns
        and seen_ns > since_ns[backend]
        and (way == Direction.REPLY or flags & FLOW_ONE_SIDED)
    }


def count_flows_of(values: Buffer, backend: int, family: int = 4) -> int:
    """Of how many flows of a backend many ``flow_table`` values in a row are FORWARD entries."""
    layout = _FLOWS[family]
    ways = layout.flow_aging.iter_unpack(values)
    found = layout.flow_backend.iter_unpack(values)
    return sum(
        each == backend and way == Direction.FORWARD
        for (each,), (_, _, _, way) in zip(found, ways, strict=True)
    )


def pending_of_backend(values: Buffer, backend: int, family: int = 4) -> list[int]:
    """Which of many ``pending_flows`` values in a row name a backend, and are not closed."""
    layout = _FLOWS[family]
    flags = layout.pending_aging.iter_unpack(values)
    found = layout.pending_backend.iter_unpack(values)
    return [
        index
        for index, ((each,), (_, flag)) in enumerate(zip(found, flags, strict=True))
        if each == backend and not flag & PENDING_CLOSED
    ]


def flow_services(values: Buffer, family: int = 4) -> Counter[int]:
    """How many flows of each service many ``flow_table`` values in a row are FORWARD entries of."""
    counted = Counter(_FLOWS[family].flow_service.iter_unpack(values))
    return Counter(
        {service: count for (way, service), count in counted.items() if way == Direction.FORWARD}
    )


def flow_open(values: Buffer, family: int = 4) -> Counter[int]:
    """How many open flows of each backend many ``flow_table`` values in a row are entries of."""
    counted = Counter(_FLOWS[family].flow_open.iter_unpack(values))
    return Counter({backend: count for (backend, is_open), count in counted.items() if is_open})


def pending_backends(values: Buffer, family: int = 4) -> set[int]:
    """The same of ``pending_flows`` values; NO_BACKEND is among them."""
    return {backend for (backend,) in _FLOWS[family].pending_backend.iter_unpack(values)}
