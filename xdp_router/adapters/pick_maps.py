# SPDX-License-Identifier: Apache-2.0
"""The maps that XDP picks by: tables of background measurements, and what flows themselves show."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from xdp_router.core import abi

from .bpf_syscall import BpfMap

_BATCH = 4_096
_NO_LOAD = bytes(abi.BACKEND_LOAD_SIZE)
_NONE_AGED = bytes(8)


def _u32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)


class PickTables:
    """``pick_tables`` and ``picks``: two tables a service, one of which is read.

    The daemon alone writes them. They live on without it, and age.
    """

    __slots__ = ("_active", "_picks", "_tables")

    def __init__(self, tables_fd: int, picks_fd: int) -> None:
        self._tables = BpfMap(tables_fd)
        self._picks = BpfMap(picks_fd)
        self._active: dict[int, int] = {}

    def publish(self, service: int, slots: Sequence[int], made_ns: int) -> None:
        """Write the table that is not read, then switch to it.

        ``made_ns``: CLOCK_MONOTONIC of the measurements that it was made of. Raises ValueError
        unless there are PICK_SLOTS slots, BpfError (E2BIG) when ``service`` is past the end.
        """
        half = 1 - self._half(service)
        self._tables.write(_u32(2 * service + half), abi.pack_pick_table(slots))
        self._picks.write(_u32(service), abi.pack_picks(made_ns, half))
        self._active[service] = half

    def read(self, service: int) -> tuple[int, tuple[int, ...]] | None:
        """``made_ns`` and the backend id of each slot of the table that is read; None: none."""
        made_ns, half = self._state(service)
        raw = self._tables.read(_u32(2 * service + half)) if made_ns else None
        return (made_ns, abi.unpack_pick_table(raw)) if raw is not None else None

    def reset(self, service: int) -> None:
        """Have none, as of a number that is another service's now."""
        half = self._half(service)
        self._picks.write(_u32(service), abi.pack_picks(0, half))

    def _half(self, service: int) -> int:
        known = self._active.get(service)
        return self._state(service)[1] if known is None else known

    def _state(self, service: int) -> tuple[int, int]:
        raw = self._picks.read(_u32(service))
        made_ns, active = abi.unpack_picks(raw) if raw is not None else (0, 0)
        return made_ns, active & 1


class BackendLoads:
    """``backend_load`` and ``backend_aged``: answers and open flows of each backend.

    XDP alone writes the first, the daemon alone the second, except for a number that nothing
    uses yet.
    """

    __slots__ = ("_aged", "_load", "_size")

    def __init__(self, load_fd: int, aged_fd: int) -> None:
        self._load = BpfMap(load_fd)
        self._aged = BpfMap(aged_fd)
        self._size = self._aged.info.max_entries

    def read(self, backend: int) -> abi.LoadValue:
        """What XDP has written of a backend."""
        raw = self._load.read(_u32(backend))
        return abi.unpack_backend_load(raw) if raw is not None else abi.LoadValue()

    def write(self, backend: int, value: abi.LoadValue) -> None:
        """Set one. For tests, and numbers that nothing uses: XDP writes it, too."""
        self._load.write(_u32(backend), abi.pack_backend_load(value))

    def open(self, backend: int) -> int:
        """Open flows of a backend: established ones of which nobody has said goodbye."""
        load = self.read(backend)
        return max(_signed(load.opened - load.closed - self._read_aged(backend)), 0)

    def totals(self) -> dict[int, tuple[int, int]]:
        """How many were opened, and how many are not open any more, of each that had any."""
        found: dict[int, tuple[int, int]] = {}
        for batch in self._load.batches(_BATCH):
            for key, raw in batch:
                if raw != _NO_LOAD:
                    load = abi.unpack_backend_load(raw)
                    found[int.from_bytes(key, sys.byteorder)] = (load.opened, load.closed)
        for batch in self._aged.batches(_BATCH):
            for key, raw in batch:
                if raw != _NONE_AGED:
                    backend = int.from_bytes(key, sys.byteorder)
                    opened, closed = found.get(backend, (0, 0))
                    aged = _signed(int.from_bytes(raw, sys.byteorder))
                    found[backend] = (opened, closed + aged)
        return found

    def age(self, backend: int, by: int = 1) -> None:
        """So many flows more were taken out of the table while open; less, if negative."""
        if backend < self._size:
            self._write_aged(backend, self._read_aged(backend) + by)

    def reset(self, backend: int) -> None:
        """Forget what was learned of a number that is another backend's now."""
        self.write(backend, abi.LoadValue())
        self._write_aged(backend, 0)

    def _read_aged(self, backend: int) -> int:
        raw = self._aged.read(_u32(backend))
        return int.from_bytes(raw, sys.byteorder) if raw is not None else 0

    def _write_aged(self, backend: int, value: int) -> None:
        self._aged.write(_u32(backend), (value % (1 << 64)).to_bytes(8, sys.byteorder))


def _signed(value: int) -> int:
    value %= 1 << 64
    return value - (1 << 64) if value >> 63 else value
