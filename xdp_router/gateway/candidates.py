# SPDX-License-Identifier: Apache-2.0
"""The backends that a request may go to, and at which of them it looks.

Few are all looked at. Of more than ``LOOKED_AT`` each request looks at so many: those that were
the best ones when the former request looked, and the next few of a walk that comes by everybody.
So a decision costs the same whatever their number, and whoever becomes better is found within as
many requests as the walk takes. Only who was good is remembered, never what was known of him: each
decision is by what is true at its moment. (Wydrowski et al., "Load is not what you should balance:
Introducing Prequal", NSDI '24, choose from a pool of probes for the same reason.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

LOOKED_AT: Final = 16
"""One look takes a microsecond or two; what the best of so many is worse by than the best of all
is less than what is known of each is wrong by."""
KEPT: Final = 8
_GOLDEN: Final = 0.6180339887498949


class Candidates:
    """``indices`` of backends, as configured. All requests of a worker that may go to the same
    ones have the same object: what one of them has found is of use to the next one.

    Raise ValueError if there are none.
    """

    __slots__ = ("indices", "are_few", "_at", "_kept", "_members", "_turn", "_walk")

    def __init__(self, indices: Iterable[int]) -> None:
        self.indices = tuple(indices)
        if not self.indices:
            raise ValueError("no candidates: expected one or more")
        self.are_few = len(self.indices) <= LOOKED_AT
        """Whether all of them are looked at."""
        self._members = frozenset(self.indices)
        # Neighbours in the file are often neighbours in a rack: the walk takes wide steps.
        places = sorted(range(len(self.indices)), key=lambda place: place * _GOLDEN % 1.0)
        self._walk = tuple(self.indices[place] for place in places)
        self._kept: list[int] = []
        self._at = -1
        self._turn = -1

    def __len__(self) -> int:
        return len(self.indices)

    def chosen(
        self, draw: float, holders: Sequence[int], without: Collection[int] = ()
    ) -> tuple[list[int], int]:
        """Whom to look at, of many; and how many of these, from the first on, stand for themselves
        alone. The others stand for all the rest.

        ``holders`` are looked at in any case. ``draw``, from 0 to below 1: where the walk begins,
        before the first look. ``without``: those that are not wanted.
        """
        found = [each for each in self._kept if each not in without]
        for each in holders:
            if each in self._members and each not in found and each not in without:
                found.append(each)
        alone = len(found)
        walk, size = self._walk, len(self._walk)
        at = self._at if self._at >= 0 else int(draw * size)
        wanted = min(LOOKED_AT - len(self._kept), size - alone - len(without))
        for _ in range(size):
            if wanted <= 0:
                break
            index = walk[at]
            at = at + 1 if at + 1 < size else 0
            if index not in found and index not in without:
                found.append(index)
                wanted -= 1
        self._at = at
        return found, alone

    def keep(self, best: Sequence[int]) -> None:
        """The next request looks at the first ``KEPT`` of these, too."""
        self._kept = list(best[:KEPT])

    def walk(self) -> Iterator[int]:
        """All of them, once, from where the walk is."""
        at = max(self._at, 0)
        yield from self._walk[at:]
        yield from self._walk[:at]

    def in_turn(self, draw: float) -> tuple[int, ...]:
        """So many as are looked at, from the one on whose turn it is; ``draw``, from 0 to below 1:
        who is the very first one."""
        size = len(self.indices)
        if self._turn < 0:
            self._turn = int(draw * size)
        end = self._turn + min(LOOKED_AT, size)
        return self.indices[self._turn : end] + self.indices[: max(0, end - size)]

    def had_turn(self, index: int) -> None:
        """It is the next one's."""
        self._turn = (self.indices.index(index) + 1) % len(self.indices)

    def all_in_turn(self) -> Iterator[int]:
        """All of them, from the one on whose turn it is."""
        at = max(self._turn, 0)
        yield from self.indices[at:]
        yield from self.indices[:at]
