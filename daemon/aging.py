# SPDX-License-Identifier: Apache-2.0
"""Removes flows that are over: in batches, so that the loop is never held for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import structlog

from xdp_router.adapters.bpf_maps import FlowTable, FlowTables, PendingFlows
from xdp_router.adapters.bpf_syscall import Batch
from xdp_router.core import abi
from xdp_router.core.config import Settings
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.events import FlowClosed
from xdp_router.core.held import UDP
from xdp_router.core.model import FlowKey

from .retirement import Retirement
from .traffic_keeper import TrafficKeeper
from .usage_keeper import UsageKeeper

if TYPE_CHECKING:
    from .flow_mover import FlowMover

BATCH = 1024
"""Entries of one system call; looking at them takes 0.1 ms."""
REMOVALS = 32
"""Flows that are removed before the loop has its turn: about 1 ms, where nothing is in the way."""
STEP_NS = 1_000_000
"""After so long the loop has its turn, however few they were: on a slow or busy machine."""

NAT_REST_NS = abi.NAT_REST_S * 1_000_000_000
HALF_CLOSED_NS = 120_000_000_000
"""A one-sided flow whose client has sent its FIN stays this long without traffic at least: the
backend may still think about its answer, and is not seen."""

_PENDING_NAMES = ("pending_flows", "flood_flows")
_OTHER_WAY = {abi.Kind.FORWARD: abi.Kind.REPLY, abi.Kind.REPLY: abi.Kind.FORWARD}
_PAUSE_S = 0.002
_SWEEP_EVERY_S = 1.0
_log = structlog.get_logger()
_Result = TypeVar("_Result")


class Ager:
    """Sweeps ``flow_table``, ``pending_flows`` and ``flood_flows`` for ever, with pauses.

    A flow is idle only if both its entries are; a closing one goes after a linger without
    traffic. ``on_closed`` gets each flow that was removed. ``clock`` is CLOCK_MONOTONIC in ns.
    ``pauses`` tells until when a flow's traffic may have gone on (``Heartbeat.pauses``).
    ``former_resumed_ns``: before that, a daemon that is gone had pauses that nobody remembers.
    ``is_lost``: whether the tables are a successor's, whose settings are others.
    """

    def __init__(
        self,
        flows: FlowTable,
        pending: PendingFlows,
        settings: Settings,
        on_closed: Callable[[FlowClosed], None],
        clock: Callable[[], int] = time.monotonic_ns,
        pauses: Callable[[int], Mapping[int, int]] = lambda _now_ns: {},
        former_resumed_ns: int = 0,
        retirement: Retirement | None = None,
        stopwatch: Callable[[], int] = time.monotonic_ns,
        is_lost: Callable[[], bool] = lambda: False,
        others: Iterable[FlowTables] = (),
        usage: UsageKeeper | None = None,
        flood: PendingFlows | None = None,
        traffic: TrafficKeeper | None = None,
        mover: FlowMover | None = None,
    ) -> None:
        """``stopwatch`` measures the steps. ``others``: tables of another address family.

        ``flood``: beside ``pending``, what XDP decided because there were too many. ``mover``
        has its turn before each sweep: no number is corrected while programs move flows.
        """
        self._mover = mover
        self._is_lost = is_lost
        # Not "or": one without anybody is empty, and may be told of some later.
        nobody = Retirement((), lambda _backend: None)
        self._retirement = retirement if retirement is not None else nobody
        self._usage = usage or UsageKeeper()
        self._traffic = traffic or TrafficKeeper()
        self._stopwatch = stopwatch
        self._tables = (FlowTables(4, pending, flows, flood), *others)
        self._settings = settings
        self._on_closed = on_closed
        self._clock = clock
        self._pauses = pauses
        self._former_resumed_ns = former_resumed_ns
        self.entries_of = dict.fromkeys((tables.family for tables in self._tables), 0)
        """Entries of each family's table seen by the newest sweep: two a flow, or one."""
        self.flows = 0
        """Flows that these are of, of all families."""
        self.pending_entries: dict[str, int] = {}
        """Entries of the other tables seen by the newest sweep, by the map's name."""
        self.removed = 0
        self.stateless = 0
        """Flows without a place in ``flow_table``, though proven, that it saw."""

    @property
    def entries(self) -> int:
        """``entries_of`` all families."""
        return sum(self.entries_of.values())

    def change(self, settings: Settings) -> None:
        """Other lifetimes from now on."""
        self._settings = settings

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            try:
                await self.sweep()
            except XdpRouterError as error:
                _log.error("aging_failed", error=str(error), consequence="tried again")
            await asyncio.sleep(_SWEEP_EVERY_S)

    async def sweep(self) -> None:
        """Look at every entry once. Raises BpfError when a map cannot be read."""
        one_sided = stateless = 0
        seen = dict.fromkeys(self.entries_of, 0)
        if self._mover is not None:
            await self._mover.run()
        moves = self._moves()
        self._usage.begin()
        for _ in self._traffic.begin():
            await asyncio.sleep(0)
        for tables in self._tables:
            flows = tables.flows
            walk = flows.batches if self._traffic.is_first else flows.batches_once
            async for batch in in_batches(walk(BATCH)):
                seen[tables.family] += batch.count
                one_sided += abi.count_one_sided(batch.values, tables.family)
                self._retirement.flows(batch.values, tables.family)
                self._usage.flows(batch.values, tables.family)
                self._traffic.flows(batch.values, tables.family)
                if not self._traffic.is_first:
                    await self._age_flows(tables, batch)
        for _ in self._traffic.settle():
            await asyncio.sleep(0)
        self.entries_of = seen
        self.flows = (self.entries - one_sided) // 2 + one_sided
        if not self._is_lost():
            if self._moves() == moves:  # else some may have been met in neither table
                self._usage.end()
            self._traffic.end()
        for tables in self._tables:
            for table, name in zip(tables.both, _PENDING_NAMES, strict=False):
                entries = 0
                async for batch in in_batches(table.batches(BATCH)):
                    entries += batch.count
                    self._retirement.pending(batch.values, tables.family)
                    stateless += await self._age_pending(tables, table, batch)
                self.pending_entries[name + "6" * (tables.family == 6)] = entries
        self.stateless = stateless // 2
        for _ in self._retirement.steps():
            await asyncio.sleep(0)

    def _moves(self) -> int:
        return self._mover.by_programs() if self._mover is not None else 0

    async def _age_flows(self, tables: FlowTables, batch: Batch) -> None:
        if self._is_lost():
            return
        now_ns = self._clock()
        limits = self._limits(now_ns, tables.family)
        step = _Step(self._stopwatch)
        for index in limits.passed(batch.keys, batch.values):
            key, _ = _entry(batch, index)
            self._remove_if_over(tables.flows, key, limits, now_ns)
            if step.is_over():
                await asyncio.sleep(0)
                step = _Step(self._stopwatch)

    def _limits(self, now_ns: int, family: int) -> _Limits:
        idle = now_ns - self._settings.flow_idle_ns
        linger = now_ns - self._settings.closed_linger_ns
        limits = dict.fromkeys(abi.TcpState, linger)
        limits[abi.TcpState.ESTABLISHED] = idle
        before_ns = [limits[state] for state in sorted(limits)]
        udp = now_ns - self._settings.udp_idle_ns
        known_since_ns = self._former_resumed_ns
        half_closed = now_ns - max(self._settings.closed_linger_ns, HALF_CLOSED_NS)
        before_ns, (udp, half_closed) = (
            [limit if limit > known_since_ns else 0 for limit in each]
            for each in (before_ns, [udp, half_closed])
        )
        rests = min(linger, now_ns - NAT_REST_NS)
        return _Limits(tuple(before_ns), udp, rests, self._pauses(now_ns), family, half_closed)

    def _remove_if_over(self, flows: FlowTable, key: bytes, limits: _Limits, now_ns: int) -> None:
        # The batch is as old as the pauses since: what counts is how the entry is now.
        own = flows.read(key)
        if own is None or not limits.is_passed(key, own):
            return
        peer = abi.peer_key(key, own)
        one_sided = abi.unpack_flow_entry(own).flags & abi.FLOW_ONE_SIDED
        other = flows.read(peer) if not one_sided else None
        if other is not None and abi.peer_key(peer, other) != key:
            other = None  # half a flow is left, and its other tuple is another flow's by now
        elif other is not None and not limits.is_passed(peer, other):
            return
        forward_raw: bytes | None
        reply_raw: bytes | None
        if abi.unpack_flow_entry(own).direction is abi.Direction.FORWARD:
            forward, reply, forward_raw, reply_raw = key, peer, own, other
        else:
            forward, reply, forward_raw, reply_raw = peer, key, other, own
        # The forward entry first: a reply without it passes, a request finds no half a flow.
        for doomed in (forward, reply):
            if doomed != key and other is None:
                continue
            raw = forward_raw if doomed == forward else reply_raw
            if flows.delete(doomed) or raw is None:
                continue
            entry = abi.unpack_flow_entry(raw)
            if doomed == forward:
                self._usage.aged(entry)
            self._traffic.aged(entry)
        self.removed += 1
        first_data_us = abi.unpack_flow_entry(reply_raw).first_data_us if reply_raw else 0
        self._on_closed(FlowClosed(abi.flow_key_from_bytes(forward), first_data_us, now_ns))

    async def _age_pending(self, tables: FlowTables, table: PendingFlows, batch: Batch) -> int:
        """Remove entries without traffic for ``pending_idle``: they only take place.

        For an established flow nothing is lost: packets find ``flow_table`` first. One that
        found no room there has only these entries: they stay for ``flow_idle``. Those of fullnat
        keep a port, which rests. Returns how many are such ones. Those of UDP, which may never be
        established, stay for ``udp_idle`` after the newest datagram of either direction.
        """
        if self._is_lost():
            return 0
        now_ns = self._clock()
        usual_ns = now_ns - self._settings.pending_idle_ns
        proven_ns = now_ns - self._settings.flow_idle_ns
        rests_ns = min(usual_ns, now_ns - NAT_REST_NS)
        udp_ns = now_ns - self._settings.udp_idle_ns
        protocols = abi.protocols(batch.keys, tables.family)
        proven = 0
        over = []
        for index, (last_seen_ns, flags) in enumerate(
            abi.iter_pending_aging(batch.values, tables.family)
        ):
            limit_ns = usual_ns
            if flags & abi.PENDING_PROVEN:
                proven += 1
                limit_ns = proven_ns
            if protocols[index] == UDP:
                limit_ns = udp_ns
            if last_seen_ns < limit_ns:
                rests = flags & abi.PENDING_FULLNAT and limit_ns > rests_ns
                over.append((index, rests_ns if rests else limit_ns))
        step = _Step(self._stopwatch)
        for index, limit_ns in over:
            key, _ = _entry(batch, index)
            value = table.read(key)
            if value is None:
                continue
            if limit_ns == rests_ns and tables.flows.read(abi.without_kind(key)) is not None:
                limit_ns = usual_ns  # an established flow has its port by its entries there
            entry = abi.unpack_pending(value)
            ended = entry.last_seen_ns < limit_ns and not (
                protocols[index] == UDP and _other_way_lives(table, key, entry, limit_ns)
            )
            if ended and not table.delete(key):
                self._traffic.pending(key, entry)
            if step.is_over():
                await asyncio.sleep(0)
                step = _Step(self._stopwatch)
        return proven


