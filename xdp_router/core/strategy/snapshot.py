# SPDX-License-Identifier: Apache-2.0
"""Mode ``snapshot``: servers are probed in the background, XDP picks by what that has shown.

Each server is probed every ``probe_interval`` (with jitter: all of them at one moment would be
a load of its own), once for all services that it is a backend of. When an answer, or one that
is late, shows something else than before these services make a table of scores at once, and
otherwise every few intervals. It is published if it differs, or if the last one gets too old.

Work comes in batches: at most ``BATCH`` probes' worth, then a pause of twice what it costs. With
more servers than can be probed in time intervals become longer, and the event loop stays free.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from ..commands import PublishPickTable, SendProbe, SetServiceMode
from ..events import FirstPacket, ProbeReply, ProbeSent
from ..model import NO_BACKEND, Mode, Reason, Service, Snapshot
from ..probe_kinds import is_refusal, judge, probed_endpoint
from .base import BackendStats, Evidence, ProbeSettings, Sequencer, Step, Verdict
from .picks import SETTLE_NS, Picks
from .probing import (
    COUNTED_AS,
    GOOD,
    PROBE_COUNTERS,
    ProbeKey,
    Servers,
    Shared,
    key_of,
    key_of_answer,
)
from .subject import TIMEOUT_NS, Outstanding, Subject, SubjectKey

BATCH = 16
"""Probes, or as much other work, at once: about 1 ms."""
COST_NS = 100_000
"""From a batch to the next one, for each probe in it: about three times what it takes."""
JITTER = 4
"""An interval differs by up to an eighth from what is configured, either way."""

LOOK_EVERY = 5
"""Intervals after which a table follows small changes, too."""


_SKIPPED = 64
"""Services that are passed over at once, because they have been looked at meanwhile."""


class _Round:
    """The services of a server that has changed, of which some have been told."""

    __slots__ = ("again", "services", "told")

    def __init__(self, subject: Subject) -> None:
        self.services = subject.each_service()
        self.told = 0
        self.again = False
        """It has changed once more: those that were told are to be told again."""


class SnapshotStrategy:
    """All services of mode ``snapshot``; implements ``Strategy``.

    ``up`` is the engine's set of usable backend ids; it is looked at, never changed.
    """

    def __init__(
        self,
        services: Iterable[Service],
        up: AbstractSet[int],
        settings: ProbeSettings,
        sequence: Sequencer,
        shared: Shared | None = None,
    ) -> None:
        """``shared`` None: nobody else probes. Raise ValueError for limits that cannot be used."""
        self._up = up
        self._noise_ns = settings.tie_window_ns
        self._sequence = sequence
        self._shared = shared if shared is not None else Shared(Servers(settings))
        self._servers = self._shared.servers
        self._subjects: dict[SubjectKey, Subject] = {}
        self._subject_of: dict[int, Subject] = {}  # by backend
        self._picks: dict[int, Picks] = {}  # by service
        self._probes: dict[ProbeKey, Outstanding] = {}
        # Two queues, taken from in turns: thousands of tables must not keep servers from being
        # probed. By instant; the running number keeps a heap from comparing what it is for.
        self._probe_timers: list[tuple[int, int, Subject]] = []
        self._look_timers: list[tuple[int, int, Picks]] = []
        self._timer_number = 0
        # Ordered ones, because the first of a plain dict is ever farther away.
        self._telling: OrderedDict[Subject, _Round] = OrderedDict()
        """Servers that have changed, and whom that concerns."""
        self._changed: OrderedDict[int, None] = OrderedDict()
        """Services that have changed themselves."""
        self._free_ns = 0
        """When the work that was done is paid for, in time."""
        self._waiting = 0
        self._counters = dict.fromkeys(
            ("snapshots_published", "snapshots_empty", "snapshots_stale", *PROBE_COUNTERS), 0
        )
        for service in services:
            self.add(service)

    @property
    def open_races(self) -> int:
        """Nobody waits for a measurement of its own."""
        return 0

    @property
    def counters(self) -> dict[str, int]:
        """Named totals since the start."""
        return self._counters

    def stats(self, backend: int) -> BackendStats | None:
        """What probing has shown of a backend, whoever was probed for it; it wins no race."""
        subject = self._subject_of.get(backend)
        if subject is None:
            return None
        return BackendStats(0, subject.answers, subject.losses, subject.last_rtt_ns)

    def snapshot(self, service: int) -> Snapshot | None:
        """What the newest published table was made of."""
        picks = self._picks.get(service)
        return None if picks is None else picks.snapshot

    # Services

    def add(self, service: Service) -> None:
        """Begin to probe the service's backends. Its first table is published by itself."""
        subjects = []
        for backend in service.backends:
            key = (probed_endpoint(backend), backend.probe, backend.vlan)
            subject = self._subjects.get(key)
            if subject is None:
                subject = self._subjects[key] = Subject(key[0])
            before_ns = subject.interval_ns
            subject.join(backend, service)
            self._subject_of[backend.id] = subject
            subjects.append(subject)
            if backend.id in self._up:
                if subject.interval_ns < before_ns:
                    subject.due_ns = None  # what is due next is due too late
                self._begin(subject)
        picks = self._picks[service.id] = Picks(service, subjects)
        self._set_timer(0, picks)

    def drop(self, service: Service) -> Sequence[Step]:
        """Probe for it no more; who waits gets its verdict now."""
        picks = self._picks.pop(service.id, None)
        if picks is None:
            return ()
        self._changed.pop(service.id, None)
        for backend, subject in zip(service.backends, picks.subjects, strict=True):
            subject.leave(backend)
            self._subject_of.pop(backend.id, None)
            if not subject.backends:
                self._abandon(subject)
                key = (subject.probed, backend.probe, backend.vlan)
                self._subjects.pop(key, None)
        return self._let_go(picks, NO_BACKEND, Reason.SNAPSHOT_STALE)

    def apply(self, services: Iterable[Service], settings: ProbeSettings) -> Sequence[Step]:
        """Have these from now on. What changes in any way is measured anew, by its servers that
        others do not have; its table goes on in XDP until there is another one."""
        wanted = {service.id: service for service in services}
        self._noise_ns = settings.tie_window_ns
        steps: list[Step] = []
        for picks in list(self._picks.values()):
            if wanted.get(picks.service.id) != picks.service:
                steps += self.drop(picks.service)
        for service in wanted.values():
            if service.id not in self._picks:
                self.add(service)
        return steps

    def _let_go(self, picks: Picks, backend: int, reason: Reason) -> list[Step]:
        waiting, picks.waiting = picks.waiting, []
        self._waiting -= len(waiting)
        return [Verdict(first, backend, reason, Mode.SNAPSHOT) for first, _, _ in waiting]

    # First packets that XDP hands on all the same

    def admit(
        self,
        service: Service,
        first: FirstPacket,
        now_ns: int,
        excluded: frozenset[int] = frozenset(),
    ) -> tuple[Evidence, Sequence[Step]]:
        """Decide by the table, or wait for the first one, for the deadline at most."""
        picks = self._picks[service.id]
        evidence = picks.evidence()
        if picks.is_live:
            return evidence, (self._decide(picks, first, excluded, now_ns),)
        picks.waiting.append((first, excluded, evidence))
        self._waiting += 1
        self._set_timer(max(first.seen_ns + service.deadline_ns, now_ns), picks)
        return evidence, ()

    def _decide(
        self, picks: Picks, first: FirstPacket, excluded: frozenset[int], now_ns: int
    ) -> Verdict:
        if not picks.is_fresh(now_ns):
            self._counters["snapshots_stale"] += 1
            return Verdict(first, NO_BACKEND, Reason.SNAPSHOT_STALE, Mode.SNAPSHOT)
        backend = picks.choose(self._up, excluded, self._shared.draw)
        reason = Reason.NO_CANDIDATE if backend == NO_BACKEND else Reason.SNAPSHOT
        return Verdict(first, backend, reason, Mode.SNAPSHOT)

    # Probes

    def awaits(self, event: ProbeReply) -> bool:
        """Whether a probe is outstanding that this may be the answer to."""
        return key_of_answer(event) in self._probes

    def _begin(self, subject: Subject) -> None:
        """Probe it as soon as possible, unless it is being probed."""
        if subject.due_ns is None:
            subject.due_ns = 0
            self._set_timer(0, subject)

    def _abandon(self, subject: Subject) -> None:
        """Probe it no more, and wait for nothing."""
        subject.due_ns = None
        for probe in tuple(subject.outstanding.values()):
            if not probe.answered_ns:
                self._counters["probes_backend_down"] += 1
            self._drop(probe)
        subject.estimator.forget()
        subject.refused = False
        subject.told = (False, 0)

    def _drop(self, probe: Outstanding) -> None:
        del self._probes[probe.key]
        del probe.subject.outstanding[probe.key]
        self._servers.release(probe.subject.probed, probe.key[3])

    def _tick(self, subject: Subject, now_ns: int) -> Sequence[Step]:
        """Probe a server whose turn it is."""
        backend = next((each for each, _ in subject.backends.values() if each.id in self._up), None)
        if backend is None:
            self._abandon(subject)
            return ()
        self._give_up_old(subject, now_ns)
        self._weigh(subject, now_ns)
        interval = subject.next_interval_ns(now_ns)
        jitter = self._shared.draw(interval // JITTER + 1) - interval // (2 * JITTER)
        subject.due_ns = now_ns + interval + jitter
        self._set_timer(subject.due_ns, subject)
        slot = self._servers.take(subject.probed, now_ns, self._counters)
        if slot is None:
            return ()
        seq = self._sequence(backend, slot.port, slot.nonce)
        key = key_of(subject.probed, slot.port)
        probe = Outstanding(subject, backend, key, seq, now_ns)
        self._probes[key] = subject.outstanding[key] = probe
        self._counters["probes_requested"] += 1
        return (SendProbe(backend.id, slot.port, seq),)

    def _give_up_old(self, subject: Subject, now_ns: int) -> None:
        while subject.outstanding:
            probe = next(iter(subject.outstanding.values()))
            if now_ns - probe.asked_ns < TIMEOUT_NS:
                return
            self._drop(probe)
            if probe.answered_ns:
                continue
            self._counters["probes_unanswered"] += 1
            subject.losses += 1
            silent = subject.estimator.silent_ns(now_ns)
            if probe.sent_ns and now_ns - probe.sent_ns > silent:  # later ones were answered
                subject.estimator.lost(subject.deadline_ns)

    def probe_sent(self, event: ProbeSent, now_ns: int) -> Sequence[Step]:
        """Note the send time stamp, and look again when an answer would be late."""
        subject = self._subject_of.get(event.backend)
        probe = None
        if subject is not None:
            probe = subject.outstanding.get(key_of(subject.probed, event.probe_port))
        if subject is None or probe is None or probe.seq != event.seq or probe.sent_ns:
            self._counters["probe_sends_unmatched"] += 1
            return ()
        if not event.sent_ns:
            self._counters["probes_not_sent"] += 1
            self._drop(probe)
            return ()
        probe.sent_ns = event.sent_ns
        subject.estimator.sent(event.sent_ns)
        if probe.answered_ns:  # the answer was handled first
            self._measured(probe, now_ns)
        else:
            self._shared.health.asked(event.backend, event.sent_ns)
            self._set_timer(event.sent_ns + subject.patience_ns(), subject)
        return ()

    def probe_replies(self, events: Sequence[ProbeReply], now_ns: int) -> Sequence[Step]:
        """Note what came; tables follow when it is their turn."""
        for event in events:
            self._note(event, now_ns)
        return ()

    def _note(self, event: ProbeReply, now_ns: int) -> None:
        probe = self._probes.get(key_of_answer(event))
        answer = None
        if probe is not None and not probe.answered_ns:
            answer = judge(probe.backend.probe, probe.seq, event)
        if probe is None or answer is None:
            self._counters["probe_answers_unmatched"] += 1
            return
        self._counters[COUNTED_AS[answer]] += 1
        self._shared.health.answered(probe.backend.id, answer, now_ns)
        probe.answer = answer
        probe.answered_ns = event.received_ns
        if probe.sent_ns:
            self._measured(probe, now_ns)

    def _measured(self, probe: Outstanding, now_ns: int) -> None:
        subject = probe.subject
        self._drop(probe)
        if probe.answer in GOOD:
            subject.answers += 1
            subject.last_rtt_ns = max(probe.answered_ns - probe.sent_ns, 1)
            if subject.estimator.answered(probe.sent_ns, subject.last_rtt_ns):
                subject.refused = False
                subject.evidence_ns = max(subject.evidence_ns, probe.answered_ns)
        else:
            subject.losses += 1
            if is_refusal(probe.answer):  # else it is alive, and nobody knows for what
                subject.refused = True
                subject.estimator.abandon()
        self._weigh(subject, now_ns)

    def _weigh(self, subject: Subject, now_ns: int) -> None:
        """Tell its services if it is noticeably other than before: one after the other, as there
        may be thousands."""
        if not subject.has_changed(now_ns, self._noise_ns):
            return
        known = self._telling.get(subject)
        if known is None:
            self._telling[subject] = _Round(subject)
        else:
            known.again = True

    # Backends, inputs and time

    def backend_state(self, service: Service, backend: int, up: bool) -> None:
        """Up: it is probed at once. Down: it has no slot any more."""
        subject = self._subject_of.get(backend)
        if subject is None:
            return
        if up:
            self._begin(subject)
        elif not any(each in self._up for each in subject.backends):
            self._abandon(subject)
        if self._picks[service.id].is_live:  # else its first look has a timer
            self._changed[service.id] = None

    def told(self, service: int) -> None:
        """Something was told of a backend of the service: its scores are others now."""
        if service in self._picks:
            self._changed[service] = None

    def _set_timer(self, at_ns: int, whose: Subject | Picks) -> None:
        self._timer_number += 1
        if isinstance(whose, Picks):
            heapq.heappush(self._look_timers, (at_ns, self._timer_number, whose))
        else:
            heapq.heappush(self._probe_timers, (at_ns, self._timer_number, whose))

    def deadline(self) -> int | None:
        """When the next probe, look or refreshment is due, and the last work is paid for."""
        if self._changed or self._telling:
            return self._free_ns
        due = [queue[0][0] for queue in (self._probe_timers, self._look_timers) if queue]
        return max(min(due), self._free_ns) if due else None

    def expire(self, now_ns: int) -> Sequence[Step]:
        """Do what is due, a batch of it."""
        if now_ns < self._free_ns:
            return ()
        steps: list[Step] = []
        work = 0
        while work < BATCH:
            done = self._next_probe(now_ns, steps) + self._next_look(now_ns, steps)
            if not done:
                break
            work += done
        if work:
            self._free_ns = now_ns + work * COST_NS
        return steps

    def _next_probe(self, now_ns: int, steps: list[Step]) -> int:
        """Probe the server whose turn it is, or see whether its answer is late; the work of it."""
        if not self._probe_timers or self._probe_timers[0][0] > now_ns:
            return 0
        subject = heapq.heappop(self._probe_timers)[2]
        if subject.due_ns is not None and subject.due_ns <= now_ns:
            steps += self._tick(subject, now_ns)
        else:
            self._weigh(subject, now_ns)
        return 1

    def _next_look(self, now_ns: int, steps: list[Step]) -> int:
        """Look at the service that has changed first, or whose turn it is; the work of it."""
        if self._changed:
            picks = self._picks[self._changed.popitem(last=False)[0]]
        elif self._telling:
            found = self._next_told()
            if found is None:
                return 1
            picks = found
        elif self._look_timers and self._look_timers[0][0] <= now_ns:
            picks = heapq.heappop(self._look_timers)[2]
        else:
            return 0
        steps += self._look(picks, now_ns)
        return picks.work

    def _next_told(self) -> Picks | None:
        """The next service of a server that has changed; None: not found yet, ask again."""
        subject, found = next(iter(self._telling.items()))
        whose = None
        until = min(found.told + _SKIPPED, len(found.services))
        while whose is None and found.told < until:
            picks = self._picks.get(found.services[found.told])
            found.told += 1
            if picks is not None and picks.looked_ns <= subject.changed_ns:
                whose = picks
        if found.told == len(found.services):
            del self._telling[subject]
            if found.again:
                self._telling[subject] = _Round(subject)
        return whose

    def _look(self, picks: Picks, now_ns: int) -> list[Step]:
        service = picks.service
        if self._picks.get(service.id) is not picks:
            return []  # a timer of a service that has another mode by now
        steps: list[Step] = []
        if picks.look(self._up, self._shared, self._noise_ns, now_ns):
            self._counters["snapshots_published"] += 1
            self._counters["snapshots_empty"] += not picks.snapshot.scored
            steps.append(PublishPickTable(service.id, picks.slots, picks.made_ns))
            if not picks.is_live:
                picks.is_live = True
                steps.append(SetServiceMode(service.id, Mode.SNAPSHOT))
            waiting, picks.waiting = picks.waiting, []
            self._waiting -= len(waiting)
            steps += [self._decide(picks, first, out, now_ns) for first, out, _ in waiting]
        elif picks.waiting and self._is_overdue(picks, now_ns):
            steps += self._let_go(picks, NO_BACKEND, Reason.SNAPSHOT_STALE)
        self._refresh(picks, now_ns)
        return steps

    def _is_overdue(self, picks: Picks, now_ns: int) -> bool:
        first = picks.waiting[0][0]
        return now_ns >= first.seen_ns + picks.service.deadline_ns

    def _refresh(self, picks: Picks, now_ns: int) -> None:
        """Look again before the table is too old, or for the first one, soon."""
        if picks.refresh_ns is not None and picks.refresh_ns > now_ns:
            return  # that one is still to come
        service = picks.service
        at_ns = now_ns + SETTLE_NS
        if picks.is_live and not picks.is_waiting:
            worn_ns = picks.made_ns + service.snapshot_age_ns // 2
            at_ns = max(worn_ns, now_ns + service.snapshot_age_ns // 8)
            at_ns = min(at_ns, now_ns + LOOK_EVERY * service.probe_interval_ns)
        picks.refresh_ns = at_ns
        self._set_timer(at_ns, picks)
