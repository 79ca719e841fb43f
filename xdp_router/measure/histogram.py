# SPDX-License-Identifier: Apache-2.0
"""Distributions of times in little memory.

``Histogram`` is log-linear: 64 buckets of equal width between a power of two and the next. It
answers for any quantile within ``RELATIVE_ERROR``, and two of them merge without further loss.
``Buckets`` counts by bounds that are fixed, exactly, as a metrics system wants them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Self

_BITS = 6
_WIDE = 1 << _BITS
_MAX = (1 << 48) - 1
"""Three days in nanoseconds: longer ones count as that."""

RELATIVE_ERROR = 1 / (2 * _WIDE)
"""What is told of a value differs from it by no more than this share of it."""


def _index(value: int) -> int:
    shift = max(value.bit_length() - _BITS - 1, 0)
    return (shift << _BITS) + (value >> shift)


def _bounds(index: int) -> tuple[int, int]:
    """Least and greatest whole value of a bucket."""
    if index < 2 * _WIDE:
        return index, index
    shift = (index >> _BITS) - 1
    low = (index - (shift << _BITS)) << shift
    return low, low + (1 << shift) - 1


class Histogram:
    """Whole numbers from 0 on. ``count`` and ``total`` are exact; there is a bucket for each
    range that was met, 3,000 at most."""

    __slots__ = ("_buckets", "_sorted", "count", "total")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._sorted: list[tuple[int, int]] | None = None  # index, values up to its end
        self.count = 0
        self.total = 0

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> Self:
        """What was counted elsewhere, by bucket; ``total`` is as exact as quantiles are."""
        made = cls()
        for index, times in counts.items():
            if times > 0:
                low, high = _bounds(index)
                made._buckets[index] = times
                made.count += times
                made.total += (low + high) // 2 * times
        return made

    @property
    def counts(self) -> Mapping[int, int]:
        """By bucket, as ``of`` takes them: values of buckets add up."""
        return self._buckets

    def less(self, earlier: Histogram) -> Histogram:
        """What has come since it was as ``earlier``."""
        before = earlier._buckets
        return Histogram.of(
            {index: times - before.get(index, 0) for index, times in self._buckets.items()}
        )

    def add(self, value: int, times: int = 1) -> None:
        """Take in a value. One below 0 counts as 0."""
        value = min(max(value, 0), _MAX)
        index = _index(value)
        self._buckets[index] = self._buckets.get(index, 0) + times
        self._sorted = None
        self.count += times
        self.total += value * times

    def merge(self, other: Histogram) -> None:
        """Take in all values of another one, which stays as it is."""
        for index, times in other._buckets.items():
            self._buckets[index] = self._buckets.get(index, 0) + times
        self._sorted = None
        self.count += other.count
        self.total += other.total

    def at_rank(self, rank: int) -> int:
        """The ``rank``-th smallest value, from 1 to ``count``: the middle of its bucket.

        Raises IndexError for another rank.
        """
        if not 1 <= rank <= self.count:
            raise IndexError(f"rank {rank} of {self.count} values")
        if self._sorted is None:
            ordered = sorted(self._buckets.items())
            ends = accumulate(times for _, times in ordered)
            self._sorted = [(index, end) for (index, _), end in zip(ordered, ends, strict=True)]
        at = bisect_left(self._sorted, rank, key=lambda each: each[1])
        low, high = _bounds(self._sorted[at][0])
        return (low + high) // 2

    def quantile(self, share: float) -> int:
        """Nearest-rank quantile, as :func:`xdp_router.core.quantile.percentile`; 0 for none."""
        if not self.count:
            return 0
        # Rounded, or 0.07 * 100 would be the eighth value.
        rank = -(-round(share * self.count * 1e9) // 1_000_000_000)
        return self.at_rank(min(max(rank, 1), self.count))


class Buckets:
    """How many values are at most each of ``bounds``; ``count`` and ``total`` of all."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[int]) -> None:
        """``bounds`` grow."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0

    @classmethod
    def of(cls, bounds: Sequence[int], counts: Sequence[int], total: int) -> Self:
        """What was counted elsewhere: as many counts as bounds, and that of what is beyond."""
        made = cls(bounds)
        if len(counts) != len(bounds) + 1:
            raise ValueError(f"{len(counts)} counts for {len(bounds)} bounds")
        made._counts = list(counts)
        made.total = total
        return made

    @property
    def counts(self) -> Sequence[int]:
        """As ``of`` takes them."""
        return self._counts

    @property
    def bounds(self) -> Sequence[int]:
        """As they were given."""
        return self._bounds

    @property
    def count(self) -> int:
        """All values."""
        return sum(self._counts)

    def add(self, value: int) -> None:
        """Take in a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulative(self) -> Iterator[tuple[int, int]]:
        """Each bound, and how many values are at most that."""
        return zip(self._bounds, accumulate(self._counts), strict=False)
