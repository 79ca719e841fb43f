# SPDX-License-Identifier: Apache-2.0
"""Moves flows from a table of before a change of size into the one that there is now.

XDP moves those that say something (``ebpf/lib/previous.h``), by the same rules: REPLY first, then
FORWARD, both only if they are not there. Who has inserted FORWARD removes both from the former
table, but not a REPLY that somebody else has put into the new one, and may take out again when he
finds no room for FORWARD. The daemon alone also removes what it finds in both: REPLY when a later
pass meets it there still.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Iterable

import structlog

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.flow_tables import FlowTables, PreviousTable
from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError

from .aging import BATCH, STEP_NS, in_batches, in_thread

_log = structlog.get_logger()
_LOOK_EVERY = 8
"""Moves between two looks at the time: 0.1 ms."""
_REST = 15
"""Sweeps without a try, at most, while there is no room: programs try with each packet anyway."""


def table_name(family: int) -> str:
    """What a family's table of flows is called."""
    return "flow_table" if family == 4 else "flow_table6"


class FlowMover:
    """Of one data plane. ``drop`` gives up an empty table of before, by the name of the new one.

    ``left``: entries that waited for room when it was last looked for; they are tried again, ever
    less often as long as there is none.
    """

    def __init__(
        self,
        tables: Iterable[FlowTables],
        drop: Callable[[str], None],
        is_lost: Callable[[], bool] = lambda: False,
        stopwatch: Callable[[], int] = time.monotonic_ns,
        flow_moved: Callable[[], int] = lambda: 0,
    ) -> None:
        """``is_lost``: whether the tables are a successor's. ``flow_moved``: XDP's counter."""
        self._tables = tuple(tables)
        self._drop = drop
        self._is_lost = is_lost
        self._stopwatch = stopwatch
        self._flow_moved = flow_moved
        self._rests = 0  # calls of run() that do nothing
        self._rested = 0
        self._twice: set[bytes] = set()  # REPLY entries that were met in both tables
        self._kept: set[str] = set()  # that could not be given up, and was said
        self.moved = 0
        """Flows that the daemon has moved; XDP counts its own (``flow_moved``)."""
        self.left = 0

    @classmethod
    def of(cls, maps: Maps, drop: Callable[[str], None], is_lost: Callable[[], bool]) -> FlowMover:
        """The daemon's, of all families in ``maps``."""
        moved = maps.counters.read
        tables = maps.by_family.values()
        return cls(tables, drop, is_lost, flow_moved=lambda: moved()["flow_moved"])

    @property
    def is_done(self) -> bool:
        """Whether all flows are in the tables that there are now."""
        return all(each.flows.previous is None for each in self._tables)

    def by_programs(self) -> int:
        """Flows that XDP has moved; of interest, and so read, only while there are some to move."""
        return 0 if self.is_done else self._flow_moved()

    async def run(self) -> None:
        """One pass; gives up the loop after each ``STEP_NS``. Raises BpfError.

        It ends at the first flow that finds no room: the others would not either.
        """
        if self.is_done or self._is_lost():
            return
        if self._rests:
            self._rests -= 1
            return
        left, moved = 0, self.moved
        for tables in self._tables:
            previous = tables.flows.previous
            if previous is not None and not self._is_lost():
                left += await self._pass(tables, previous)
        self._tell(left)
        self._rested = 0 if not left or self.moved > moved else min(2 * self._rested + 1, _REST)
        self._rests = self._rested

    async def _pass(self, tables: FlowTables, previous: PreviousTable) -> int:
        """Of one family. How many entries are left for want of room."""
        left = 0
        async for batch in in_batches(previous.batches(BATCH)):
            if left:
                left += batch.count
                continue
            begun_ns = self._stopwatch()
            for done, (key, _) in enumerate(batch):
                if done % _LOOK_EVERY == 0 and self._stopwatch() - begun_ns > STEP_NS:
                    await asyncio.sleep(0)
                    begun_ns = self._stopwatch()
                    if self._is_lost():
                        return 0
                if not self._move(tables, previous, key):
                    left = batch.count - done
                    break
        if left:
            return left
        async for batch in in_batches(previous.batches(BATCH)):
            if batch.count:
                return 0  # what came into a bucket behind the walk: the next pass has it
        if not self._is_lost():
            await self._give_up(tables)
        return 0

    async def _give_up(self, tables: FlowTables) -> None:
        name = table_name(tables.family)
        try:
            await in_thread(self._drop, name)
        except XdpRouterError as error:
            if name not in self._kept:
                consequence = "it is empty, and takes memory; tried again"
                _log.error("former_table_kept", map=name, error=str(error), consequence=consequence)
            self._kept.add(name)
        else:
            self._dropped(tables)

    def _tell(self, left: int) -> None:
        if left and not self.left:
            _log.warning(
                "flows_not_moved",
                entries=left,
                consequence="they go on in the table of before, and are moved when there is room",
                mend="attach with a larger --max-flows",
            )
        self.left = left

    def run_at_once(self, limit_ns: int) -> bool:
        """The same without a loop, for so long at most. True: nothing is left. Raises BpfError
        or PinError."""
        end_ns = self._stopwatch() + limit_ns
        for tables in self._tables:
            previous = tables.flows.previous
            while previous is not None and tables.flows.previous is not None:
                met = 0
                for batch in previous.batches(BATCH):
                    met += batch.count
                    if not all(self._move(tables, previous, key) for key, _ in batch):
                        return False
                    if self._stopwatch() > end_ns:
                        return False
                if not met:
                    self._drop(table_name(tables.family))
                    self._dropped(tables)
        return self.is_done

    def _dropped(self, tables: FlowTables) -> None:
        tables.flows.previous = None
        self._twice.clear()
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
        if inserted == errno.EEXIST and direction == abi.Direction.REPLY and peer is None:
            if key not in self._twice:  # who has put it there may take it out again
                self._twice.add(key)
                return True
        elif inserted not in (0, errno.EEXIST):
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
        if first_value is not None and not result:
            previous.delete(first)  # else it is met once more, alone
        self.moved += not inserted
        return True


def _no_room(code: int) -> bool:
    if code in (errno.E2BIG, errno.ENOMEM, errno.EBUSY):
        return False
    raise XdpRouterError(f"a flow cannot be moved to the table of another size: errno {code}")
