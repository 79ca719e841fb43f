# SPDX-License-Identifier: Apache-2.0
"""Keys of ``ebpf/abi.h`` as bytes, and how bytes become checked fields."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, TypeVar

from .abi_values import EndpointKind, Kind
from .errors import AbiError
from .model import Endpoint, FlowKey

KEY = Struct(">IIHHBBxx")
KEY6 = Struct(">16s16sHHBBxx")
ENDPOINT = Struct(">16sHBB")

FLOW_KEY_SIZE = KEY.size
FLOW_KEY6_SIZE = KEY6.size
IP_ADDR_SIZE = 16

_MAPPED = 0xFFFF << 32
_IPV4_END = 1 << 32

Buffer = bytes | bytearray | memoryview
E = TypeVar("E", bound=IntEnum)
V = TypeVar("V")


def read_fields(layout: Struct, data: Buffer, what: str) -> list[Any]:
    """Fields of ``data``. Raises AbiError, naming ``what``, when the length does not fit."""
    if len(data) != layout.size:
        raise AbiError(f"{what}: {len(data)} bytes, expected {layout.size}")
    return list(layout.unpack_from(data))


def slot_values(value: object) -> list[Any]:
    """Fields of a value of :mod:`.abi_values`, in the order of the header."""
    # Slots are in the order of the header's fields.
    return [getattr(value, name) for name in type(value).__slots__]  # type: ignore[attr-defined]


def from_slots(kind: type[V], fields: Sequence[Any]) -> V:
    """Undoes ``slot_values``."""
    names = kind.__slots__  # type: ignore[attr-defined]  # all are dataclasses with slots
    return kind(**dict(zip(names, fields, strict=True)))


def read_enum(kind: type[E], number: int, what: str) -> E:
    """``number`` as a member of ``kind``. Raises AbiError, naming ``what``."""
    try:
        return kind(number)
    except ValueError:
        raise AbiError(f"{what}: {kind.__name__} has no value {number}") from None


def pack_addr(addr: int) -> bytes:
    """The 16 bytes of ``struct ip_addr``: IPv4 mapped into IPv6; 0, no address, is all zero."""
    if addr < _IPV4_END:
        return (_MAPPED | addr).to_bytes(16, "big") if addr else bytes(16)
    return addr.to_bytes(16, "big")


def unpack_addr(data: Buffer) -> int:
    """The address of such bytes."""
    addr = int.from_bytes(data, "big")
    return addr ^ _MAPPED if addr >> 32 == 0xFFFF else addr


def _pack_key(saddr: int, daddr: int, sport: int, dport: int, proto: int, kind: int) -> bytes:
    if saddr < _IPV4_END and daddr < _IPV4_END:
        return KEY.pack(saddr, daddr, sport, dport, proto, kind)
    return KEY6.pack(
        saddr.to_bytes(16, "big"), daddr.to_bytes(16, "big"), sport, dport, proto, kind
    )


def _unpack_key(data: Buffer) -> tuple[int, int, int, int, int, int]:
    if len(data) != KEY6.size:
        saddr, daddr, sport, dport, proto, kind = read_fields(KEY, data, "flow_key")
        return saddr, daddr, sport, dport, proto, kind
    source, destination, sport, dport, proto, kind = KEY6.unpack(data)
    return unpack_addr(source), unpack_addr(destination), sport, dport, proto, kind


def pack_flow_key(key: FlowKey, kind: int = Kind.NONE) -> bytes:
    """Key of the client-to-service direction: ``struct flow_key``, or ``flow_key6``."""
    return _pack_key(
        key.client_addr, key.service_addr, key.client_port, key.service_port, key.proto, kind
    )


def pack_shared_key(key: FlowKey, kind: int = Kind.NONE) -> bytes:
    """The same as events have it: ``struct flow_key6`` for both families."""
    return KEY6.pack(
        pack_addr(key.client_addr),
        pack_addr(key.service_addr),
        key.client_port,
        key.service_port,
        key.proto,
        kind,
    )


def pack_reply_key(
    backend: Endpoint, key: FlowKey, kind: int = Kind.NONE, source: Endpoint | None = None
) -> bytes:
    """Key of the backend-to-client direction of ``key``'s flow.

    ``source``: the address and port that the backend knows it by, if not the client's.
    """
    to = source or Endpoint(key.client_addr, key.client_port)
    return _pack_key(backend.addr, to.addr, backend.port, to.port, key.proto, kind)


def flow_key_from_bytes(data: Buffer) -> FlowKey:
    """Read a key; its source becomes the client, its destination the service.

    For a backend-to-client key that means: ``client_*`` is the backend.
    """
    saddr, daddr, sport, dport, proto, _ = _unpack_key(data)
    return FlowKey(saddr, sport, daddr, dport, proto)


def protocols(keys: Buffer, family: int = 4) -> Buffer:
    """IP protocol number of each of many keys in a row; for aging."""
    layout = KEY if family == 4 else KEY6
    return keys[layout.size - 4 :: layout.size]


def key_kind(data: Buffer) -> Kind:
    """Which entry of a flow a ``pending_flows`` key names."""
    return read_enum(Kind, _unpack_key(data)[5], "flow_key")


def without_kind(key: bytes) -> bytes:
    """The ``flow_table`` key of the tuple that a ``pending_flows`` key names."""
    at = len(key) - 3
    return key[:at] + b"\0" + key[at + 1 :]


def pack_endpoint_key(endpoint: Endpoint, kind: int | None = None) -> bytes:
    """Key of ``services`` and ``backend_index``; the kind is the endpoint's, unless it is given."""
    if kind is None:
        kind = EndpointKind.RANGE if endpoint.ranged else EndpointKind.ONE
    return ENDPOINT.pack(pack_addr(endpoint.addr), endpoint.port, endpoint.proto, kind)


def unpack_endpoint_key(data: Buffer) -> tuple[Endpoint, EndpointKind]:
    """Read a key of ``services`` or ``backend_index``."""
    addr, port, proto, kind = read_fields(ENDPOINT, data, "endpoint_key")
    found = read_enum(EndpointKind, kind, "endpoint_key")
    return Endpoint(unpack_addr(addr), port, proto, found is EndpointKind.RANGE), found
