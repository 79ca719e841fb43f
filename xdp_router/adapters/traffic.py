# SPDX-License-Identifier: Apache-2.0
"""``traffic_ended`` and ``traffic_aged``: what flows have carried that are over, by backend.

XDP alone writes the first, the daemon alone the second; both live on with the data plane.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from xdp_router.core import abi
from xdp_router.core.abi_values import TrafficValue

from .bpf_syscall import BpfMap

NO_TRAFFIC = TrafficValue(0, 0, 0, 0, 0)
_BATCH = 1024


def _u32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)


class Traffic:
    """Totals that only grow."""

    __slots__ = ("_aged", "_ended", "_known", "_size")

    def __init__(self, ended_fd: int, aged_fd: int) -> None:
        self._ended = BpfMap(ended_fd)
        self._aged = BpfMap(aged_fd)
        self._size = self._aged.info.max_entries
        self._known: dict[int, TrafficValue] = {}  # what was written last

    def read(self, backend: int) -> TrafficValue:
        """Both shares of one backend."""
        raw = self._ended.read(_u32(backend))
        ended = abi.unpack_traffic(raw) if raw is not None else NO_TRAFFIC
        return ended.plus(self._of(backend))

    def batches(self) -> Iterator[list[tuple[int, TrafficValue]]]:
        """Every backend's that carried something, each table for itself; some at a time."""
        for table in (self._ended, self._aged):
            for batch in table.batches(_BATCH):
                if batch.values.count(0) == len(batch.values):
                    yield []  # most of the table: looked at as a whole
                    continue
                found = []
                for key, raw in batch:
                    value = abi.unpack_traffic(raw)
                    if value != NO_TRAFFIC:
                        found.append((int.from_bytes(key, sys.byteorder), value))
                yield found

    def age(self, backend: int, carried: TrafficValue) -> None:
        """The daemon has taken a flow out, or half of one."""
        if backend < self._size:
            self._write(backend, self._of(backend).plus(carried))

    def reset(self, backend: int) -> None:
        """Forget what was counted of a number that is another backend's now."""
        if backend < self._size:
            self._ended.write(_u32(backend), abi.pack_traffic(NO_TRAFFIC))
            self._write(backend, NO_TRAFFIC)

    def _of(self, backend: int) -> TrafficValue:
        known = self._known.get(backend)
        if known is None:
            raw = self._aged.read(_u32(backend))
            known = abi.unpack_traffic(raw) if raw is not None else NO_TRAFFIC
        return known

    def _write(self, backend: int, value: TrafficValue) -> None:
        self._known[backend] = value
        self._aged.write(_u32(backend), abi.pack_traffic(value))
