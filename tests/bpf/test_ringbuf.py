# SPDX-License-Identifier: Apache-2.0
"""The ring buffer consumer on records that a program in the kernel writes."""

from __future__ import annotations

import os
import random
import select
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from mmap import PAGESIZE

import pytest

from tests.support.bpf_programs import compile_object
from tests.support.privileges import require_root
from xdp_router.adapters.bpf_syscall import MapType, map_create
from xdp_router.adapters.loader_object import ObjectLoader
from xdp_router.adapters.reinject import XDP_DROP, XDP_PASS, Reinjector
from xdp_router.adapters.ringbuf import RingBuffer

SIZE = 2 * PAGESIZE
SMALL, LARGE, ODD, DISCARDED = range(4)
LENGTHS = {SMALL: 320, LARGE: 1600, ODD: 67}

# The frame says what to write: its first byte the kind, the next four a number.
_SOURCE = """
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
char _license[] SEC("license") = "GPL";
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

static __always_inline int put(struct xdp_md *ctx, __u32 size, bool keep)
{
	__u8 *record = bpf_ringbuf_reserve(&ring, size, 0);

	if (!record)
		return XDP_DROP;
	bpf_xdp_load_bytes(ctx, 1, record, 4);
	record[size - 1] = 0xee;
	if (keep)
		bpf_ringbuf_submit(record, 0);
	else
		bpf_ringbuf_discard(record, 0);
	return XDP_PASS;
}

SEC("xdp") int writer(struct xdp_md *ctx)
{
	__u8 kind;

	bpf_xdp_load_bytes(ctx, 0, &kind, 1);
	switch (kind) {
	case 0:
		return put(ctx, 320, true);
	case 1:
		return put(ctx, 1600, true);
	case 2:
		return put(ctx, 67, true);
	default:
		return put(ctx, 320, false);
	}
}
"""


@dataclass
class Ring:
    """A ring buffer and the program that fills it."""

    buffer: RingBuffer
    write: Callable[[int, int], bool]
    """``(kind, number)``; False: the ring was full."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The writing program, compiled once."""
    require_root()
    return compile_object(_SOURCE, tmp_path_factory.mktemp("ring"))


@pytest.fixture
def ring(compiled: bytes) -> Iterator[Ring]:
    """A ring buffer of the test's own."""
    fd = map_create(MapType.RINGBUF, "ring", 0, 0, SIZE)
    program = ObjectLoader(compiled).open()
    fds = program.load({"ring": fd})
    program.close()
    runner = Reinjector(fds["writer"], 0)
    buffer = RingBuffer(fd, SIZE)

    def write(kind: int, number: int) -> bool:
        verdict, _, _ = runner.run(struct.pack("=BI60x", kind, number), 1)
        assert verdict in (XDP_PASS, XDP_DROP)
        return verdict == XDP_PASS

    yield Ring(buffer, write)
    buffer.close()
    os.close(fds["writer"])
    os.close(fd)


def _number(record: bytes) -> int:
    return int.from_bytes(record[:4], "little")


def test_records_come_in_order_with_their_length(ring: Ring) -> None:
    """Each record is given once, whole, in the order of writing, whatever its size."""
    kinds = [SMALL, ODD, LARGE, ODD, SMALL]
    for number, kind in enumerate(kinds):
        assert ring.write(kind, number)
    records = ring.buffer.drain(100)
    assert [_number(r) for r in records] == list(range(len(kinds)))
    assert [len(r) for r in records] == [LENGTHS[kind] for kind in kinds]
    assert all(r[-1] == 0xEE for r in records)
    assert ring.buffer.drain(100) == []
    assert ring.buffer.backlog == 0


def test_the_limit_is_kept(ring: Ring) -> None:
    """No more than ``limit`` records at once; the rest stays for the next call."""
    for number in range(5):
        ring.write(SMALL, number)
    assert [_number(r) for r in ring.buffer.drain(2)] == [0, 1]
    assert ring.buffer.backlog > 0
    assert [_number(r) for r in ring.buffer.drain(10)] == [2, 3, 4]


def test_discarded_records_are_skipped_and_freed(ring: Ring) -> None:
    """A discarded record is not given, but its space is: the ring never fills with them."""
    ring.write(SMALL, 1)
    ring.write(DISCARDED, 2)
    ring.write(SMALL, 3)
    assert [_number(r) for r in ring.buffer.drain(10)] == [1, 3]
    for _ in range(10):
        while ring.write(DISCARDED, 0):
            pass
        assert ring.buffer.drain(10) == []
        assert ring.buffer.backlog == 0
    assert ring.write(SMALL, 4)
    assert [_number(r) for r in ring.buffer.drain(10)] == [4]


