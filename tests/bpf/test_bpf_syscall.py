# SPDX-License-Identifier: Apache-2.0
"""Maps by bytes, programs and ids, on the running kernel."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.bpf_programs import trivial_program
from tests.support.privileges import require_root
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_ctypes import BpfError, VerifierError
from xdp_router.adapters.bpf_syscall import BpfMap, MapType

pytest_plugins = ("tests.support.netns",)


@contextmanager
def new_map(kind: MapType, entries: int, value_size: int = 8, flags: int = 0) -> Iterator[BpfMap]:
    """A map with 4-byte keys."""
    require_root()
    fd = bpf.map_create(kind, "test", 4, value_size, entries, flags)
    yield BpfMap(fd)
    os.close(fd)


def _key(number: int) -> bytes:
    return number.to_bytes(4, "little")


def test_insert_never_overwrites() -> None:
    """The first insert wins; the second is told EEXIST; a full table says E2BIG."""
    with new_map(MapType.HASH, 1) as table:
        assert table.insert(_key(1), b"firstval") == 0
        assert table.insert(_key(1), b"otherval") == errno.EEXIST
        assert table.read(_key(1)) == b"firstval"
        assert table.insert(_key(2), b"firstval") == errno.E2BIG
        assert table.delete(_key(1)) == 0
        assert table.delete(_key(1)) == errno.ENOENT
        assert table.read(_key(1)) is None


def test_write_overwrites_and_its_error_names_the_map() -> None:
    """Writing sets; out of range of an array is an error with the map's name."""
    with new_map(MapType.ARRAY, 2) as table:
        table.write(_key(1), b"12345678")
        table.write(_key(1), b"abcdefgh")
        assert table.read(_key(1)) == b"abcdefgh"
        with pytest.raises(BpfError, match="map test") as caught:
            table.write(_key(2), bytes(8))
        assert caught.value.errno == errno.E2BIG
        assert table.read(_key(2)) is None


def test_every_key_is_visited_once() -> None:
    """Going through a small table gives each key once."""
    with new_map(MapType.HASH, 64) as table:
        for number in range(50):
            table.insert(_key(number), bytes(8))
        assert sorted(table.each_key()) == sorted(_key(n) for n in range(50))


@pytest.mark.parametrize("size", [1, 7, 256, 100_000])
@pytest.mark.parametrize("kind", [MapType.HASH, MapType.LRU_HASH])
def test_batches_give_every_entry_once(kind: MapType, size: int) -> None:
    """Whatever the batch size, all entries come, once each, keys with their own values."""
    with new_map(kind, 4096) as table:
        expected = {_key(n): struct.pack("<Q", n * n) for n in range(2000)}
        for key, value in expected.items():
            table.insert(key, value)
        batches = list(table.batches(size))
        found = [pair for batch in batches for pair in batch]
        assert len(found) == len(expected)
        assert dict(found) == expected
        assert all(b.count * 8 == len(b.values) and b.count * 4 == len(b.keys) for b in batches)


def test_batches_have_the_values_of_all_cpus() -> None:
    """One behind the other, as a look at one entry gives them."""
    cpus = bpf.possible_cpus()
    with new_map(MapType.PERCPU_ARRAY, 5) as table:
        for number in range(5):
            table.write(_key(number), struct.pack(f"={cpus}Q", *range(number, number + cpus)))
        for size in (2, 5, 9):
            found = [pair for batch in table.batches(size) for pair in batch]
            assert found == [(_key(number), table.read(_key(number))) for number in range(5)]


def test_deleting_between_batches_loses_nothing() -> None:
    """Entries that stay are all seen although others are deleted on the way."""
    with new_map(MapType.HASH, 4096) as table:
        for number in range(3000):
            table.insert(_key(number), bytes(8))
        seen = set()
        for batch in table.batches(100):
            for key, _ in batch:
                seen.add(key)
                if key[0] % 2:
                    assert table.delete(key) == 0
        assert len(seen) == 3000
        assert {k for b in table.batches(500) for k, _ in b} == {k for k in seen if not k[0] % 2}


def test_batches_of_an_empty_table() -> None:
    """An empty table has no entries, however asked."""
    with new_map(MapType.HASH, 16) as table:
        assert [pair for batch in table.batches(10) for pair in batch] == []
        assert list(table.each_key()) == []


def test_per_cpu_values_are_all_cpus() -> None:
    """Reading a per-CPU value gives every CPU's, as writing took them."""
    with new_map(MapType.PERCPU_ARRAY, 1) as table:
        values = struct.pack(f"<{bpf.possible_cpus()}Q", *range(bpf.possible_cpus()))
        table.write(_key(0), values)
        assert table.read(_key(0)) == values


def test_a_map_that_cannot_be_made_is_named() -> None:
    """The error has the map's name, the size asked for and the kernel's reason."""
    require_root()
    with pytest.raises(BpfError, match=r"map flow_table \(0 entries\): Invalid") as caught:
        bpf.map_create(MapType.HASH, "flow_table", 4, 4, 0)
    assert caught.value.errno == errno.EINVAL
    assert "Errno" not in str(caught.value)


def test_a_refused_program_keeps_the_full_log() -> None:
    """Instructions that the verifier refuses: the reason in the message, all of it in ``log``."""
    require_root()
    reads_r5 = bytes.fromhex("bf50000000000000" + "9500000000000000")
    with pytest.raises(VerifierError, match=r"program bad.*R5 !read_ok") as caught:
        bpf.prog_load("bad", reads_r5, "GPL")
    assert "processed" in caught.value.log


def test_pins_bring_back_the_same_object(bpffs: Path) -> None:
    """A pinned map and program are found again, by id and name."""
    prog, table = trivial_program("pinned"), bpf.map_create(MapType.HASH, "mine", 4, 8, 1)
    for fd, name in ((prog, "prog"), (table, "map")):
        bpf.pin(fd, str(bpffs / name))
    again = [bpf.open_pinned(str(bpffs / name)) for name in ("prog", "map")]
    assert bpf.prog_info(again[0]) == bpf.prog_info(prog)
    assert bpf.prog_info(prog).name == "pinned"
    assert bpf.map_info(again[1]) == bpf.map_info(table)
    with pytest.raises(BpfError, match="nothing"):
        bpf.open_pinned(str(bpffs / "nothing"))
    for fd in (prog, table, *again):
        os.close(fd)


def test_ids_lead_to_programs() -> None:
    """A loaded program is among the ids, and its id opens it."""
    require_root()
    fd = trivial_program("listed")
    number = bpf.prog_info(fd).id
    assert number in list(bpf.ids("prog"))
    opened = bpf.prog_by_id(number)
    assert bpf.prog_info(opened).name == "listed"
    os.close(opened)
    os.close(fd)


def test_many_values_are_written_in_batches() -> None:
    """More than one system call's worth, to a hash and to an array; a full table is an error."""
    count = bpf.WRITE_BATCH + 10
    for kind in (bpf.MapType.HASH, bpf.MapType.ARRAY):
        fd = bpf.map_create(kind, "many", 4, 8, count)
        try:
            table = bpf.BpfMap(fd)
            table.write_all([])
            table.write_all((n.to_bytes(4, "little"), n.to_bytes(8, "big")) for n in range(count))
            found = {k: v for batch in table.batches(1000) for k, v in batch}
            assert len(found) == count
            assert found[(7).to_bytes(4, "little")] == (7).to_bytes(8, "big")
            with pytest.raises(BpfError, match="write to map many"):
                table.write_all([(count.to_bytes(4, "little"), bytes(8))])
        finally:
            os.close(fd)