def _other_way_lives(
    table: PendingFlows, key: bytes, entry: abi.PendingValue, limit_ns: int
) -> bool:
    """Whether the flow's other entry is there and not over: a backend may speak alone for long."""
    kind = abi.key_kind(key)
    if kind not in _OTHER_WAY or entry.flags & abi.PENDING_CLOSED:
        return False
    proto = abi.flow_key_from_bytes(key).proto
    raw = table.read(_turned_round(entry, proto, _OTHER_WAY[kind]))
    if raw is None:
        return False
    other = abi.unpack_pending(raw)
    if other.flags & abi.PENDING_CLOSED or other.last_seen_ns < limit_ns:
        return False
    return _turned_round(other, proto, kind) == key  # else it is another flow's by now


def _turned_round(entry: abi.PendingValue, proto: int, kind: abi.Kind) -> bytes:
    """Key of the other direction of a pending entry: its new tuple, turned round."""
    there = (entry.new_daddr, entry.new_dport, entry.new_saddr, entry.new_sport)
    return abi.pack_flow_key(FlowKey(*there, proto), kind)


class _Step:
    """Work between two turns of the loop."""

    __slots__ = ("_left", "_stopwatch", "_until_ns")

    def __init__(self, stopwatch: Callable[[], int]) -> None:
        self._stopwatch = stopwatch
        self._left = REMOVALS
        self._until_ns = stopwatch() + STEP_NS

    def is_over(self) -> bool:
        """After each removal: whether it was the last."""
        self._left -= 1
        return not self._left or self._stopwatch() >= self._until_ns