def test_records_across_the_end_are_whole(ring: Ring, rng: random.Random) -> None:
    """A record that begins near the end of the ring goes on after it, over many rounds."""
    written: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []
    for number in range(2000):
        kind = rng.choice((SMALL, LARGE, ODD, DISCARDED))
        if ring.write(kind, number) and kind != DISCARDED:
            written.append((number, LENGTHS[kind]))
        if rng.random() < 0.4:
            records = ring.buffer.drain(rng.randrange(1, 5))
            read += [(_number(r), len(r)) for r in records]
            assert all(r[-1] == 0xEE for r in records)
    read += [(_number(r), len(r)) for r in ring.buffer.drain(10_000)]
    assert sum(length for _, length in written) > 20 * SIZE
    assert read == written


def test_a_full_ring_takes_records_again_after_draining(ring: Ring) -> None:
    """A full ring refuses; after draining there is room."""
    count = 0
    while ring.write(SMALL, count):
        count += 1
    assert SIZE // 328 - 1 <= count <= SIZE // 328
    assert len(ring.buffer.drain(1)) == 1
    assert ring.write(SMALL, 99)
    assert len(ring.buffer.drain(100)) == count


def test_the_fd_is_readable_while_there_is_something(ring: Ring) -> None:
    """Level-triggered: readable until all is drained, again at the next record."""
    poller = select.epoll()
    poller.register(ring.buffer.fileno(), select.EPOLLIN)
    assert poller.poll(0) == []
    for number in range(3):
        ring.write(SMALL, number)
    assert poller.poll(1) == [(ring.buffer.fileno(), select.EPOLLIN)]
    ring.buffer.drain(1)
    assert poller.poll(1) == [(ring.buffer.fileno(), select.EPOLLIN)]
    ring.buffer.drain(10)
    assert poller.poll(0) == []
    ring.write(ODD, 4)
    assert poller.poll(1) == [(ring.buffer.fileno(), select.EPOLLIN)]
    poller.close()


def test_a_record_under_way_stops_the_reader() -> None:
    """A record whose writer is not done is not read, nor those behind it, until it is.

    The kernel gives no hold on a writer in the middle of a record, so the memory is our own.
    """
    busy = 1 << 31
    fd = os.memfd_create("ring")
    os.ftruncate(fd, 2 * PAGESIZE + 2 * SIZE)
    data = 2 * PAGESIZE
    os.pwrite(fd, struct.pack("=II4s4x", 4, 0, b"one."), data)
    os.pwrite(fd, struct.pack("=II4s4x", 4 | busy, 0, b"two."), data + 16)
    os.pwrite(fd, struct.pack("=II4s4x", 4, 0, b"last"), data + 32)
    os.pwrite(fd, struct.pack("=Q", 48), PAGESIZE)
    buffer = RingBuffer(fd, SIZE)
    assert buffer.drain(10) == [b"one."]
    assert buffer.drain(10) == []
    assert buffer.backlog == 32
    os.pwrite(fd, struct.pack("=I", 4), data + 16)
    assert buffer.drain(10) == [b"two.", b"last"]
    assert struct.unpack("=Q", os.pread(fd, 8, 0)) == (48,)
    buffer.close()
    os.close(fd)


def test_cost_of_a_record(compiled: bytes, record_property: Callable[[str, object], None]) -> None:
    """Draining costs about a microsecond a record; the figure is reported, the bound loose."""
    fd = map_create(MapType.RINGBUF, "ring", 0, 0, 4 << 20)
    program = ObjectLoader(compiled).open()
    writer = program.load({"ring": fd})["writer"]
    program.close()
    runner = Reinjector(writer, 0)
    for number in range(5000):
        runner.run(struct.pack("=BI60x", SMALL, number), 1)
    buffer = RingBuffer(fd, 4 << 20)
    start = time.perf_counter_ns()
    count = 0
    while records := buffer.drain(256):
        count += len(records)
    cost_ns = (time.perf_counter_ns() - start) / count
    record_property("ns_per_record", cost_ns)
    print(f"ring buffer: {cost_ns:.0f} ns a record")
    assert count == 5000
    assert cost_ns < 15_000
    buffer.close()
    os.close(writer)
    os.close(fd)
