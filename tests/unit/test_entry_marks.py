# SPDX-License-Identifier: Apache-2.0
"""Marks of entries: none is lost, none is made up, and they take little memory."""

from __future__ import annotations

import sys
import tracemalloc

from xdp_router.adapters.entry_marks import EntryMarks, mark_of


def test_what_was_added_is_there() -> None:
    """Thousands of them, whatever they collide with; another value is another mark."""
    marks = EntryMarks()
    for number in range(5000):
        marks.add(mark_of(number.to_bytes(16, "big"), bytes(8)))
        marks.add(mark_of(number.to_bytes(16, "big"), bytes(8)))
    assert len(marks) == 5000
    assert all(mark_of(each.to_bytes(16, "big"), bytes(8)) in marks for each in range(5000))
    assert not any(mark_of(each.to_bytes(16, "big"), bytes(8)) in marks for each in (5000, 9999))
    assert not any(mark_of(each.to_bytes(16, "big"), b"\1" * 8) in marks for each in range(5000))


def test_marks_that_meet_in_one_place() -> None:
    """Those behind each other are told apart, at the end of the table as well."""
    marks = EntryMarks()
    same = [63 + (number << 20) for number in range(20)]
    for mark in same:
        marks.add(mark)
    assert len(marks) == 20
    assert all(mark in marks for mark in same)
    assert 63 + (20 << 20) not in marks


def test_memory_of_many() -> None:
    """At most 64 bytes each, of which some are there for a moment."""
    tracemalloc.start()
    marks = EntryMarks()
    for number in range(70_000):
        marks.add(mark_of(number.to_bytes(16, "big"), bytes(104)))
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(marks) == 70_000
    assert held + sys.getsizeof(marks) < 70_000 * 64
    assert most < 70_000 * 96
