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

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from .commands import (
    Command,
    LogDecision,
    Reinject,
    SendProbe,
    SetBackendUp,
    WriteBinding,
)
from .engine_counters import engine_counters
from .events import (
    BackendPath,
    BackendState,
    BindingFailed,
    BindingTaken,
    BindingWritten,
    Event,
    FirstPacket,
    FlowClosed,
    FlowEstablished,
    ProbeReply,
    ProbeSent,
    ReplyTupleTaken,
    XdpDecided,
)
from .flow import DecisionLog, Flow, FlowInput, FlowState, IllegalTransition, next_state, state_of
from .hash_tables import HashTables
from .model import NO_BACKEND, Backend, Decision, FlowKey, Mode, Reason, Service
from .strategy import create
from .strategy.base import BackendStats, Evidence, ProbeSettings, Sequencer, Step, Strategy
from .surroundings import UNFIT_AS, Surroundings

MAX_LATENCY_NS = 0xFFFF_FFFF
"""The kernel's entry has 32 bits for it."""

SLOT_STEP = 397
"""From a slot whose backend is ruled out to the next one to try: coprime to the number of
slots, so that all of them are visited, and the same as in XDP (``DECIDE_SLOT_STEP``)."""

_U32 = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class EngineSettings(ProbeSettings):
    """Limits of the engine, beside those of probing."""

    decisions_kept: int = 10_000
    max_open_decisions: int = 20_000