@dataclass(frozen=True, slots=True)
class _Limits:
    """``before_ns``, by state: entries without traffic since that instant are over.

    ``udp_ns``: those of UDP, which has no states. ``rests_ns``: those of fullnat, whose ports
    rest, are not over before.
    """

    before_ns: tuple[int, ...]
    udp_ns: int
    rests_ns: int
    pauses: Mapping[int, int]
    family: int
    half_closed_ns: int
    """The same for one-sided flows that are closing by a FIN."""

    def passed(self, keys: bytes, values: bytes) -> Iterator[int]:
        """Which of the entries in a row are over by themselves."""
        before_ns, udp_ns, pauses = self.before_ns, self.udp_ns, self.pauses
        protocols = abi.protocols(keys, self.family)
        for index, (last_seen_ns, state, flags, _direction) in enumerate(
            abi.iter_flow_aging(values, self.family)
        ):
            limit_ns = udp_ns if protocols[index] == UDP else before_ns[state]
            if flags & abi.FLOW_FULLNAT and limit_ns > self.rests_ns:
                limit_ns = self.rests_ns
            elif last_seen_ns < limit_ns and _is_half_closed(state, flags):
                limit_ns = self.half_closed_ns
            if last_seen_ns < limit_ns and pauses.get(last_seen_ns, 0) < limit_ns:
                yield index

    def is_passed(self, key: bytes, value: bytes) -> bool:
        """Whether one entry is over by itself."""
        return any(True for _ in self.passed(key, value))


