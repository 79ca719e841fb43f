# SPDX-License-Identifier: Apache-2.0
"""The tables of flows, of one address family each. Bytes are ``core/abi.py``'s affair."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

from .bpf_syscall import Batch, BpfMap


class PendingFlows:
    """``pending_flows``, or that of IPv6: flows from first packet to completed handshake."""

    __slots__ = ("_map", "batches", "delete", "insert_noexist", "read")

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)
        # Bound once: these run thousands of times a second.
        self.insert_noexist = self._map.insert
        """``(key, value) -> errno``: 0, or EEXIST when somebody decided first."""
        self.delete = self._map.delete
        """``(key) -> errno``."""
        self.read = self._map.read
        """``(key) -> value or None``."""
        self.batches = self._map.batches


class FlowTable:
    """``flow_table``, or that of IPv6: established flows, two entries each.

    After a change of its size some are still in the table of before: what is read here is both.
    """

    __slots__ = ("_map", "max_entries", "previous")

    def __init__(self, fd: int, previous_fd: int | None = None) -> None:
        self._map = BpfMap(fd)
        self.max_entries = self._map.info.max_entries
        self.previous = PreviousTable(previous_fd) if previous_fd is not None else None
        """The table of before, as long as there is one."""

    def batches(self, size: int) -> Iterator[Batch]:
        """All entries, ``size`` a batch; see BpfMap.batches. Deleting meanwhile is safe.

        The table of before comes first: one that is moved out of it meanwhile may be met twice,
        and is never missed.
        """
        if self.previous is None:
            return self._map.batches(size)
        return itertools.chain(self.previous.batches(size), self._map.batches(size))

    def batches_once(self, size: int) -> Iterator[Batch]:
        """The same for sums: one that is moved meanwhile may be missed, and is not met twice."""
        if self.previous is None:
            return self._map.batches(size)
        return itertools.chain(self._map.batches(size), self.previous.batches(size))

    def own_batches(self, size: int) -> Iterator[Batch]:
        """The same without those of the table of before."""
        return self._map.batches(size)

    def read(self, key: bytes) -> bytes | None:
        """One entry's value, or None."""
        found = self._map.read(key)
        if found is None and self.previous is not None:
            # It may be moved between two looks.
            found = self.previous.read(key) or self._map.read(key)
        return found

    def insert_noexist(self, key: bytes, value: bytes) -> int:
        """Insert. 0 or an errno: EEXIST, or E2BIG when the table is full."""
        return self._map.insert(key, value)

    def delete(self, key: bytes) -> int:
        """Delete. 0 or ENOENT."""
        code = self._map.delete(key)
        if self.previous is not None and not self.previous.delete(key):
            return 0
        return code

    def delete_own(self, key: bytes) -> int:
        """The same, if it is not in the table of before."""
        return self._map.delete(key)


class PreviousTable:
    """A ``flow_table`` of before a change of size. Its fd is its own: whoever reads it may go on
    while it is given up."""

    __slots__ = ("_map",)

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(os.dup(fd))

    def __del__(self) -> None:
        if hasattr(self, "_map"):
            os.close(self._map.fd)

    def batches(self, size: int) -> Iterator[Batch]:
        """All entries; see BpfMap.batches. Deleting meanwhile is safe."""
        yield from self._map.batches(size)

    def read(self, key: bytes) -> bytes | None:
        """One entry's value, or None."""
        return self._map.read(key)

    def delete(self, key: bytes) -> int:
        """Delete. 0 or ENOENT: somebody has moved it."""
        return self._map.delete(key)


@dataclass(frozen=True, slots=True)
class FlowTables:
    """The tables of one address family's flows. ``family``: 4 or 6."""

    family: int
    pending: PendingFlows
    flows: FlowTable
    flood: PendingFlows | None = None
    """``flood_flows``: as ``pending``, of flows that XDP decided because there were too many."""

    @property
    def both(self) -> tuple[PendingFlows, ...]:
        """Where a flow's FORWARD and REPLY may be, in the order that XDP looks in."""
        return (self.pending,) if self.flood is None else (self.pending, self.flood)

    def read_pending(self, key: bytes) -> bytes | None:
        """A flow's FORWARD or REPLY, wherever it is, or None."""
        return next((raw for table in self.both if (raw := table.read(key)) is not None), None)

    def delete_pending(self, key: bytes) -> None:
        """Delete it, wherever it is."""
        for table in self.both:
            table.delete(key)
