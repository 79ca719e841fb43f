# SPDX-License-Identifier: Apache-2.0
"""Whether the number of a service's flows that is kept is the number that are there.

The table is walked while flows come and go, so a walk gives bounds: what came meanwhile may or
may not have been met, and what went likewise. Only a difference beyond them is one; such as a
daemon leaves that is killed between taking a flow out and counting it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tally:
    """What is kept of one service: totals that only grow, but for a correction of ``gone``."""

    opened: int
    gone: int


_NOTHING = Tally(0, 0)


def excess(before: Tally, counted: int, after: Tally) -> int:
    """By how many flows what is kept is certainly too high; negative: too low; 0: it may fit.

    ``counted``: flows that a walk met that began after ``before`` and ended before ``after``.
    """
    kept = before.opened - before.gone
    most = counted + (after.gone - before.gone)
    least = counted - (after.opened - before.opened)
    if kept > most:
        return kept - most
    return min(kept - least, 0)


class UsageAudit:
    """Compares walk after walk. A difference counts if two in a row have it."""

    def __init__(self) -> None:
        self._before: Mapping[int, Tally] = {}
        self._counted: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._first = True

    def begin(self, kept: Mapping[int, Tally]) -> None:
        """A walk begins; ``kept`` is what is kept now, by service."""
        self._before = kept
        self._counted = {}

    def met(self, flows: Mapping[int, int]) -> None:
        """Flows by service that were met."""
        for service, count in flows.items():
            self._counted[service] = self._counted.get(service, 0) + count

    def end(self, kept: Mapping[int, Tally]) -> dict[int, int]:
        """The walk is over: by how much ``gone`` of which service has to grow.

        The first walk after the start is believed at once: nothing else has been counted yet.
        """
        found = {}
        for service in self._counted.keys() | self._before.keys():
            before = self._before.get(service, _NOTHING)
            by = excess(before, self._counted.get(service, 0), kept.get(service, before))
            if by:
                found[service] = by
        mend = {}
        for service, by in found.items():
            last = by if self._first else self._last.get(service, 0)
            if last * by > 0:
                mend[service] = min(by, last, key=abs)
        self._last = {each: by for each, by in found.items() if each not in mend}
        self._first = False
        return mend
