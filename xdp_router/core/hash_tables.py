# SPDX-License-Identifier: Apache-2.0
"""Which services' consistent-hash tables have to be published, and when.

A table takes from a fraction of a millisecond to a few to make, and one host that goes may change
10,000 of them. So changes wait their turn: a few at once, then one every ``INTERVAL_NS``, or
later, if it is much work. XDP never takes a
backend that is flagged down, but it looks at ten slots only, then it refuses the flow. So a
table in which many are down, or all, goes before the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from .commands import PublishHashTable
from .model import NO_BACKEND, Backend, Service
from .selection import table_work

INTERVAL_NS = 2_000_000
AT_ONCE = 4
"""Tables that leave at once, at most."""
NS_PER_WORK = 800
"""How much later the next table leaves for each piece of work (``table_work``): about three times
what that costs, so that tables have no more than a third of the loop's time."""
STEP_WORK = AT_ONCE * INTERVAL_NS // NS_PER_WORK
"""Work that is done at once, at most, unless one table alone is more: 10,000, or 3 ms."""
KEPT = 256
"""Tables that are remembered for the daemon's own choices by hash."""

Slots = tuple[int, ...]
SLOT_STEP = 397
"""From a slot whose backend is ruled out to the next one to try: coprime to the number of
slots, so that all of them are visited, and the same as in XDP (``DECIDE_SLOT_STEP``)."""

BuildTable = Callable[[Sequence[Backend], AbstractSet[int]], Slots]
"""(all backends of a service, ids of those that are up) -> its slots."""


class HashTables:
    """The tables of all services. ``up`` is the engine's set of usable backend ids."""

    def __init__(
        self,
        services: Iterable[Service],
        up: AbstractSet[int],
        build: BuildTable,
    ) -> None:
        self._services = {service.id: service for service in services}
        self._up = up
        self._build = build
        self._made: dict[int, Slots] = {}
        self._published: dict[int, tuple[int, ...]] = {}  # who is named by XDP's table
        self._waiting: dict[int, None] = {}
        self._urgent: dict[int, None] = {}
        self._due_ns = 0
        """When all that has left is paid for, in time."""

    def __len__(self) -> int:
        """Tables that wait."""
        return len(self._urgent) + len(self._waiting)

    def slots(self, service: int) -> Slots:
        """The table for the backends that are up now."""
        made = self._made.get(service)
        if made is None:
            if len(self._made) >= KEPT:
                del self._made[next(iter(self._made))]
            made = self._made[service] = self._build(self._services[service].backends, self._up)
        return made

    def find(self, service: Service, slot: int, ruled_out: AbstractSet[int]) -> int:
        """Whose the slot is, or the next one of somebody who is not ruled out; NO_BACKEND."""
        slots = self.slots(service.id)
        for _ in slots:
            backend = slots[slot % len(slots)]
            if backend not in ruled_out:
                return backend
            slot += SLOT_STEP
        return NO_BACKEND

    def changed(self, service: int) -> None:
        """Some backend of the service has come or gone."""
        self._made.pop(service, None)
        self._urgent.pop(service, None)
        self._waiting.pop(service, None)
        named = self._published.get(service, ())
        usable = sum(each in self._up for each in named)
        urgent = not named or 4 * usable < 3 * len(named)
        (self._urgent if urgent else self._waiting)[service] = None

    def apply(self, services: Iterable[Service]) -> list[PublishHashTable]:
        """Have these services from now on. Tables of new ones are made at once: what is there
        may be another one's. Those of others follow, each in its turn.
        """
        before, self._services = self._services, {service.id: service for service in services}
        for gone in before.keys() - self._services.keys():
            for each in (self._made, self._published, self._waiting, self._urgent):
                each.pop(gone, None)
        for number, service in self._services.items():
            if number in before and _shares(service) != _shares(before[number]):
                self.changed(number)
        return [self._publish(each) for each in sorted(self._services.keys() - before.keys())]

    def named(self) -> set[int]:
        """Ids of all backends that some table names."""
        return {backend for named in self._published.values() for backend in named}

    def deadline(self) -> int | None:
        """When ``take`` has something to give; None: nothing waits."""
        queue = self._urgent or self._waiting
        return self._turn_of(next(iter(queue))) if queue else None

    def _cost_ns(self, service: int) -> int:
        work = table_work(self._services[service].backends, self._up)
        return max(INTERVAL_NS, work * NS_PER_WORK)

    def _turn_of(self, service: int) -> int:
        """When a service's table may leave: when it has room beside those that have just left,
        or when nobody did."""
        return self._due_ns + min(0, self._cost_ns(service) - AT_ONCE * INTERVAL_NS)

    def take(self, now_ns: int) -> list[PublishHashTable]:
        """The tables whose turn it is."""
        out: list[PublishHashTable] = []
        while queue := self._urgent or self._waiting:
            service = next(iter(queue))
            if self._turn_of(service) > now_ns:
                break
            del queue[service]
            self._due_ns = max(self._due_ns, now_ns) + self._cost_ns(service)
            out.append(self._publish(service))
        return out

    def start(self, carried: Collection[int] = ()) -> Iterator[PublishHashTable]:
        """Every service's table, whatever it takes; those of ``carried`` wait for their turn."""
        self._urgent.clear()
        self._waiting = {service: None for service in self._services if service in carried}
        for service in self._services:
            if service not in carried:
                yield self._publish(service)

    def _publish(self, service: int) -> PublishHashTable:
        self._published[service] = tuple(backend.id for backend in self._usable(service))
        return PublishHashTable(service, self.slots(service))

    def _usable(self, service: int) -> list[Backend]:
        return [each for each in self._services[service].backends if each.id in self._up]


def _shares(service: Service) -> set[tuple[int, int]]:
    """What a table is made of, beside who is up."""
    return {(backend.id, backend.weight) for backend in service.backends}
