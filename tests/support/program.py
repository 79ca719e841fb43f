# SPDX-License-Identifier: Apache-2.0
"""The loaded XDP program, run on single frames; its counters and events as they change."""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pyroute2 import IPRoute

from tests.support.bpf_programs import real_loader
from tests.support.fresh_netns import enter_netns, open_netns
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.map_specs import (
    ENTRY_PROGRAM,
    MAP_SPECS,
    Sizes,
    program_name,
    stage_slots,
)
from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.lab import libc

VERDICTS = ("ABORTED", "DROP", "PASS", "TX", "REDIRECT")
ABORTED, DROP, PASS, TX, REDIRECT = range(5)

FRAME_MAX = 3300
"""What a test run takes in one page, with metadata, headroom and its tail."""

SIZES = Sizes(max_flows=8, backends=600, pending=4096, flood=4096, ring_bytes=4096)
"""Small enough that full is soon reached; a backend for each slot of a hash table."""

SIZES_IPV6 = replace(SIZES, ipv6=True)
"""With the program and the tables of IPv6."""


class _XdpMd(ct.Structure):
    """``struct xdp_md`` of a test run; on the way in ``data`` is the metadata's length."""

    _fields_ = [
        (name, ct.c_uint32)
        for name in ("data", "data_end", "data_meta", "ingress", "rx_queue", "egress")
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run did. ``counters`` holds only those that changed."""

    verdict: int
    frame: bytes
    meta: bytes
    counters: dict[str, int]
    records: list[bytes]


class LoadedProgram:
    """The real program by one loader, with small maps of its own.

    Runs happen in the calling thread's network namespace, where ``ingress`` must exist.
    """

    def __init__(
        self,
        loader: str,
        kinds: Mapping[str, bpf.MapType] | None = None,
        sizes: Sizes = SIZES,
    ) -> None:
        """``kinds`` gives maps another type: how a table fails depends on it.

        With IPv6 in ``sizes``, ``pending`` and ``flows`` are those of IPv6.
        """
        self.loader, self.family = loader, 6 if sizes.ipv6 else 4
        if kinds:
            self.plane = _load_with(loader, kinds, sizes)
        else:
            self.plane = DataPlane.create(real_loader(loader), sizes, None)
        self.maps = Maps(self.plane.maps)
        behind = "6" if sizes.ipv6 else ""
        self.pending = bpf.BpfMap(self.plane.maps[f"pending_flows{behind}"])
        self.flows = bpf.BpfMap(self.plane.maps[f"flow_table{behind}"])
        self.previous = bpf.BpfMap(self.plane.maps[f"previous{behind}"])
        info = self.flows.info
        self.before = bpf.BpfMap(
            bpf.map_create(info.type, "before", info.key_size, info.value_size, 64)
        )
        """What was ``flow_table`` before a change of its size, once flows were put there."""
        self.fragments = bpf.BpfMap(self.plane.maps["fragments"])
        self.flood = bpf.BpfMap(self.plane.maps[f"flood_flows{behind}"])
        self.stages = bpf.BpfMap(self.plane.maps["stages"])
        self.leaving = bpf.BpfMap(self.plane.maps["leaving"])
        self.scratch = bpf.BpfMap(self.plane.maps["scratch"])
        self._ring = RingBuffer(self.plane.maps["first_packet_events"], SIZES.ring_bytes)
        self._in = ct.create_string_buffer(FRAME_MAX + 64)
        self._out = ct.create_string_buffer(FRAME_MAX + 64)
        self._ctx_in, self._ctx_out = _XdpMd(), _XdpMd()
        self._runs = {
            name: bpf.TestRun(fd, self._in, self._ctx_in, self._out, self._ctx_out)
            for name, fd in self.plane.programs.items()
        }
        self._counted = self.maps.counters.read()
        self._stale_records = 0

    def run(
        self, frame: bytes, ingress: int, meta: bytes = b"", program: str = ENTRY_PROGRAM
    ) -> Outcome:
        """Run one frame, and take the events that it left. Raises BpfError."""
        verdict, out, meta = self.run_only(frame, ingress, meta, program)
        counters, records = self.changes()
        return Outcome(verdict, out, meta, counters, records)

    def changes(self) -> tuple[dict[str, int], list[bytes]]:
        """Counters that changed since they were last looked at, and the events that wait."""
        counted = self.maps.counters.read()
        before, self._counted = self._counted, counted
        changed = {name: by for name in counted if (by := counted[name] - before[name])}
        stale, self._stale_records = self._stale_records, 0
        return changed, self.drain()[stale:]

    def fill_ring(self, frame: bytes, ingress: int) -> None:
        """Run a frame that leaves an event until the ring has no room for another one.

        What is in there is not the next run's: its outcome leaves it out.
        """
        while True:
            self.run_only(frame, ingress)
            counted = self.maps.counters.read()
            before, self._counted = self._counted, counted
            if counted["event_lost"] > before["event_lost"]:
                return
            self._stale_records += 1

    def drain(self) -> list[bytes]:
        """All records that wait in the ring."""
        return self._ring.drain(1000)

    def clear_flows(self) -> None:
        """Empty ``pending_flows``, ``flow_table`` and ``flood_flows``; no datagram is leaving."""
        self.leaving.write(bytes(4), bytes(8))
        self.previous.delete(bytes(4))
        for table in (self.pending, self.flows, self.flood, self.before):
            for key in list(table.each_key()):
                table.delete(key)

    def put_before(self) -> None:
        """Move all of ``flow_table`` into one of another size, which the program knows of."""
        for key in list(self.flows.each_key()):
            value = self.flows.read(key)
            assert value is not None
            assert self.before.insert(key, value) == self.flows.delete(key) == 0
        self.previous.write(bytes(4), self.before.fd.to_bytes(4, "little"))

    def put_back(self) -> None:
        """The other way round, for looks at it: what was put into ``flow_table`` meanwhile goes."""
        for key in list(self.flows.each_key()):
            self.flows.delete(key)
        for key in list(self.before.each_key()):
            value = self.before.read(key)
            assert value is not None
            assert self.flows.insert(key, value) == self.before.delete(key) == 0

    def clear_fragments(self) -> None:
        """Forget all fragments."""
        for key in list(self.fragments.each_key()):
            self.fragments.delete(key)

    def restore_stages(self) -> None:
        """Put every stage's program back into its slot."""
        _fill_stages(self.plane, self.stages)

    def close(self) -> None:
        """Free the maps and programs."""
        os.close(self.before.fd)
        self._ring.close()
        self.plane.close()

    def run_only(
        self, frame: bytes, ingress: int, meta: bytes = b"", program: str = ENTRY_PROGRAM
    ) -> tuple[int, bytes, bytes]:
        """Run one frame: verdict, frame and metadata. Counters and events are left alone."""
        data = meta + frame
        ct.memmove(self._in, data, len(data))
        self._ctx_in.data, self._ctx_in.data_end = len(meta), len(data)
        self._ctx_in.ingress = ingress
        if program != ENTRY_PROGRAM:  # IPv4's goes on in IPv6's by itself
            program = program_name(program, self.family)
        prepared = self._runs[program]
        opts = prepared.opts
        opts.data_size_in, opts.data_size_out = len(data), len(self._out)
        opts.ctx_size_out = ct.sizeof(_XdpMd)
        code = prepared.run()
        if code:
            raise BpfError(code, f"run {len(frame)} bytes on interface index {ingress}")
        raw = ct.string_at(self._out, opts.data_size_out)
        start = self._ctx_out.data
        return int(opts.retval), raw[start:], raw[:start]


def _load_with(loader: str, kinds: Mapping[str, bpf.MapType], sizes: Sizes) -> DataPlane:
    """As ``DataPlane.create``, with other types for some maps."""
    source = real_loader(loader)
    opened = {family: source.open(family) for family in ((4, 6) if sizes.ipv6 else (4,))}
    declared = {name: each for program in opened.values() for name, each in program.maps.items()}
    maps: dict[str, int] = {}
    for spec in MAP_SPECS:
        maps[spec.name] = bpf.map_create(
            kinds.get(spec.name, spec.type),
            spec.name,
            spec.key_size,
            spec.value_size if spec.value_size is not None else declared[spec.name].value_size,
            1 if spec.name in kinds else spec.entries(sizes),
            spec.flags,
            maps[spec.inner] if spec.inner else 0,
        )
    programs = {}
    for family, program in opened.items():
        loaded = program.load(maps)
        programs.update({program_name(name, family): fd for name, fd in loaded.items()})
        program.close()
    plane = DataPlane(maps, programs, None, loader)
    _fill_stages(plane, bpf.BpfMap(maps["stages"]))
    return plane


def _fill_stages(plane: DataPlane, stages: bpf.BpfMap) -> None:
    for slot, name in (stage_slots(4) | stage_slots(6)).items():
        if name in plane.programs:
            stages.write(slot.to_bytes(4, "little"), plane.programs[name].to_bytes(4, "little"))


@dataclass(frozen=True, slots=True)
class Wires:
    """Interface indices of two veth ends, and of the ends that frames from them arrive at."""

    client: int
    client_peer: int
    backend: int
    backend_peer: int


@contextlib.contextmanager
def router_namespace() -> Iterator[Wires]:
    """Put the calling thread into a new network namespace with two veth pairs, on one CPU.

    Event budgets are kept per CPU: a thread that moved would find another bucket.
    """
    here, cpus = open_netns(), os.sched_getaffinity(0)
    libc.unshare(libc.CLONE_NEWNET)
    try:
        os.sched_setaffinity(0, {min(cpus)})
        with IPRoute() as ipr:
            indices = []
            for name in ("xc", "xb"):
                ipr.link("add", ifname=name, kind="veth", peer={"ifname": f"{name}p"})
                for end in (name, f"{name}p"):
                    index = ipr.link_lookup(ifname=end)[0]
                    ipr.link("set", index=index, state="up")
                    indices.append(index)
        yield Wires(*indices)
    finally:
        os.sched_setaffinity(0, cpus)
        enter_netns(here)
        os.close(here)
