# SPDX-License-Identifier: Apache-2.0
"""Mirror of ``ebpf/abi.h``: the only place where bytes become values and back.

Addresses and ports are host-order integers in values and big-endian in bytes; all other
integers are in the machine's order on both sides. Field names are those of the header,
except ``octets`` for ``bytes``. Padding is written as zero and ignored when read. Every
``unpack_*`` and ``decode_*`` function raises :class:`AbiError` on bytes that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, TypeVar

from .abi_values import BackendValue as BackendValue
from .abi_values import ControlValue as ControlValue
from .abi_values import Counter as Counter
from .abi_values import Direction as Direction
from .abi_values import EventHeader as EventHeader
from .abi_values import EventType as EventType
from .abi_values import FlowEntryValue as FlowEntryValue
from .abi_values import InterfaceValue as InterfaceValue
from .abi_values import Kind as Kind
from .abi_values import PendingValue as PendingValue
from .abi_values import ServiceValue as ServiceValue
from .abi_values import Stage as Stage
from .abi_values import TcpState as TcpState
from .address import format_addr as format_addr
from .address import format_endpoint as format_endpoint
from .address import format_mac as format_mac
from .address import parse_addr as parse_addr
from .address import parse_endpoint as parse_endpoint
from .address import parse_mac as parse_mac
from .address import protocol_name as protocol_name
from .errors import AbiError
from .events import FirstPacket, FlowEstablished, ProbeReply, XdpDecided
from .model import (
    NO_BACKEND,
    Backend,
    Endpoint,
    FlowKey,
    Forwarding,
    Mode,
    Orphans,
    ProbeAnswer,
    Reason,
)

ABI_VERSION = 1
STAGE_MAX = len(Stage)
COUNTER_MAX = len(Counter)
HASH_SLOTS = 1021
MAX_VLAN_TAGS = 2
NO_WSCALE = 0xFF
FRAME_SMALL = 240
FRAME_LARGE = 1520
RECORD_SMALL = 320
RECORD_LARGE = 1600

BACKEND_UP = 0x01
BACKEND_DRAINING = 0x02
BACKEND_SHARED = 0x04
PENDING_SYNACK = 0x01
PENDING_REFUSED = 0x02
PENDING_CLOSED = 0x04
FLOW_FIN = 0x01
FLOW_RST = 0x02
IF_BOUNCE_REDIRECT = 0x01
IF_VIRTUAL_MAC = 0x02

# Four-tuples are big-endian in every struct; they are packed apart and put in as bytes.
_TUPLE = Struct(">IIHH")
_KEY = Struct(">IIHHBBxx")
_ENDPOINT = Struct(">IHBx")
_SERVICE = Struct("=4Q4I4B4x")
_BACKEND = Struct("=6sBBII4s6s6sH2x")
_BACKEND_REF = Struct("=II")
_HASH_TABLE = Struct(f"={HASH_SLOTS}I4x")
_PENDING = Struct("=4Q4I12s6s6s3IH4BxxI")
_FLOW = Struct("=3Q3I4B12sHHII6s6s6sBBIQQ5I4x")
_PENDING_AGING = Struct("=8xQ80x")
_FLOW_AGING = Struct("=Q28xBBxB88x")
_PENDING_BACKEND = Struct("=36xI56x")
_FLOW_BACKEND = Struct("=56xI68x")
_EVENT = Struct("=Q16s4IH4BHIIQ")
_TOKENS = Struct("=QQ")
_INTERFACE = Struct("=6s6sI")
_CONTROL = Struct("=9Q4IHH4x")
_REINJECT = Struct("=QI4x")

FLOW_KEY_SIZE = _KEY.size
ENDPOINT_KEY_SIZE = _ENDPOINT.size
SERVICE_SIZE = _SERVICE.size
BACKEND_SIZE = _BACKEND.size
BACKEND_REF_SIZE = _BACKEND_REF.size
HASH_TABLE_SIZE = _HASH_TABLE.size
PENDING_FLOW_SIZE = _PENDING.size
FLOW_ENTRY_SIZE = _FLOW.size
EVENT_SIZE = _EVENT.size
TOKEN_BUCKET_SIZE = _TOKENS.size
INTERFACE_SIZE = _INTERFACE.size
CONTROL_SIZE = _CONTROL.size
REINJECT_META_SIZE = _REINJECT.size

Buffer = bytes | bytearray | memoryview
E = TypeVar("E", bound=IntEnum)

_NO_MAC = bytes(6)
_NO_TUPLE = bytes(12)
_U32 = 0xFFFFFFFF
_ETH_HEADER = 14
# For the hot functions: member look-ups and enum calls would cost as much as the rest.
_FIRST_PACKET, _PROBE_REPLY, _ESTABLISHED, _XDP_DECIDED = map(int, EventType)
_MODES = tuple(Mode)
_REASONS = tuple(Reason)
_ANSWERS = tuple(ProbeAnswer)


def _fields(layout: Struct, data: Buffer, what: str) -> list[Any]:
    if len(data) != layout.size:
        raise AbiError(f"{what}: {len(data)} bytes, expected {layout.size}")
    return list(layout.unpack_from(data))


def _values(value: object) -> list[Any]:
    # Slots are in the order of the header's fields.
    return [getattr(value, name) for name in type(value).__slots__]  # type: ignore[attr-defined]


def _enum(kind: type[E], number: int, what: str) -> E:
    try:
        return kind(number)
    except ValueError:
        raise AbiError(f"{what}: {kind.__name__} has no value {number}") from None


# --- keys -----------------------------------------------------------------------------


def pack_flow_key(key: FlowKey, kind: int = Kind.NONE) -> bytes:
    """Key of the client-to-service direction."""
    return _KEY.pack(
        key.client_addr, key.service_addr, key.client_port, key.service_port, key.proto, kind
    )


def pack_reply_key(backend: Endpoint, key: FlowKey, kind: int = Kind.NONE) -> bytes:
    """Key of the backend-to-client direction of ``key``'s flow."""
    return _KEY.pack(backend.addr, key.client_addr, backend.port, key.client_port, key.proto, kind)


