# SPDX-License-Identifier: Apache-2.0
"""The decision engine: events in, commands out. It does no I/O and reads no clock.

    commands = engine.handle(event, now_ns)    something happened
    engine.deadline()                          when it wants to be woken next
    commands = engine.expire(now_ns)           that instant has come

A strategy picks a backend for each held first packet; the engine turns the pick into a
binding, walks the degrade chain where there is no pick, and keeps the newest decisions for
whoever asks why. The kernel has the last word: a decision is final only when the executor
reports that the binding was written, or that somebody else's was there first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from .availability import Availability
from .commands import Command, LogDecision, Reinject, WriteBinding
from .companions import WAITS, Companions
from .degrade_chain import DegradeChain
from .engine_counters import engine_counters
from .engine_settings import EngineSettings as EngineSettings
from .events import (
    BackendDrain,
    BackendPath,
    BackendState,
    BindingFailed,
    BindingTaken,
    BindingWritten,
    Datagram,
    Event,
    FirstPacket,
    FlowClosed,
    FlowEstablished,
    FlowsEnded,
    FlowSigns,
    ProbeReplies,
    ProbeReply,
    ProbeSent,
    RepliesFound,
    ReplyTupleTaken,
    XdpDecided,
)
from .flow import DecisionLog, Flow, FlowInput, FlowState, state_of
from .flow_updates import FlowUpdates
from .hash_tables import BuildTable, HashTables
from .health_watch import HealthWatch
from .held import hold, is_udp, release
from .model import NO_BACKEND, Decision, FlowKey, Forwarding, Mode, Reason, Service
from .roster import Roster
from .score_inputs import ScoreInputs
from .standing import Standing
from .strategy.base import BackendStats, Evidence, Sequencer, Step, Verdict
from .strategy.control_arm import ControlArm
from .strategy.probing import Draw, LoadOf, Servers, Shared, no_draw, no_load
from .surroundings import UNFIT_AS, Surroundings


class Engine:
    """One router's decisions. All backends count as down until a BackendState says up.

    ``sequence`` gives a probe's sequence number for (backend, probe port, nonce);
    ``build_table`` gives a service's consistent-hash slots from its backends and the ids that
    are up; ``draw`` gives random numbers, ``load_of`` what XDP knows of a backend's load.
    Raise ValueError for a mode or a port range that cannot be used.
    """

    def __init__(
        self,
        services: Iterable[Service],
        settings: EngineSettings,
        sequence: Sequencer,
        build_table: BuildTable,
        draw: Draw = no_draw,
        load_of: LoadOf = no_load,
    ) -> None:
        self._settings = settings
        self.backends = Availability()
        self._up = self.backends.usable
        servers = Servers(settings)
        watch = HealthWatch(sequence, servers, draw)
        shared = Shared(servers, ScoreInputs(), draw, load_of, watch)
        self.roster = Roster(self._up, sequence, shared)
        self.roster.apply(services, settings)
        self._services = self.roster.services
        self._service_of = self.roster.service_of
        self._strategies = self.roster.strategies
        self.tables = HashTables(self._services.values(), self._up, build_table)
        self.standing = Standing(watch, self.backends, self.roster, self.tables)
        self.standing.apply((), self._services.values(), 0)
        self._chain = DegradeChain(self._up, self.tables)
        self._surroundings = Surroundings(self._services.values())
        self._open: dict[FlowKey, Flow] = {}
        self._companions = Companions()
        self.decisions = DecisionLog(settings.decisions_kept)
        self._control_arm = ControlArm(self._up, self.tables.find)
        self._counters = engine_counters()
        self._updates = FlowUpdates(self.decisions, self._counters)

    # What others may look at

    @property
    def open_races(self) -> int:
        """Races that flows wait for."""
        return self.roster.open_races

    @property
    def open_decisions(self) -> int:
        """First packets that are held and not decided."""
        return len(self._open)

    @property
    def counters(self) -> dict[str, int]:
        """A copy of all named totals since the start."""
        return self.standing.add_counters(self.roster.add_counters(dict(self._counters)))

    @property
    def up(self) -> frozenset[int]:
        """Ids of the backends that may be chosen."""
        return frozenset(self._up)

    @property
    def up_count(self) -> int:
        """How many backends may be chosen."""
        return len(self._up)

    @property
    def tables_waiting(self) -> int:
        """Consistent-hash tables that are older than the set of usable backends."""
        return len(self.tables)

    def flow_state(self, key: FlowKey) -> FlowState | None:
        """Where a flow is in its life; None if nothing is known of it (any more)."""
        flow = self._open.get(key)
        if flow is not None:
            return flow.state
        decision = self.decisions.newest(key)
        return None if decision is None else state_of(decision)

    def backend_stats(self, backend: int) -> BackendStats:
        """What probing has shown of a backend. Raise KeyError if there is no such backend."""
        service = self._service_of[backend]
        return self._strategies[service.id].stats(backend) or BackendStats()

    # The three entries

    def begin(
        self,
        up: Iterable[int],
        draining: Iterable[int] = (),
        ill: Iterable[int] = (),
        now_ns: int = 0,
    ) -> list[Command]:
        """Take these backends for up, before ``start``; their flags are written by the caller,
        but for those that ``ill`` names: see ``Standing.begin``."""
        return self.standing.begin(up, draining, ill, now_ns)

    def start(self, carried: Collection[int] = ()) -> Iterator[Command]:
        """The commands that bring the kernel's maps to the engine's first state.

        ``carried``: services whose consistent-hash tables are there; they are made anew later.
        """
        yield from self.tables.start(carried)

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """What to do about an event. ``now_ns`` never goes back from call to call."""
        out: list[Command] = []
        if isinstance(event, FirstPacket):
            self._first_packet(event, now_ns, out)
        elif isinstance(event, Datagram):
            self._datagram(event, out)
        elif isinstance(event, BindingWritten):
            self._binding_written(event, now_ns, out)
        elif isinstance(event, ProbeSent):
            self._probe_sent(event, now_ns, out)
        elif isinstance(event, ProbeReply):
            self._probe_replies((event,), now_ns, out)
        elif isinstance(event, ProbeReplies):
            self._probe_replies(event.answers, now_ns, out)
        elif isinstance(event, FlowEstablished):
            out.extend(self._updates.established(event, self._open.get(event.key)))
        elif isinstance(event, FlowClosed):
            self._updates.closed(event)
        elif isinstance(event, XdpDecided):
            self._xdp_decided(event, now_ns, out)
        elif isinstance(event, BindingTaken):
            self._binding_taken(event, now_ns, out)
        elif isinstance(event, ReplyTupleTaken):
            self._reply_tuple_taken(event, now_ns, out)
        elif isinstance(event, BindingFailed):
            self._binding_failed(event, now_ns, out)
        elif isinstance(event, BackendPath):
            self._surroundings.moved(event)
        else:
            self._about_backend(event, now_ns, out)
        return out

    def deadline(self) -> int | None:
        """The instant at which ``expire`` has something to do; None: never, as things are."""
        instants = (self.roster.deadline(), self.tables.deadline(), self.standing.deadline())
        return min((instant for instant in instants if instant is not None), default=None)

    def expire(self, now_ns: int) -> list[Command]:
        """Do what is due by ``now_ns``; nothing if that is nothing."""
        out: list[Command] = []
        for strategy in self.roster.all_strategies:
            self._follow(strategy.expire(now_ns), now_ns, out)
        self.standing.expire(now_ns, out)
        out.extend(self.tables.take(now_ns))
        return out

    def apply(
        self,
        services: Iterable[Service],
        settings: EngineSettings,
        now_ns: int,
        retired: Collection[int] = (),
    ) -> list[Command]:
        """Have these services and settings from now on; ids as ``identity`` gives them.

        Open decisions of services that stay go on, without backends that depart; those of
        others are let go. Backends that come count as down. ``retired``: ids of those that only
        flows have. Raise ValueError, and change nothing, for a mode that is not available.
        """
        services = tuple(services)
        before = tuple(self._services.values())
        departed = self.roster.departing(services)
        for backend in departed.backends:
            self.backends.forget(backend)
        steps = self.roster.apply(services, settings)
        self._control_arm.keep_only(self._service_of.keys())
        self._settings = settings
        self._surroundings.apply(services)
        self._companions.forget(departed.services, departed.backends)
        for key, flow in list(self._open.items()):
            if flow.service.id in departed.services:
                del self._open[key]
                self._counters["datagrams_dropped"] += len(flow.held)
            else:
                flow.service = self._services[flow.service.id]
        self.decisions.limit(settings.decisions_kept)
        out: list[Command] = [*self.tables.apply(services), *self.tables.take(now_ns)]
        out += self.standing.apply(before, services, now_ns, retired)
        self._follow(steps, now_ns, out)
        return out

    # Choosing

    def _first_packet(self, first: FirstPacket, now_ns: int, out: list[Command]) -> None:
        self._counters["first_packets"] += 1
        if first.key in self._open:
            self._counters["first_packets_duplicate"] += 1
            if is_udp(first.key):  # the kernel forgot that it held one: this is the next
                self._datagram(first, out)
            return
        service = self._services.get(first.service)
        if service is None:
            # Left to XDP, which decides when the client retransmits.
            self._counters["first_packets_unknown_service"] += 1
            return
        unfit, excluded = self._surroundings.unfit(service, first, self._up)
        for _, why in unfit:
            self._counters[UNFIT_AS[why]] += 1
        if len(self._open) >= self._settings.max_open_decisions:
            self._counters["first_packets_overload"] += 1
            flow = self._open[first.key] = Flow(first, service, Evidence(), unfit, excluded)
            self._degrade(flow, Reason.OVERLOAD, now_ns, out)
            return
        self._admit(Flow(first, service, Evidence(), unfit, excluded), now_ns, out)

    def _admit(self, flow: Flow, now_ns: int, out: list[Command]) -> None:
        first, service = flow.first, flow.service
        self._open[first.key] = flow
        if service.affinity_ns:
            backend = self._companions.meet(flow, now_ns)
            if backend == WAITS or self._joins(flow, backend, now_ns, out):
                return
        verdict = self._control_arm.decide(service, first, flow.excluded)
        if verdict is not None:
            self._follow((verdict,), now_ns, out)
            return
        flow.evidence, steps = self._strategies[service.id].admit(
            service, first, now_ns, flow.excluded
        )
        self._follow(steps, now_ns, out)
        if flow.mode is None:
            flow.apply(FlowInput.PROBE)

    def _datagram(self, datagram: Datagram | FirstPacket, out: list[Command]) -> None:
        flow = self._open.get(datagram.key)
        if flow is None:
            # Decided meanwhile: the first has left, and the program knows where this one goes.
            out.append(Reinject(datagram))
        elif hold(flow, datagram):
            self._counters["datagrams_held"] += 1
        else:
            self._counters["datagrams_dropped"] += 1

    def _joins(self, flow: Flow, backend: int | None, now_ns: int, out: list[Command]) -> bool:
        """Whether the flow can go where another one of its source went."""
        if backend is None:
            return False
        if backend not in self._up or backend in flow.excluded:
            self._companions.leave(flow)
            return False
        self._choose(flow, backend, Mode.STICKY, Reason.AFFINITY, now_ns, out)
        return True

    def _settled(self, flow: Flow, backend: int, now_ns: int, out: list[Command]) -> None:
        """The flow is decided, or let go: those of its source that waited go on."""
        if not flow.service.affinity_ns and not self._companions.is_ahead(flow):
            return
        for each in self._companions.settled(flow, backend, now_ns):
            if self._open.get(each.first.key) is each:  # else XDP has decided it
                self._admit(each, now_ns, out)

    def _follow(self, steps: Sequence[Step], now_ns: int, out: list[Command]) -> None:
        for step in steps:
            if not isinstance(step, Verdict):
                out.append(step)
                continue
            flow = self._open.get(step.first.key)
            # XDP may have decided meanwhile, and the client may even be back with a new flow.
            if flow is None or flow.first is not step.first:
                continue
            if step.backend != NO_BACKEND:
                self._choose(flow, step.backend, step.mode, step.reason, now_ns, out)
            elif step.reason is Reason.ALL_REFUSED and self._chain.is_refused(flow):
                self._choose(flow, NO_BACKEND, Mode.REFUSED, step.reason, now_ns, out)
            else:
                self._degrade(flow, step.reason, now_ns, out)

    def _degrade(self, flow: Flow, reason: Reason, now_ns: int, out: list[Command]) -> None:
        self._choose(flow, *self._chain.choice(flow, reason), now_ns, out)

    def _choose(
        self,
        flow: Flow,
        backend: int,
        mode: Mode,
        reason: Reason,
        now_ns: int,
        out: list[Command],
    ) -> None:
        flow.choose(backend, mode, reason, now_ns)
        first = flow.first
        latency_ns = max(now_ns - first.seen_ns, 0)
        out.append(WriteBinding(first, backend, mode, reason, latency_ns, flow.take_over))

    # What became of the choice

    def _answered(self, key: FlowKey) -> Flow | None:
        """Take out the flow whose binding the executor has answered for."""
        flow = self._open.get(key)
        if flow is None or flow.mode is None:
            self._counters["binding_answers_unmatched"] += 1
            return None
        del self._open[key]
        return flow

    def _binding_written(self, event: BindingWritten, now_ns: int, out: list[Command]) -> None:
        flow = self._answered(event.key)
        if flow is None:
            return
        self._finish(flow, now_ns, out)

    def _binding_taken(self, event: BindingTaken, now_ns: int, out: list[Command]) -> None:
        flow = self._answered(event.key)
        if flow is None:
            return
        self._counters["binding_taken"] += 1
        flow.choose(event.backend, event.mode, event.reason, now_ns)
        # XDP may have sent a retransmit of the same SYN: a second copy does no harm there,
        # a lost one would.
        self._finish(flow, now_ns, out)

    def _finish(self, flow: Flow, now_ns: int, out: list[Command]) -> None:
        decision = flow.settle()
        decision.reinjected_ns = now_ns
        out.extend(release(flow))
        self._keep(decision, out)
        self._settled(flow, decision.backend, now_ns, out)

    def _keep(self, decision: Decision, out: list[Command]) -> None:
        self._counters[_COUNTED_AS[decision.mode]] += 1
        if decision.mode is Mode.SNAPSHOT:
            decision.snapshot = self.roster.snapshot(decision.service)
        self.decisions.add(decision)
        out.append(LogDecision(decision))

    def _reply_tuple_taken(self, event: ReplyTupleTaken, now_ns: int, out: list[Command]) -> None:
        flow = self._open.get(event.key)
        if flow is None or flow.backend != event.backend:
            self._counters["binding_answers_unmatched"] += 1
            return
        self._counters["binding_tuple_taken"] += 1
        flow.meet_taken_tuple()
        choice = None if flow.take_over else self._chain.another(flow)
        if choice is None:
            # Second best: a backend that has just had this tuple may be in TIME_WAIT.
            flow.take_over = True
            if flow.service.forwarding is Forwarding.FULLNAT:
                flow.taken = []  # a port that is in use, or rests, is nobody else's
            usable = [each for each in flow.taken if each[0] in self._up]
            choice, flow.taken = (usable[0] if usable else _NOBODY), usable[1:]
        self._choose(flow, *choice, now_ns, out)

    def _binding_failed(self, event: BindingFailed, now_ns: int, out: list[Command]) -> None:
        flow = self._answered(event.key)
        if flow is None:
            return
        self._counters["binding_failed"] += 1
        # The frame is let go: XDP decides when the client retransmits.
        self._counters["datagrams_dropped"] += len(flow.held)
        decision = flow.settle()
        decision.error = event.error
        decision.closed_ns = now_ns
        self.decisions.add(decision)
        out.append(LogDecision(decision))
        self._settled(flow, NO_BACKEND, now_ns, out)

    def _xdp_decided(self, event: XdpDecided, now_ns: int, out: list[Command]) -> None:
        flow = self._open.pop(event.key, None)
        if flow is not None:
            # Its retransmit was forwarded by XDP: nothing to write, nothing to send. But a
            # datagram that is held is like no other.
            flow.choose(event.backend, event.mode, event.reason, event.decided_ns)
            decision = flow.settle()
            if is_udp(event.key):
                out.extend(release(flow))
        else:
            known = self.decisions.newest(event.key)
            if known is not None and known.seen_ns == event.seen_ns and not known.error:
                # The write found this binding before its event came through the ring.
                self._counters["decided_by_xdp_known"] += 1
                known.decided_ns = event.decided_ns
                return
            decision = Decision(
                event.key,
                event.service,
                event.backend,
                event.mode,
                event.reason,
                event.seen_ns,
                event.decided_ns,
            )
        decision.compared = event.compared
        self._counters["decided_by_xdp"] += 1
        self._keep(decision, out)
        if flow is not None:
            self._settled(flow, decision.backend, now_ns, out)

    # Probes

    def _probe_sent(self, event: ProbeSent, now_ns: int, out: list[Command]) -> None:
        if self.standing.watch.probe_sent(event):
            return
        service = self._service_of.get(event.backend)
        if service is None:
            self._counters["backend_unknown"] += 1
            return
        self._follow(self._strategies[service.id].probe_sent(event, now_ns), now_ns, out)

    def _probe_replies(
        self, answers: Sequence[ProbeReply], now_ns: int, out: list[Command]
    ) -> None:
        shares, unknown = self.roster.share_out(self.standing.watch.take(answers, now_ns))
        self._counters["probe_answers_unknown_backend"] += unknown
        for strategy, its in shares.items():
            self._follow(strategy.probe_replies(its, now_ns), now_ns, out)

    # Backends

    def _about_backend(self, event: Event, now_ns: int, out: list[Command]) -> None:
        if isinstance(event, BackendState | BackendDrain):
            service = self._service_of.get(event.backend)
            if service is not None:
                self.standing.backend_state(service, event, now_ns, out)
            elif not self.standing.retired_state(event, now_ns):
                self._counters["backend_unknown"] += 1
        elif isinstance(event, FlowSigns):
            self.standing.flow_signs(event, now_ns)
        elif isinstance(event, RepliesFound):
            self.standing.replies_found(event, now_ns, out)
        elif isinstance(event, FlowsEnded):
            self.standing.flows_ended(event, now_ns, out)


_NOBODY = (NO_BACKEND, Mode.REFUSED, Reason.TUPLE_TAKEN)
_COUNTED_AS = {mode: f"decided_{mode.name.lower()}" for mode in Mode}
