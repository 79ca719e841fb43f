# SPDX-License-Identifier: Apache-2.0
"""Moves flows from a table of before a change of size into the one that there is now.

XDP moves those that say something (``ebpf/lib/previous.h``), by the same rules: REPLY first, then
FORWARD, both only if they are not there. Who has inserted FORWARD removes both from the former
table. The daemon alone also removes what it finds in both: a former one was killed in between.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Iterable

import structlog

from xdp_router.adapters.flow_tables import FlowTables, PreviousTable
from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError

from .aging import BATCH, STEP_NS, in_batches

_log = structlog.get_logger()
_LOOK_EVERY = 8
"""Moves between two looks at the time: 0.1 ms."""


def table_name(family: int) -> str:
    """What a family's table of flows is called."""
    return "flow_table" if family == 4 else "flow_table6"


class FlowMover:
    """Of one data plane. ``drop`` gives up an empty table of before, by the name of the new one.

    ``left``: flows that found no room in the newest pass; they are tried again.
    """

    def __init__(
        self,
        tables: Iterable[FlowTables],
        drop: Callable[[str], None],
        is_lost: Callable[[], bool] = lambda: False,
        stopwatch: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``is_lost``: whether the tables are a successor's."""
        self._tables = tuple(tables)
        self._drop = drop
        self._is_lost = is_lost
        self._stopwatch = stopwatch
        self._told = 0
        self.moved = 0
        """Flows that the daemon has moved; XDP counts its own (``flow_moved``)."""
        self.left = 0

    @property
    def is_done(self) -> bool:
        """Whether all flows are in the tables that there are now."""
        return all(each.flows.previous is None for each in self._tables)

    async def run(self) -> None:
        """One pass; gives up the loop after each ``STEP_NS``. Raises BpfError."""
        if self.is_done or self._is_lost():
            return
        left = 0
        for tables in self._tables:
            previous = tables.flows.previous
            if previous is None:
                continue
            there = 0
            begun_ns = self._stopwatch()
            async for batch in in_batches(previous.batches(BATCH)):
                for done, (key, _) in enumerate(batch):
                    if done % _LOOK_EVERY == 0 and self._stopwatch() - begun_ns > STEP_NS:
                        await asyncio.sleep(0)
                        begun_ns = self._stopwatch()
                        if self._is_lost():
                            return
                    there += not self._move(tables, previous, key)
                begun_ns = self._stopwatch()
            left += there
            if not there:
                self._finish(tables, previous)
        self.left = left
        if left and left != self._told:
            _log.warning(
                "flows_not_moved",
                entries=left,
                consequence="they go on in the table of before, and are moved when there is room",
                mend="attach with a larger --max-flows",
            )
        self._told = left

    def run_at_once(self, limit_ns: int) -> bool:
        """The same without a loop, for so long at most. True: nothing is left. Raises BpfError."""
        end_ns = self._stopwatch() + limit_ns
        for tables in self._tables:
            previous = tables.flows.previous
            if previous is None:
                continue
            there = 0
            for batch in previous.batches(BATCH):
                for key, _ in batch:
                    there += not self._move(tables, previous, key)
                if there or self._stopwatch() > end_ns:
                    return False
            self._finish(tables, previous)
        return self.is_done

    def _finish(self, tables: FlowTables, previous: PreviousTable) -> None:
        if any(batch.count for batch in previous.batches(BATCH)):
            return  # what came into a bucket behind the walk: the next pass has it
        tables.flows.previous = None
        self._drop(table_name(tables.family))
        _log.info("flows_moved", map=table_name(tables.family), by_daemon=self.moved)

    def _move(self, tables: FlowTables, previous: PreviousTable, key: bytes) -> bool:
        """Move a flow, or the half of it that there is. False: there is no room."""
        flows, value = tables.flows, previous.read(key)
        if value is None:
            return True  # with its other half, or by XDP
        other = abi.peer_key(key, value)
        _, _, flags, direction = next(abi.iter_flow_aging(value, tables.family))
        peer = None if flags & abi.FLOW_ONE_SIDED else previous.read(other)
        if peer is not None and abi.peer_key(other, peer) != key:
            peer = None  # half a flow is left, and its other tuple is another flow's by now
        last, last_value, first, first_value = key, value, other, peer
        if peer is not None and direction == abi.Direction.REPLY:
            last, last_value, first, first_value = other, peer, key, value
        result = 0
        if first_value is not None:
            result = flows.insert_noexist(first, first_value)
            if result not in (0, errno.EEXIST):
                return _no_room(result)
        inserted = flows.insert_noexist(last, last_value)
        if inserted not in (0, errno.EEXIST):
            if first_value is not None and not result:
                flows.delete_own(first)
            return _no_room(inserted)
        gone = previous.delete(last)
        if inserted == 0 and gone:
            # Somebody had moved it since it was read, and it is over: it must not come back.
            flows.delete_own(last)
            if first_value is not None and not result:
                flows.delete_own(first)
            return True
        if first_value is not None:
            if result and not inserted:
                flows.insert_noexist(first, first_value)  # who had put it there may have given up
            previous.delete(first)
        self.moved += not inserted
        return True


def _no_room(code: int) -> bool:
    if code in (errno.E2BIG, errno.ENOMEM, errno.EBUSY):
        return False
    raise XdpRouterError(f"a flow cannot be moved to the table of another size: errno {code}")
