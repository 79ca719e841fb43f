# SPDX-License-Identifier: Apache-2.0
"""The newest values of a time: what was an hour ago says little of now."""

from __future__ import annotations

from collections import deque

from .histogram import Histogram

SLICES = 6
SLICE_NS = 600_000_000_000
"""Ten minutes: the window is between 50 and 60 minutes long."""


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
