# SPDX-License-Identifier: Apache-2.0
"""Which records are kept, in a worker and of workers that have ended."""

from __future__ import annotations

import json

import pytest

from xdp_router.daemon.gateway.kept import Kept, Remembered
from xdp_router.daemon.gateway.record import Record


def record(request: str) -> Record:
    """Of a request with that ID."""
    return Record(request, "web", "", 1, 0.0)


def row(request: str, at_s: float) -> list[object]:
    """As a worker tells it."""
    told = {"id": request, "time_s": at_s, "uncached_bytes": 0, "candidates": [], "timeline": [1]}
    return [request, at_s, json.dumps(told)]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_the_newest(limit: int) -> None:
    """So many and no more; by ID, too."""
    kept = Kept(limit)
    for number in range(5):
        kept.add(record(f"r-{number}"))
    assert [each.id for each in kept.newest()] == ["r-4", "r-3", "r-2"][:limit]
    found = [kept.find(f"r-{number}") is not None for number in range(5)]
    assert found == [number >= 5 - limit for number in range(5)]


def test_an_id_twice() -> None:
    """The newest is found, also when the other one goes."""
    kept, first, second = Kept(2), record("r"), record("r")
    for each in (first, second, record("s")):
        kept.add(each)
    assert kept.find("r") is second
    kept.add(record("t"))
    assert kept.find("r") is None


def test_of_workers_that_have_ended() -> None:
    """The newest of all, in whatever order they are told; rows of the list without details."""
    remembered = Remembered(3)
    remembered.add(7, [row("d", 4.0), row("b", 2.0)])
    remembered.add(8, [row("e", 5.0), row("c", 3.0), row("a", 1.0)])
    assert [(each["worker"], each["id"]) for each in remembered.newest(9)] == [
        *((8, "e"), (7, "d"), (8, "c"))
    ]
    assert remembered.newest(1) == [{"worker": 8, "id": "e", "time_s": 5.0}]
    assert remembered.find("a") is None
    assert remembered.find("b") is None
    found = remembered.find("c")
    assert found is not None
    assert (found["worker"], found["timeline"]) == (8, [1])
    remembered.keep(1)
    assert [each["id"] for each in remembered.newest(9)] == ["e"]
    assert remembered.find("d") is None


def test_the_newest_of_an_id() -> None:
    """Whichever is told first."""
    remembered = Remembered(9)
    remembered.add(1, [row("r", 2.0)])
    remembered.add(2, [row("r", 1.0), row("s", 1.0)])
    remembered.add(3, [row("s", 2.0)])
    found = [remembered.find(each) for each in "rs"]
    assert [each["worker"] for each in found if each is not None] == [1, 3]


def test_none_are_kept() -> None:
    """Nothing is left of what is told."""
    remembered = Remembered(0)
    remembered.add(1, [row("r", 2.0)])
    assert (remembered.newest(5), remembered.find("r"), remembered.since(-1)) == ([], None, [])


def test_since() -> None:
    """In the order in which they came, each once."""
    remembered = Remembered(9)
    remembered.add(1, [row("b", 2.0), row("a", 1.0)])
    told = remembered.since(-1)
    assert [each[:2] for _, each in told] == [[1, "b"], [1, "a"]]
    last = told[-1][0]
    assert not remembered.since(last)
    remembered.add(2, [row("c", 0.5)])
    assert [each for _, each in remembered.since(last)] == [[2, *row("c", 0.5)]]