def flow_key_from_bytes(data: Buffer) -> FlowKey:
    """Read a key; its source becomes the client, its destination the service.

    For a backend-to-client key that means: ``client_*`` is the backend.
    """
    saddr, daddr, sport, dport, proto, _ = _fields(_KEY, data, "flow_key")
    return FlowKey(saddr, sport, daddr, dport, proto)


def key_kind(data: Buffer) -> Kind:
    """Which entry of a flow a ``pending_flows`` key names."""
    return _enum(Kind, _fields(_KEY, data, "flow_key")[5], "flow_key")


def without_kind(key: bytes) -> bytes:
    """The ``flow_table`` key of the tuple that a ``pending_flows`` key names."""
    return key[:13] + b"\0" + key[14:]


def pack_endpoint_key(endpoint: Endpoint) -> bytes:
    """Key of ``services`` and ``backend_index``."""
    return _ENDPOINT.pack(endpoint.addr, endpoint.port, endpoint.proto)


def unpack_endpoint_key(data: Buffer) -> Endpoint:
    """Read a key of ``services`` or ``backend_index``."""
    return Endpoint(*_fields(_ENDPOINT, data, "endpoint_key"))


# --- configuration: services, backends, hash tables, interfaces, control ---------------


def pack_service(value: ServiceValue) -> bytes:
    """Bytes of a ``services`` value."""
    return _SERVICE.pack(*_values(value))


def unpack_service(data: Buffer) -> ServiceValue:
    """Read a ``services`` value."""
    fields = _fields(_SERVICE, data, "service")
    fields[8] = _enum(Mode, fields[8], "service")
    fields[9] = _enum(Forwarding, fields[9], "service")
    fields[10] = _enum(Orphans, fields[10], "service")
    return ServiceValue(*fields)


def pack_backend(value: BackendValue) -> bytes:
    """Bytes of a ``backends`` value."""
    addr, port, proto, flags, service, ifindex, probe_addr, *rest = _values(value)
    where = addr.to_bytes(4, "big") + port.to_bytes(2, "big")
    return _BACKEND.pack(
        where, proto, flags, service, ifindex, probe_addr.to_bytes(4, "big"), *rest
    )


def unpack_backend(data: Buffer) -> BackendValue:
    """Read a ``backends`` value."""
    where, proto, flags, service, ifindex, probe_addr, *rest = _fields(_BACKEND, data, "backend")
    addr, port = int.from_bytes(where[:4], "big"), int.from_bytes(where[4:], "big")
    probe_addr = int.from_bytes(probe_addr, "big")
    return BackendValue(addr, port, proto, flags, service, ifindex, probe_addr, *rest)


def pack_backend_ref(backend: int, service: int) -> bytes:
    """Bytes of a ``backend_index`` value."""
    return _BACKEND_REF.pack(backend, service)


def unpack_backend_ref(data: Buffer) -> tuple[int, int]:
    """Backend id and service id of a ``backend_index`` value."""
    backend, service = _fields(_BACKEND_REF, data, "backend_ref")
    return backend, service


def pack_hash_table(slots: Sequence[int]) -> bytes:
    """Bytes of a ``hash_tables`` value. Raises ValueError unless there are HASH_SLOTS slots."""
    if len(slots) != HASH_SLOTS:
        raise ValueError(f"a hash table has {HASH_SLOTS} slots, got {len(slots)}")
    return _HASH_TABLE.pack(*slots)


