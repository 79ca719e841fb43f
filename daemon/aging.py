# SPDX-License-Identifier: Apache-2.0
"""Removes flows that are over: in batches, so that the loop is never held for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass

import structlog

from xdp_router.adapters.bpf_maps import FlowTable, PendingFlows
from xdp_router.adapters.bpf_syscall import Batch
from xdp_router.core import abi
from xdp_router.core.config import Settings
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.events import FlowClosed

from .retirement import Retirement

BATCH = 1024
"""Entries of one system call; looking at them takes 0.1 ms."""
REMOVALS = 32
"""Flows that are removed before the loop has its turn: about 1 ms, where nothing is in the way."""
STEP_NS = 1_000_000
"""After so long the loop has its turn, however few they were: on a slow or busy machine."""

_PAUSE_S = 0.002
_SWEEP_EVERY_S = 1.0
_log = structlog.get_logger()


class Ager:
    """Sweeps ``flow_table`` and ``pending_flows`` for ever, with pauses.

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
    ) -> None:
        """``stopwatch`` measures the steps."""
        self._is_lost = is_lost
        self._retirement = retirement or Retirement((), lambda _backend: None)
        self._stopwatch = stopwatch
        self._flows = flows
        self._pending = pending
        self._settings = settings
        self._on_closed = on_closed
        self._clock = clock
        self._pauses = pauses
        self._former_resumed_ns = former_resumed_ns
        self.entries = 0
        """Entries of ``flow_table`` seen by the newest sweep: two a flow."""
        self.removed = 0
        self.stateless = 0
        """Flows without a place in ``flow_table``, though proven, that it saw."""

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
        seen = 0
        async for batch in in_batches(self._flows.batches(BATCH)):
            seen += batch.count
            self._retirement.flows(batch.values)
            await self._age_flows(batch)
        self.entries = seen
        stateless = 0
        async for batch in in_batches(self._pending.batches(BATCH)):
            self._retirement.pending(batch.values)
            stateless += await self._age_pending(batch)
        self.stateless = stateless // 2
        self._retirement.swept()

    async def _age_flows(self, batch: Batch) -> None:
        if self._is_lost():
            return
        now_ns = self._clock()
        limits = self._limits(now_ns)
        step = _Step(self._stopwatch)
        for index in limits.passed(batch.values):
            key, _ = _entry(batch, index)
            self._remove_if_over(key, limits, now_ns)
            if step.is_over():
                await asyncio.sleep(0)
                step = _Step(self._stopwatch)

    def _limits(self, now_ns: int) -> _Limits:
        idle = now_ns - self._settings.flow_idle_ns
        linger = now_ns - self._settings.closed_linger_ns
        limits = dict.fromkeys(abi.TcpState, linger)
        limits[abi.TcpState.ESTABLISHED] = idle
        before_ns = (limits[state] for state in sorted(limits))
        known_since_ns = self._former_resumed_ns
        return _Limits(
            tuple(limit if limit > known_since_ns else 0 for limit in before_ns),
            self._pauses(now_ns),
        )

    def _remove_if_over(self, key: bytes, limits: _Limits, now_ns: int) -> None:
        # The batch is as old as the pauses since: what counts is how the entry is now.
        own = self._flows.read(key)
        if own is None or not limits.is_passed(own):
            return
        peer = abi.peer_key(key, own)
        other = self._flows.read(peer)
        if other is not None and abi.peer_key(peer, other) != key:
            other = None  # half a flow is left, and its other tuple is another flow's by now
        elif other is not None and not limits.is_passed(other):
            return
        if abi.unpack_flow_entry(own).direction is abi.Direction.FORWARD:
            forward, reply, reply_raw = key, peer, other
        else:
            forward, reply, reply_raw = peer, key, own
        # The forward entry first: a reply without it passes, a request finds no half a flow.
        for doomed in (forward, reply):
            if doomed == key or other is not None:
                self._flows.delete(doomed)
        self.removed += 1
        first_data_us = abi.unpack_flow_entry(reply_raw).first_data_us if reply_raw else 0
        self._on_closed(FlowClosed(abi.flow_key_from_bytes(forward), first_data_us, now_ns))

    async def _age_pending(self, batch: Batch) -> int:
        """Remove entries without traffic for ``pending_idle``: they only take place.

        For an established flow nothing is lost: packets find ``flow_table`` first. One that
        found no room there has only these entries: they stay for ``flow_idle``. Returns how many
        are such ones.
        """
        if self._is_lost():
            return 0
        now_ns = self._clock()
        usual_ns = now_ns - self._settings.pending_idle_ns
        proven_ns = now_ns - self._settings.flow_idle_ns
        proven = 0
        over = []
        for index, (last_seen_ns, flags) in enumerate(abi.iter_pending_aging(batch.values)):
            if flags & abi.PENDING_PROVEN:
                proven += 1
                if last_seen_ns < proven_ns:
                    over.append((index, proven_ns))
            elif last_seen_ns < usual_ns:
                over.append((index, usual_ns))
        step = _Step(self._stopwatch)
        for index, limit_ns in over:
            key, _ = _entry(batch, index)
            value = self._pending.read(key)
            if value is not None and abi.unpack_pending(value).last_seen_ns < limit_ns:
                self._pending.delete(key)
            if step.is_over():
                await asyncio.sleep(0)
                step = _Step(self._stopwatch)
        return proven


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
    """``before_ns``, by state: entries without traffic since that instant are over."""

    before_ns: tuple[int, ...]
    pauses: Mapping[int, int]

    def passed(self, values: bytes) -> Iterator[int]:
        """Which of the entries in a row are over by themselves."""
        before_ns, pauses = self.before_ns, self.pauses
        for index, (last_seen_ns, state, _flags, _direction) in enumerate(
            abi.iter_flow_aging(values)
        ):
            limit_ns = before_ns[state]
            if last_seen_ns < limit_ns and pauses.get(last_seen_ns, 0) < limit_ns:
                yield index

    def is_passed(self, value: bytes) -> bool:
        """Whether one entry is over by itself."""
        return any(True for _ in self.passed(value))


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
    loop = asyncio.get_running_loop()
    while True:
        call = loop.run_in_executor(None, next, calls, None)
        try:
            batch = await asyncio.shield(call)
        except asyncio.CancelledError:
            # It uses the map's fd: nobody may close that before it is done.
            await asyncio.wait([call])
            raise
        if batch is None:
            return
        yield batch
        await asyncio.sleep(_PAUSE_S)
