# SPDX-License-Identifier: Apache-2.0
"""Looks at each server once an interval: what probes of anybody, and its flows, have shown.

A server is looked at once for all backends that it is. What is heard in an interval makes one
observation, however much it was: the pace of races and flows must not be that of its health. A
server that nobody has had a good answer of lately is probed by ourselves, ill ones included: else
they could never be found well.

Silence is measured from the first probe that left after the newest good answer. So a race's
deadline, which may be shorter than a round trip, says nothing.

Work comes in batches, with a pause after each; with more servers than that allows intervals
become longer, and the event loop stays free.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from .commands import SendProbe
from .events import FlowSigns, ProbeReply, ProbeSent
from .health import Health, Ill
from .health_looks import NOTHING, Seen, of_traffic, sum_of
from .model import Backend, Endpoint, HealthSettings, Probe, ProbeAnswer, ProbeKind, Service, Signs
from .probe_kinds import judge, probed_endpoint
from .strategy.base import Sequencer
from .strategy.probing import (
    COUNTED_AS,
    GOOD,
    PROBE_COUNTERS,
    Draw,
    ProbeKey,
    Servers,
    key_of,
    key_of_answer,
)

BATCH = 16
"""Servers that are looked at together: less than 1 ms."""
COST_NS = 400_000
"""From a batch to the next one, for each server in it: 2,500 a second, a tenth of the loop."""
JITTER = 4
"""An interval differs by up to an eighth from what is configured, either way."""
PATIENCE_NS = 1_000_000_000
"""Longer than this no answer is waited for; in shorter intervals, three quarters of one."""
_UNSENT_MOST = 1024
"""Probes of which it is not known yet whether they left."""

HEALTH_COUNTERS = ("health_probes", *PROBE_COUNTERS)

_ILL_BY = {
    ProbeAnswer.RST: Ill.REFUSED,
    ProbeAnswer.UNREACHABLE: Ill.UNREACHABLE,
    ProbeAnswer.UNEXPECTED: Ill.UNEXPECTED,
}
_DATAGRAMS = (ProbeKind.STUN, ProbeKind.UDP)

ServerKey = tuple[Endpoint, Probe, int | None]
"""What is probed, by what, behind which tag."""


class Server:
    """What is known of one, and when it is looked at next."""

    __slots__ = (
        "_bad",
        "_good",
        "_why",
        "answers_ns",
        "asked",
        "asked_ns",
        "count",
        "due_ns",
        "interval_ns",
        "key",
        "lost",
        "members",
        "members_are_old",
        "probed",
        "reached",
        "silences",
        "silent_ns",
    )

    def __init__(self, key: ServerKey) -> None:
        self.key = key
        self.probed = key[0]
        # There may be 160,000 servers of one backend each, or one of 10,000: no sets here.
        self.members: list[int] = []  # ids of backends; those that have left until its next turn
        self.members_are_old = False
        self.count = 0  # of those that have not left
        self.reached = 0  # of those that there is a path to
        self.interval_ns = 0
        self.due_ns: int | None = None
        self.lost = False
        """Its next hop answers no more."""
        self.asked: tuple[ProbeKey, int, Backend] | None = None  # our own probe, and its number
        self.asked_ns = 0  # when that probe left; 0: that is not known
        self.answers_ns = 0  # when the newest good answer came
        self.silent_ns = 0
        """When the first probe left after the newest good answer; 0: none did."""
        self.silences = 0
        """Intervals in a row in which it was silent."""
        self._good = self._bad = 0
        self._why: Ill | None = None

    @property
    def patience_ns(self) -> int:
        """How long an answer may take."""
        return min(self.interval_ns * 3 // 4, PATIENCE_NS)

    def answered(self, answer: ProbeAnswer, probe: Probe, now_ns: int) -> None:
        """A probe of somebody's was answered."""
        if answer in GOOD:
            self._good += 1
            self.answers_ns = now_ns
        else:
            self._bad += 1
            self._why = _ILL_BY.get(answer, Ill.UNEXPECTED)
            if self._why is Ill.UNREACHABLE and probe.kind in _DATAGRAMS:
                self._why = Ill.REFUSED  # as a closed port says it
        if answer in GOOD or self._why is not Ill.UNREACHABLE:
            self.silent_ns = self.silences = 0

    def seen(self, now_ns: int) -> Seen:
        """What the interval that ends now has shown."""
        good, bad, why = self._good, self._bad, self._why
        self._good = self._bad = 0
        self._why = None
        if self.lost:
            why, good, bad = Ill.UNREACHABLE, 0, 1
        if bad > good:
            if why is Ill.UNREACHABLE:
                self.silences += 1
                self.silent_ns = self.silent_ns or now_ns
            return Seen(True, why)
        if good:
            return Seen(True)
        if self.silent_ns and now_ns - self.silent_ns >= self.patience_ns:
            self.silences += 1
            return Seen(True, Ill.UNANSWERED)
        return NOTHING


