# SPDX-License-Identifier: Apache-2.0
"""A pure model of fragments of one flow, in both directions, and of what becomes of their tags.

Nothing here knows maps, frames or clocks. A datagram is a number, its fragments are the first,
one in the middle and the last.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

FRAGMENT_S = 30
"""For how long later fragments follow a first one."""

PAUSES_S = (2, 11, 40)
"""Steps of time, whose sums ``FragmentModel.pass_time`` keeps away from the limit."""

Q, AD = 0x8100, 0x88A8
Tags = tuple[tuple[int, int], ...]
Side = str
"""Who sends: "client" or "backend"."""


@dataclass(frozen=True, slots=True)
class Tagging:
    """What frames get for an outer tag when they leave: ``number`` 0, none.

    ``service``: one of 802.1ad. ``push``: in front of what is there.
    """

    number: int
    service: bool = False
    push: bool = False

    def of(self, tags: Tags) -> Tags:
        """The tags of a frame that came with others."""
        if not self.number:
            return tags[1:]
        if self.push or not tags:
            return ((AD if self.service else Q, self.number), *tags)
        (kind, control), *inner = tags
        return ((AD if self.service else kind, control & ~0xFFF | self.number), *inner)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a fragment becomes: "on", "drop", "pass" or "rst"; its tags, and what is counted."""

    what: str
    counters: Counter[str]
    tags: Tags = ()


@dataclass(slots=True)
class FragmentModel:
    """The flow, and the datagrams whose first fragment was seen."""

    there: bool = True
    """The flow is established."""
    tagging: dict[Side, Tagging | None] = field(
        default_factory=lambda: {"client": None, "backend": None}
    )
    noted: dict[tuple[Side, int], float] = field(default_factory=dict)
    packets: Counter[Side] = field(default_factory=Counter)

    def pass_time(self, seconds: float) -> float:
        """Everything grows older; by how much."""
        while any(abs(age + seconds - FRAGMENT_S) < 5 for age in self.noted.values()):
            seconds += 6
        for at in self.noted:
            self.noted[at] += seconds
        return seconds

    def first(self, side: Side, ident: int, tags: Tags) -> Outcome:
        """It has ports: it is noted whose it is, and it goes as any packet does."""
        if not self.there and side == "backend":
            return self.foreign(side, ident)
        self.noted[side, ident] = 0
        counted = Counter({"fragment_first": 1})
        if self.there:
            return self._on(side, tags, counted)
        counted["orphan_reset"] += 1
        return Outcome("rst", counted, tags)

    def foreign(self, side: Side, ident: int) -> Outcome:
        """The first fragment of what is not ours, by the same number between the same hosts."""
        self.noted.pop((side, ident), None)
        return Outcome("pass", Counter({"pass_fragment": 1}))

    def later(self, side: Side, ident: int, tags: Tags, ttl: int) -> Outcome:
        """One without ports goes where its first one went."""
        age = self.noted.get((side, ident))
        if age is None or age > FRAGMENT_S:
            return Outcome("pass", Counter({"fragment_unknown": 1}))
        if not self.there:
            return Outcome("drop", Counter({"fragment_dropped": 1}))
        if ttl <= 1:
            self.packets[side] += 1
            return Outcome("drop", Counter({"ttl_exceeded": 1}))
        return self._on(side, tags, Counter({"fragment_followed": 1}))

    def _on(self, side: Side, tags: Tags, counted: Counter[str]) -> Outcome:
        self.packets[side] += 1
        tagging = self.tagging[side]
        after = tagging.of(tags) if tagging else tags
        if after != tags:
            counted["vlan_changed"] += 1
        return Outcome("on", counted, after)
