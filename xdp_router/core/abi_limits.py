# SPDX-License-Identifier: Apache-2.0
"""What limits and what remembers, as bytes: budgets, pressure, usage, fragments, sources."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from .abi_keys import Buffer, from_slots, pack_addr, read_fields, slot_values, unpack_addr
from .abi_values import RANGES as RANGES
from .abi_values import TrafficValue
from .address import family_of

CONNECTION_ID_MAX = 20
TOKENS_EVENTS = 0
TOKENS_ICMP = 1
TOKENS_ECHO = 2
TOKENS_SERVICE = 3
SHARE_ONE = 256

_TOKENS = Struct("=QQQ")
_PREFIX = Struct("=16s")
_SHARE = Struct("=I")
_PRESSURE = Struct("=QQIIQ")
_RANGE_KEY = Struct("=16sB3x")
_RANGES = Struct(f"={2 * RANGES}H")
_USAGE = Struct("=QQ")
_TRAFFIC = Struct("=5Q")
_STICKY = Struct("=QI4x")
_FRAGMENT = Struct("=Q4sB3xI4x")
_FRAGMENT_KEY = Struct("=16s16s4sB3x")
_QUIC_KEY = Struct(f"=IB{CONNECTION_ID_MAX}s3x")
_AFFINITY_KEY = Struct("=16sI")
_SOURCE_KEY = Struct("=II16s")

TOKEN_BUCKET_SIZE = _TOKENS.size
PREFIX_KEY_SIZE = _PREFIX.size
EVENT_SHARE_SIZE = _SHARE.size
PRESSURE_SIZE = _PRESSURE.size
RANGE_KEY_SIZE = _RANGE_KEY.size
PORT_RANGES_SIZE = _RANGES.size
USAGE_SIZE = _USAGE.size
TRAFFIC_SIZE = _TRAFFIC.size
STICKY_SIZE = _STICKY.size
FRAGMENT_SIZE = _FRAGMENT.size
FRAGMENT_KEY_SIZE = _FRAGMENT_KEY.size
QUIC_KEY_SIZE = _QUIC_KEY.size
AFFINITY_KEY_SIZE = _AFFINITY_KEY.size
SOURCE_KEY_SIZE = _SOURCE_KEY.size
PATH_MTU_SIZE = _STICKY.size

_MAPPED = 0xFFFF << 32


def pack_token_bucket(credit_ns: int, last_ns: int, asked: int = 0) -> bytes:
    """Bytes of one CPU's ``tokens`` value, or of a ``prefix_tokens`` value."""
    return _TOKENS.pack(credit_ns, last_ns, asked)


def unpack_token_bucket(data: Buffer) -> tuple[int, int, int]:
    """``credit_ns``, ``last_ns`` and ``asked`` of such a value."""
    credit_ns, last_ns, asked = read_fields(_TOKENS, data, "token_bucket")
    return credit_ns, last_ns, asked


def pack_prefix_key(addr: int) -> bytes:
    """Key of ``prefix_tokens``: ``addr`` with the bits behind its prefix cleared."""
    return _PREFIX.pack(pack_addr(addr))


def pack_event_share(scale: int) -> bytes:
    """Bytes of an ``event_shares`` value."""
    return _SHARE.pack(scale)


def unpack_event_share(data: Buffer) -> int:
    """``scale`` of an ``event_shares`` value."""
    return int(read_fields(_SHARE, data, "event_share")[0])


def pack_pressure(
    table_full_ns: int,
    stateless_until_ns: int = 0,
    why: int = 0,
    fragment_ids: int = 0,
    table6_full_ns: int = 0,
) -> bytes:
    """Bytes of a ``pressure`` value."""
    return _PRESSURE.pack(table_full_ns, stateless_until_ns, why, fragment_ids, table6_full_ns)


def unpack_pressure(data: Buffer) -> tuple[int, int, int, int]:
    """``table_full_ns``, ``stateless_until_ns``, ``why`` and ``table6_full_ns`` of a
    ``pressure`` value."""
    table_ns, until_ns, why, _, table6_ns = read_fields(_PRESSURE, data, "pressure")
    return table_ns, until_ns, why, table6_ns


def pack_range_key(addr: int, proto: int) -> bytes:
    """Key of ``service_ranges``."""
    return _RANGE_KEY.pack(pack_addr(addr), proto)


def pack_port_ranges(ranges: Sequence[tuple[int, int]]) -> bytes:
    """Bytes of a ``service_ranges`` value; the first range that holds a port counts.

    Raises ValueError when there are more than RANGES.
    """
    if len(ranges) > RANGES:
        raise ValueError(f"an address has at most {RANGES} ranges of ports, got {len(ranges)}")
    low = [first for first, _ in ranges] + [0] * (RANGES - len(ranges))
    high = [last for _, last in ranges] + [0] * (RANGES - len(ranges))
    return _RANGES.pack(*low, *high)


