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
from .entry_marks import EntryMarks, mark_of
from .map_specs import MAP_SPECS, PREVIOUS, Sizes, by_count
from .pick_maps import BackendLoads
from .service_maps import Usage
from .traffic import Traffic

FIXED = ("control", "counters", "gateway_sockets", "notes")
"""Maps whose number of entries is no choice of the operator's."""
_NOT_COPIED = (*PREVIOUS, "first_packet_events")  # who takes over reads both rings
_TOTALS = ("usage", "backend_load", "traffic_ended")
"""What XDP adds to. The daemon has a share of its own in each, that it alone writes."""
_RACED = (MapType.LRU_HASH,)
_HANDSHAKES = ("pending_flows", "flood_flows")
"""Who is in one of these is reset if the new program does not find it: the last to be left."""
_FEW = 16
_ROUNDS = 8
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
    """One copy of what maps of another size take over. Methods raise BpfError.

    Of tables that are copied more than once it remembers 64 bits an entry, and no entry.
    """

    def __init__(
        self, former: Mapping[str, int], maps: Mapping[str, int], names: Collection[str]
    ) -> None:
        """``names``: the maps that are others in ``maps`` than in ``former``."""
        self._names = [name for name in names if name not in _NOT_COPIED]
        self._old = {name: BpfMap(former[name]) for name in self._names}
        self._new = {name: BpfMap(maps[name]) for name in self._names}
        self._maps = maps
        self._marks: dict[str, EntryMarks] = {}
        self._sums: dict[str, list[bytes]] = {}
        raced = [name for name in self._names if self._is_raced(name)]
        self._handshakes = [name for name in raced if name.startswith(_HANDSHAKES)]
        self._others = [name for name in raced if name not in self._handshakes]

    def copy(self) -> None:
        """All of it; the former's program goes on meanwhile."""
        for name in self._names:
            old, new = self._old[name], self._new[name]
            if old.info.type == MapType.PERCPU_ARRAY:
                for index in range(old.info.max_entries):
                    if (raw := old.read(_u32(index))) is not None:
                        new.write(_u32(index), raw)
            elif name in _TOTALS:
                self._add_up(name)
            elif self._is_raced(name):
                self._catch_up(name)
            else:
                for batch in _batches(old):
                    new.write_batch(batch)

    def refresh(self) -> None:
        """What has changed since, while no new program runs.

        Flows that are opening come last, and again until few of them are left to ``finish``.
        """
        for name in self._sums:
            self._add_up(name)
        for name in self._others:
            self._catch_up(name)
        for _ in range(_ROUNDS):
            if sum(self._catch_up(name) for name in self._handshakes) <= _FEW:
                break

    def finish(self) -> None:
        """The new programs run, and the former ones no more: what came in between.

        What the new program has written itself stays.
        """
        for name in (*self._handshakes, *self._others):
            self._catch_up(name, new_runs=True)
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

    def _add_up(self, name: str) -> None:
        """Sums that have changed, as long as no new program adds to them: see ``finish``."""
        kept = self._sums.setdefault(name, [])
        for number, batch in enumerate(_batches(self._old[name])):
            if number == len(kept):
                kept.append(b"")
            if kept[number] != batch.values:
                self._new[name].write_batch(batch)
                kept[number] = batch.values

    def _catch_up(self, name: str, *, new_runs: bool = False) -> int:
        """Entries that are others than at the last call, or are gone; how many were others.

        Each is written as it is met: what is opened meanwhile has its place soon.
        """
        before, now = self._marks.get(name, EntryMarks()), EntryMarks()
        changed = met = 0
        for batch in _batches(self._old[name]):
            fresh = []
            for key, value in batch:
                mark = mark_of(key, value)
                now.add(mark)
                if mark not in before:
                    fresh.append((key, value))
            met += batch.count - len(fresh)
            changed += len(fresh)
            if new_runs:
                for key, value in fresh:
                    self._put(name, before, key, value)
            elif fresh:
                keys, values = (b"".join(each) for each in zip(*fresh, strict=True))
                self._new[name].write_batch(Batch(len(fresh), keys, values))
        if len(before) > met and self._old[name].info.type in _RACED:
            self._remove_gone(name, before, now)
        self._marks[name] = now
        return changed

    def _put(self, name: str, before: EntryMarks, key: bytes, value: bytes) -> None:
        new = self._new[name]
        found = new.read(key)
        if found is None:
            new.insert(key, value)  # or the new program has come first, or there is no place
        elif mark_of(key, found) in before:
            new.write_batch(Batch(1, key, value))

    def _remove_gone(self, name: str, before: EntryMarks, now: EntryMarks) -> None:
        """What was copied, and is in the former's no more; what has changed since stays."""
        new = self._new[name]
        for batch in _batches(new):
            for key, value in batch:
                mark = mark_of(key, value)
                if mark in before and mark not in now:
                    new.delete(key)

    def _grown(self, name: str) -> Iterator[tuple[int, bytes, bytes]]:
        """Rows of sums that differ from what was copied: number, then, now."""
        if name not in self._sums:
            return
        for then, batch in zip(self._sums[name], _batches(self._old[name]), strict=True):
            if then == batch.values:
                continue
            for (key, now), (_, before) in zip(
                batch, Batch(batch.count, batch.keys, then), strict=True
            ):
                if now != before:
                    yield int.from_bytes(key, sys.byteorder), before, now


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
