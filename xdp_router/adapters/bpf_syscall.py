# SPDX-License-Identifier: Apache-2.0
"""The bpf(2) calls that the router needs, through libbpf's thin wrappers (libbpf >= 1.0).

Functions return a value or raise :class:`BpfError`. What runs thousands of times a second
(:meth:`BpfMap.insert`, :class:`TestRun`) returns the errno instead of raising.
File descriptors are plain ints; whoever got one closes it.
"""

from __future__ import annotations

import ctypes as ct
import enum
import errno
import functools
import itertools
import mmap
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .bpf_ctypes import (
    BpfError,
    LinkCreateOpts,
    MapCreateOpts,
    ProgLoadOpts,
    TestRunOpts,
    VerifierError,
    XdpQueryOpts,
    checked,
    function,
    hint,
)

BPF_ANY, BPF_NOEXIST, BPF_EXIST = 0, 1, 2
BPF_PROG_TYPE_XDP = 6
BPF_XDP = 37
"""Attach type of XDP programs and links (``enum bpf_attach_type``)."""
BPF_PROG_TYPE_SK_LOOKUP = 30
BPF_SK_LOOKUP = 36
"""Attach type of programs that choose listening sockets, and of their links."""
BPF_LINK_TYPE_NETNS = 5
BPF_LINK_TYPE_XDP = 6
BPF_F_TEST_XDP_LIVE_FRAMES = 2
XDP_FLAGS_SKB_MODE, XDP_FLAGS_DRV_MODE = 2, 4

WRITE_BATCH = 4096
_LOG_BYTES = 16 << 20  # address space only: pages are touched as the verifier writes


class MapType(enum.IntEnum):
    """``enum bpf_map_type``, as far as it is used."""

    HASH = 1
    ARRAY = 2
    PROG_ARRAY = 3
    PERCPU_ARRAY = 6
    LRU_HASH = 9
    LPM_TRIE = 11
    ARRAY_OF_MAPS = 12
    SOCKHASH = 18
    RINGBUF = 27


# --- maps ---------------------------------------------------------------------------------


def map_create(
    map_type: int,
    name: str,
    key_size: int,
    value_size: int,
    max_entries: int,
    flags: int = 0,
    inner_fd: int = 0,
) -> int:
    """Create a map and return its fd. Sizes are bytes; the kernel keeps 15 chars of the name.

    ``inner_fd``: a map like those that a map of maps is to hold.
    """
    opts = MapCreateOpts(sz=ct.sizeof(MapCreateOpts), map_flags=flags, inner_map_fd=inner_fd)
    action = f"create map {name} ({max_entries:,} entries)"
    arguments = (map_type, name.encode(), key_size, value_size, max_entries, ct.byref(opts))
    return checked(action, "bpf_map_create", *arguments)


@dataclass(frozen=True, slots=True)
class Batch:
    """``count`` keys in a row and their values in the same order."""

    count: int
    keys: bytes
    values: bytes

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        if not self.count:
            return
        key_size, value_size = len(self.keys) // self.count, len(self.values) // self.count
        for i in range(self.count):
            yield (
                self.keys[i * key_size : (i + 1) * key_size],
                self.values[i * value_size : (i + 1) * value_size],
            )