def pack_usage(opened: int, closed: int) -> bytes:
    """Bytes of a ``usage`` value."""
    return _USAGE.pack(opened, closed)


def pack_traffic(value: TrafficValue) -> bytes:
    """Bytes of a ``traffic_ended`` value."""
    return _TRAFFIC.pack(*slot_values(value))


def unpack_traffic(data: Buffer) -> TrafficValue:
    """Read a ``traffic_ended`` value."""
    return from_slots(TrafficValue, read_fields(_TRAFFIC, data, "traffic"))


def unpack_usage(data: Buffer) -> tuple[int, int]:
    """``opened`` and ``closed`` of a ``usage`` value."""
    opened, closed = read_fields(_USAGE, data, "usage")
    return opened, closed


def pack_sticky(seen_ns: int, backend: int) -> bytes:
    """Bytes of a ``quic_ids`` or ``affinity`` value."""
    return _STICKY.pack(seen_ns, backend)


def pack_path_mtu(seen_ns: int, mtu: int) -> bytes:
    """Bytes of a ``path_mtus`` value."""
    return _STICKY.pack(seen_ns, mtu)


def unpack_path_mtu(data: Buffer) -> tuple[int, int]:
    """``seen_ns`` and ``mtu`` of such a value."""
    seen_ns, mtu = read_fields(_STICKY, data, "path_mtu")
    return seen_ns, mtu


def unpack_sticky(data: Buffer) -> tuple[int, int]:
    """``seen_ns`` and ``backend`` of such a value."""
    seen_ns, backend = read_fields(_STICKY, data, "sticky")
    return seen_ns, backend


def pack_fragment_key(saddr: int, daddr: int, ident: int, proto: int) -> bytes:
    """Key of ``fragments``. ``ident``: of 16 bits with IPv4, 32 with IPv6."""
    return _FRAGMENT_KEY.pack(pack_addr(saddr), pack_addr(daddr), ident.to_bytes(4, "big"), proto)


def pack_fragment(seen_ns: int, sport: int, dport: int, proto: int, new_id: int = 0) -> bytes:
    """Bytes of a ``fragments`` value."""
    ports = sport.to_bytes(2, "big") + dport.to_bytes(2, "big")
    return _FRAGMENT.pack(seen_ns, ports, proto, new_id)


def unpack_fragment(data: Buffer) -> tuple[int, int, int, int, int]:
    """``seen_ns``, both ports, the protocol and ``new_id`` of such a value."""
    seen_ns, ports, proto, new_id = read_fields(_FRAGMENT, data, "fragment")
    sport, dport = int.from_bytes(ports[:2], "big"), int.from_bytes(ports[2:], "big")
    return seen_ns, sport, dport, proto, new_id


def pack_quic_key(service: int, connection_id: bytes) -> bytes:
    """Key of ``quic_ids``."""
    return _QUIC_KEY.pack(service, len(connection_id), connection_id)


def quic_service(key: Buffer) -> int:
    """The service that a ``quic_ids`` key is of."""
    return int(read_fields(_QUIC_KEY, key, "quic_key")[0])


def pack_affinity_key(addr: int, service: int) -> bytes:
    """Key of ``affinity``."""
    return _AFFINITY_KEY.pack(pack_addr(addr), service)


def pack_source_key(service: int, addr: int, prefix_len: int, family: int | None = None) -> bytes:
    """Key of ``source_rules``. ``prefix_len`` is that of the address in its own family.

    ``family``: of the prefix, where ``addr`` does not tell it (``::/0``).
    """
    if (family or family_of(addr)) == 4:
        prefix_len, addr = prefix_len + 96, _MAPPED | addr
    return _SOURCE_KEY.pack(32 + prefix_len, service, addr.to_bytes(16, "big"))


def pack_source_default(service: int) -> bytes:
    """Key of what a service's rules say of everybody else."""
    return _SOURCE_KEY.pack(32, service, bytes(16))


def source_service(key: Buffer) -> int:
    """The service that a ``source_rules`` key is of."""
    return int(read_fields(_SOURCE_KEY, key, "source_key")[1])


def unpack_affinity_key(data: Buffer) -> tuple[int, int]:
    """Address and service of an ``affinity`` key."""
    addr, service = read_fields(_AFFINITY_KEY, data, "affinity_key")
    return unpack_addr(addr), service


def unpack_range_key(data: Buffer) -> tuple[int, int]:
    """Address and protocol of a ``service_ranges`` key."""
    addr, proto = read_fields(_RANGE_KEY, data, "range_key")
    return unpack_addr(addr), proto


def unpack_port_ranges(data: Buffer) -> tuple[tuple[int, int], ...]:
    """The ranges of a ``service_ranges`` value, in their order."""
    ports = read_fields(_RANGES, data, "port_ranges")
    pairs = zip(ports[:RANGES], ports[RANGES:], strict=True)
    return tuple((low, high) for low, high in pairs if high)