def unpack_hash_table(data: Buffer) -> tuple[int, ...]:
    """Backend id of each slot of a ``hash_tables`` value."""
    return tuple(_fields(_HASH_TABLE, data, "hash_table"))


def pack_token_bucket(credit_ns: int, last_ns: int) -> bytes:
    """Bytes of one CPU's ``tokens`` value."""
    return _TOKENS.pack(credit_ns, last_ns)


def unpack_token_bucket(data: Buffer) -> tuple[int, int]:
    """``credit_ns`` and ``last_ns`` of one CPU's ``tokens`` value."""
    credit_ns, last_ns = _fields(_TOKENS, data, "token_bucket")
    return credit_ns, last_ns


def pack_interface(value: InterfaceValue) -> bytes:
    """Bytes of an interface's value."""
    return _INTERFACE.pack(*_values(value))


def unpack_interface(data: Buffer) -> InterfaceValue:
    """Read an interface's value."""
    return InterfaceValue(*_fields(_INTERFACE, data, "interface"))


def pack_control(value: ControlValue) -> bytes:
    """Bytes of the ``control`` value."""
    fields = _values(value)
    return _CONTROL.pack(*fields[:9], *value.probe_key, *fields[10:])


def unpack_control(data: Buffer) -> ControlValue:
    """Read the ``control`` value."""
    fields = _fields(_CONTROL, data, "control")
    resumed_ns = fields.pop(2)
    fields[8:10] = [(fields[8], fields[9])]
    return ControlValue(*fields, resumed_ns=resumed_ns)


def pack_reinject_meta(mark: int, egress_ifindex: int = 0) -> bytes:
    """Metadata in front of a frame that is run through the program."""
    return _REINJECT.pack(mark, egress_ifindex)


def unpack_reinject_meta(data: Buffer) -> tuple[int, int]:
    """``mark`` and ``egress_ifindex`` of the metadata that came back."""
    mark, egress_ifindex = _fields(_REINJECT, data, "reinject_meta")
    return mark, egress_ifindex


# --- flows: pending_flows, flow_table ---------------------------------------------------


def pack_forward_pending(
    first: FirstPacket, backend: Backend | None, mode: int, reason: int, latency_ns: int
) -> tuple[bytes, bytes]:
    """Key and value of a held flow's FORWARD entry, the decision.

    ``backend`` None refuses the flow: such an entry has no REPLY beside it.
    """
    if backend is None:
        new, number, flags = _NO_TUPLE, NO_BACKEND, PENDING_REFUSED
    else:
        key, to = first.key, backend.endpoint
        new = _TUPLE.pack(key.client_addr, to.addr, key.client_port, to.port)
        number, flags = backend.id, 0
    return pack_flow_key(first.key, Kind.FORWARD), _PENDING.pack(
        first.seen_ns,
        first.seen_ns,
        0,
        0,
        first.isn,
        number,
        first.service,
        0,
        new,
        _NO_MAC,
        _NO_MAC,
        min(max(latency_ns, 0), _U32),
        0,
        0,
        first.syn_data,
        first.wscale,
        flags,
        mode,
        reason,
        0,
    )


def pack_reply_pending(
    first: FirstPacket, backend: Backend, mode: int, reason: int
) -> tuple[bytes, bytes]:
    """Key and value of a held flow's REPLY entry, which owns the backend-to-client tuple.

    Replies go back the way the first packet came: its interface and its two MAC addresses.
    What only the SYN-ACK tells (ISN, window, scale) is left for XDP to fill in.
    """
    key, frame = first.key, first.frame
    new = _TUPLE.pack(key.service_addr, key.client_addr, key.service_port, key.client_port)
    return pack_reply_key(backend.endpoint, key, Kind.REPLY), _PENDING.pack(
        first.seen_ns,
        first.seen_ns,
        0,
        0,
        0,
        backend.id,
        first.service,
        first.ifindex,
        new,
        frame[6:12],
        frame[0:6],
        0,
        0,
        0,
        0,
        NO_WSCALE,
        0,
        mode,
        reason,
        0,
    )


def pack_pending(value: PendingValue) -> bytes:
    """Bytes of a ``pending_flows`` value."""
    fields = _values(value)
    return _PENDING.pack(*fields[:8], _TUPLE.pack(*fields[8:12]), *fields[12:])


def unpack_pending(data: Buffer) -> PendingValue:
    """Read a ``pending_flows`` value."""
    fields = _fields(_PENDING, data, "pending_flow")
    fields[17] = _enum(Mode, fields[17], "pending_flow")
    fields[18] = _enum(Reason, fields[18], "pending_flow")
    fields[8:9] = _TUPLE.unpack(fields[8])
    return PendingValue(*fields)


def pack_flow_entry(value: FlowEntryValue) -> bytes:
    """Bytes of a ``flow_table`` value."""
    fields = _values(value)
    return _FLOW.pack(*fields[:10], _TUPLE.pack(*fields[10:14]), *fields[14:])


