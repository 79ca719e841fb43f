# SPDX-License-Identifier: Apache-2.0
"""Flows of a table of before: moved in pairs, never twice, never lost, however full the new one."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
import structlog

from tests.support.privileges import require_root
from tests.support.small_router import flow_entries
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.flow_tables import FlowTable, FlowTables, PendingFlows, PreviousTable
from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError
from xdp_router.daemon.flow_mover import FlowMover

ROOM = 6
HOUR_NS = 3_600_000_000_000


@dataclass
class Tables:
    """A table with room for three flows, and the one of before."""

    new: bpf.BpfMap
    before: bpf.BpfMap
    tables: FlowTables
    dropped: list[str] = field(default_factory=list)

    def mover(self, **rest: object) -> FlowMover:
        """What is tested."""
        return FlowMover([self.tables], self.dropped.append, **rest)  # type: ignore[arg-type]  # of many types

    def put(self, *ports: int, only: abi.Direction | None = None, **change: object) -> None:
        """Flows into the table of before."""
        for port in ports:
            for key, value in flow_entries(port, 5).items():
                if only in (None, value.direction):
                    raw = abi.pack_flow_entry(replace(value, **change))  # type: ignore[arg-type]  # of many types
                    assert self.before.insert(key, raw) == 0

    @property
    def counts(self) -> tuple[int, int]:
        """Entries in the new one, and in the one of before."""
        return len(list(self.new.each_key())), len(list(self.before.each_key()))


@pytest.fixture
def both() -> Iterator[Tables]:
    """Empty ones."""
    require_root()
    kind = bpf.MapType.HASH
    fds = [
        bpf.map_create(kind, "flows", abi.FLOW_KEY_SIZE, size, entries)
        for size, entries in (
            (abi.FLOW_ENTRY_SIZE, ROOM),
            (abi.FLOW_ENTRY_SIZE, 4000),
            (abi.PENDING_FLOW_SIZE, 4),
        )
    ]
    tables = FlowTables(4, PendingFlows(fds[2]), FlowTable(fds[0], fds[1]))
    yield Tables(bpf.BpfMap(fds[0]), bpf.BpfMap(fds[1]), tables)
    for fd in fds:
        os.close(fd)


def test_all_of_them_with_all_that_they_have(both: Tables) -> None:
    """Then the table of before is given up, once."""
    both.put(1, 2, 3)
    wanted = {key: both.before.read(key) for key in both.before.each_key()}
    mover = both.mover()
    asyncio.run(mover.run())
    assert both.counts == (6, 0)
    assert {key: both.new.read(key) for key in both.new.each_key()} == wanted
    assert (mover.moved, mover.left, mover.is_done) == (3, 0, True)
    assert both.dropped == ["flow_table"]
    assert both.tables.flows.previous is None
    asyncio.run(mover.run())
    assert both.dropped == ["flow_table"]


def test_an_empty_one_is_given_up(both: Tables) -> None:
    """At once."""
    assert both.mover().run_at_once(HOUR_NS)
    assert both.dropped == ["flow_table"]


@pytest.mark.parametrize("at_once", [False, True])
def test_who_finds_no_room_stays_whole(both: Tables, at_once: bool) -> None:
    """Both entries, in the table of before; with room there they move."""
    both.put(1, 2, 3, 4)
    mover = both.mover()
    if at_once:
        assert not mover.run_at_once(HOUR_NS)
    else:
        asyncio.run(mover.run())
        assert mover.left >= 1
    assert both.counts == (6, 2)
    assert not mover.is_done
    assert not both.dropped
    left = set(both.before.each_key())
    assert {len(left & set(flow_entries(port, 5))) for port in (1, 2, 3, 4)} == {0, 2}
    for key in list(both.new.each_key())[:1]:
        raw = both.new.read(key)
        assert raw is not None
        assert both.new.delete(key) == both.new.delete(abi.peer_key(key, raw)) == 0
    asyncio.run(mover.run())
    assert both.counts == (6, 0)
    assert mover.is_done


class _Counting(FlowTable):
    """Tells how often it was tried to insert something."""

    tries = 0

    def insert_noexist(self, key: bytes, value: bytes) -> int:
        self.tries += 1
        return super().insert_noexist(key, value)


def test_no_room_is_no_busy_loop(both: Tables) -> None:
    """A pass ends at the first flow without room, passes are ever rarer, and it is said once."""
    both.put(*range(1, 1001))
    flows = _Counting(both.new.fd, both.before.fd)
    both.tables = FlowTables(4, both.tables.pending, flows)
    mover = both.mover()
    with structlog.testing.capture_logs() as told:
        asyncio.run(mover.run())
        assert mover.moved == 3
        assert both.counts[1] == 1994
        assert 1994 <= mover.left <= 2000, "those that have just gone with their others included"
        assert flows.tries <= 8
        flows.tries = 0
        for _ in range(40):
            asyncio.run(mover.run())
    assert 1 <= flows.tries <= 10
    assert [line["event"] for line in told] == ["flows_not_moved"]
    for key in list(both.new.each_key()):
        both.new.delete(key)
    with structlog.testing.capture_logs() as told:
        for _ in range(17):
            asyncio.run(mover.run())
    assert mover.moved == 6
    assert told == []


def test_room_for_half_of_it(both: Tables) -> None:
    """Nothing of it is left in the new one."""
    both.put(1)
    for number in range(ROOM - 1):
        both.new.write(bytes([number] * 16), bytes(abi.FLOW_ENTRY_SIZE))
    asyncio.run(both.mover().run())
    assert both.counts == (ROOM - 1, 2)


def test_halves_and_one_sided_flows(both: Tables) -> None:
    """Each goes alone; a one-sided flow has no other half, whoever has that key."""
    both.put(1, only=abi.Direction.REPLY)
    both.put(2, only=abi.Direction.FORWARD)
    both.put(3, only=abi.Direction.FORWARD, flags=abi.FLOW_ONE_SIDED)
    asyncio.run(both.mover().run())
    assert both.counts == (3, 0)


@pytest.mark.parametrize("halves", [1, 2])
def test_after_one_that_was_killed(both: Tables, halves: int) -> None:
    """REPLY, or both, are in the new table already: what is there counts, and nothing is twice."""
    both.put(1)
    forward, reply = flow_entries(1, 5)
    for key in (reply, forward)[:halves]:
        both.new.write(key, b"\7" * abi.FLOW_ENTRY_SIZE)
    mover = both.mover()
    for _ in range(3):
        asyncio.run(mover.run())
    assert both.counts == (2, 0)
    assert both.new.read(reply) == b"\7" * abi.FLOW_ENTRY_SIZE
    assert mover.moved == (halves == 1)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_reply_that_is_taken_out_again(both: Tables, at_once: bool) -> None:
    """A program inserts REPLY, finds no room for FORWARD, and removes REPLY: it is moved after."""
    both.put(1)
    _, reply = flow_entries(1, 5)
    raw = both.before.read(reply) or b""
    passes = 0

    class Program(PreviousTable):
        def batches(self, size: int) -> Iterator[bpf.Batch]:
            nonlocal passes
            passes += 1
            if passes == 1:
                assert both.new.insert(reply, raw) == 0
            yield from super().batches(size)
            if passes == 1:
                assert both.new.delete(reply) == 0

    both.tables.flows.previous = Program(both.before.fd)
    mover = both.mover()
    if at_once:
        assert mover.run_at_once(HOUR_NS)
    for _ in range(3):
        asyncio.run(mover.run())
    assert both.counts == (2, 0)
    assert both.new.read(reply) == raw
    assert mover.is_done


def test_what_cannot_be_given_up_is_tried_again(both: Tables) -> None:
    """In a worker thread: the kernel waits for its programs. Aging goes on, and it is said once."""
    threads, failures = [], [1, 1]

    def drop(table: str) -> None:
        threads.append(threading.current_thread())
        if failures:
            failures.pop()
            raise BpfError(errno.EPERM, "take it out")
        both.dropped.append(table)

    mover = FlowMover([both.tables], drop)
    with structlog.testing.capture_logs() as told:
        for wanted in (False, False, True):
            asyncio.run(mover.run())
            assert mover.is_done == wanted
            assert (both.tables.flows.previous is None) == wanted
    assert both.dropped == ["flow_table"]
    assert threading.main_thread() not in threads
    assert ["error" in line for line in told] == [True, False]


def test_the_loop_goes_on_while_it_is_given_up(both: Tables) -> None:
    """And who is cancelled waits for it: it uses fds."""
    begun, go = asyncio.Event(), threading.Event()
    done: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def drop(table: str) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(60)
            done.append(table)

        task = asyncio.ensure_future(FlowMover([both.tables], drop).run())
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["flow_table"]

    asyncio.run(run())


class _Racing(PreviousTable):
    """XDP moves a flow, and it ends, right after the daemon has read it."""

    __slots__ = ("others",)
    others: Iterator[int]

    def read(self, key: bytes) -> bytes | None:
        found = super().read(key)
        if next(self.others) == 1:  # both were read
            for each in flow_entries(1, 5):
                super().delete(each)
        return found


def test_what_is_over_does_not_come_back(both: Tables) -> None:
    """It was moved by XDP, and removed, between reading and inserting: it is taken out again."""
    both.put(1)
    racing = _Racing(both.before.fd)
    racing.others = itertools.count()
    both.tables.flows.previous = racing
    mover = both.mover()
    asyncio.run(mover.run())
    assert both.counts == (0, 0)
    assert mover.moved == 0


def test_many_in_steps(both: Tables) -> None:
    """The loop has its turn while two thousand entries are looked at."""
    both.put(*range(1, 1001))
    large = bpf.map_create(bpf.MapType.HASH, "flows", abi.FLOW_KEY_SIZE, abi.FLOW_ENTRY_SIZE, 4000)
    both.tables = FlowTables(4, both.tables.pending, FlowTable(large, both.before.fd))
    clock = itertools.count(0, 200_000)
    mover = both.mover(stopwatch=lambda: next(clock))
    turns = 0

    async def run() -> None:
        nonlocal turns
        task = asyncio.ensure_future(mover.run())
        while not task.done():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(run())
    assert turns > 20
    assert mover.moved == 1000
    os.close(large)


def test_a_successor_s_tables_are_left_alone(both: Tables) -> None:
    """Nothing is moved in them."""
    both.put(1)
    asyncio.run(both.mover(is_lost=lambda: True).run())
    assert both.counts == (0, 2)


def test_another_error_is_told(both: Tables) -> None:
    """A table that takes nothing at all is no full one."""
    both.put(1)

    class Broken(FlowTable):
        def insert_noexist(self, key: bytes, value: bytes) -> int:
            return 9

    broken = Broken(both.new.fd, both.before.fd)
    tables = FlowTables(4, both.tables.pending, broken)
    with pytest.raises(XdpRouterError, match="errno 9"):
        FlowMover([tables], both.dropped.append).run_at_once(HOUR_NS)


def test_not_longer_than_that(both: Tables) -> None:
    """What is moved is moved; the rest is left to another one."""
    both.put(*range(1, 1001))
    large = bpf.map_create(bpf.MapType.HASH, "flows", abi.FLOW_KEY_SIZE, abi.FLOW_ENTRY_SIZE, 4000)
    tables = FlowTables(4, both.tables.pending, FlowTable(large, both.before.fd))
    clock = itertools.count(0, 1_000)
    mover = FlowMover([tables], both.dropped.append, stopwatch=lambda: next(clock))
    assert not mover.run_at_once(500)
    moved = mover.moved
    assert 0 < moved < 1000
    assert mover.run_at_once(HOUR_NS)
    assert mover.moved == 1000
    os.close(large)