class HealthWatch:
    """All servers of services that want it; implements ``ProbeSink``."""

    def __init__(self, sequence: Sequencer, servers: Servers, draw: Draw) -> None:
        self._sequence = sequence
        self._servers = servers
        self._draw = draw
        self.own: dict[int, HealthSettings] = {}
        """By backend id: of those that are watched."""
        self.health = Health(own=self.own)
        self.counters = dict.fromkeys(HEALTH_COUNTERS, 0)
        self._by_key: dict[ServerKey, Server] = {}
        self._of: dict[int, Server] = {}  # by backend id
        self._backends: dict[int, Backend] = {}
        self._reached: set[int] = set()
        self._asked: dict[ProbeKey, Server] = {}
        self._unsent: set[tuple[int, int, int]] = set()
        self._signs: dict[int, Signs] = {}
        self.heard_ns: dict[int, int] = {}
        """By backend id: when its flows were last known to be answered."""
        self._timers: list[tuple[int, int, Server]] = []
        self._timer_number = 0

    # What strategies tell, and ask

    def asked(self, backend: int, sent_ns: int) -> None:
        """A probe has left, and was not answered yet."""
        server = self._of.get(backend)
        if server is not None and not server.silent_ns:
            server.silent_ns = sent_ns

    def answered(self, backend: int, answer: ProbeAnswer, now_ns: int) -> None:
        """One was answered."""
        server = self._of.get(backend)
        if server is not None:
            server.answered(answer, server.key[1], now_ns)

    @property
    def starting(self) -> AbstractSet[int]:
        """Backends that have come back, and get their share by and by."""
        return self.health.starting

    def share(self, backend: int, now_ns: int) -> float:
        """Which part of its weight a backend is to have."""
        return self.health.share(backend, now_ns)

    # Who is watched

    def apply(
        self,
        before: Iterable[Service],
        services: Iterable[Service],
        retired: Collection[int] = (),
    ) -> list[int]:
        """Watch these services' backends from now on; those that are the very same need no look.
        Returns the ids of the backends that were watched and are not any more, or otherwise.

        Those of ``retired`` are watched as long as their service wants it, or is gone.
        """
        stay = frozenset(retired)
        services = tuple(services)
        known = {service.id: service for service in before}
        left: list[int] = []
        joins: list[tuple[Backend, HealthSettings]] = []
        for service in services:
            was = known.pop(service.id, None)
            if was is service:
                continue
            gone = {each.id for each in was.backends} if was is not None else set()
            for backend in service.backends:
                found = self._of.get(backend.id)
                if found is not None and found.key == _key(backend) and service.health is not None:
                    self.own[backend.id] = service.health
                    self._backends[backend.id] = backend
                    found.members_are_old = True
                    gone.discard(backend.id)
                elif service.health is not None:
                    joins.append((backend, service.health))
                    if self._is_same(backend):  # only probed otherwise
                        self.leave(backend.id, to_return=True)
                        gone.discard(backend.id)
                    else:
                        gone.add(backend.id)
                else:
                    gone.add(backend.id)
            left += [each for each in gone - stay if self.leave(each)]
        for service in known.values():
            gone = {each.id for each in service.backends} - stay
            left += [each for each in gone if self.leave(each)]
        left += self._keep(stay, services)
        for backend, settings in joins:
            self._join(backend, settings)
        return left

    def _keep(self, retired: Iterable[int], services: Sequence[Service]) -> list[int]:
        by_id = {service.id: service for service in services}
        left = []
        for each in retired:
            service = by_id.get(self._backends[each].service) if each in self._of else None
            if service is None:
                continue
            if service.health is not None:
                self.own[each] = service.health
            elif self.leave(each):
                left.append(each)
        return left

    def _join(self, backend: Backend, settings: HealthSettings) -> None:
        key = _key(backend)
        server = self._by_key.get(key)
        if server is None:
            server = self._by_key[key] = Server(key)
            server.interval_ns = settings.interval_ns
        if server.members_are_old:
            self._sort_out(server)  # it may be among those that have left
        server.members.append(backend.id)
        server.count += 1
        self._of[backend.id] = server
        self._backends[backend.id] = backend
        self.own[backend.id] = settings
        server.interval_ns = min(server.interval_ns, settings.interval_ns)

    def _is_same(self, backend: Backend) -> bool:
        was = self._backends.get(backend.id)
        return was is not None and (was.service, was.endpoint) == (
            backend.service,
            backend.endpoint,
        )

    def leave(self, backend: int, to_return: bool = False) -> bool:
        """Watch a backend no longer; False: it was not watched. ``to_return``: it is another
        server's from now on, and as well or ill as before."""
        server = self._of.pop(backend, None)
        if server is None:
            return False
        server.count -= 1
        server.members_are_old = True
        if server.asked is not None and (not server.count or server.asked[2].id == backend):
            # Its answer would be nobody's: that says nothing of those who stay.
            if server.asked_ns and server.silent_ns == server.asked_ns:
                server.silent_ns = 0
            self._forget_probe(server)
        if backend in self._reached:
            self._reached.discard(backend)
            server.reached -= 1
        del self.own[backend], self._backends[backend]
        if to_return:
            self.health.ask_otherwise(backend)
        else:
            self._signs.pop(backend, None)
            self.heard_ns.pop(backend, None)
            self.health.forget((backend,))
        if not server.count:
            server.due_ns = None
            del self._by_key[server.key]
        return True

    def _sort_out(self, server: Server) -> None:
        """Without those that have left, and at the pace of those that are there."""
        server.members_are_old = False
        server.members = [each for each in server.members if self._of.get(each) is server]
        if server.members:
            server.interval_ns = min(self.own[each].interval_ns for each in server.members)

    def backends_of(self, server: Server) -> list[Backend]:
        """All that it is."""
        return [self._backends[each] for each in server.members if self._of.get(each) is server]

    def backend(self, number: int) -> Backend:
        """A backend that is watched. Raise KeyError if it is not."""
        return self._backends[number]

    def is_watched(self, backend: int) -> bool:
        """Whether a backend's health is looked at."""
        return backend in self._of

    def reached(self, backend: int, up: bool, lost: bool, now_ns: int) -> None:
        """There is a path to a backend, or there is none; ``lost``: nobody answers there."""
        server = self._of.get(backend)
        if server is None:
            return
        if up is not (backend in self._reached):
            (self._reached.add if up else self._reached.discard)(backend)
            server.reached += 1 if up else -1
        server.lost = lost and not server.reached
        if server.lost and not server.silent_ns:
            server.silent_ns = now_ns
        if not server.reached and server.asked is not None:
            self.counters["probes_backend_down"] += 1
            self._forget_probe(server)
        if not server.reached and not server.lost:
            server.due_ns = None
            server.silent_ns = server.silences = 0  # nobody could have heard it
        elif server.due_ns is None:
            self._set_timer(server, now_ns + self._draw(server.interval_ns))

    # Our own probes

    def probe_sent(self, event: ProbeSent) -> bool:
        """A probe left, or could not be sent. False: it is none of ours."""
        mine = (event.backend, event.probe_port, event.seq)
        if mine not in self._unsent:
            return False
        self._unsent.discard(mine)
        server = self._of.get(event.backend)
        if server is not None and server.asked is not None and server.asked[1] == event.seq:
            if event.sent_ns:
                server.asked_ns = event.sent_ns
                self.asked(event.backend, event.sent_ns)
            else:
                self.counters["probes_not_sent"] += 1
                self._forget_probe(server)
        return True

    def take(self, answers: Sequence[ProbeReply], now_ns: int) -> Sequence[ProbeReply]:
        """Note the answers to our own probes; returns the others."""
        if not self._asked:
            return answers
        others = []
        for event in answers:
            server = self._asked.get(key_of_answer(event))
            if server is None or server.asked is None:
                others.append(event)
                continue
            _, seq, backend = server.asked
            answer = judge(backend.probe, seq, event)
            if answer is None:
                self.counters["probe_answers_unmatched"] += 1
                continue
            self.counters[COUNTED_AS[answer]] += 1
            self._forget_probe(server)
            server.answered(answer, backend.probe, now_ns)
        return others

    def _forget_probe(self, server: Server) -> None:
        if server.asked is not None:
            key = server.asked[0]
            del self._asked[key]
            self._servers.release(server.probed, key[3])
            server.asked = None
            server.asked_ns = 0

    def _probe(self, server: Server, now_ns: int) -> SendProbe | None:
        if not server.reached or now_ns - server.answers_ns <= server.interval_ns // 2:
            return None
        backend = self._backends[next(each for each in server.members if each in self._reached)]
        slot = self._servers.take(server.probed, now_ns, self.counters)
        if slot is None:
            return None
        seq = self._sequence(backend, slot.port, slot.nonce)
        key = key_of(server.probed, slot.port)
        server.asked = key, seq, backend
        self._asked[key] = server
        if len(self._unsent) >= _UNSENT_MOST:
            self._unsent.clear()  # of none of these it was ever told what became of it
        self._unsent.add((backend.id, slot.port, seq))
        self.counters["health_probes"] += 1
        self.counters["probes_requested"] += 1
        return SendProbe(backend.id, slot.port, seq)

    # Traffic

    def signs(self, event: FlowSigns, now_ns: int) -> None:
        """Note what flows have shown; it is looked at in each server's turn."""
        for backend, news in event.news:
            if backend not in self._of:
                continue
            before = self._signs.get(backend)
            self._signs[backend] = news if before is None else sum_of(before, news)
            if news.answered or news.served:
                self.heard_ns[backend] = now_ns

    def traffic(self, server: Server, backend: Backend, probed: Seen) -> Seen:
        """What a backend's flows have shown in the interval that ends now."""
        signs = self._signs.pop(backend.id, None)
        if signs is None:
            return NOTHING
        good = probed.heard and probed.why is None
        return of_traffic(signs, good and server.probed == backend.endpoint)

    # Time

    def server_of(self, backend: int) -> Server | None:
        """Whose a backend's health is; None: it is not watched."""
        return self._of.get(backend)

    def deadline(self) -> int | None:
        """When the next server's turn is."""
        return self._timers[0][0] if self._timers else None

    def next_turn(self, now_ns: int) -> tuple[Server, Seen, SendProbe | None] | None:
        """A server whose turn it is, what was seen of it, and what to send; None: nobody's."""
        while self._timers and self._timers[0][0] <= now_ns:
            at_ns, _, server = heapq.heappop(self._timers)
            if server.due_ns != at_ns:
                continue  # it has been let go since
            if server.asked is not None:
                self.counters["probes_unanswered"] += 1
                self._forget_probe(server)
            if server.members_are_old:
                self._sort_out(server)
            seen = server.seen(now_ns)
            interval = server.interval_ns
            jitter = self._draw(interval // JITTER + 1) - interval // (2 * JITTER)
            self._set_timer(server, now_ns + interval + jitter)
            return server, seen, self._probe(server, now_ns)
        return None

    def _set_timer(self, server: Server, at_ns: int) -> None:
        self._timer_number += 1
        server.due_ns = at_ns
        # The running number keeps the heap from comparing servers.
        heapq.heappush(self._timers, (at_ns, self._timer_number, server))


def _key(backend: Backend) -> ServerKey:
    probed = probed_endpoint(backend)  # mostly its own, of which one copy is enough
    at = backend.endpoint if probed == backend.endpoint else probed
    return at, backend.probe, backend.vlan
