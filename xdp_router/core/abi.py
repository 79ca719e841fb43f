# SPDX-License-Identifier: Apache-2.0
"""Mirror of ``ebpf/abi.h``: the only place where bytes become values and back.

Addresses and ports are host-order integers in values and big-endian in bytes; all other
integers are in the machine's order on both sides. Field names are those of the header,
except ``octets`` for ``bytes``. Padding is written as zero and ignored when read. Every
``unpack_*`` and ``decode_*`` function raises :class:`AbiError` on bytes that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

from .abi_events import EVENT_SIZE as EVENT_SIZE
from .abi_events import decode_event as decode_event
from .abi_events import pack_event as pack_event
from .abi_events import unpack_event_header as unpack_event_header
from .abi_keys import ENDPOINT, KEY, Buffer, read_enum, read_fields, slot_values
from .abi_keys import flow_key_from_bytes as flow_key_from_bytes
from .abi_keys import key_kind as key_kind
from .abi_keys import pack_endpoint_key as pack_endpoint_key
from .abi_keys import pack_flow_key as pack_flow_key
from .abi_keys import pack_reply_key as pack_reply_key
from .abi_keys import unpack_endpoint_key as unpack_endpoint_key
from .abi_keys import without_kind as without_kind
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
from .events import FirstPacket
from .model import (
    NO_BACKEND,
    Backend,
    Forwarding,
    Mode,
    Orphans,
    Reason,
)

ABI_VERSION = 2
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
BACKEND_KERNEL = 0x08
PENDING_SYNACK = 0x01
PENDING_REFUSED = 0x02
PENDING_CLOSED = 0x04
PENDING_PROVEN = 0x08
PENDING_FIN = 0x10
FLOW_FIN = 0x01
FLOW_RST = 0x02
IF_BOUNCE_REDIRECT = 0x01
IF_VIRTUAL_MAC = 0x02
IF_HANDOFF_FORWARD = 0x04
IF_HANDOFF_REPLY = 0x08
IF_NO_XMIT = 0x10
CONTROL_NO_XMIT = 0x01
EGRESS_KERNEL = 0xFFFFFFFF
TOKENS_EVENTS = 0
TOKENS_ICMP = 1
TOKENS_SERVICE = 2
SHARE_ONE = 256

# Four-tuples are big-endian in every struct; they are packed apart and put in as bytes.
_TUPLE = Struct(">IIHH")
_SERVICE = Struct("=3Q4I4B4x")
_BACKEND = Struct("=6sBBII4s6s6sH2x")
_BACKEND_REF = Struct("=II")
_HASH_TABLE = Struct(f"={HASH_SLOTS}I4x")
_PENDING = Struct("=4Q4I12s6s6s3IH4BxxIII")
_FLOW = Struct("=3Q3I4B12sHHII6s6s6sBBIQQ6I")
_PENDING_AGING = Struct("=8xQ71xB16x")
_FLOW_AGING = Struct("=Q28xBBxB88x")
_PENDING_BACKEND = Struct("=36xI64x")
_FLOW_BACKEND = Struct("=56xI68x")
_FLOW_CLIENT = Struct("=39xB20xI64x")
_TOKENS = Struct("=QQQ")
_PREFIX = Struct(">I")
_SHARE = Struct("=I")
_PRESSURE = Struct("=QQ")
_INTERFACE = Struct("=6s6sI4sI")
_CONTROL = Struct("=13Q6I2HI")
_REINJECT = Struct("=QI4x")

FLOW_KEY_SIZE = KEY.size
ENDPOINT_KEY_SIZE = ENDPOINT.size
SERVICE_SIZE = _SERVICE.size
BACKEND_SIZE = _BACKEND.size
BACKEND_REF_SIZE = _BACKEND_REF.size
HASH_TABLE_SIZE = _HASH_TABLE.size
PENDING_FLOW_SIZE = _PENDING.size
FLOW_ENTRY_SIZE = _FLOW.size
TOKEN_BUCKET_SIZE = _TOKENS.size
PREFIX_KEY_SIZE = _PREFIX.size
EVENT_SHARE_SIZE = _SHARE.size
PRESSURE_SIZE = _PRESSURE.size
INTERFACE_SIZE = _INTERFACE.size
CONTROL_SIZE = _CONTROL.size
REINJECT_META_SIZE = _REINJECT.size

_NO_MAC = bytes(6)
_NO_TUPLE = bytes(12)
_U32 = 0xFFFFFFFF

# --- configuration: services, backends, hash tables, interfaces, control ---------------


def pack_service(value: ServiceValue) -> bytes:
    """Bytes of a ``services`` value."""
    return _SERVICE.pack(*slot_values(value))


def unpack_service(data: Buffer) -> ServiceValue:
    """Read a ``services`` value."""
    fields = read_fields(_SERVICE, data, "service")
    fields[7] = read_enum(Mode, fields[7], "service")
    fields[8] = read_enum(Forwarding, fields[8], "service")
    fields[9] = read_enum(Orphans, fields[9], "service")
    return ServiceValue(*fields)


def pack_backend(value: BackendValue) -> bytes:
    """Bytes of a ``backends`` value."""
    addr, port, proto, flags, service, ifindex, probe_addr, *rest = slot_values(value)
    where = addr.to_bytes(4, "big") + port.to_bytes(2, "big")
    return _BACKEND.pack(
        where, proto, flags, service, ifindex, probe_addr.to_bytes(4, "big"), *rest
    )


def unpack_backend(data: Buffer) -> BackendValue:
    """Read a ``backends`` value."""
    where, proto, flags, service, ifindex, probe_addr, *rest = read_fields(
        _BACKEND, data, "backend"
    )
    addr, port = int.from_bytes(where[:4], "big"), int.from_bytes(where[4:], "big")
    probe_addr = int.from_bytes(probe_addr, "big")
    return BackendValue(addr, port, proto, flags, service, ifindex, probe_addr, *rest)


def pack_backend_ref(backend: int, service: int) -> bytes:
    """Bytes of a ``backend_index`` value."""
    return _BACKEND_REF.pack(backend, service)


def unpack_backend_ref(data: Buffer) -> tuple[int, int]:
    """Backend id and service id of a ``backend_index`` value."""
    backend, service = read_fields(_BACKEND_REF, data, "backend_ref")
    return backend, service


def pack_hash_table(slots: Sequence[int]) -> bytes:
    """Bytes of a ``hash_tables`` value. Raises ValueError unless there are HASH_SLOTS slots."""
    if len(slots) != HASH_SLOTS:
        raise ValueError(f"a hash table has {HASH_SLOTS} slots, got {len(slots)}")
    return _HASH_TABLE.pack(*slots)


def unpack_hash_table(data: Buffer) -> tuple[int, ...]:
    """Backend id of each slot of a ``hash_tables`` value."""
    return tuple(read_fields(_HASH_TABLE, data, "hash_table"))


def pack_token_bucket(credit_ns: int, last_ns: int, asked: int = 0) -> bytes:
    """Bytes of one CPU's ``tokens`` value, or of a ``prefix_tokens`` value."""
    return _TOKENS.pack(credit_ns, last_ns, asked)