def _is_half_closed(state: int, flags: int) -> bool:
    """Whether the client of a one-sided flow has sent a FIN, and no RST."""
    kind = flags & (abi.FLOW_ONE_SIDED | abi.FLOW_RST)
    return state == abi.TcpState.CLOSING and kind == abi.FLOW_ONE_SIDED


def _entry(batch: Batch, index: int) -> tuple[bytes, bytes]:
    key_size, value_size = len(batch.keys) // batch.count, len(batch.values) // batch.count
    return (
        batch.keys[index * key_size : (index + 1) * key_size],
        batch.values[index * value_size : (index + 1) * value_size],
    )


async def in_batches(calls: Iterator[Batch]) -> AsyncIterator[Batch]:
    """Each batch, read in a worker thread, and a pause after it.

    One call walks all buckets up to the next entries: 1 ms on an empty table of the usual
    size, 40 ms on one for 16 million flows. The thread is in the kernel nearly all of that
    time, so that the loop goes on.
    """
    while True:
        batch = await in_thread(next, calls, None)
        if batch is None:
            return
        yield batch
        await asyncio.sleep(_PAUSE_S)


async def in_thread(call: Callable[..., _Result], *args: object) -> _Result:
    """What ``call(*args)`` gives, from a worker thread. It is never left to itself."""
    task = asyncio.get_running_loop().run_in_executor(None, call, *args)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # It uses the fd of a map: nobody may close that before it is done.
        await asyncio.wait([task])
        raise
