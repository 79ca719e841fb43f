# SPDX-License-Identifier: Apache-2.0
"""The object loader on small programs of the tests' own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.bpf_programs import compile_object
from tests.support.descriptors import open_descriptors
from tests.support.privileges import require_root
from xdp_router.adapters.bpf_ctypes import BpfError, UnsupportedHost, VerifierError
from xdp_router.adapters.bpf_syscall import BpfMap, MapType, map_create, prog_info
from xdp_router.adapters.loader_object import ObjectLoader
from xdp_router.adapters.reinject import Reinjector

_HEAD = """
#include <stddef.h>
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
char _license[] SEC("license") = "GPL";
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");
"""
_COUNTS = """
SEC("xdp") int first(struct xdp_md *ctx)
{
	__u32 two = 2;
	__u64 *count = bpf_map_lookup_elem(&counters, &two);
	if (count)
		*count += 1;
	return XDP_DROP;
}
SEC("xdp") int second(struct xdp_md *ctx) { return XDP_PASS; }
"""
_BAD = """
SEC("xdp") int fine(struct xdp_md *ctx) { return XDP_PASS; }
SEC("xdp") int careless(struct xdp_md *ctx)
{
	__u32 key = ctx->rx_queue_index;
	return *(__u64 *)bpf_map_lookup_elem(&counters, &key);
}
"""


def _array(entries: int) -> int:
    return map_create(MapType.ARRAY, "counters", 4, 8, entries)


def test_garbage_is_refused_with_the_mend() -> None:
    """Bytes that are no BPF object: an error that says to build it again."""
    with pytest.raises(BpfError, match="make build"):
        ObjectLoader(b"not an object").open()


def test_programs_use_the_maps_that_are_given(tmp_path: Path) -> None:
    """The program counts in our map, at an index that its own one-entry map would not have."""
    require_root()
    program = ObjectLoader(compile_object(_HEAD + _COUNTS, tmp_path)).open()
    assert {n: (m.type, m.key_size, m.value_size) for n, m in program.maps.items()} == {
        "counters": (MapType.ARRAY, 4, 8)
    }
    counters = _array(4)
    fds = program.load({"counters": counters})
    program.close()
    assert sorted(fds) == ["first", "second"]
    assert prog_info(fds["first"]).name == "first"
    verdict, _, _ = Reinjector(fds["first"], 0).run(bytes(60), 1)
    assert verdict == 1
    values = [BpfMap(counters).read(i.to_bytes(4, "little")) for i in range(4)]
    assert values == [bytes(8), bytes(8), b"\1" + bytes(7), bytes(8)]
    for fd in (*fds.values(), counters):
        os.close(fd)


def test_a_refused_program_is_named_with_the_verifiers_reason(tmp_path: Path) -> None:
    """Message: program and reason. The full log is on the exception. No fd is left."""
    require_root()
    counters = _array(1)
    program = ObjectLoader(compile_object(_HEAD + _BAD, tmp_path)).open()
    fds = len(open_descriptors())
    with pytest.raises(VerifierError, match=r"careless.*map_value_or_null") as caught:
        program.load({"counters": counters})
    program.close()
    assert len(open_descriptors()) == fds
    assert caught.value.log.count("\n") > 3
    assert len(str(caught.value)) < 1000
    os.close(counters)


def test_the_lookup_program_is_missing(tmp_path: Path) -> None:
    """It is read when it is wanted; the error names the file and two mends."""
    loader = ObjectLoader(b"", lookup=tmp_path / "lookup.o")
    with pytest.raises(UnsupportedHost, match=r"lookup\.o.*make build.*--loader bcc"):
        loader.open_lookup()
    (tmp_path / "lookup.o").write_bytes(b"no object")
    with pytest.raises(BpfError, match="make build"):
        loader.open_lookup()