def unpack_flow_entry(data: Buffer) -> FlowEntryValue:
    """Read a ``flow_table`` value."""
    fields = _fields(_FLOW, data, "flow_entry")
    fields[6] = _enum(TcpState, fields[6], "flow_entry")
    fields[9] = _enum(Direction, fields[9], "flow_entry")
    fields[18] = _enum(Mode, fields[18], "flow_entry")
    fields[19] = _enum(Reason, fields[19], "flow_entry")
    fields[10:11] = _TUPLE.unpack(fields[10])
    return FlowEntryValue(*fields)


def peer_key(key: Buffer, value: Buffer) -> bytes:
    """``flow_table`` key of the other direction of an entry: its new tuple, turned round."""
    new = bytes(value[40:52])
    return new[4:8] + new[0:4] + new[10:12] + new[8:10] + bytes(key[12:16])


def iter_pending_aging(values: Buffer) -> Iterator[tuple[int]]:
    """``(last_seen_ns,)`` of each of many ``pending_flows`` values in a row; for aging."""
    return _PENDING_AGING.iter_unpack(values)


def iter_flow_aging(values: Buffer) -> Iterator[tuple[int, int, int, int]]:
    """``(last_seen_ns, state, flags, direction)`` of each of many ``flow_table`` values in a row.

    For aging, which looks at each entry of a large table and needs no more than this.
    """
    return _FLOW_AGING.iter_unpack(values)


def flow_backends(values: Buffer) -> set[int]:
    """Ids of the backends that many ``flow_table`` values in a row name."""
    return {backend for (backend,) in _FLOW_BACKEND.iter_unpack(values)}


def pending_backends(values: Buffer) -> set[int]:
    """The same of ``pending_flows`` values; NO_BACKEND is among them."""
    return {backend for (backend,) in _PENDING_BACKEND.iter_unpack(values)}


# --- events -----------------------------------------------------------------------------


def decode_event(record: Buffer) -> FirstPacket | ProbeReply | FlowEstablished | XdpDecided:
    """Event of one ring buffer record; a first packet's frame is copied out of it."""
    if len(record) < 64:
        raise AbiError(f"event: record of {len(record)} bytes, expected at least {EVENT_SIZE}")
    (
        time_ns,
        key,
        service,
        backend,
        ifindex,
        seq,
        frame_len,
        kind,
        detail,
        reason,
        wscale,
        syn_data,
        fppl_ns,
        synack_us,
        seen_ns,
    ) = _EVENT.unpack_from(record)
    saddr, daddr, sport, dport, proto, _ = _KEY.unpack(key)
    if kind == _FIRST_PACKET:
        frame = bytes(record[64 : 64 + frame_len])
        if len(frame) != frame_len or frame_len < _ETH_HEADER:
            raise AbiError(
                f"event: frame of {frame_len} bytes in a record of {len(record)}, "
                f"expected {_ETH_HEADER} to {len(record) - EVENT_SIZE}"
            )
        return FirstPacket(
            FlowKey(saddr, sport, daddr, dport, proto),
            service,
            ifindex,
            seen_ns,
            seq,
            syn_data,
            wscale,
            frame,
        )
    if kind == _PROBE_REPLY:
        if not 0 < detail < len(_ANSWERS):
            raise AbiError(f"event: probe answer {detail}, expected 1 to {len(_ANSWERS) - 1}")
        return ProbeReply(saddr, sport, dport, seq, _ANSWERS[detail], time_ns)
    if kind == _ESTABLISHED:
        return FlowEstablished(
            FlowKey(saddr, sport, daddr, dport, proto), backend, time_ns, synack_us, fppl_ns
        )
    if kind == _XDP_DECIDED:
        if detail >= len(_MODES) or reason >= len(_REASONS):
            raise AbiError(f"event: mode {detail} or reason {reason} is unknown")
        return XdpDecided(
            FlowKey(saddr, sport, daddr, dport, proto),
            service,
            backend,
            _MODES[detail],
            _REASONS[reason],
            seen_ns,
            time_ns,
        )
    raise AbiError(f"event: type {kind} is unknown, expected one of {[*map(int, EventType)]}")


def pack_event(value: EventHeader, frame: bytes = b"", size: int = 0) -> bytes:
    """Record as XDP writes it, padded with zeros to ``size``; for tests and replays."""
    time_ns, key, *rest = _values(value)
    return (_EVENT.pack(time_ns, pack_flow_key(key), *rest) + frame).ljust(size, b"\0")


def unpack_event_header(data: Buffer) -> EventHeader:
    """Read the head of a record without judging it."""
    fields = _fields(_EVENT, data[:EVENT_SIZE], "event")
    return EventHeader(fields[0], flow_key_from_bytes(fields[1]), *fields[2:])