class BpfMap:
    """Byte-level access to one map. Keys and values are bytes of exactly the map's sizes.

    ``insert`` and ``delete`` return 0 or an errno; the others raise BpfError.
    """

    __slots__ = ("_delete", "_lookup", "_next_key", "_out", "_update", "_value_size", "fd", "info")

    def __init__(self, fd: int) -> None:
        """Wrap ``fd`` without taking ownership of it."""
        self.fd = fd
        self.info = map_info(fd)
        value_size = self.info.value_size
        if self.info.type == MapType.PERCPU_ARRAY:
            value_size = (value_size + 7) // 8 * 8 * possible_cpus()
        self._value_size = value_size
        self._out = ct.create_string_buffer(value_size)
        self._update = function("bpf_map_update_elem")
        self._lookup = function("bpf_map_lookup_elem")
        self._delete = function("bpf_map_delete_elem")
        self._next_key = function("bpf_map_get_next_key")

    def insert(self, key: bytes, value: bytes) -> int:
        """Insert unless the key exists (EEXIST). 0 or an errno; the hot path."""
        return -self._update(self.fd, key, value, BPF_NOEXIST)

    def delete(self, key: bytes) -> int:
        """Delete. 0 or an errno (ENOENT: was not there)."""
        return -self._delete(self.fd, key)

    def write(self, key: bytes, value: bytes, flags: int = BPF_ANY) -> None:
        """Set the value, all CPUs' values at once for a per-CPU map. Raises BpfError."""
        result = self._update(self.fd, key, value, flags)
        if result < 0:
            raise BpfError(-result, f"write to map {self.info.name}", hint(-result))

    def write_all(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        """Set many values, WRITE_BATCH a system call. Raises BpfError; some are set then."""
        update = function("bpf_map_update_batch")
        rest = iter(items)
        while chunk := list(itertools.islice(rest, WRITE_BATCH)):
            keys, values = (b"".join(each) for each in zip(*chunk, strict=True))
            count = ct.c_uint32(len(chunk))
            result = update(self.fd, keys, values, ct.byref(count), None)
            if result < 0:
                raise BpfError(-result, f"write to map {self.info.name}", hint(-result))

    def write_batch(self, batch: Batch) -> None:
        """Set all of a batch. What an LRU map finds no place for is left out. Raises BpfError."""
        update = function("bpf_map_update_batch")
        key_size, value_size = self.info.key_size, self.info.value_size
        done = 0
        while done < batch.count:
            count = ct.c_uint32(batch.count - done)
            keys, values = batch.keys[done * key_size :], batch.values[done * value_size :]
            result = update(self.fd, keys, values, ct.byref(count), None)
            done += count.value
            if result == -errno.ENOMEM and self.info.type == MapType.LRU_HASH:
                done += 1
            elif result < 0:
                raise BpfError(-result, f"write to map {self.info.name}", hint(-result))

    def read(self, key: bytes) -> bytes | None:
        """The value, or None when the key is not there. Per-CPU values are concatenated."""
        result = self._lookup(self.fd, key, self._out)
        if result == -errno.ENOENT:
            return None
        if result < 0:
            raise BpfError(-result, f"read map {self.info.name}", hint(-result))
        return self._out.raw

    def each_key(self) -> Iterator[bytes]:
        """Keys one by one; for small maps. Entries that come and go may be missed or repeated."""
        key: bytes | None = None
        following = ct.create_string_buffer(self.info.key_size)
        while True:
            result = self._next_key(self.fd, key, following)
            if result == -errno.ENOENT:
                return
            if result < 0:
                raise BpfError(-result, f"iterate map {self.info.name}", hint(-result))
            key = following.raw
            yield key

    def batches(self, size: int) -> Iterator[Batch]:
        """All entries of a hash map or an array, up to ``size`` a batch, one system call a batch.
        Per-CPU values are concatenated.

        A hash bucket is never split: one that has more than ``size`` entries doubles ``size``.
        Entries that are inserted meanwhile may be missed; deleting between batches is safe.
        """
        lookup = function("bpf_map_lookup_batch")
        key_size, value_size = self.info.key_size, self._value_size
        token = ct.create_string_buffer(max(8, key_size))
        start: ct.Array[ct.c_char] | None = None
        keys = ct.create_string_buffer(size * key_size)
        values = ct.create_string_buffer(size * value_size)
        result = 0
        while result != -errno.ENOENT:  # which the kernel says together with the last entries
            count = ct.c_uint32(size)
            result = lookup(self.fd, start, token, keys, values, ct.byref(count), None)
            if result == -errno.ENOSPC:
                size *= 2
                keys = ct.create_string_buffer(size * key_size)
                values = ct.create_string_buffer(size * value_size)
                continue
            if result < 0 and result != -errno.ENOENT:
                raise BpfError(-result, f"read map {self.info.name}", hint(-result))
            start, found = token, count.value
            yield Batch(
                found,
                ct.string_at(keys, found * key_size),
                ct.string_at(values, found * value_size),
            )


# --- programs -----------------------------------------------------------------------------


class VerifierLog:
    """A buffer that the verifier writes its log to when a load fails."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _LOG_BYTES)
        self.size = _LOG_BYTES
        self.address = ct.addressof(ct.c_char.from_buffer(self._memory))

    def text(self) -> str:
        """What was written."""
        return self._memory[: self._memory.find(b"\0")].decode(errors="replace")


ProgKind = tuple[int, int]
"""``enum bpf_prog_type`` and ``enum bpf_attach_type``."""
XDP_PROGRAM: ProgKind = (BPF_PROG_TYPE_XDP, BPF_XDP)
LOOKUP_PROGRAM: ProgKind = (BPF_PROG_TYPE_SK_LOOKUP, BPF_SK_LOOKUP)


def prog_load(name: str, instructions: bytes, licence: str, kind: ProgKind = XDP_PROGRAM) -> int:
    """Load a program and return its fd. Raises VerifierError with the full log."""
    program_type, attach_type = kind
    log = VerifierLog()
    opts = ProgLoadOpts(
        sz=ct.sizeof(ProgLoadOpts),
        expected_attach_type=attach_type,
        log_size=log.size,
        log_buf=log.address,  # with log_level 0: libbpf asks for the log on failure only
    )
    count = len(instructions) // 8
    result = function("bpf_prog_load")(
        program_type, name.encode(), licence.encode(), instructions, count, ct.byref(opts)
    )
    if result < 0:
        raise VerifierError(-result, f"load program {name}", log.text())
    return result


class TestRun:
    """A prepared BPF_PROG_TEST_RUN. Set the sizes and ``flags`` of ``opts``, then ``run()``.

    ``data_in``, ``data_out``, ``ctx_in`` and ``ctx_out`` are the caller's ctypes buffers and
    are kept alive here.
    """

    __slots__ = ("_call", "_fd", "_keep", "_pointer", "opts")
    __test__ = False  # not a pytest class

    def __init__(
        self,
        prog_fd: int,
        data_in: ct.Array[ct.c_char],
        ctx_in: ct.Structure | None = None,
        data_out: ct.Array[ct.c_char] | None = None,
        ctx_out: ct.Structure | None = None,
        flags: int = 0,
    ) -> None:
        self._fd = prog_fd
        self._keep = (data_in, ctx_in, data_out, ctx_out)
        self.opts = TestRunOpts(
            sz=ct.sizeof(TestRunOpts),
            data_in=ct.addressof(data_in),
            data_size_in=len(data_in),
            data_out=ct.addressof(data_out) if data_out else None,
            data_size_out=len(data_out) if data_out else 0,
            ctx_in=ct.addressof(ctx_in) if ctx_in else None,
            ctx_size_in=ct.sizeof(ctx_in) if ctx_in else 0,
            ctx_out=ct.addressof(ctx_out) if ctx_out else None,
            ctx_size_out=ct.sizeof(ctx_out) if ctx_out else 0,
            repeat=1,
            flags=flags,
        )
        self._pointer = ct.pointer(self.opts)
        self._call = function("bpf_prog_test_run_opts")

    def run(self) -> int:
        """Run once. 0 or an errno; the results are in ``opts`` and the out buffers."""
        return -self._call(self._fd, self._pointer)


# --- pins, links, ids ---------------------------------------------------------------------


def pin(fd: int, path: str) -> None:
    """Pin a map, program or link under ``path`` in a BPF file system."""
    checked(f"pin {path}", "bpf_obj_pin", fd, path.encode())


def open_pinned(path: str) -> int:
    """The fd of a pinned map, program or link."""
    return checked(f"open the pin {path}", "bpf_obj_get", path.encode())


def link_create(prog_fd: int, ifindex: int, flags: int) -> int:
    """Attach an XDP program by a new link and return the link's fd."""
    opts = LinkCreateOpts(sz=ct.sizeof(LinkCreateOpts), flags=flags)
    action = f"attach to interface index {ifindex}"
    return checked(action, "bpf_link_create", prog_fd, ifindex, BPF_XDP, ct.byref(opts))


def link_create_netns(prog_fd: int, netns_fd: int) -> int:
    """Have a ``LOOKUP_PROGRAM`` choose sockets of a network namespace; returns the link's fd."""
    opts = LinkCreateOpts(sz=ct.sizeof(LinkCreateOpts))
    action = "attach to the network namespace"
    return checked(action, "bpf_link_create", prog_fd, netns_fd, BPF_SK_LOOKUP, ct.byref(opts))


def link_update(link_fd: int, prog_fd: int) -> None:
    """Replace a link's program atomically."""
    checked("replace the program of a link", "bpf_link_update", link_fd, prog_fd, None)


def link_detach(link_fd: int) -> None:
    """Detach a link from its interface or namespace, whoever else holds it."""
    checked("detach a link", "bpf_link_detach", link_fd)


@dataclass(frozen=True, slots=True)
class MapInfo:
    """What the kernel says of a map. Sizes in bytes."""

    type: int
    id: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int
    name: str


@dataclass(frozen=True, slots=True)
class ProgInfo:
    """What the kernel says of a program. ``jited`` False: it is interpreted (or we may not ask)."""

    id: int
    name: str
    jited: bool = False


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """What the kernel says of a link; ``ifindex`` is 0 when detached or not an XDP link, so is
    ``netns``, an inode number, of other links than those to network namespaces."""

    type: int
    id: int
    prog_id: int
    ifindex: int
    netns: int = 0


def _info(fd: int, what: str, size: int) -> bytes:
    buffer = ct.create_string_buffer(size)
    length = ct.c_uint32(size)
    action = f"query a {what}"
    checked(action, "bpf_obj_get_info_by_fd", fd, buffer, ct.byref(length))
    return buffer.raw


def map_info(fd: int) -> MapInfo:
    """Type, sizes and name of an open map."""
    raw = _info(fd, "map", 48)
    kind, map_id, key_size, value_size, max_entries, flags = struct.unpack_from("=6I", raw)
    name = raw[24:40].split(b"\0")[0].decode()
    return MapInfo(kind, map_id, key_size, value_size, max_entries, flags, name)


def prog_info(fd: int) -> ProgInfo:
    """Id and name of an open program, and whether it is machine code."""
    raw = _info(fd, "program", 80)
    prog_id, name = struct.unpack_from("=4xI", raw)[0], raw[64:80]
    (length,) = struct.unpack_from("=I", raw, 16)
    return ProgInfo(prog_id, name.split(b"\0")[0].decode(), length > 0)


def link_info(fd: int) -> LinkInfo:
    """Type, program and interface, or network namespace, of an open link."""
    kind, link_id, prog_id, where = struct.unpack_from("=3I4xI", _info(fd, "link", 32))
    ifindex = where if kind == BPF_LINK_TYPE_XDP else 0
    return LinkInfo(kind, link_id, prog_id, ifindex, where if kind == BPF_LINK_TYPE_NETNS else 0)


def prog_by_id(prog_id: int) -> int:
    """The fd of a program by id (needs CAP_SYS_ADMIN)."""
    return checked(f"open program {prog_id}", "bpf_prog_get_fd_by_id", prog_id)


def link_by_id(link_id: int) -> int:
    """The fd of a link by id (needs CAP_SYS_ADMIN)."""
    return checked(f"open link {link_id}", "bpf_link_get_fd_by_id", link_id)


def ids(kind: str) -> Iterator[int]:
    """All ids of ``kind`` "prog" or "link" on this host (needs CAP_SYS_ADMIN)."""
    following = ct.c_uint32(0)
    call = function(f"bpf_{kind}_get_next_id")
    while True:
        result = call(following.value, ct.byref(following))
        if result == -errno.ENOENT:
            return
        if result < 0:
            raise BpfError(-result, f"list the {kind} ids", hint(-result))
        yield following.value


@dataclass(frozen=True, slots=True)
class XdpState:
    """Programs attached to an interface, by mode; 0: none."""

    native_prog_id: int
    generic_prog_id: int
    offload_prog_id: int

    @property
    def prog_id(self) -> int:
        """The program of whichever mode is in use; 0: none."""
        return self.native_prog_id or self.generic_prog_id or self.offload_prog_id


def xdp_query(ifindex: int) -> XdpState:
    """What is attached to an interface of the current network namespace."""
    opts = XdpQueryOpts(sz=ct.sizeof(XdpQueryOpts))
    action = f"query the XDP state of interface index {ifindex}"
    checked(action, "bpf_xdp_query", ifindex, 0, ct.byref(opts))
    # Offloaded programs have a slot of their own; single mode fills drv or skb, too.
    return XdpState(opts.drv_prog_id, opts.skb_prog_id, opts.hw_prog_id)


def xdp_clear(ifindex: int, flags: int) -> None:
    """Detach a program that was attached without a link. ``flags`` names the mode."""
    action = f"detach the program of interface index {ifindex}"
    checked(action, "bpf_xdp_detach", ifindex, flags, None)


@functools.cache
def online_cpus() -> list[int]:
    """Numbers of the CPUs that run."""
    found: list[int] = []
    for part in Path("/sys/devices/system/cpu/online").read_text().strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def possible_cpus() -> int:
    """Number of CPUs that per-CPU maps have values for."""
    last = Path("/sys/devices/system/cpu/possible").read_text().strip().split(",")[-1]
    return int(last.split("-")[-1]) + 1
