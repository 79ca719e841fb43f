# SPDX-License-Identifier: Apache-2.0
"""Which services' consistent-hash tables have to be published, and when.

A table takes half a millisecond to make, and one host that goes may change 10,000 of them. So
changes wait their turn: a few at once, then one every ``INTERVAL_NS``. XDP never takes a
backend that is flagged down, but it looks at three slots only, then it refuses the flow. So a
table in which many are down, or all, goes before the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet

from .commands import PublishHashTable
from .model import Backend, Service

INTERVAL_NS = 2_000_000
AT_ONCE = 4
"""Tables of one step, less than 2 ms of work."""
KEPT = 256
"""Tables that are remembered for the daemon's own choices by hash."""

Slots = tuple[int, ...]


class HashTables:
    """The tables of all services. ``up`` is the engine's set of usable backend ids."""

    def __init__(
        self,
        services: Iterable[Service],
        up: AbstractSet[int],
        build: Callable[[Sequence[Backend]], Slots],
    ) -> None:
        self._services = {service.id: service for service in services}
        self._up = up
        self._build = build
        self._made: dict[int, Slots] = {}
        self._published: dict[int, tuple[int, ...]] = {}  # who is named by XDP's table
        self._waiting: dict[int, None] = {}
        self._urgent: dict[int, None] = {}
        self._due_ns = 0
        """When the table after AT_ONCE idle intervals may leave."""

    def __len__(self) -> int:
        """Tables that wait."""
        return len(self._urgent) + len(self._waiting)

    def slots(self, service: int) -> Slots:
        """The table for the backends that are up now."""
        made = self._made.get(service)
        if made is None:
            if len(self._made) >= KEPT:
                del self._made[next(iter(self._made))]
            made = self._made[service] = self._build(self._usable(service))
        return made

    def changed(self, service: int) -> None:
        """Some backend of the service has come or gone."""
        self._made.pop(service, None)
        self._urgent.pop(service, None)
        self._waiting.pop(service, None)
        named = self._published.get(service, ())
        usable = sum(each in self._up for each in named)
        urgent = not named or 4 * usable < 3 * len(named)
        (self._urgent if urgent else self._waiting)[service] = None

    def deadline(self) -> int | None:
        """When ``take`` has something to give; None: nothing waits."""
        return self._due_ns - AT_ONCE * INTERVAL_NS + INTERVAL_NS if len(self) else None

    def take(self, now_ns: int) -> list[PublishHashTable]:
        """The tables whose turn it is."""
        out: list[PublishHashTable] = []
        while len(out) < AT_ONCE:
            queue = self._urgent or self._waiting
            due_ns = self.deadline()
            if due_ns is None or due_ns > now_ns:
                break
            service = next(iter(queue))
            del queue[service]
            self._due_ns = max(self._due_ns, now_ns) + INTERVAL_NS
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