def unpack_token_bucket(data: Buffer) -> tuple[int, int, int]:
    """``credit_ns``, ``last_ns`` and ``asked`` of such a value."""
    credit_ns, last_ns, asked = read_fields(_TOKENS, data, "token_bucket")
    return credit_ns, last_ns, asked


def pack_prefix_key(addr: int) -> bytes:
    """Key of ``prefix_tokens``: ``addr`` with the bits behind its prefix cleared."""
    return _PREFIX.pack(addr)


def pack_event_share(scale: int) -> bytes:
    """Bytes of an ``event_shares`` value."""
    return _SHARE.pack(scale)


def unpack_event_share(data: Buffer) -> int:
    """``scale`` of an ``event_shares`` value."""
    return int(read_fields(_SHARE, data, "event_share")[0])


def pack_pressure(table_full_ns: int, stateless_until_ns: int = 0) -> bytes:
    """Bytes of a ``pressure`` value."""
    return _PRESSURE.pack(table_full_ns, stateless_until_ns)


def unpack_pressure(data: Buffer) -> tuple[int, int]:
    """``table_full_ns`` and ``stateless_until_ns`` of a ``pressure`` value."""
    table_full_ns, stateless_until_ns = read_fields(_PRESSURE, data, "pressure")
    return table_full_ns, stateless_until_ns


def pack_interface(value: InterfaceValue) -> bytes:
    """Bytes of an interface's value."""
    mac, virtual_mac, flags, addr, mtu = slot_values(value)
    return _INTERFACE.pack(mac, virtual_mac, flags, addr.to_bytes(4, "big"), mtu)


