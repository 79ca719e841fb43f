# SPDX-License-Identifier: Apache-2.0
"""Whatever the order of answers, timeouts and newcomers: one decision a flow, in time.

The machine plays kernel, backends and executor in any order and at any pace. It wakes the
engine exactly when ``deadline`` asks for it, as the daemon does.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.cast import sequence
from tests.support.playbook import MS, US
from xdp_router.core.commands import Command, LogDecision, Reinject, SendProbe, WriteBinding
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.events import (
    BackendState,
    BindingFailed,
    BindingTaken,
    BindingWritten,
    Event,
    FirstPacket,
    ProbeReply,
    ProbeSent,
    ReplyTupleTaken,
    XdpDecided,
)
from xdp_router.core.model import (
    NO_BACKEND,
    Backend,
    Endpoint,
    FlowKey,
    Mode,
    ProbeAnswer,
    Reason,
    Service,
)
from xdp_router.core.strategy.race import LATE_GRACE_NS

BACKENDS = tuple(
    Backend(number, f"b{number}", Endpoint(0xC6120100 + number, 8080), number // 3)
    for number in range(5)
)
SERVICES = (
    Service(0, "web", Endpoint(0xC6126401, 80), BACKENDS[:3], fallback=1, deadline_ns=50 * MS),
    Service(1, "api", Endpoint(0xC6126402, 80), BACKENDS[3:], deadline_ns=20 * MS),
)
RATE, BURST = 200, 6
SETTINGS = EngineSettings(
    probe_rate=RATE,
    probe_burst=BURST,
    probe_port_min=61_000,
    probe_port_max=61_007,
    decisions_kept=5,
    max_open_decisions=12,
)
ANSWERS = (ProbeAnswer.SYNACK, ProbeAnswer.SYNACK, ProbeAnswer.RST, ProbeAnswer.UNREACHABLE)


def small_table(backends: Sequence[Backend], up: AbstractSet[int]) -> tuple[int, ...]:
    """A table that is quick to build; which backend has which slot does not matter here."""
    usable = [each for each in backends if each.id in up]
    if not usable:
        return (NO_BACKEND,) * 7
    return tuple(usable[slot % len(usable)].id for slot in range(7))


@dataclass
class Held:
    """A first packet that was accepted, and what has come of it."""

    first: FirstPacket
    handled_ns: int
    writing: WriteBinding | None = None
    writes: int = 0


class Router(RuleBasedStateMachine):
    """Invariant: each accepted first packet gets exactly one final decision, in time."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(SERVICES, SETTINGS, sequence, small_table)
        self.now = 1_000 * MS
        self.up: set[int] = set()
        self.held: dict[FlowKey, Held] = {}
        self.final = 0
        self.accepted = 0
        self.probes: list[SendProbe] = []
        self.sent_at: dict[int, list[int]] = {backend.id: [] for backend in BACKENDS}
        self.outstanding: dict[tuple[int, int], int] = {}

    # The executor and the checks on what it is told to do

    def tell(self, event: Event) -> None:
        """Hand over an event; only a first packet may cause probes."""
        self.obey(self.engine.handle(event, self.now), event)

    def obey(self, commands: list[Command], event: Event | None) -> None:
        """Check each command against what a router may do."""
        probed: list[int] = []
        for command in commands:
            if isinstance(command, SendProbe):
                assert isinstance(event, FirstPacket)
                probed.append(command.backend)
                self.check_probe(command, event)
            elif isinstance(command, WriteBinding):
                self.check_write(command)
            elif isinstance(command, Reinject):
                assert isinstance(event, (BindingWritten, BindingTaken))
                assert command.first is self.held[event.key].first
            elif isinstance(command, LogDecision):
                self.check_final(command)
        assert len(probed) == len(set(probed))

    def check_probe(self, probe: SendProbe, event: FirstPacket) -> None:
        """Only to candidates that are up, within budget, on a port without a probe."""
        service = SERVICES[event.service]
        assert probe.backend in self.up
        assert probe.backend in [backend.id for backend in service.backends]
        until = self.outstanding.get((probe.backend, probe.probe_port), 0)
        assert until <= self.now
        deadline = max(event.seen_ns + service.deadline_ns, self.now + LATE_GRACE_NS)
        self.outstanding[probe.backend, probe.probe_port] = deadline
        times = self.sent_at[probe.backend]
        times.append(self.now)
        for index, earlier in enumerate(times):
            allowed = BURST + RATE * (self.now - earlier) / 1e9
            assert len(times) - index <= allowed + 1e-9
        self.probes.append(probe)

    def check_write(self, write: WriteBinding) -> None:
        """For an open flow, one at a time, in time, to a backend that is up (or refusing)."""
        held = self.held[write.first.key]
        assert held.first is write.first
        assert held.writing is None
        assert (write.backend == NO_BACKEND) == (write.mode is Mode.REFUSED)
        assert write.backend == NO_BACKEND or write.backend in self.up
        if held.writes == 0:
            allowed = max(SERVICES[write.first.service].deadline_ns, LATE_GRACE_NS)
            assert self.now <= held.handled_ns + allowed
        held.writing = write
        held.writes += 1
        assert held.writes <= len(SERVICES[write.first.service].backends) + 1

    def check_final(self, log: LogDecision) -> None:
        """Each accepted flow is logged once."""
        held = self.held.pop(log.decision.key)
        assert log.decision.seen_ns == held.first.seen_ns
        self.final += 1

    def wait(self, until_ns: int) -> None:
        """Let time pass; wake the engine at each instant that it has asked for."""
        while (due := self.engine.deadline()) is not None and due <= until_ns:
            assert due >= self.now
            self.now = due
            self.obey(self.engine.expire(due), None)
            again = self.engine.deadline()
            assert again is None or again > due
        self.now = until_ns

    # What can happen

    @rule(gap=st.sampled_from([0, 1, 30 * US, 500 * US, 2 * MS, 7 * MS, 49 * MS, 200 * MS]))
    def time_passes(self, gap: int) -> None:
        """Nothing else happens for a while."""
        self.wait(self.now + gap)

    @rule(
        port=st.integers(1, 16),
        service=st.integers(0, 1),
        age=st.sampled_from([0, 10 * US, 3 * MS, 60 * MS]),
    )
    def first_packet(self, port: int, service: int, age: int) -> None:
        """A SYN, perhaps of a flow that is open, perhaps handled late."""
        key = FlowKey(0xC6120001, port, SERVICES[service].endpoint.addr, 80)
        first = FirstPacket(key, service, 2, self.now - age, port, 0, 7, b"syn")
        if key not in self.held:
            self.held[key] = Held(first, self.now)
            self.accepted += 1
        self.tell(first)

    @rule(which=st.integers(0, 30), works=st.sampled_from([True, True, True, False]))
    def probe_was_sent(self, which: int, works: bool) -> None:
        """The executor reports a probe: any of the last ones, perhaps twice."""
        if self.probes:
            probe = self.probes[-1 - which % len(self.probes)]
            at = self.now if works else 0
            if not works:
                self.release(probe)
            self.tell(ProbeSent(probe.backend, probe.probe_port, probe.seq, at))

    @rule(which=st.integers(0, 30), answer=st.sampled_from(ANSWERS))
    def probe_is_answered(self, which: int, answer: ProbeAnswer) -> None:
        """Any of the last probes is answered: in any order, late, or twice."""
        if self.probes:
            probe = self.probes[-1 - which % len(self.probes)]
            end = BACKENDS[probe.backend].endpoint
            self.release(probe)
            self.tell(ProbeReply(end.addr, end.port, probe.probe_port, probe.seq, answer, self.now))

    def release(self, probe: SendProbe) -> None:
        """Its port may be used again, unless a newer probe has it."""
        newest = [
            each
            for each in self.probes
            if (each.backend, each.probe_port) == (probe.backend, probe.probe_port)
        ]
        if newest[-1] is probe:
            self.outstanding.pop((probe.backend, probe.probe_port), None)

    @rule(backend=st.integers(0, 4), up=st.booleans())
    def backend_changes(self, backend: int, up: bool) -> None:
        """Netlink reports a route or neighbour, perhaps without news."""
        if up:
            self.up.add(backend)
        else:
            self.up.discard(backend)
            for name in [name for name in self.outstanding if name[0] == backend]:
                del self.outstanding[name]
        self.tell(BackendState(backend, up))

    @rule(which=st.integers(0, 15), fate=st.sampled_from(["ok", "ok", "theirs", "tuple", "bad"]))
    def write_is_answered(self, which: int, fate: str) -> None:
        """The executor reports what became of a binding."""
        writing = [held for held in self.held.values() if held.writing is not None]
        if not writing:
            return
        held = writing[which % len(writing)]
        write, held.writing = held.writing, None
        assert write is not None
        key = write.first.key
        if fate == "theirs":
            self.tell(BindingTaken(key, 0, Mode.HASH, Reason.DEADLINE))
        elif fate == "tuple" and write.backend != NO_BACKEND:
            self.tell(ReplyTupleTaken(key, write.backend))
            assert held.writing is not None
        elif fate == "bad":
            self.tell(BindingFailed(key, "out of memory"))
        else:
            self.tell(BindingWritten(key))

    @rule(which=st.integers(0, 15))
    def xdp_decides(self, which: int) -> None:
        """The client retransmitted and XDP went down the chain by itself."""
        waiting = [held for held in self.held.values() if held.writing is None]
        if waiting:
            first = waiting[which % len(waiting)].first
            self.tell(
                XdpDecided(
                    *(first.key, first.service, 0, Mode.HASH, Reason.DEADLINE),
                    first.seen_ns,
                    first.seen_ns + 1,
                )
            )

    # What must hold

    @invariant()
    def every_flow_is_open_or_final(self) -> None:
        """No flow is lost, none is decided twice."""
        assert self.engine.open_decisions == len(self.held)
        assert self.accepted == self.final + len(self.held)
        assert len(self.engine.decisions) <= 5
        assert self.engine.up == self.up

    def teardown(self) -> None:
        """Left alone, every flow is decided and nothing stays armed."""
        self.wait(self.now + 200 * MS)
        assert all(held.writing is not None for held in self.held.values())
        for key in list(self.held):
            self.tell(BindingWritten(key))
        assert self.engine.open_decisions == 0
        assert self.engine.open_races == 0
        assert self.engine.deadline() is None
        assert self.accepted == self.final


TestRouter = Router.TestCase
TestRouter.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
