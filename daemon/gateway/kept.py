# SPDX-License-Identifier: Apache-2.0
"""Records of requests that are over: in a worker its newest ones, and in the supervisor those of
workers that have ended."""

from __future__ import annotations

import heapq
import itertools
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .record import DETAILS, Record


class Kept:
    """The newest records of one listener in one worker; ``limit``: how many."""

    __slots__ = ("_limit", "_records", "_by_id")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: deque[Record] = deque()
        self._by_id: dict[str, Record] = {}

    def add(self, record: Record) -> None:
        """Keep it; the oldest one goes if there are too many."""
        if not self._limit:
            return
        if len(self._records) == self._limit:
            oldest = self._records.popleft()
            if self._by_id.get(oldest.id) is oldest:
                del self._by_id[oldest.id]
        self._records.append(record)
        self._by_id[record.id] = record

    def newest(self) -> Iterator[Record]:
        """All of them, newest first."""
        return reversed(self._records)

    def find(self, request: str) -> Record | None:
        """By its ID; the newest, if clients have used one more than once."""
        return self._by_id.get(request)


class Remembered:
    """The newest records of workers that have ended, as they have told them.

    As text: thousands of them are looked at by nobody, and cost a tenth of what objects do.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._heap: list[tuple[float, int, int, str, str]] = []  # by time, then as they came
        self._numbers = itertools.count()
        self._by_id: dict[str, tuple[float, int, int, str, str]] = {}

    def keep(self, limit: int) -> None:
        """So many from now on."""
        self.limit = limit
        while len(self._heap) > limit:
            self._forget(heapq.heappop(self._heap))

    def add(self, pid: int, rows: Iterable[Sequence[Any]]) -> None:
        """Of the worker with that process ID; of each its request's ID, when that began by the wall
        clock, and its explanation as JSON."""
        for request, wall_s, text in rows:
            entry = wall_s, next(self._numbers), pid, request, text
            known = self._by_id.get(request)
            if known is None or known < entry:
                self._by_id[request] = entry
            heapq.heappush(self._heap, entry)
            if len(self._heap) > self.limit:
                self._forget(heapq.heappop(self._heap))

    def _forget(self, entry: tuple[float, int, int, str, str]) -> None:
        if self._by_id.get(entry[3]) is entry:
            del self._by_id[entry[3]]

    def newest(self, limit: int) -> list[dict[str, Any]]:
        """Rows of the list of decisions, newest first."""
        found = []
        for _, _, pid, _, text in heapq.nlargest(limit, self._heap):
            told = json.loads(text)
            for each in DETAILS:
                told.pop(each, None)
            found.append({"worker": pid, **told})
        return found

    def find(self, request: str) -> dict[str, Any] | None:
        """The explanation of one; None: it is not known."""
        entry = self._by_id.get(request)
        return None if entry is None else {"worker": entry[2], **json.loads(entry[4])}

    def since(self, number: int) -> list[tuple[int, list[Any]]]:
        """Those that were added after that one, in this order, each with its own number: for a
        successor."""
        return [
            (at, [pid, request, wall_s, text])
            for wall_s, at, pid, request, text in sorted(self._heap, key=_number)
            if at > number
        ]


def _number(entry: tuple[float, int, int, str, str]) -> int:
    return entry[1]
