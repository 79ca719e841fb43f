# SPDX-License-Identifier: Apache-2.0
"""Which entries of a map were seen with which value, in a few bytes each.

A Python dictionary of a table's entries takes 1 kB an entry; this takes 16 to 64 bytes.
"""

from __future__ import annotations

from array import array

_BITS = (1 << 64) - 1
_FIRST_SLOTS = 64


def mark_of(key: bytes, value: bytes) -> int:
    """64 bits that say which entry it is, and with which value. Never 0."""
    return hash((key, value)) & _BITS or 1


class EntryMarks:
    """A set of marks: open addressing, half full at most."""

    __slots__ = ("_count", "_mask", "_slots")

    def __init__(self) -> None:
        self._count = 0
        self._resize(_FIRST_SLOTS)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, mark: int) -> bool:
        slots, mask = self._slots, self._mask
        at = mark & mask
        while found := slots[at]:
            if found == mark:
                return True
            at = (at + 1) & mask
        return False

    def add(self, mark: int) -> None:
        """Add what ``mark_of`` gave, if it is not there."""
        slots, mask = self._slots, self._mask
        at = mark & mask
        while found := slots[at]:
            if found == mark:
                return
            at = (at + 1) & mask
        slots[at] = mark
        self._count += 1
        if 2 * self._count > mask:
            self._grow()

    def _grow(self) -> None:
        marks = self._slots
        self._count = 0
        self._resize(4 * len(marks))
        for mark in marks:
            if mark:
                self.add(mark)

    def _resize(self, size: int) -> None:
        self._slots = array("Q", bytes(8)) * size
        self._mask = size - 1