def unpack_interface(data: Buffer) -> InterfaceValue:
    """Read an interface's value."""
    mac, virtual_mac, flags, addr, mtu = read_fields(_INTERFACE, data, "interface")
    return InterfaceValue(mac, virtual_mac, flags, int.from_bytes(addr, "big"), mtu)


def pack_control(value: ControlValue) -> bytes:
    """Bytes of the ``control`` value."""
    fields = slot_values(value)
    return _CONTROL.pack(*fields[:13], *value.probe_key, *fields[14:])


def unpack_control(data: Buffer) -> ControlValue:
    """Read the ``control`` value."""
    fields = read_fields(_CONTROL, data, "control")
    fields[13:15] = [(fields[13], fields[14])]
    return ControlValue(**dict(zip(ControlValue.__slots__, fields, strict=True)))


def pack_reinject_meta(mark: int, egress_ifindex: int = 0) -> bytes:
    """Metadata in front of a frame that is run through the program."""
    return _REINJECT.pack(mark, egress_ifindex)


def unpack_reinject_meta(data: Buffer) -> tuple[int, int]:
    """``mark`` and ``egress_ifindex`` of the metadata that came back."""
    mark, egress_ifindex = read_fields(_REINJECT, data, "reinject_meta")
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
        0,
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
        0,
        0,
    )


def pack_pending(value: PendingValue) -> bytes:
    """Bytes of a ``pending_flows`` value."""
    fields = slot_values(value)
    return _PENDING.pack(*fields[:8], _TUPLE.pack(*fields[8:12]), *fields[12:])


def unpack_pending(data: Buffer) -> PendingValue:
    """Read a ``pending_flows`` value."""
    fields = read_fields(_PENDING, data, "pending_flow")
    fields[17] = read_enum(Mode, fields[17], "pending_flow")
    fields[18] = read_enum(Reason, fields[18], "pending_flow")
    fields[8:9] = _TUPLE.unpack(fields[8])
    return PendingValue(*fields)


def pack_flow_entry(value: FlowEntryValue) -> bytes:
    """Bytes of a ``flow_table`` value."""
    fields = slot_values(value)
    return _FLOW.pack(*fields[:10], _TUPLE.pack(*fields[10:14]), *fields[14:])


def unpack_flow_entry(data: Buffer) -> FlowEntryValue:
    """Read a ``flow_table`` value."""
    fields = read_fields(_FLOW, data, "flow_entry")
    fields[6] = read_enum(TcpState, fields[6], "flow_entry")
    fields[9] = read_enum(Direction, fields[9], "flow_entry")
    fields[18] = read_enum(Mode, fields[18], "flow_entry")
    fields[19] = read_enum(Reason, fields[19], "flow_entry")
    fields[10:11] = _TUPLE.unpack(fields[10])
    return FlowEntryValue(*fields)


def peer_key(key: Buffer, value: Buffer) -> bytes:
    """``flow_table`` key of the other direction of an entry: its new tuple, turned round."""
    new = bytes(value[40:52])
    return new[4:8] + new[0:4] + new[10:12] + new[8:10] + bytes(key[12:16])


def iter_pending_aging(values: Buffer) -> Iterator[tuple[int, int]]:
    """``(last_seen_ns, flags)`` of each of many ``pending_flows`` values in a row; for aging."""
    return _PENDING_AGING.iter_unpack(values)


def iter_flow_aging(values: Buffer) -> Iterator[tuple[int, int, int, int]]:
    """``(last_seen_ns, state, flags, direction)`` of each of many ``flow_table`` values in a row.

    For aging, which looks at each entry of a large table and needs no more than this.
    """
    return _FLOW_AGING.iter_unpack(values)


def iter_flow_clients(values: Buffer) -> Iterator[tuple[int, int]]:
    """``(direction, ifindex)`` of each of many ``flow_table`` values in a row."""
    return _FLOW_CLIENT.iter_unpack(values)


def flow_backends(values: Buffer) -> set[int]:
    """Ids of the backends that many ``flow_table`` values in a row name."""
    return {backend for (backend,) in _FLOW_BACKEND.iter_unpack(values)}


def pending_backends(values: Buffer) -> set[int]:
    """The same of ``pending_flows`` values; NO_BACKEND is among them."""
    return {backend for (backend,) in _PENDING_BACKEND.iter_unpack(values)}
