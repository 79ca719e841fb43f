# SPDX-License-Identifier: Apache-2.0
"""Mode ``race``: probe every candidate at once, the first good answer decides.

A race belongs to one service. Its leader is the first packet that started it; first packets
that come while it runs, or shortly after it was decided, join it, so that the number of
probes a second is bounded whatever the load. A race keeps its record open until its deadline:
answers that come after the decision still show up in ``explain``.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from ..commands import SendProbe
from ..events import FirstPacket, ProbeReply, ProbeSent
from ..model import NO_BACKEND, Backend, Endpoint, ProbeAnswer, ProbeRecord, Reason, Service
from ..ports import ProbePorts
from ..ratelimit import TokenBucket
from .base import BackendStats, Evidence, ProbeSettings, Sequencer, Step, Verdict

LATE_GRACE_NS = 1_000_000
"""The least time that a race is given. An event that is handled late may come after
``seen + deadline``; its probes have been paid for, and XDP decides by itself only when the
client retransmits, so a millisecond costs nothing and often saves the measurement."""

_NOBODY: frozenset[int] = frozenset()


class _Race(Evidence):
    """One race: the ``members`` that wait for it and the ``probes`` that are outstanding."""

    __slots__ = (
        "deadline_ns",
        "decided_ns",
        "members",
        "probes",
        "reason",
        "short",
        "winner",
    )

    def __init__(self, leader: FirstPacket, deadline_ns: int) -> None:
        super().__init__()
        self.members: list[FirstPacket] = [leader]
        self.deadline_ns = deadline_ns
        self.probes: dict[int, _Probe] = {}  # by backend: those that may still tell something
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

    def __init__(self, race: _Race, backend: Backend, port: int, seq: int) -> None:
        self.race = race
        self.backend = backend
        self.key = (backend.endpoint.addr, backend.endpoint.port, port)
        self.seq = seq
        self.record = ProbeRecord(backend.id, 0)


class _Server:
    """What one endpoint is probed by: source ports, and the budget."""

    __slots__ = ("budget", "ports")

    def __init__(self, settings: ProbeSettings) -> None:
        self.ports = ProbePorts(settings.probe_port_min, settings.probe_port_max)
        self.budget = TokenBucket(settings.probe_rate, settings.probe_burst)


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
    ) -> None:
        self._up = up
        self._settings = settings
        self._sequence = sequence
        # By service, and by the backends that are left out: at most one set a backend's address
        # and a subnet, whatever clients call themselves.
        self._latest: dict[int, dict[frozenset[int], _Race]] = {}
        self._probes: dict[tuple[int, int, int], _Probe] = {}
        self._timers: list[tuple[int, int, _Race]] = []
        self._races_started = 0
        self._open_races = 0
        self._backends: dict[int, Backend] = {}
        self._stats: defaultdict[int, BackendStats] = defaultdict(BackendStats)
        # Two backends may be one server: what an answer is matched by, and what a server has
        # to bear, both go by the endpoint.
        self._servers: dict[Endpoint, _Server] = {}  # those that were probed
        for service in services:
            for backend in service.backends:
                self._backends[backend.id] = backend
        _Server(settings)  # bad limits are told now
        self._counters = dict.fromkeys(
            (
                "races_started",
                "races_joined",
                "races_joined_after",
                "races_won",
                "races_all_refused",
                "races_deadline",
                "probes_requested",
                "probes_over_budget",
                "probes_without_port",
                "probes_not_sent",
                "probes_synack",
                "probes_rst",
                "probes_unreachable",
                "probes_unanswered",
                "probes_backend_down",
                "probe_answers_late",
                "probe_answers_unmatched",
                "probe_sends_unmatched",
            ),
            0,
        )

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
        race = _Race(first, deadline_ns)
        # Whoever is asked first has a head start of some microseconds over an equal: each
        # has it in turn.
        turn = self._races_started % len(candidates)
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
        server = self._servers.get(backend.endpoint)
        if server is None:
            server = self._servers[backend.endpoint] = _Server(self._settings)
        if not server.budget.take(now_ns):
            self._counters["probes_over_budget"] += 1
            return None
        slot = server.ports.acquire()
        if slot is None:
            self._counters["probes_without_port"] += 1
            return None
        seq = self._sequence(backend, slot.port, slot.nonce)
        probe = _Probe(race, backend, slot.port, seq)
        self._probes[probe.key] = probe
        race.probes[backend.id] = probe
        race.records.append(probe.record)
        self._counters["probes_requested"] += 1
        return SendProbe(backend.id, slot.port, seq)

    # Probes

    def probe_sent(self, event: ProbeSent, now_ns: int) -> Sequence[Step]:
        """Note the send time stamp; ``sent_ns`` 0: that candidate has lost."""
        backend = self._backends.get(event.backend)
        probe = None
        if backend is not None:
            endpoint = backend.endpoint
            probe = self._probes.get((endpoint.addr, endpoint.port, event.probe_port))
        if probe is None or probe.seq != event.seq or probe.record.sent_ns:
            self._counters["probe_sends_unmatched"] += 1
            return ()
        if event.sent_ns:
            probe.record.sent_ns = event.sent_ns
            if probe.record.answered_ns:  # the answer was handled first
                self._measured(probe)
                self._drop(probe)
            return ()
        self._counters["probes_not_sent"] += 1
        if not probe.record.answered_ns:
            self._stats[probe.backend.id].losses += 1
        self._drop(probe)
        return ()  # not a refusal: the race goes on until its deadline

    def probe_reply(self, event: ProbeReply, now_ns: int) -> Sequence[Step]:
        """Note an answer; the first SYN-ACK wins, a refusal loses."""
        probe = self._probes.get((event.backend_addr, event.backend_port, event.probe_port))
        if probe is None or probe.seq != event.seq or probe.record.answered_ns:
            self._counters["probe_answers_unmatched"] += 1
            return ()
        race = probe.race
        record = probe.record
        record.answer = event.answer
        record.answered_ns = event.received_ns
        if race.decided_ns:
            self._counters["probe_answers_late"] += 1
        if record.sent_ns:
            self._measured(probe)
            self._drop(probe)
        stats = self._stats[record.backend]
        if event.answer is ProbeAnswer.SYNACK:
            self._counters["probes_synack"] += 1
            stats.answers += 1
            race.answered.append(record.backend)
            if race.decided_ns:
                return ()
            stats.wins += 1
            self._counters["races_won"] += 1
            self._open_races -= 1
            return race.decide(record.backend, Reason.RACE_WON, now_ns)
        stats.losses += 1
        refusal = "probes_rst" if event.answer is ProbeAnswer.RST else "probes_unreachable"
        self._counters[refusal] += 1
        race.refused.add(record.backend)
        return self._refused_by_all(race, now_ns)

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
        if probe.record.answer is ProbeAnswer.SYNACK:
            self._stats[probe.backend.id].last_rtt_ns = probe.record.rtt_ns

    def _drop(self, probe: _Probe) -> None:
        """Nothing more is expected of this probe: its port may be used again."""
        del self._probes[probe.key]
        self._servers[probe.backend.endpoint].ports.release(probe.key[2])
        del probe.race.probes[probe.backend.id]

    # Backends and time

    def backend_state(self, service: Service, backend: int, up: bool) -> None:
        """Down: its outstanding probes have lost. Up: an old outcome says nothing of it."""
        if up:
            latest = self._latest.get(service.id, {})
            for excluded in [each for each, race in latest.items() if race.decided_ns]:
                del latest[excluded]
            return
        endpoint = self._backends[backend].endpoint
        server = self._servers.get(endpoint)
        for port in server.ports.held if server is not None else ():
            probe = self._probes[endpoint.addr, endpoint.port, port]
            if probe.backend.id != backend:
                continue
            if not probe.record.answered_ns:
                self._counters["probes_backend_down"] += 1
                self._stats[backend].losses += 1
            self._drop(probe)

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
