# SPDX-License-Identifier: Apache-2.0
"""Consistent-hash tables are published in turns, the ones that somebody waits for first."""

from __future__ import annotations

from collections.abc import Sequence

from xdp_router.core.hash_tables import AT_ONCE, INTERVAL_NS, KEPT, HashTables
from xdp_router.core.model import Backend, Endpoint, Service

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

    def _build(self, usable: Sequence[Backend]) -> tuple[int, ...]:
        self.built += 1
        return tuple(backend.id for backend in usable)

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
