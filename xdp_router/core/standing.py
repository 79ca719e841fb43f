# SPDX-License-Identifier: Apache-2.0
"""How every backend stands: reached, draining, ill, dead; and what follows from it.

    ill   gets no new flows, and keeps those that it has
    dead  ill, silent, nothing of its flows is heard, and another one of its service is well:
          their clients are told by RSTs

If all backends of a service that could be chosen are ill, that is ignored (fail open): whether
probes are at fault or the backends, a flow that is tried is better off than one that is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

from .availability import Availability
from .commands import (
    Command,
    EndFlows,
    FindReplies,
    HealthNews,
    LogFailOpen,
    LogHealth,
    SetBackendDead,
    SetBackendDraining,
    SetBackendShare,
    SetBackendUp,
)
from .events import BackendDrain, BackendState, FlowsEnded, FlowSigns, RepliesFound
from .following import Following
from .hash_tables import HashTables
from .health import Change, Condition, Source
from .health_looks import Seen
from .health_watch import BATCH, COST_NS, HealthWatch, Server
from .model import Backend, Service
from .refuge import LOOKED_AT
from .roster import Roster
from .silence import Silences
from .slow_start import SlowStart

AT_ONCE = 256
"""Backends of one server that are looked at together: less than 1 ms."""
SETTLED_AT_ONCE = 128
"""Backends of a service that are left out together, or not any more: 2 ms, with what the maps
have of it."""
TOLD_MOST = 2 * BATCH
"""Work, at most, that changes of several services are told together for."""

_NOBODY: frozenset[int] = frozenset()


class Standing:
    """Of all backends of one engine. ``backends`` is what others look at."""

    def __init__(
        self, watch: HealthWatch, backends: Availability, roster: Roster, tables: HashTables
    ) -> None:
        """``roster`` and ``tables`` go by ``backends``, and are told."""
        self.backends = backends
        self.watch = watch
        self._roster = roster
        self._following = Following(backends, roster, tables)
        self._ill: dict[int, set[int]] = {}  # by service; as far as it was told
        self._dead: dict[int, bool] = {}  # whether all of its clients were told
        self._finding: set[int] = set()
        self._slow_start = SlowStart(watch, roster)
        self._silences = Silences(watch, backends)
        self._refuges = self._silences.refuges
        self._open: set[int] = set()  # services whose backends are all ill
        self._changes: deque[Change] = deque()
        self._rest: tuple[Iterator[Backend], Server, Seen] | None = None
        """Of the server that is looked at: those of its backends that are still to come."""
        self._retired: dict[int, Service] = {}
        """Backends that only flows have, and that are watched still: whose they are, or were."""
        self._marked: set[int] = set()
        """Backends that have gone with a mark in the maps, where it stands for their last flows,
        and that are not watched any more."""
        self._free_ns = 0
        self._settling: dict[int, deque[int]] = {}
        """By service: those that are still to be left out, or not any more."""
        self.falls: dict[int, int] = {}
        """By backend id: how often it was found ill since the start."""
        self.counters = dict.fromkeys(("backend_changes", "backends_ill", "backends_dead"), 0)

    # What is known

    def condition(self, backend: int) -> Condition | None:
        """How a backend is; None: its health is not looked at."""
        if not self.watch.is_watched(backend):
            return None
        return self.watch.health.condition(backend)

    def is_dead(self, backend: int) -> bool:
        """Whether it has died, and its flows' clients are told."""
        return backend in self._dead

    @property
    def dead(self) -> frozenset[int]:
        """Ids of those that have died."""
        return frozenset(self._dead)

    @property
    def retired(self) -> frozenset[int]:
        """Ids of those that only flows have, and that are watched still."""
        return frozenset(self._retired)

    @property
    def failing_open(self) -> frozenset[int]:
        """Ids of the services whose backends are all ill, which is ignored."""
        return frozenset(self._open)

    def add_counters(self, totals: dict[str, int]) -> dict[str, int]:
        """``totals`` with these added."""
        for counters in (self.counters, self.watch.counters):
            for name, value in counters.items():
                totals[name] = totals.get(name, 0) + value
        return totals

    # What happens

    def begin(
        self, up: Iterable[int], draining: Iterable[int], ill: Iterable[int], now_ns: int
    ) -> list[Command]:
        """Take these backends for up, before anything else. ``ill``: which of all are not flagged
        up, because they were ill when this router was left; so they are until they are well.
        """
        out: list[Command] = []
        services = self._roster.service_of
        known = services.keys()
        self.backends.begin(known & up, known & draining)
        for backend in self.backends.reached:
            self.watch.reached(backend, True, False, 0)
        for backend in sorted(known & ill):
            if self.watch.is_watched(backend):
                self.watch.health.begin_ill(backend, now_ns)
                self._ill.setdefault(services[backend].id, set()).add(backend)
        for number, members in self._ill.items():
            if self._refuges.are_all_ill(self._roster.services[number], members):
                self._open.add(number)
                out.append(LogFailOpen(number, True))
                continue
            for backend in members:
                self.backends.leave_out(backend, True)
        out += [
            SetBackendUp(each, True) for each in sorted(known & ill) if self.backends.is_up(each)
        ]
        for backend in self.backends.usable:
            self._roster.backend_state(services[backend], backend, True)
        return out

    def backend_state(
        self, service: Service, event: BackendState | BackendDrain, now_ns: int, out: list[Command]
    ) -> None:
        """A backend is reached or not, drains or not."""
        backend = event.backend
        if isinstance(event, BackendDrain):
            change = partial(self.backends.drain, backend, event.draining)
            command = SetBackendDraining(backend, event.draining)
            if not self._following.change(service, backend, change, out, command):
                return
        else:
            self.watch.reached(backend, event.up, event.lost, now_ns)
            change = partial(self.backends.reach, backend, event.up)
            if not self._following.change(service, backend, change, out):
                return
            self.counters["backend_changes"] += 1
        self._settle(service, now_ns, out, (backend,))

    def retired_state(self, event: BackendState | BackendDrain, now_ns: int) -> bool:
        """The same of one that only flows have. False: it is nobody that is known."""
        if event.backend not in self._retired:
            return False
        if isinstance(event, BackendState):
            self.watch.reached(event.backend, event.up, event.lost, now_ns)
        return True

    def flow_signs(self, event: FlowSigns, now_ns: int) -> None:
        """What flows have shown."""
        self.watch.signs(event, now_ns)

    def replies_found(self, event: RepliesFound, now_ns: int, out: list[Command]) -> None:
        """A backend that is silent was heard on its flows, or it was not: it has died."""
        backend = event.backend
        service = self._service_of(backend)
        if backend not in self._finding or service is None:
            return
        self._finding.discard(backend)
        server = self.watch.server_of(backend)
        # The tables were read meanwhile: it may be back, or the others may have gone, too.
        if server is None or self._silent_since(service, backend, now_ns) is None:
            return
        if event.heard:
            self._silences.spare(server, backend)
            return
        self._dead[backend] = False
        self.counters["backends_dead"] += 1
        # The flag goes up before anybody is told: who speaks meanwhile is answered by XDP.
        out.append(SetBackendDead(backend, True))
        out.append(LogHealth(backend, HealthNews.DEAD))
        out.append(EndFlows(backend))
        self._settle(service, now_ns, out, (backend,))

    def flows_ended(self, event: FlowsEnded, now_ns: int, out: list[Command]) -> None:
        """All clients of a dead backend were told."""
        service = self._service_of(event.backend)
        if event.backend in self._dead and service is not None:
            self._dead[event.backend] = True
            self._settle(service, now_ns, out, (event.backend,))

    def apply(
        self,
        before: Iterable[Service],
        services: Iterable[Service],
        now_ns: int,
        retired: Collection[int] = (),
    ) -> list[Command]:
        """Have these services from now on, which the roster has by now. ``retired``: ids of the
        backends that only flows have from now on."""
        out: list[Command] = []
        now = {service.id: service for service in services}
        was = {service.id: service for service in before}
        touched = dict.fromkeys(self._open | self._ill.keys() | self._settling.keys())
        left = self.watch.apply(was.values(), now.values(), retired)
        self._retire(retired, was, now)
        for backend in left:
            service = self._forget(backend, out)
            if service is not None:
                touched[service.id] = None
        if left:  # what was found of them is not to be told any more
            gone = set(left)
            self._changes = deque(each for each in self._changes if each.backend not in gone)
        for backend in self._marked & self._roster.service_of.keys():  # it is there again
            self._marked.remove(backend)
            out += (SetBackendDead(backend, False), SetBackendShare(backend, 0))
        for service in now.values():
            if was.get(service.id) is service:
                continue
            for each in service.backends:
                if self.backends.is_reached(each.id):
                    self.watch.reached(each.id, True, False, now_ns)
        for number in list(self._dead):
            if not self.watch.own[number].reset_on_death:
                del self._dead[number]
                out.append(SetBackendDead(number, False))
                touched[self.watch.backend(number).service] = None
        for number in touched:
            if number in now:
                self._settle(now[number], now_ns, out, at_once=True)
            else:
                self._ill.pop(number, None)
                self._open.discard(number)
                self._settling.pop(number, None)
                self._following.forget(number)
        return out

    def _retire(
        self, retired: Iterable[int], was: Mapping[int, Service], now: Mapping[int, Service]
    ) -> None:
        before, self._retired = self._retired, {}
        for each in retired:
            if self.watch.is_watched(each):
                number = self.watch.backend(each).service
                service = now.get(number) or was.get(number) or before.get(each)
                if service is not None:
                    self._retired[each] = service

    def forget_retired(self, backend: int) -> None:
        """No flow has it any more."""
        if self._retired.pop(backend, None) is not None:
            self.watch.leave(backend)
            self._changes = deque(each for each in self._changes if each.backend != backend)
            self._forget(backend, [])
        self._marked.discard(backend)

    def _service_of(self, backend: int) -> Service | None:
        return self._roster.service_of.get(backend) or self._retired.get(backend)

    def _forget(self, backend: int, out: list[Command]) -> Service | None:
        """It is not watched any more, or otherwise. Returns its service, if it still has one."""
        dead = self._dead.pop(backend, None) is not None
        shared = self._slow_start.forget(backend)
        self._silences.forget(backend)
        self.falls.pop(backend, None)
        self._finding.discard(backend)
        for members in self._ill.values():
            members.discard(backend)
        service = self._roster.service_of.get(backend)
        if service is None:
            if dead or shared:
                self._marked.add(backend)
            return None
        if dead:
            out.append(SetBackendDead(backend, False))
        if shared:
            out.append(SetBackendShare(backend, 0))
        return service

    # Time

    def deadline(self) -> int | None:
        """When the next look is due, and the last work is paid for."""
        if self._changes or self._rest is not None or self._settling:
            return self._free_ns
        due_ns = self.watch.deadline()
        return None if due_ns is None else max(due_ns, self._free_ns)

    def expire(self, now_ns: int, out: list[Command]) -> None:
        """Look at the servers whose turn it is; a batch of them."""
        if now_ns < self._free_ns:
            return
        work = self._settle_on(now_ns, out) + self._tell_some(0, now_ns, out)
        if work < BATCH:
            work += self._look_on(now_ns, out)
        while work < BATCH and self._rest is None:
            found = self.watch.next_turn(now_ns)
            if found is None:
                break
            server, seen, command = found
            if command is not None:
                out.append(command)
            self._rest = iter(self.watch.backends_of(server)), server, seen
            work += 1 + self._look_on(now_ns, out)
        work = self._tell_some(work, now_ns, out)
        if work:
            self._free_ns = now_ns + work * COST_NS

    def _tell_some(self, work: int, now_ns: int, out: list[Command]) -> int:
        """One host that goes may be thousands of backends: as many at once as work allows.
        Returns how much work that was, with what was done before.

        What follows for a service is found once for all of them: it may have thousands, too.
        """
        some: list[Change] = []
        services: dict[int, Service] = {}
        while self._changes and work < TOLD_MOST and len(some) < BATCH:
            service = self._service_of(self._changes[0].backend)
            if service is not None and service.id not in services:
                size = len(service.backends) // LOOKED_AT
                if services and work + size > TOLD_MOST:
                    break
                services[service.id] = service
                work += size
            some.append(self._changes.popleft())
            work += 1
        changed: dict[int, list[int]] = {}
        for change in some:
            service = self._service_of(change.backend)
            if service is not None and self.watch.is_watched(change.backend):
                self._told(service, change, now_ns, out)
                changed.setdefault(service.id, []).append(change.backend)
        for number, backends in changed.items():
            self._settle(services[number], now_ns, out, backends)
        for backends in changed.values():
            for backend in backends:
                self._suspect(self.watch.backend(backend), now_ns, out)
        return work

    def _look_on(self, now_ns: int, out: list[Command]) -> int:
        """Go on with the server whose turn it is: it may be thousands of backends. Returns how
        much work that was."""
        if self._rest is None:
            return 0
        backends, server, seen = self._rest
        done, before = 0, self._refuges.looked
        for each in backends:
            # A change may have come between: some are another server's, or gone.
            if self.watch.server_of(each.id) is server:
                self._look(server, self.watch.backend(each.id), seen, now_ns, out)
            done += 1
            if done == AT_ONCE or self._refuges.looked - before >= BATCH * LOOKED_AT:
                break
        else:
            self._rest = None
        return done // BATCH + (self._refuges.looked - before) // LOOKED_AT

    def _look(
        self, server: Server, backend: Backend, seen: Seen, now_ns: int, out: list[Command]
    ) -> None:
        heard = self.watch.health.heard
        if seen.heard:
            change = heard(backend.id, Source.PROBE, seen.why, now_ns)
            if change is not None:
                self._changes.append(change)
        traffic = self.watch.traffic(server, backend, seen)
        if traffic.heard:
            change = heard(backend.id, Source.TRAFFIC, traffic.why, now_ns)
            if change is not None:
                self._changes.append(change)
        self._slow_start.look(backend.id, now_ns, out)
        if server.silences:
            self._suspect(backend, now_ns, out)
        else:
            self._silences.forget(backend.id)

    def _told(self, service: Service, change: Change, now_ns: int, out: list[Command]) -> None:
        """A backend is ill, or well again; who may be chosen then is still to be found."""
        backend = change.backend
        ill = self._ill.setdefault(service.id, set())
        if change.well:
            ill.discard(backend)
            if self._dead.pop(backend, None) is not None:
                out.append(SetBackendDead(backend, False))
            self._slow_start.tell(backend, now_ns, out)
            out.append(LogHealth(backend, HealthNews.WELL, times=change.times))
            return
        ill.add(backend)
        self.falls[backend] = self.falls.get(backend, 0) + 1
        self.counters["backends_ill"] += 1
        why = change.why.value if change.why is not None else ""
        source = change.source.value if change.source is not None else ""
        held_ns = max(change.held_until_ns - now_ns, 0)
        out.append(LogHealth(backend, HealthNews.ILL, why, source, held_ns, change.times))

    def _suspect(self, backend: Backend, now_ns: int, out: list[Command]) -> None:
        """If its probes are silent, and its flows are, too, it has died."""
        service = self._service_of(backend.id)
        if service is None or backend.id in self._finding:
            return
        since_ns = self._silent_since(service, backend.id, now_ns)
        if since_ns is not None:
            self._finding.add(backend.id)
            out.append(FindReplies(backend.id, since_ns))

    def _silent_since(self, service: Service, backend: int, now_ns: int) -> int | None:
        if backend in self._dead:
            return None
        ill = self._ill.get(service.id, _NOBODY)
        return self._silences.since(service, backend, ill, now_ns)

    # What follows

    def _settle(
        self,
        service: Service,
        now_ns: int,
        out: list[Command],
        changed: Collection[int] | None = None,
        at_once: bool = False,
    ) -> None:
        """Leave out those of a service that are ill, unless nobody else is left. ``changed``: ids
        of those of whom something is new; None: that may be anybody. They may be thousands: the
        others follow in their turns, or ``at_once``."""
        ill, known = self._ill.get(service.id, _NOBODY), self.backends
        self._refuges.forget(service.id)
        if changed is not None:  # of those that are retired nothing follows
            changed = [each for each in changed if each in self._roster.service_of]
        is_open = self._refuges.are_all_ill(service, ill)
        if (service.id in self._open) is not is_open:
            changed = None
            (self._open.add if is_open else self._open.discard)(service.id)
            out.append(LogFailOpen(service.id, is_open))
        if changed is None:
            changed = [
                each.id
                for each in service.backends
                if each.id in ill or each.id in self._dead or known.is_left_out(each.id)
            ]
            self._settling.pop(service.id, None)
            if len(changed) > SETTLED_AT_ONCE and not at_once:
                self._settling[service.id] = deque(changed[SETTLED_AT_ONCE:])
                changed = changed[:SETTLED_AT_ONCE]
        self._settle_these(service, changed, out)
        self._following.publish(service.id, now_ns, out)

    def _settle_on(self, now_ns: int, out: list[Command]) -> int:
        """Go on with a service that has many backends. Returns how much work that was."""
        number = next(iter(self._settling), None)
        if number is None:
            return 0
        left = self._settling[number]
        some = [left.popleft() for _ in range(min(len(left), SETTLED_AT_ONCE))]
        self._settle_these(self._roster.services[number], some, out)
        if not left:  # a table of so many takes long, too: there is no other one before
            del self._settling[number]
            self._following.publish(number, now_ns, out)
        return BATCH

    def _settle_these(self, service: Service, backends: Iterable[int], out: list[Command]) -> None:
        ill, is_open = self._ill.get(service.id, _NOBODY), service.id in self._open
        for each in backends:
            if is_open and self._dead.get(each):
                del self._dead[each]
                self._silences.give_time(each)
                out.append(SetBackendDead(each, False))
            # Those that are dead are tried by nobody before all of their clients were told.
            left_out = each in self._dead or (each in ill and not is_open)
            change = partial(self.backends.leave_out, each, left_out)
            self._following.change(service, each, change, out)
