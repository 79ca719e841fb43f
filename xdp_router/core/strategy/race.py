# SPDX-License-Identifier: Apache-2.0
"""Mode ``race``: probe every candidate at once, the first good answer decides.

A race belongs to one service. Its leader is the first packet that started it; first packets
that come while it runs, or shortly after it was decided, join it, so that the number of
probes a second is bounded whatever the load. A race keeps its record open until its deadline:
answers that come after the decision still show up in ``explain``.

Nobody waits for a second answer. But where several are there when the race is decided, the
one with the shortest round trip wins, and among round trips that differ by no more than their
own noise (``tie_window_ns``) weights and scores decide, in turns. Of a service with many backends
``candidates`` of them, at random, take part: the best of a few is nearly the best of all (power
of k choices), at a fraction of the probes.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from ..commands import SendProbe
from ..events import FirstPacket, ProbeReply, ProbeSent
from ..model import NO_BACKEND, Backend, Endpoint, ProbeRecord, Reason, Service, Snapshot
from ..probe_kinds import is_refusal, judge, probed_endpoint
from ..score import pick_weights, scores
from .base import BackendStats, Evidence, ProbeSettings, Sequencer, Step, Verdict
from .probing import (
    COUNTED_AS,
    GOOD,
    PROBE_COUNTERS,
    ProbeKey,
    Servers,
    Shared,
    key_of,
    key_of_answer,
    some_of,
)
from .turns import Turns

LATE_GRACE_NS = 1_000_000
"""The least time that a race is given. An event that is handled late may come after
``seen + deadline``; its probes have been paid for, and XDP decides by itself only when the
client retransmits, so a millisecond costs nothing and often saves the measurement."""

_NOBODY: frozenset[int] = frozenset()

LEVEL_WINDOWS = 2
"""How many tie windows may be between round trips of backends that tied in the last race."""

_TURN = 1024
"""What a score of 1 is worth where turns are taken by weight and score."""


class _Race(Evidence):
    """One race: the ``members`` that wait for it and the ``probes`` that are outstanding."""

    __slots__ = (
        "arrived",
        "deadline_ns",
        "decided_ns",
        "members",
        "probes",
        "reason",
        "service",
        "short",
        "winner",
    )

    def __init__(self, service: Service, leader: FirstPacket, deadline_ns: int) -> None:
        super().__init__()
        self.service = service
        self.members: list[FirstPacket] = [leader]
        self.deadline_ns = deadline_ns
        self.probes: dict[int, _Probe] = {}  # by backend: those that may still tell something
        self.arrived: list[ProbeRecord] = []  # SYN-ACKs that it is decided by
        self.short = False  # a candidate got no probe: budget or ports were used up
        self.decided_ns = 0
        self.winner = NO_BACKEND
        self.reason = Reason.NONE

    def decide(self, winner: int, reason: Reason, now_ns: int) -> list[Verdict]:
        """End the wait of all members; ``reason`` is the leader's and, without winner, all's."""
        self.decided_ns = now_ns
        self.winner = winner
        self.reason = reason
        joined = reason if winner == NO_BACKEND else Reason.RACE_JOINED
        verdicts = [Verdict(first, winner, joined) for first in self.members]
        verdicts[0] = Verdict(self.members[0], winner, reason)
        self.members.clear()  # the frames are not kept for the sake of late answers
        return verdicts


class _Probe:
    """A probe from its SendProbe command until it is answered and its send time is known."""

    __slots__ = ("backend", "key", "race", "record", "seq")

    def __init__(self, race: _Race, backend: Backend, key: ProbeKey, seq: int) -> None:
        self.race = race
        self.backend = backend
        self.key = key
        self.seq = seq
        self.record = ProbeRecord(backend.id, 0)


class RaceStrategy:
    """All races of all services of mode ``race``; implements ``Strategy``.

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
        self._settings = settings
        self._sequence = sequence
        self._shared = shared if shared is not None else Shared(Servers(settings))
        self._servers = self._shared.servers
        # By service, and by the backends that are left out: at most one set a backend's address
        # and a subnet, whatever clients call themselves.
        self._latest: dict[int, dict[frozenset[int], _Race]] = {}
        self._probes: dict[ProbeKey, _Probe] = {}
        self._timers: list[tuple[int, int, _Race]] = []
        self._races_started = 0
        self._open_races = 0
        self._first = Turns()
        self._ties = Turns()
        self._level: dict[int, frozenset[int]] = {}  # by service: who tied in its last race
        self._backends: dict[int, Backend] = {}
        self._stats: defaultdict[int, BackendStats] = defaultdict(BackendStats)
        self._probed: dict[int, Endpoint] = {}  # by backend
        self.apply(services, settings)
        self._counters = dict.fromkeys(
            (
                "races_started",
                "races_joined",
                "races_joined_after",
                "races_won",
                "races_tied",
                "races_all_refused",
                "races_deadline",
                *PROBE_COUNTERS,
            ),
            0,
        )

    def awaits(self, event: ProbeReply) -> bool:
        """Whether a probe is outstanding that this may be the answer to."""
        return key_of_answer(event) in self._probes

    def snapshot(self, service: int) -> Snapshot | None:
        """There is none: each flow is measured."""
        return None

    def told(self, service: int) -> None:
        """What was told is looked at when a race is decided."""

    @property
    def open_races(self) -> int:
        """Races that flows wait for."""
        return self._open_races

    @property
    def counters(self) -> dict[str, int]:
        """Named totals since the start."""
        return self._counters

    def stats(self, backend: int) -> BackendStats | None:
        """What probing has shown of a backend; ``wins`` counts races, not flows."""
        if backend not in self._backends:
            return None
        return self._stats.get(backend) or BackendStats()

    # First packets

    def admit(
        self,
        service: Service,
        first: FirstPacket,
        now_ns: int,
        excluded: frozenset[int] = _NOBODY,
    ) -> tuple[Evidence, Sequence[Step]]:
        """Join the service's race, take the outcome of one just decided, or start one.

        Only first packets with the same backends ``excluded`` share a race.
        """
        latest = self._latest.get(service.id)
        race = latest.get(excluded) if latest is not None else None
        if race is not None:
            if not race.decided_ns:
                # Past its deadline it only waits for expire(): joining would be losing.
                if now_ns < race.deadline_ns:
                    race.members.append(first)
                    self._counters["races_joined"] += 1
                    return race, ()
            elif now_ns - race.decided_ns < self._settings.coalesce_window_ns:
                if race.winner in self._up:
                    self._counters["races_joined_after"] += 1
                    return race, (Verdict(first, race.winner, Reason.RACE_JOINED),)
                # Else every first packet would probe servers that have just refused.
                if race.reason is Reason.ALL_REFUSED:
                    self._counters["races_joined_after"] += 1
                    return race, (Verdict(first, NO_BACKEND, Reason.ALL_REFUSED),)
        return self._start(service, first, now_ns, excluded)

    def _start(
        self, service: Service, first: FirstPacket, now_ns: int, excluded: frozenset[int]
    ) -> tuple[Evidence, Sequence[Step]]:
        up = self._up
        candidates = [b for b in service.backends if b.id in up and b.id not in excluded]
        if not candidates:
            return Evidence(), (Verdict(first, NO_BACKEND, Reason.NO_CANDIDATE),)
        deadline_ns = max(first.seen_ns + service.deadline_ns, now_ns + LATE_GRACE_NS)
        race = _Race(service, first, deadline_ns)
        candidates = self._shared.not_held_back(candidates, now_ns)
        candidates = some_of(candidates, service.candidates, self._shared.draw)
        # Whoever is asked first has a head start of some microseconds over an equal: each
        # has it in turn, as often as its weight says.
        turn = self._first.take(candidates)
        candidates = candidates[turn:] + candidates[:turn]
        steps: list[Step] = []
        for backend in candidates:
            command = self._probe(race, backend, now_ns)
            if command is None:
                race.short = True
            else:
                steps.append(command)
        if not steps:
            return race, (Verdict(first, NO_BACKEND, Reason.PROBE_BUDGET),)
        self._latest.setdefault(service.id, {})[excluded] = race
        self._races_started += 1
        self._open_races += 1
        self._counters["races_started"] += 1
        # The running number keeps the heap from comparing races.
        heapq.heappush(self._timers, (deadline_ns, self._races_started, race))
        return race, steps

    def _probe(self, race: _Race, backend: Backend, now_ns: int) -> SendProbe | None:
        probed = self._probed[backend.id]
        slot = self._servers.take(probed, now_ns, self._counters)
        if slot is None:
            return None
        seq = self._sequence(backend, slot.port, slot.nonce)
        key = key_of(probed, slot.port)
        probe = _Probe(race, backend, key, seq)
        self._probes[probe.key] = probe
        race.probes[backend.id] = probe
        race.records.append(probe.record)
        self._counters["probes_requested"] += 1
        return SendProbe(backend.id, slot.port, seq)

    # Probes

    def probe_sent(self, event: ProbeSent, now_ns: int) -> Sequence[Step]:
        """Note the send time stamp; ``sent_ns`` 0: that candidate has lost."""
        probed = self._probed.get(event.backend)
        probe = None
        if probed is not None:
            probe = self._probes.get(key_of(probed, event.probe_port))
        if probe is None or probe.seq != event.seq or probe.record.sent_ns:
            self._counters["probe_sends_unmatched"] += 1
            return ()
        if event.sent_ns:
            probe.record.sent_ns = event.sent_ns
            if probe.record.answered_ns:  # the answer was handled first
                self._measured(probe)
                self._drop(probe)
            else:
                self._shared.health.asked(event.backend, event.sent_ns)
            return ()
        self._counters["probes_not_sent"] += 1
        if not probe.record.answered_ns:
            self._stats[probe.backend.id].losses += 1
        self._drop(probe)
        return ()  # not a refusal: the race goes on until its deadline

    def probe_reply(self, event: ProbeReply, now_ns: int) -> Sequence[Step]:
        """Note an answer; the first good one wins, a refusal loses."""
        return self.probe_replies((event,), now_ns)

    def probe_replies(self, events: Sequence[ProbeReply], now_ns: int) -> Sequence[Step]:
        """Note all answers, then decide the races that can be."""
        steps: Sequence[Step] = ()
        for race in [self._note(event, now_ns) for event in events]:
            if race is None or race.decided_ns:
                continue
            found = self._won(race, now_ns) if race.arrived else self._refused_by_all(race, now_ns)
            steps = [*steps, *found] if steps else found
        return steps

    def _note(self, event: ProbeReply, now_ns: int) -> _Race | None:
        """The race that an answer belongs to."""
        probe = self._probes.get(key_of_answer(event))
        answer = None
        if probe is not None and not probe.record.answered_ns:
            answer = judge(probe.backend.probe, probe.seq, event)
        if probe is None or answer is None:
            self._counters["probe_answers_unmatched"] += 1
            return None
        race = probe.race
        record = probe.record
        record.answer = answer
        record.answered_ns = event.received_ns
        if race.decided_ns:
            self._counters["probe_answers_late"] += 1
        if record.sent_ns:
            self._measured(probe)
            self._drop(probe)
        stats = self._stats[record.backend]
        self._counters[COUNTED_AS[answer]] += 1
        self._shared.health.answered(record.backend, answer, now_ns)
        if answer in GOOD:
            stats.answers += 1
            race.answered.append(record.backend)
            if not race.decided_ns:
                race.arrived.append(record)
            return race
        stats.losses += 1
        if is_refusal(answer):  # else it is alive, and nobody knows for what
            race.refused.add(record.backend)
        return race

    def _won(self, race: _Race, now_ns: int) -> Sequence[Step]:
        winner, reason = self._winner(race.service, race.arrived, now_ns)
        self._stats[winner].wins += 1
        self._counters["races_won"] += 1
        self._open_races -= 1
        return race.decide(winner, reason, now_ns)

    def _winner(
        self, service: Service, arrived: Sequence[ProbeRecord], now_ns: int
    ) -> tuple[int, Reason]:
        if len(arrived) == 1:
            return arrived[0].backend, Reason.RACE_WON
        # Without a send time there is no round trip: then who was here first.
        complete = all(record.sent_ns for record in arrived)
        times = [record.rtt_ns if complete else record.answered_ns for record in arrived]
        window = self._settings.tie_window_ns
        # Hysteresis: those who tied are given room, or two whose round trips differ by about
        # the window would share flows in one race and not in the next.
        level = self._level.get(service.id, _NOBODY)
        least = min(times)
        nearest = arrived[times.index(least)].backend in level
        tied = [
            record
            for record, took in zip(arrived, times, strict=True)
            if took - least
            <= (window * LEVEL_WINDOWS if nearest and record.backend in level else window)
        ]
        self._level[service.id] = frozenset(record.backend for record in tied)
        if len(tied) == 1:
            return tied[0].backend, Reason.RACE_WON
        for record in tied:
            record.tied = True
        self._counters["races_tied"] += 1
        members = [self._backends[record.backend] for record in tied]
        turn = self._ties.take(members, self._shares(service, members, now_ns))
        return tied[turn].backend, Reason.TIE

    def _shares(self, service: Service, members: Sequence[Backend], now_ns: int) -> list[int]:
        """How often each of those that are equally near wins: by weight, and by score if
        something was told of them. In one unit, as the turns that are owed go on."""
        inputs = self._shared.inputs
        known = [inputs.measured(each.id, None, service.score_age_ns, now_ns) for each in members]
        if not any(each.is_told for each in known):
            return [_TURN * each.weight for each in members]
        # Equally near: that term is 1, for those of whom nothing was told, too.
        near = [replace(each, rtt_ns=1) for each in known]
        found = pick_weights(scores(near, service.score), [each.weight for each in members])
        return [round(_TURN * each) for each in found]

    def _refused_by_all(self, race: _Race, now_ns: int) -> Sequence[Step]:
        """End a race that nobody can win any more, as far as that is known for certain.

        A candidate that was not asked, or whose answer is missing, may still be alive: for its
        sake the flow goes down the degrade chain (at the deadline) and is not refused.
        """
        if race.decided_ns or len(race.refused) < len(race.records):
            return ()
        self._open_races -= 1
        if race.short:
            return race.decide(NO_BACKEND, Reason.PROBE_BUDGET, now_ns)
        self._counters["races_all_refused"] += 1
        return race.decide(NO_BACKEND, Reason.ALL_REFUSED, now_ns)

    def _measured(self, probe: _Probe) -> None:
        if probe.record.answer in GOOD:
            self._stats[probe.backend.id].last_rtt_ns = probe.record.rtt_ns

    def _drop(self, probe: _Probe) -> None:
        """Nothing more is expected of this probe: its port may be used again."""
        del self._probes[probe.key]
        addr, port, proto, probe_port = probe.key  # where it went, whatever is probed by now
        self._servers.release(Endpoint(addr, port, proto), probe_port)
        del probe.race.probes[probe.backend.id]

    # Backends and time

    def backend_state(self, service: Service, backend: int, up: bool) -> None:
        """Down: its outstanding probes have lost. Up: an old outcome says nothing of it."""
        if up:
            latest = self._latest.get(service.id, {})
            for excluded in [each for each, race in latest.items() if race.decided_ns]:
                del latest[excluded]
            return
        probed = self._probed.get(backend)
        if probed is None:
            return  # it takes part in no race
        server = self._servers.find(probed)
        for port in server.ports.held if server is not None else ():
            probe = self._probes.get(key_of(probed, port))
            if probe is None or probe.backend.id != backend:
                continue
            if not probe.record.answered_ns:
                self._counters["probes_backend_down"] += 1
                self._stats[backend].losses += 1
            self._drop(probe)

    def apply(self, services: Iterable[Service], settings: ProbeSettings) -> Sequence[Step]:
        """Have these from now on; see ``Strategy``. Races that run go on."""
        services = tuple(services)
        self._settings = settings
        backends = {each.id: each for service in services for each in service.backends}
        for gone in self._backends.keys() - backends.keys():
            self._stats.pop(gone, None)
        for number in self._backends.keys() & backends.keys() & self._stats.keys():
            was, now = self._backends[number], backends[number]
            if (was.endpoint, was.probe, was.vlan) != (now.endpoint, now.probe, now.vlan):
                # What another kind of probe, or way, took says nothing of this one.
                self._stats[number].last_rtt_ns = 0
        for turns in (self._first, self._ties):
            turns.keep_only(backends.keys())
        # Of a service that has another mode by now: it is still waited for.
        asked = {probe.backend.id: probe.backend for probe in self._probes.values()}
        self._backends = asked | backends
        self._probed = {each.id: probed_endpoint(each) for each in self._backends.values()}
        for known in (self._latest, self._level):
            for gone in known.keys() - {each.id for each in services}:
                del known[gone]
        return ()

    def deadline(self) -> int | None:
        """The deadline of the earliest race that has an undecided flow or a probe in flight."""
        timers = self._timers
        while timers and timers[0][2].decided_ns and not timers[0][2].probes:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def expire(self, now_ns: int) -> Sequence[Step]:
        """Close the record of every race whose deadline has passed, decided or not."""
        steps: list[Step] = []
        timers = self._timers
        while timers and timers[0][0] <= now_ns:
            race = heapq.heappop(timers)[2]
            for probe in tuple(race.probes.values()):
                if not probe.record.answered_ns:
                    self._counters["probes_unanswered"] += 1
                    self._stats[probe.backend.id].losses += 1
                self._drop(probe)
            if not race.decided_ns:
                self._open_races -= 1
                self._counters["races_deadline"] += 1
                steps += race.decide(NO_BACKEND, Reason.DEADLINE, now_ns)
        return steps
