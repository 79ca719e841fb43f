# SPDX-License-Identifier: Apache-2.0
"""Removes flows that are over: in batches, so that the loop is never held for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator

from xdp_router.adapters.bpf_maps import FlowTable, PendingFlows
from xdp_router.core import abi
from xdp_router.core.config import Settings
from xdp_router.core.events import FlowClosed

BATCH = 1024
_PAUSE_S = 0.002
_SWEEP_EVERY_S = 1.0


class Ager:
    """Sweeps ``flow_table`` and ``pending_flows`` for ever, with pauses.

    A flow is idle only if both its entries are; a closing one goes after a linger without
    traffic. ``on_closed`` gets each flow that was removed.
    """

    def __init__(
        self,
        flows: FlowTable,
        pending: PendingFlows,
        settings: Settings,
        on_closed: Callable[[FlowClosed], None],
    ) -> None:
        self._flows = flows
        self._pending = pending
        self._settings = settings
        self._on_closed = on_closed
        self.entries = 0
        """Entries of ``flow_table`` seen by the newest sweep: two a flow."""
        self.removed = 0

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            for _ in self._sweep():
                await asyncio.sleep(_PAUSE_S)
            await asyncio.sleep(_SWEEP_EVERY_S)

    def _sweep(self) -> Iterator[None]:
        seen = 0
        for batch in self._flows.batches(BATCH):
            seen += batch.count
            self.age_flows(batch.keys, batch.values, time.monotonic_ns())
            yield
        self.entries = seen
        for batch in self._pending.batches(BATCH):
            self.age_pending(batch, time.monotonic_ns())
            yield

    def age_flows(self, keys: bytes, values: bytes, now_ns: int) -> None:
        """Remove what is over among entries that lie in a row."""
        size = abi.FLOW_KEY_SIZE
        limits = self._limits(now_ns)
        for index, (last_seen_ns, state, _flags, direction) in enumerate(
            abi.iter_flow_aging(values)
        ):
            if last_seen_ns >= limits[state]:
                continue
            key = keys[index * size : (index + 1) * size]
            value = values[index * abi.FLOW_ENTRY_SIZE : (index + 1) * abi.FLOW_ENTRY_SIZE]
            self._remove_if_over(key, value, state, direction, limits, now_ns)

    def _limits(self, now_ns: int) -> dict[int, int]:
        """By state: entries last seen before this instant are over."""
        idle = now_ns - self._settings.flow_idle_ns
        linger = now_ns - self._settings.closed_linger_ns
        return {
            abi.TcpState.NONE: linger,
            abi.TcpState.ESTABLISHED: idle,
            abi.TcpState.CLOSING: linger,
        }

    def _remove_if_over(
        self,
        key: bytes,
        value: bytes,
        state: int,
        direction: int,
        limits: dict[int, int],
        now_ns: int,
    ) -> None:
        peer = abi.peer_key(key, value)
        raw = self._flows.read(peer)
        if raw is not None and next(abi.iter_flow_aging(raw))[0] >= limits[state]:
            return
        # The forward entry first: a reply without it passes, a request finds no half a flow.
        forward, reply = (key, peer) if direction == abi.Direction.FORWARD else (peer, key)
        self._flows.delete(forward)
        self._flows.delete(reply)
        self.removed += 1
        reply_raw = raw if direction == abi.Direction.FORWARD else value
        first_data_us = abi.unpack_flow_entry(reply_raw).first_data_us if reply_raw else 0
        self._on_closed(FlowClosed(abi.flow_key_from_bytes(forward), first_data_us, now_ns))

    def age_pending(self, batch: Iterable[tuple[bytes, bytes]], now_ns: int) -> None:
        """Remove entries without traffic for ``pending_idle``: they only take place.

        For an established flow nothing is lost: packets find ``flow_table`` first.
        """
        limit_ns = now_ns - self._settings.pending_idle_ns
        for key, value in batch:
            if abi.unpack_pending(value).last_seen_ns < limit_ns:
                self._pending.delete(key)
