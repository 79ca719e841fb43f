# SPDX-License-Identifier: Apache-2.0
"""Keys of ``ebpf/abi.h`` as bytes, and how bytes become checked fields."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Any, TypeVar

from .abi_values import Kind
from .errors import AbiError
from .model import Endpoint, FlowKey

KEY = Struct(">IIHHBBxx")
ENDPOINT = Struct(">IHBx")

Buffer = bytes | bytearray | memoryview
E = TypeVar("E", bound=IntEnum)


def read_fields(layout: Struct, data: Buffer, what: str) -> list[Any]:
    """Fields of ``data``. Raises AbiError, naming ``what``, when the length does not fit."""
    if len(data) != layout.size:
        raise AbiError(f"{what}: {len(data)} bytes, expected {layout.size}")
    return list(layout.unpack_from(data))


def slot_values(value: object) -> list[Any]:
    """Fields of a value of :mod:`.abi_values`, in the order of the header."""
    # Slots are in the order of the header's fields.
    return [getattr(value, name) for name in type(value).__slots__]  # type: ignore[attr-defined]


def read_enum(kind: type[E], number: int, what: str) -> E:
    """``number`` as a member of ``kind``. Raises AbiError, naming ``what``."""
    try:
        return kind(number)
    except ValueError:
        raise AbiError(f"{what}: {kind.__name__} has no value {number}") from None


def pack_flow_key(key: FlowKey, kind: int = Kind.NONE) -> bytes:
    """Key of the client-to-service direction."""
    return KEY.pack(
        key.client_addr, key.service_addr, key.client_port, key.service_port, key.proto, kind
    )


def pack_reply_key(backend: Endpoint, key: FlowKey, kind: int = Kind.NONE) -> bytes:
    """Key of the backend-to-client direction of ``key``'s flow."""
    return KEY.pack(backend.addr, key.client_addr, backend.port, key.client_port, key.proto, kind)


def flow_key_from_bytes(data: Buffer) -> FlowKey:
    """Read a key; its source becomes the client, its destination the service.

    For a backend-to-client key that means: ``client_*`` is the backend.
    """
    saddr, daddr, sport, dport, proto, _ = read_fields(KEY, data, "flow_key")
    return FlowKey(saddr, sport, daddr, dport, proto)


def key_kind(data: Buffer) -> Kind:
    """Which entry of a flow a ``pending_flows`` key names."""
    return read_enum(Kind, read_fields(KEY, data, "flow_key")[5], "flow_key")


def without_kind(key: bytes) -> bytes:
    """The ``flow_table`` key of the tuple that a ``pending_flows`` key names."""
    return key[:13] + b"\0" + key[14:]


def pack_endpoint_key(endpoint: Endpoint) -> bytes:
    """Key of ``services`` and ``backend_index``."""
    return ENDPOINT.pack(endpoint.addr, endpoint.port, endpoint.proto)


def unpack_endpoint_key(data: Buffer) -> Endpoint:
    """Read a key of ``services`` or ``backend_index``."""
    return Endpoint(*read_fields(ENDPOINT, data, "endpoint_key"))
