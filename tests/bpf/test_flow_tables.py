# SPDX-License-Identifier: Apache-2.0
"""A table of flows and the one of before it, read as one."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterator

import pytest

from tests.support.descriptors import open_descriptors
from tests.support.privileges import require_root
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.flow_tables import FlowTable, FlowTables, PendingFlows
from xdp_router.core import abi

A, B, C = (bytes([number]) * abi.FLOW_KEY_SIZE for number in (1, 2, 3))
OLD, NEW = bytes(abi.FLOW_ENTRY_SIZE), b"\1" * abi.FLOW_ENTRY_SIZE


def _map(entries: int, value_size: int = abi.FLOW_ENTRY_SIZE) -> int:
    return bpf.map_create(bpf.MapType.HASH, "flows", abi.FLOW_KEY_SIZE, value_size, entries)


@pytest.fixture
def fds() -> Iterator[tuple[int, int]]:
    """A table, and the one of before."""
    require_root()
    made = _map(10), _map(20)
    yield made
    for fd in made:
        os.close(fd)


def test_both_are_one(fds: tuple[int, int]) -> None:
    """Reading finds what is in either, the new one first; deleting takes it out of both."""
    table = FlowTable(*fds)
    before = bpf.BpfMap(fds[1])
    for key in (A, B):
        before.write(key, OLD)
    assert table.insert_noexist(A, NEW) == table.insert_noexist(C, NEW) == 0
    assert [table.read(key) for key in (A, B, C)] == [NEW, OLD, NEW]
    met = [key for batch in table.batches(100) for key, _ in batch]
    assert sorted(met) == [A, A, B, C]
    assert [key for batch in table.own_batches(100) for key, _ in batch] in ([A, C], [C, A])
    assert table.delete(A) == table.delete(B) == 0
    assert table.read(A) is table.read(B) is before.read(A) is None
    assert table.delete(B) == errno.ENOENT
    assert table.max_entries == 10
    before.write(C, OLD)
    assert table.delete_own(C) == 0
    assert table.read(C) == OLD


@pytest.mark.parametrize("once", [False, True])
def test_what_is_moved_during_a_walk(fds: tuple[int, int], once: bool) -> None:
    """It is met, once or twice; whoever adds up meets it once at most."""
    table = FlowTable(*fds)
    before = bpf.BpfMap(fds[1])
    for key in (A, B):
        before.write(key, OLD)
    met = []
    for number, batch in enumerate(table.batches_once(100) if once else table.batches(100)):
        met += [key for key, _ in batch]
        if number == 0:  # half of the walk is behind
            assert table.insert_noexist(A, OLD) == before.delete(A) == 0
    assert sorted(met) == ([B] if once else [A, A, B])


def test_without_one_of_before(fds: tuple[int, int]) -> None:
    """As ever."""
    table = FlowTable(fds[0])
    assert table.previous is None
    assert table.insert_noexist(A, NEW) == 0
    assert table.insert_noexist(A, NEW) == errno.EEXIST
    for walk in (table.batches, table.batches_once, table.own_batches):
        assert [key for batch in walk(100) for key, _ in batch] == [A]
    assert table.delete(A) == 0
    assert table.delete(A) == errno.ENOENT


def test_a_reader_keeps_what_it_reads(fds: tuple[int, int]) -> None:
    """The table of before may be given up meanwhile; its memory goes with the last reader."""
    gc.collect()
    first = len(open_descriptors())
    table = FlowTable(*fds)
    for key in (A, B):
        bpf.BpfMap(fds[1]).write(key, OLD)
    assert table.previous is not None
    batches = table.previous.batches(1)
    next(batches)
    table.previous = None
    assert sum(batch.count for batch in batches) >= 1
    del batches
    gc.collect()
    assert len(open_descriptors()) == first


def test_where_a_pending_flow_is() -> None:
    """``pending_flows`` first, then ``flood_flows``."""
    require_root()
    fds = [_map(4, abi.PENDING_FLOW_SIZE) for _ in range(2)]
    table = _map(4)
    tables = FlowTables(4, PendingFlows(fds[0]), FlowTable(table), PendingFlows(fds[1]))
    value = bytes(abi.PENDING_FLOW_SIZE)
    assert tables.both[1].insert_noexist(A, value) == 0
    assert tables.read_pending(A) == value
    tables.delete_pending(A)
    assert tables.read_pending(A) is None
    for fd in (*fds, table):
        os.close(fd)
