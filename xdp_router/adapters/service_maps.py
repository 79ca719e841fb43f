# SPDX-License-Identifier: Apache-2.0
"""The maps that say more of a service: its ports, who may have a flow, and who has how many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from xdp_router.core import abi
from xdp_router.core.model import Service

from .bpf_syscall import BpfMap

_BATCH = 4_096
AT_ONCE = 1_024
"""Services that are looked at before the event loop has its turn: 2 ms."""
_NONE = bytes(abi.USAGE_SIZE)
_NONE_AGED = bytes(8)


def _u32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)


class ServiceRanges:
    """``service_ranges``: which ports of an address belong to services of many ports."""

    __slots__ = ("_map",)

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def items(self) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
        """All of them, by address and protocol."""
        return {
            abi.unpack_range_key(key): abi.unpack_port_ranges(raw)
            for batch in self._map.batches(_BATCH)
            for key, raw in batch
        }

    def replace(self, ranges: Mapping[tuple[int, int], Sequence[tuple[int, int]]]) -> None:
        """Have these and no others. Raises BpfError: E2BIG when the table is full."""
        for key in self.items().keys() - ranges.keys():
            self._map.delete(abi.pack_range_key(*key))
        for key, ports in ranges.items():
            self._map.write(abi.pack_range_key(*key), abi.pack_port_ranges(ports))


class SourceRules:
    """``source_rules``: which sources may have flows of a service."""

    __slots__ = ("_map",)

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def add(self, services: Iterable[Service]) -> set[bytes]:
        """Have the rules of these services, beside what is there; gives their keys.

        What is said of everybody else comes last: nobody is denied who is just being allowed.
        Raises BpfError: ENOSPC when the table is full.
        """
        rules = _rules(services)
        for key, rule in rules.items():
            self._map.write(key, _u32(rule))
        return set(rules)

    def keep_only(self, keys: set[bytes]) -> None:
        """Remove all other rules. What was said of everybody else goes first."""
        gone = [key for key in self._map.each_key() if key not in keys]
        for key in sorted(gone, key=_length):
            self._map.delete(key)

    def items(self) -> dict[bytes, abi.SourceRule]:
        """All of them, by key."""
        found = {}
        for key in self._map.each_key():
            raw = self._map.read(key)
            if raw is not None:
                found[key] = abi.SourceRule(int.from_bytes(raw, sys.byteorder))
        return found


def _rules(services: Iterable[Service]) -> dict[bytes, abi.SourceRule]:
    rules: dict[bytes, abi.SourceRule] = {}
    defaults: dict[bytes, abi.SourceRule] = {}
    for service in services:
        family = abi.family_of(service.endpoint.addr)
        for each in service.sources:
            key = abi.pack_source_key(service.id, each.network, each.length, family)
            rules[key] = abi.SourceRule.DENY if each.denied else abi.SourceRule.ALLOW
        if service.allowed_only:
            defaults[abi.pack_source_default(service.id)] = abi.SourceRule.DENY
    return rules | defaults


def _length(key: bytes) -> int:
    return int.from_bytes(key[:4], sys.byteorder)


class Affinity:
    """``affinity``, and ``companions``: where flows of a source address go."""

    __slots__ = ("_map",)

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def forget(self, is_known: Callable[[int, int], bool]) -> int:
        """Remove those whose (service, backend) is not known; how many these were."""
        return _forget(self._map, lambda key: abi.unpack_affinity_key(key)[1], is_known)

    def read(self, addr: int, service: int) -> tuple[int, int] | None:
        """``seen_ns`` and backend id of a source; None: it has none."""
        raw = self._map.read(abi.pack_affinity_key(addr, service))
        return abi.unpack_sticky(raw) if raw is not None else None

    def write(self, addr: int, service: int, seen_ns: int, backend: int) -> None:
        """Set one."""
        self._map.write(abi.pack_affinity_key(addr, service), abi.pack_sticky(seen_ns, backend))


class ConnectionIds:
    """``quic_ids``: which backend has a QUIC connection. XDP alone adds some."""

    __slots__ = ("_map",)

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def forget(self, is_known: Callable[[int, int], bool]) -> int:
        """Remove those whose (service, backend) is not known; how many these were."""
        return _forget(self._map, abi.quic_service, is_known)


def _forget(
    table: BpfMap, service_of: Callable[[bytes], int], is_known: Callable[[int, int], bool]
) -> int:
    gone = [
        key
        for batch in table.batches(_BATCH)
        for key, raw in batch
        if not is_known(service_of(key), abi.unpack_sticky(raw)[1])
    ]
    for key in gone:
        table.delete(key)
    return len(gone)


class Usage:
    """``usage`` and ``usage_aged``: established flows of services, as they come and go.

    XDP alone writes the first, the daemon alone the second, except for a service's number that
    nothing uses yet.
    """

    __slots__ = ("_aged", "_size", "_usage")

    def __init__(self, usage_fd: int, aged_fd: int) -> None:
        self._usage = BpfMap(usage_fd)
        self._aged = BpfMap(aged_fd)
        self._size = self._aged.info.max_entries

    def read(self, service: int) -> tuple[int, int, int]:
        """How many were opened, closed, and aged."""
        raw = self._usage.read(_u32(service))
        opened, closed = abi.unpack_usage(raw) if raw is not None else (0, 0)
        return opened, closed, self._read_aged(service)

    def totals(self) -> dict[int, tuple[int, int]]:
        """How many were opened, and how many are gone, of each service that had any."""
        found: dict[int, tuple[int, int]] = {}
        for batch in self._usage.batches(_BATCH):
            for key, raw in batch:
                if raw != _NONE:
                    found[int.from_bytes(key, sys.byteorder)] = abi.unpack_usage(raw)
        for batch in self._aged.batches(_BATCH):
            for key, raw in batch:
                if raw != _NONE_AGED:
                    service = int.from_bytes(key, sys.byteorder)
                    opened, closed = found.get(service, (0, 0))
                    aged = _signed(int.from_bytes(raw, sys.byteorder))
                    found[service] = (opened, closed + aged)
        return found

    def batches_open(self) -> Iterator[list[tuple[int, int]]]:
        """Established flows of each service that has some, by its id; some at a time.

        The two tables are read one behind the other: what comes or goes in between is a few off.
        """
        for first, second in zip(
            self._usage.batches(AT_ONCE), self._aged.batches(AT_ONCE), strict=False
        ):
            found = []
            for (key, raw), (_, aged) in zip(first, second, strict=False):
                if raw != _NONE:
                    opened, closed = abi.unpack_usage(raw)
                    count = _signed(opened - closed - int.from_bytes(aged, sys.byteorder))
                    if count > 0:
                        found.append((int.from_bytes(key, sys.byteorder), count))
            yield found

    def open(self, service: int) -> int:
        """Established flows of a service."""
        opened, closed, aged = self.read(service)
        return max(_signed(opened - closed - aged), 0)

    def age(self, service: int, by: int = 1) -> None:
        """So many flows more were taken out of the table by the daemon; less, if negative."""
        if service < self._size:
            self._write_aged(service, self._read_aged(service) + by)

    def reset(self, service: int) -> None:
        """Forget what was counted of a number that is another service's now."""
        self._usage.write(_u32(service), abi.pack_usage(0, 0))
        self._write_aged(service, 0)

    def _read_aged(self, service: int) -> int:
        raw = self._aged.read(_u32(service))
        return int.from_bytes(raw, sys.byteorder) if raw is not None else 0

    def _write_aged(self, service: int, value: int) -> None:
        self._aged.write(_u32(service), (value % (1 << 64)).to_bytes(8, sys.byteorder))


def _signed(value: int) -> int:
    value %= 1 << 64
    return value - (1 << 64) if value >> 63 else value
