# SPDX-License-Identifier: Apache-2.0
"""Whatever may be chosen by now: maps, strategies and consistent-hash tables follow it."""

from __future__ import annotations

from collections.abc import Callable

from .availability import Availability
from .commands import Command, SetBackendUp
from .hash_tables import HashTables
from .model import Service
from .roster import Roster


class Following:
    """``roster`` and ``tables`` go by ``backends``, and are told."""

    def __init__(self, backends: Availability, roster: Roster, tables: HashTables) -> None:
        self._backends = backends
        self._roster = roster
        self._tables = tables
        self._old: set[int] = set()  # services whose tables are of before

    def change(
        self,
        service: Service,
        backend: int,
        change: Callable[[], bool],
        out: list[Command],
        command: Command | None = None,
    ) -> bool:
        """Do it, and have maps and strategies follow; ``publish`` comes next, for the table. False:
        it was no news. ``command`` goes before what follows."""
        known = self._backends
        was_up, was_usable = known.is_up(backend), backend in known.usable
        if not change():
            return False
        if command is not None:
            out.append(command)
        up, usable = known.is_up(backend), backend in known.usable
        if up is not was_up:
            out.append(SetBackendUp(backend, up))
        if usable is not was_usable:
            self._roster.backend_state(service, backend, usable)
            self._old.add(service.id)
        return True

    def publish(self, service: int, now_ns: int, out: list[Command]) -> None:
        """Have the service's table follow, if it is old."""
        if service in self._old:
            self._old.discard(service)
            self._tables.changed(service)
            out.extend(self._tables.take(now_ns))

    def forget(self, service: int) -> None:
        """There is no such service any more."""
        self._old.discard(service)
