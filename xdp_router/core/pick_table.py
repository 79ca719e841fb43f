# SPDX-License-Identifier: Apache-2.0
"""A service's pick table: 256 slots, of which XDP takes one at random for each new flow."""

from __future__ import annotations

from collections.abc import Sequence

from .abi import PICK_SLOTS
from .model import NO_BACKEND

EMPTY_PICKS = (NO_BACKEND,) * PICK_SLOTS
"""Of a service of which nobody is known to answer: XDP goes down the degrade chain."""


def slot_counts(weights: Sequence[float]) -> list[int]:
    """How many of the slots each gets: in proportion, by the largest remainder.

    Weights are not negative. One that is next to nothing gets none: no flow is needed to find
    out how a backend is, as it is probed anyway. All 0, or nobody: no slot is given.
    """
    total = sum(weights)
    if total <= 0:
        return [0] * len(weights)
    exact = [PICK_SLOTS * weight / total for weight in weights]
    counts = [int(each) for each in exact]
    left = PICK_SLOTS - sum(counts)
    # Of equal remainders the first ones: the same weights give the same table.
    order = sorted(range(len(weights)), key=lambda at: (counts[at] - exact[at], at))
    for at in order[:left]:
        counts[at] += 1
    return counts


def lay_out(backends: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """The table: each backend's slots evenly spread, so that the next slot is most often
    somebody else's. ``counts`` add up to all slots, or to 0: then it is empty.
    """
    slots = sorted(
        ((2 * turn + 1) / count, at)
        for at, count in enumerate(counts)
        if count
        for turn in range(count)
    )
    return tuple(backends[at] for _, at in slots) or EMPTY_PICKS


def differs(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether a table is worth to be written: hysteresis, or noise would write one each time.

    It is when a backend gets its first slot or loses its last, or when its share changes by
    more than two slots and an eighth.
    """
    if len(before) != len(after):
        return True
    for old, new in zip(before, after, strict=True):
        if old != new and (not old or not new or abs(new - old) > 2 + (old >> 3)):
            return True
    return False
