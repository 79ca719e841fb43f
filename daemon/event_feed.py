# SPDX-License-Identifier: Apache-2.0
"""What happens, for whoever wants to look on: every decision, and every other line of the log.

The newest of both are kept. A reader that follows has a queue of its own: when it does not keep up,
its oldest events are lost to it, counted, and nobody else notices. Events are put into words when
they are read, so that a decision costs next to nothing while nobody does.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from heapq import merge
from itertools import islice
from typing import Any

from xdp_router.core.event_names import LOST
from xdp_router.core.model import Decision

KEPT = 1000
"""Newest decisions, and newest of all else."""
QUEUE = 1000
"""Events that a reader may be behind."""
AT_ONCE = 50
"""Events that are put into words before the loop has its turn: about 1 ms."""
PAUSE_S = 0.01
"""And then a reader waits: all of them together must not take the loop from first packets."""

_IN_FULL = ("decision", "decision_lost")
"""Lines of the log that are a sample of what comes here in full."""

_Record = tuple[int, int, Decision | Mapping[str, Any]]
"""Running number, when (ns since 1970), what."""


class EventFeed:
    """``line`` puts a decision into the keys of its line in the log."""

    def __init__(self, line: Callable[[Decision], dict[str, Any]]) -> None:
        self._line = line
        self._decisions: deque[_Record] = deque(maxlen=KEPT)
        self._others: deque[_Record] = deque(maxlen=KEPT)
        self._number = 0
        self._readers: set[_Reader] = set()

    @property
    def readers(self) -> int:
        """How many follow."""
        return len(self._readers)

    def decision(self, decision: Decision) -> None:
        """A decision is final."""
        self._add(self._decisions, decision)

    def log_line(self, line: Mapping[str, Any]) -> None:
        """A line of the log: ``event``, ``level`` and keys."""
        if line.get("event") not in _IN_FULL:
            self._add(self._others, dict(line))

    def newest(self, limit: int, names: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """The newest of those that are kept, the oldest of them first; of these names, if any."""
        both = merge(reversed(self._decisions), reversed(self._others), reverse=True)
        found = list(islice((each for each in both if _named(each, names)), limit))
        return (self._worded(each) for each in reversed(found))

    async def follow(self, names: Collection[str] = ()) -> AsyncIterator[list[dict[str, Any]]]:
        """Events from now on, some at a time."""
        reader = _Reader(names)
        self._readers.add(reader)
        try:
            while True:
                await reader.wait()
                lost, records = reader.take(AT_ONCE)
                events = [self._worded(each) for each in records]
                if lost:
                    events.insert(0, {"event": LOST, "count": lost})
                yield events
                await asyncio.sleep(PAUSE_S)
        finally:
            self._readers.discard(reader)

    def _add(self, kept: deque[_Record], what: Decision | Mapping[str, Any]) -> None:
        self._number += 1
        record = self._number, time.time_ns(), what
        kept.append(record)
        for reader in self._readers:
            reader.put(record)

    def _worded(self, record: _Record) -> dict[str, Any]:
        number, at_ns, what = record
        head = {"number": number, "time": _instant(at_ns)}
        if isinstance(what, Decision):
            name = "decision_lost" if what.error else "decision"
            more = {"error": what.error} if what.error else {}
            return {**head, "event": name, **self._line(what), **more}
        rest = {key: value for key, value in what.items() if key != "timestamp"}
        return {**head, **_plain(rest)}


class _Reader:
    """The queue of one who follows."""

    __slots__ = ("_lost", "_names", "_queue", "_there")

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._queue: deque[_Record] = deque()
        self._lost = 0
        self._there = asyncio.Event()

    def put(self, record: _Record) -> None:
        if not _named(record, self._names):
            return
        if len(self._queue) >= QUEUE:
            self._queue.popleft()
            self._lost += 1
        self._queue.append(record)
        self._there.set()

    async def wait(self) -> None:
        await self._there.wait()

    def take(self, limit: int) -> tuple[int, list[_Record]]:
        """How many were lost since the last call, and the next ones."""
        lost, self._lost = self._lost, 0
        taken = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        if not self._queue:
            self._there.clear()
        return lost, taken


def _named(record: _Record, names: Collection[str]) -> bool:
    if not names:
        return True
    what = record[2]
    if isinstance(what, Decision):
        return ("decision_lost" if what.error else "decision") in names
    return what.get("event") in names


def _instant(at_ns: int) -> str:
    whole = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{at_ns % 1_000_000_000 // 1000:06}Z"


def _plain(value: Any) -> Any:
    """What JSON can express."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