class Engine:
    """One router's decisions. All backends count as down until a BackendState says up.

    ``sequence`` gives a probe's sequence number for (backend, probe port, nonce);
    ``build_table`` gives the consistent-hash slots for the backends that are up. Raise
    ValueError for a mode or a port range that cannot be used.
    """

    def __init__(
        self,
        services: Iterable[Service],
        settings: EngineSettings,
        sequence: Sequencer,
        build_table: Callable[[Sequence[Backend]], tuple[int, ...]],
    ) -> None:
        self._services = {service.id: service for service in services}
        self._settings = settings
        self._up: set[int] = set()
        self._tables = HashTables(self._services.values(), self._up, build_table)
        self._service_of: dict[int, Service] = {}
        self._surroundings = Surroundings(self._services.values())
        self._open: dict[FlowKey, Flow] = {}
        self.decisions = DecisionLog(settings.decisions_kept)
        self._strategies: dict[int, Strategy] = {}  # by service
        self._all_strategies: list[Strategy] = []
        self._by_endpoint: dict[tuple[int, int], Strategy] = {}
        by_mode: dict[Mode, list[Service]] = {}
        for service in self._services.values():
            by_mode.setdefault(service.mode, []).append(service)
            for backend in service.backends:
                self._service_of[backend.id] = service
        for mode, members in by_mode.items():
            strategy = create(mode, members, self._up, settings, sequence)
            self._all_strategies.append(strategy)
            for service in members:
                self._strategies[service.id] = strategy
                for backend in service.backends:
                    endpoint = backend.endpoint
                    self._by_endpoint[endpoint.addr, endpoint.port] = strategy
        self._counters = engine_counters()

    # What others may look at

    @property
    def open_races(self) -> int:
        """Races that flows wait for."""
        return sum(strategy.open_races for strategy in self._all_strategies)

    @property
    def open_decisions(self) -> int:
        """First packets that are held and not decided."""
        return len(self._open)

    @property
    def counters(self) -> dict[str, int]:
        """A copy of all named totals since the start."""
        merged = dict(self._counters)
        for strategy in self._all_strategies:
            for name, value in strategy.counters.items():
                merged[name] = merged.get(name, 0) + value
        return merged

    @property
    def up(self) -> frozenset[int]:
        """Ids of the backends that may be chosen."""
        return frozenset(self._up)

    @property
    def up_count(self) -> int:
        """How many backends may be chosen."""
        return len(self._up)

    def is_up(self, backend: int) -> bool:
        """Whether a backend may be chosen."""
        return backend in self._up

    @property
    def tables_waiting(self) -> int:
        """Consistent-hash tables that are older than the set of usable backends."""
        return len(self._tables)

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

    def begin(self, up: Iterable[int]) -> None:
        """Take these backends for up, before ``start``; their flags are written by the caller."""
        self._up.update(self._service_of.keys() & up)

    def start(self, carried: Collection[int] = ()) -> Iterator[Command]:
        """The commands that bring the kernel's maps to the engine's first state.

        ``carried``: services whose consistent-hash tables are there; they are made anew later.
        """
        yield from self._tables.start(carried)

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """What to do about an event. ``now_ns`` never goes back from call to call."""
        out: list[Command] = []
        if isinstance(event, FirstPacket):
            self._first_packet(event, now_ns, out)
        elif isinstance(event, BindingWritten):
            self._binding_written(event, now_ns, out)
        elif isinstance(event, ProbeSent):
            self._probe_sent(event, now_ns, out)
        elif isinstance(event, ProbeReply):
            self._probe_reply(event, now_ns, out)
        elif isinstance(event, FlowEstablished):
            self._flow_established(event)
        elif isinstance(event, FlowClosed):
            self._flow_closed(event)
        elif isinstance(event, XdpDecided):
            self._xdp_decided(event, out)
        elif isinstance(event, BindingTaken):
            self._binding_taken(event, now_ns, out)
        elif isinstance(event, ReplyTupleTaken):
            self._reply_tuple_taken(event, now_ns, out)
        elif isinstance(event, BindingFailed):
            self._binding_failed(event, now_ns, out)
        elif isinstance(event, BackendPath):
            self._surroundings.moved(event)
        else:
            self._backend_state(event, now_ns, out)
        return out

    def deadline(self) -> int | None:
        """The instant at which ``expire`` has something to do; None: never, as things are."""
        instants = [strategy.deadline() for strategy in self._all_strategies]
        instants.append(self._tables.deadline())
        return min((instant for instant in instants if instant is not None), default=None)

    def expire(self, now_ns: int) -> list[Command]:
        """Do what is due by ``now_ns``; nothing if that is nothing."""
        out: list[Command] = []
        for strategy in self._all_strategies:
            self._follow(strategy.expire(now_ns), now_ns, out)
        out.extend(self._tables.take(now_ns))
        return out

    # Choosing

    def _first_packet(self, first: FirstPacket, now_ns: int, out: list[Command]) -> None:
        self._counters["first_packets"] += 1
        if first.key in self._open:
            self._counters["first_packets_duplicate"] += 1
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
        evidence, steps = self._strategies[service.id].admit(service, first, now_ns, excluded)
        flow = self._open[first.key] = Flow(first, service, evidence, unfit, excluded)
        self._follow(steps, now_ns, out)
        if flow.mode is None:
            flow.apply(FlowInput.PROBE)

    def _follow(self, steps: Sequence[Step], now_ns: int, out: list[Command]) -> None:
        for step in steps:
            if isinstance(step, SendProbe):
                out.append(step)
                continue
            flow = self._open.get(step.first.key)
            # XDP may have decided meanwhile, and the client may even be back with a new flow.
            if flow is None or flow.first is not step.first:
                continue
            if step.backend != NO_BACKEND:
                self._choose(flow, step.backend, Mode.RACE, step.reason, now_ns, out)
            elif step.reason is Reason.ALL_REFUSED and flow.excluded <= flow.itself:
                self._choose(flow, NO_BACKEND, Mode.REFUSED, step.reason, now_ns, out)
            else:
                self._degrade(flow, step.reason, now_ns, out)

    def _degrade(self, flow: Flow, reason: Reason, now_ns: int, out: list[Command]) -> None:
        """Configured fallback, else consistent hash, else refuse. XDP has the same order."""
        fallback = flow.service.fallback
        ruled_out = flow.evidence.refused
        if fallback in self._up and fallback not in ruled_out and fallback not in flow.excluded:
            self._choose(flow, fallback, Mode.FALLBACK, reason, now_ns, out)
            return
        backend = self._hashed(flow)
        if backend != NO_BACKEND:
            self._choose(flow, backend, Mode.HASH, reason, now_ns, out)
            return
        self._choose(flow, NO_BACKEND, Mode.REFUSED, Reason.NO_CANDIDATE, now_ns, out)

    def _hashed(self, flow: Flow) -> int:
        """The flow's hash slot, or the next one whose backend is not ruled out."""
        ruled_out = flow.evidence.refused.union(flow.tried, flow.excluded)
        backend = self._slot(flow, ruled_out)
        if backend == NO_BACKEND and flow.excluded:
            # Those beside the client are better than nobody.
            backend = self._slot(flow, flow.evidence.refused.union(flow.tried, flow.itself))
        return backend

    def _slot(self, flow: Flow, ruled_out: AbstractSet[int]) -> int:
        if not any(
            each.id in self._up and each.id not in ruled_out for each in flow.service.backends
        ):
            return NO_BACKEND
        slots = self._tables.slots(flow.service.id)
        slot = flow_hash(flow.first.key)
        for _ in slots:
            backend = slots[slot % len(slots)]
            if backend not in ruled_out:
                return backend
            slot += SLOT_STEP
        return NO_BACKEND

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
        latency_ns = min(max(now_ns - first.seen_ns, 0), MAX_LATENCY_NS)
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
        out.append(Reinject(flow.first))
        self._keep(decision, out)

    def _keep(self, decision: Decision, out: list[Command]) -> None:
        self._counters[_COUNTED_AS[decision.mode]] += 1
        self.decisions.add(decision)
        out.append(LogDecision(decision))

    def _reply_tuple_taken(self, event: ReplyTupleTaken, now_ns: int, out: list[Command]) -> None:
        flow = self._open.get(event.key)
        if flow is None or flow.backend != event.backend:
            self._counters["binding_answers_unmatched"] += 1
            return
        self._counters["binding_tuple_taken"] += 1
        flow.meet_taken_tuple()
        choice = None if flow.take_over else self._free_candidate(flow)
        if choice is None:
            # Second best: a backend that has just had this tuple may be in TIME_WAIT.
            flow.take_over = True
            usable = [each for each in flow.taken if each[0] in self._up]
            choice, flow.taken = (usable[0] if usable else _NOBODY), usable[1:]
        self._choose(flow, *choice, now_ns, out)

    def _free_candidate(self, flow: Flow) -> tuple[int, Mode, Reason] | None:
        """Who answered, in order, then the rest by hash; None: all of them were tried."""
        for backend in flow.evidence.answered:
            if backend in self._up and backend not in flow.tried:
                return backend, Mode.RACE, Reason.TUPLE_TAKEN
        backend = self._hashed(flow)
        return None if backend == NO_BACKEND else (backend, Mode.HASH, Reason.TUPLE_TAKEN)

    def _binding_failed(self, event: BindingFailed, now_ns: int, out: list[Command]) -> None:
        flow = self._answered(event.key)
        if flow is None:
            return
        self._counters["binding_failed"] += 1
        # The frame is let go: XDP decides when the client retransmits.
        decision = flow.settle()
        decision.error = event.error
        decision.closed_ns = now_ns
        self.decisions.add(decision)
        out.append(LogDecision(decision))

    def _xdp_decided(self, event: XdpDecided, out: list[Command]) -> None:
        flow = self._open.pop(event.key, None)
        if flow is not None:
            # Its retransmit was forwarded by XDP: nothing to write, nothing to send.
            flow.choose(event.backend, event.mode, event.reason, event.decided_ns)
            decision = flow.settle()
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
        self._counters["decided_by_xdp"] += 1
        self._keep(decision, out)

    # Probes

    def _probe_sent(self, event: ProbeSent, now_ns: int, out: list[Command]) -> None:
        service = self._service_of.get(event.backend)
        if service is None:
            self._counters["backend_unknown"] += 1
            return
        self._follow(self._strategies[service.id].probe_sent(event, now_ns), now_ns, out)

    def _probe_reply(self, event: ProbeReply, now_ns: int, out: list[Command]) -> None:
        strategy = self._by_endpoint.get((event.backend_addr, event.backend_port))
        if strategy is None:
            self._counters["probe_answers_unknown_backend"] += 1
            return
        self._follow(strategy.probe_reply(event, now_ns), now_ns, out)

    # What becomes of the flow

    def _flow_established(self, event: FlowEstablished) -> None:
        flow = self._open.get(event.key)
        decision = self.decisions.newest(event.key)
        if (
            decision is None
            or decision.backend != event.backend
            or (flow is not None and event.established_ns >= flow.first.seen_ns)
        ):
            # Older than what is kept; or XDP's decision, whose event was lost: the write that
            # is still to come will find it.
            self._counters["flow_updates_unmatched"] += 1
            return
        if self._moves(decision, FlowInput.STREAM):
            decision.established_ns = event.established_ns
            decision.synack_us = event.synack_us
            decision.fppl_ns = event.fppl_ns

    def _flow_closed(self, event: FlowClosed) -> None:
        decision = self.decisions.newest(event.key)
        if decision is None or event.closed_ns < decision.seen_ns:
            self._counters["flow_updates_unmatched"] += 1
            return
        if self._moves(decision, FlowInput.CLOSE):
            decision.first_data_us = event.first_data_us
            decision.closed_ns = event.closed_ns

    def _moves(self, decision: Decision, given: FlowInput) -> bool:
        try:
            next_state(state_of(decision), given)
        except IllegalTransition:
            self._counters["flow_updates_illegal"] += 1
            return False
        return True

    # Backends

    def _backend_state(self, event: BackendState, now_ns: int, out: list[Command]) -> None:
        service = self._service_of.get(event.backend)
        if service is None:
            self._counters["backend_unknown"] += 1
            return
        if event.up is (event.backend in self._up):
            return
        self._counters["backend_changes"] += 1
        if event.up:
            self._up.add(event.backend)
        else:
            self._up.remove(event.backend)
        self._strategies[service.id].backend_state(service, event.backend, event.up)
        self._tables.changed(service.id)
        out.append(SetBackendUp(event.backend, event.up))
        out.extend(self._tables.take(now_ns))


_NOBODY = (NO_BACKEND, Mode.REFUSED, Reason.TUPLE_TAKEN)
_COUNTED_AS = {mode: f"decided_{mode.name.lower()}" for mode in Mode}


def flow_hash(key: FlowKey) -> int:
    """A five-tuple's 32-bit hash, as XDP computes it: both find the same slot for a flow."""
    mixed = key.client_addr * 0x9E37_79B1 & _U32
    mixed ^= mixed >> 15
    mixed += key.client_port << 16 | key.service_port
    mixed = mixed * 0x85EB_CA6B & _U32
    mixed ^= mixed >> 13
    mixed = (mixed + key.service_addr) * 0xC2B2_AE35 & _U32
    return mixed ^ (mixed >> 16)
