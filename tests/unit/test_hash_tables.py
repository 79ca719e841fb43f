# SPDX-License-Identifier: Apache-2.0
"""Consistent-hash tables are published in turns, the ones that somebody waits for first."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import pytest

from xdp_router.core.hash_tables import (
    AT_ONCE,
    INTERVAL_NS,
    KEPT,
    NS_PER_WORK,
    STEP_WORK,
    HashTables,
)
from xdp_router.core.model import Backend, Endpoint, Service
from xdp_router.core.selection import table_work

COUNT = 1000
EACH = 5
T0 = 1_000_000_000_000


class Place:
    """Services of EACH backends, numbered through. Counts the tables that were built."""

    def __init__(self, count: int = COUNT) -> None:
        self.up: set[int] = set(range(EACH * count))
        self.built = 0
        self.tables = HashTables([self._service(n) for n in range(count)], self.up, self._build)
        for _ in self.tables.start():
            pass

    @staticmethod
    def _service(number: int) -> Service:
        backends = tuple(
            Backend(
                EACH * number + each, f"b{number}-{each}", Endpoint(each + 1, 80 + number), number
            )
            for each in range(EACH)
        )
        return Service(number, f"s{number}", Endpoint(9, 80 + number), backends)

    def _build(self, backends: Sequence[Backend], up: AbstractSet[int]) -> tuple[int, ...]:
        self.built += 1
        return tuple(backend.id for backend in backends if backend.id in up)

    def down(self, backend: int) -> None:
        self.up.discard(backend)
        self.tables.changed(backend // EACH)

    def comes(self, backend: int) -> None:
        self.up.add(backend)
        self.tables.changed(backend // EACH)


def test_a_host_that_goes_is_no_long_step() -> None:
    """However many tables changed: AT_ONCE are made in a step, then one an interval; each once."""
    place = Place()
    place.built = 0
    now, published = T0, []
    for number in range(COUNT):
        place.down(EACH * number)
    while (due := place.tables.deadline()) is not None:
        now = max(now, due)
        before = place.built
        step = place.tables.take(now)
        assert 1 <= len(step) <= AT_ONCE
        assert place.built - before == len(step)
        published += [command.service for command in step]
        assert place.tables.take(now) == []
    assert published == list(range(COUNT))
    assert now - T0 == (COUNT - AT_ONCE) * INTERVAL_NS


def test_a_table_that_names_nobody_who_is_up_goes_first() -> None:
    """XDP would refuse its flows; it passes over the others' absent backends by itself."""
    place = Place()
    for backend in range(EACH * 900, EACH * 901):
        place.down(backend)
    place.tables.take(T0)
    place.tables.take(T0 + COUNT * INTERVAL_NS)
    for number in range(100):
        place.down(EACH * number)
    place.comes(EACH * 900 + 1)
    (first, *_) = place.tables.take(T0 + 2 * COUNT * INTERVAL_NS)
    assert (first.service, first.slots) == (900, (EACH * 900 + 1,))


def test_a_change_that_is_taken_back_is_published_as_it_is_now() -> None:
    """What is published is the set of backends at that moment, and only once."""
    place = Place()
    for number in range(50):
        place.down(EACH * number)
        place.comes(EACH * number)
    assert len(place.tables) == 50
    (first, *_) = place.tables.take(T0)
    assert first.slots == tuple(range(EACH))


def test_slots_are_those_of_now_though_not_published_yet() -> None:
    """The daemon's own choices by hash never see an old table; few are remembered."""
    place = Place()
    place.down(EACH * 7)
    assert place.tables.slots(7) == tuple(range(EACH * 7 + 1, EACH * 8))
    place.built = 0
    for number in range(KEPT):
        place.tables.slots(number)
        place.tables.slots(number)
    assert place.built <= KEPT
    assert len(place.tables._made) == KEPT


class Heavy:
    """Services whose tables are much work: many backends with weights, made for real.

    Counts the work of each turn of the event loop.
    """

    def __init__(self, services: int, backends: int) -> None:
        self.each = backends
        self.up = set(range(services * backends))
        self.work = 0
        self.tables = HashTables(
            [self._service(number) for number in range(services)], self.up, self._build
        )

    def _service(self, number: int) -> Service:
        backends = tuple(
            Backend(
                self.each * number + each,
                f"b{number}-{each}",
                Endpoint(each + 1, 80 + number),
                number,
                weight=1 + each % 7,
            )
            for each in range(self.each)
        )
        return Service(number, f"s{number}", Endpoint(9, 80 + number), backends)

    def _build(self, backends: Sequence[Backend], up: AbstractSet[int]) -> tuple[int, ...]:
        self.work += table_work(backends, up)
        return tuple(backend.id for backend in backends if backend.id in up)


@pytest.mark.parametrize("backends", [16, 64, 250, 1000])
def test_no_turn_is_more_work_than_a_step(backends: int) -> None:
    """Many services (200 of 64) lose half of their backends, 16 in a turn as they are told: what
    is made in a turn, by however many calls, is a step's work, or one table."""
    place = Heavy(min(200, 12_800 // backends), backends)
    members = place._service(0).backends
    most = table_work(members, {each.id for each in members[:2]})
    now, worst, made = T0, 0, 0
    gone = iter(range(0, len(place.up), 2))
    while True:
        place.work = 0
        for backend in itertools.islice(gone, 16):
            place.up.discard(backend)
            place.tables.changed(backend // backends)
            made += len(place.tables.take(now))
        worst, place.work = max(worst, place.work), 0
        due = place.tables.deadline()
        if due is None:
            break
        now = max(now, due)
        made += len(place.tables.take(now))
        worst = max(worst, place.work)
    assert made >= min(200, 12_800 // backends)
    assert worst <= max(STEP_WORK, most)
    assert len(place.tables) == 0


def test_heavy_tables_leave_time_for_the_rest() -> None:
    """The more work they are, the longer the next one waits."""
    place = Heavy(50, 64)
    for backend in range(0, 50 * 64, 2):
        place.up.discard(backend)
        place.tables.changed(backend // 64)
    now, start = T0, T0
    while (due := place.tables.deadline()) is not None:
        now = max(now, due)
        place.tables.take(now)
    assert now - start > (place.work * NS_PER_WORK) * 9 // 10
