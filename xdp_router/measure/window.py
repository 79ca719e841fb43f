# SPDX-License-Identifier: Apache-2.0
"""The newest values, or what counters have grown by lately: what was an hour ago says little of
now."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from .histogram import Histogram

SLICES = 6
SLICE_NS = 600_000_000_000
"""Ten minutes: the window is between 50 and 60 minutes long."""

T = TypeVar("T")


class Earlier(Generic[T]):
    """What figures that only grow were when the window began, to be taken from what they are."""

    __slots__ = ("_begins", "_slice_ns", "_slices")

    def __init__(
        self, first: T, now_ns: int, slices: int = SLICES, slice_ns: int = SLICE_NS
    ) -> None:
        self._slices, self._slice_ns = slices, slice_ns
        self._begins: deque[tuple[int, T]] = deque([(now_ns // slice_ns, first)])

    def note(self, figures: T, now_ns: int) -> T:
        """They are so now; returns what they were then."""
        number = now_ns // self._slice_ns
        if self._begins[-1][0] != number:
            self._begins.append((number, figures))
        while len(self._begins) > 1 and self._begins[0][0] <= number - self._slices:
            self._begins.popleft()
        return self._begins[0][1]


class Window:
    """Slices of time, of which the oldest is forgotten as a new one begins."""

    __slots__ = ("_slices", "_whole")

    def __init__(self) -> None:
        self._slices: deque[tuple[int, Histogram]] = deque()
        self._whole = Histogram()

    def add(self, value: int, now_ns: int) -> None:
        """Take in a value of ``now_ns``, which never goes back."""
        number = now_ns // SLICE_NS
        if not self._slices or self._slices[-1][0] != number:
            self._forget(number)
            self._slices.append((number, Histogram()))
        self._slices[-1][1].add(value)
        self._whole.add(value)

    def merged(self, now_ns: int) -> Histogram:
        """All that is young enough, as one; to be read, not to be changed."""
        self._forget(now_ns // SLICE_NS)
        return self._whole

    def _forget(self, number: int) -> None:
        if not self._slices or self._slices[0][0] > number - SLICES:
            return
        while self._slices and self._slices[0][0] <= number - SLICES:
            self._slices.popleft()
        self._whole = Histogram()
        for _, each in self._slices:
            self._whole.merge(each)
