# SPDX-License-Identifier: Apache-2.0
"""Maps that a successor makes of another size, and what they take from the former's.

Flows are not copied: the programs, and the daemon, move them one by one from the former's table
(``ebpf/lib/previous.h``, ``daemon/flow_mover.py``). All else is copied before the programs are
changed, what has changed meanwhile once more right before, and what came in between afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping

from xdp_router.core import abi
from xdp_router.core.abi_values import TrafficValue

from . import bpf_syscall as bpf
from .bpf_syscall import Batch, BpfMap, MapType
from .map_specs import MAP_SPECS, PREVIOUS, Sizes, by_count
from .pick_maps import BackendLoads
from .service_maps import Usage
from .traffic import Traffic

FIXED = ("control", "counters", "notes")
"""Maps whose number of entries is no choice of the operator's."""
_NOT_COPIED = (*PREVIOUS, "first_packet_events")  # who takes over reads both rings
_TOTALS = ("usage", "backend_load", "traffic_ended")
"""What XDP adds to. The daemon has a share of its own in each, that it alone writes."""
_RACED = (MapType.LRU_HASH,)
_BATCH_BYTES = 1 << 20


def plan(former: Mapping[str, int], wanted: Sizes) -> dict[str, tuple[int, int]]:
    """Maps to be made anew: entries that they have, and those that are wanted.

    ``former``: fds by name. Maps that go by how many services, backends or interfaces there are
    only grow: numbers that are in use may be high. A table of flows stays as it is while the one
    of before it is not empty (``unfinished``).
    """
    found, busy = {}, unfinished(former)
    for spec in MAP_SPECS:
        if spec.private or spec.name in FIXED or spec.name not in former:
            continue
        entries, want = bpf.map_info(former[spec.name]).max_entries, spec.entries(wanted)
        # 1: of a family that was not, or is no more, in use; it is made anew, or let be.
        if entries == want or 1 in (entries, want) or (by_count(spec) and want < entries):
            continue
        if spec.name not in busy:
            found[spec.name] = (entries, want)
    return found


def unfinished(maps: Mapping[str, int]) -> frozenset[str]:
    """Tables of flows that have one of before with flows in it."""
    return frozenset(
        table
        for table, (_, before) in PREVIOUS.items()
        if before in maps and any(batch.count for batch in BpfMap(maps[before]).batches(1024))
    )


def count_entries(maps: Mapping[str, int], table: str) -> int:
    """Entries of a table of flows, and of the one of before it."""
    names = (name for name in (table, PREVIOUS[table][1]) if name in maps)
    return sum(batch.count for name in names for batch in BpfMap(maps[name]).batches(4096))


def entries_after(former: Mapping[str, int], wanted: Sizes) -> dict[str, int]:
    """How many entries each map has once ``plan`` is done."""
    now = {name: bpf.map_info(fd).max_entries for name, fd in former.items()}
    return now | {name: want for name, (_, want) in plan(former, wanted).items()}


class Carry:
    """One copy of what maps of another size take over. Methods raise BpfError."""

    def __init__(
        self, former: Mapping[str, int], maps: Mapping[str, int], names: Collection[str]
    ) -> None:
        """``names``: the maps that are others in ``maps`` than in ``former``."""
        self._names = [name for name in names if name not in _NOT_COPIED]
        self._old = {name: BpfMap(former[name]) for name in self._names}
        self._new = {name: BpfMap(maps[name]) for name in self._names}
        self._maps = maps
        self._copied: dict[str, dict[bytes, bytes]] = {}

    def copy(self) -> None:
        """All of it; the former's program goes on meanwhile."""
        for name in self._names:
            old, new = self._old[name], self._new[name]
            if old.info.type == MapType.PERCPU_ARRAY:
                for index in range(old.info.max_entries):
                    if (raw := old.read(_u32(index))) is not None:
                        new.write(_u32(index), raw)
                continue
            seen = self._copied.setdefault(name, {})
            for batch in _batches(old):
                new.write_batch(batch)
                if self._is_raced(name) or name in _TOTALS:
                    seen.update(iter(batch))

    def catch_up(self) -> None:
        """What has changed since; what the new program has written itself stays.

        Sums, too, as long as no new program runs: see ``finish``.
        """
        for name in self._names:
            if self._is_raced(name):
                self._catch_up(name)

    def refresh(self) -> None:
        """``catch_up`` while no new program runs: sums as well."""
        self.catch_up()
        for name in self._names:
            if name in _TOTALS:
                self._catch_up(name)

    def finish(self) -> None:
        """The new programs run, and the former ones no more: what came in between."""
        self.catch_up()
        maps = self._maps
        for name in _TOTALS:
            for index, then, now in self._grown(name):
                if name == "usage":
                    (opened, closed), (opened_now, closed_now) = map(abi.unpack_usage, (then, now))
                    gone = closed_now - closed - (opened_now - opened)
                    Usage(maps[name], maps["usage_aged"]).age(index, gone)
                elif name == "backend_load":
                    before, after = map(abi.unpack_backend_load, (then, now))
                    gone = after.closed - before.closed - (after.opened - before.opened)
                    BackendLoads(maps[name], maps["backend_aged"]).age(index, gone)
                else:
                    carried = _difference(abi.unpack_traffic(then), abi.unpack_traffic(now))
                    Traffic(maps[name], maps["traffic_aged"]).age(index, carried)

    def _is_raced(self, name: str) -> bool:
        return self._old[name].info.type in _RACED or name == "pressure"

    def _catch_up(self, name: str) -> None:
        old, new, copied = self._old[name], self._new[name], self._copied[name]
        now: dict[bytes, bytes] = {}
        for batch in _batches(old):
            now.update(iter(batch))
        for key, value in now.items():
            before = copied.get(key)
            if value != before and new.read(key) in (None, before):
                new.write(key, value)
        for key in copied.keys() - now.keys():
            if new.read(key) == copied[key]:
                new.delete(key)
        self._copied[name] = now

    def _grown(self, name: str) -> Iterator[tuple[int, bytes, bytes]]:
        """Rows of sums that differ from what was copied: number, then, now."""
        if name not in self._copied:
            return
        copied = self._copied[name]
        for batch in _batches(self._old[name]):
            for key, now in batch:
                if now != copied[key]:
                    yield int.from_bytes(key, sys.byteorder), copied[key], now


def _batches(table: BpfMap) -> Iterator[Batch]:
    return table.batches(max(16, min(4096, _BATCH_BYTES // table.info.value_size)))


def _difference(then: TrafficValue, now: TrafficValue) -> TrafficValue:
    return TrafficValue(
        now.flows - then.flows,
        now.packets - then.packets,
        now.octets - then.octets,
        now.reply_packets - then.reply_packets,
        now.reply_octets - then.reply_octets,
    )


def _u32(value: int) -> bytes:
    return value.to_bytes(4, sys.byteorder)
