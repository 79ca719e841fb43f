# SPDX-License-Identifier: Apache-2.0
"""Services of all modes, which change at any moment: one verdict a flow, no probe in vain.

The machine plays kernel, servers and operator in any order, and wakes the engine exactly when
``deadline`` asks for it, as the daemon does.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.cast import sequence
from tests.support.playbook import MS, US
from tests.unit.test_engine_properties import small_table
from xdp_router.core.abi import PICK_SLOTS
from xdp_router.core.commands import (
    Command,
    LogDecision,
    PublishPickTable,
    SendProbe,
    SetServiceMode,
    WriteBinding,
)
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.events import BackendState, BindingWritten, FirstPacket, ProbeReply, ProbeSent
from xdp_router.core.model import (
    NO_BACKEND,
    Backend,
    Endpoint,
    FlowKey,
    Mode,
    ProbeAnswer,
    Service,
)
from xdp_router.core.probe_kinds import probed_endpoint
from xdp_router.core.strategy.race import LATE_GRACE_NS

# Backends 0 and 3, and 1 and 4, are one server each.
BACKENDS = tuple(
    Backend(number, f"b{number}", Endpoint(0xC6120100 + number % 3, 8080), number // 3)
    for number in range(5)
)
SERVICES = (
    Service(0, "web", Endpoint(0xC6126401, 80), BACKENDS[:3], deadline_ns=50 * MS),
    Service(
        1,
        "api",
        Endpoint(0xC6126402, 80),
        BACKENDS[3:],
        mode=Mode.SNAPSHOT,
        deadline_ns=20 * MS,
        candidates=2,
        probe_interval_ns=5 * MS,
    ),
)
SETTINGS = EngineSettings(
    probe_rate=400, probe_burst=20, probe_port_min=61_000, probe_port_max=61_030
)
MODES = (Mode.RACE, Mode.SNAPSHOT, Mode.INLINE)
LATE_NS = 10 * MS
"""Work comes in batches, and a first table waits a little for those that have not answered."""


class Router(RuleBasedStateMachine):
    """Each first packet is decided once and in time; tables name who is there."""

    def __init__(self) -> None:
        super().__init__()
        draw = random.Random(1).randrange
        self.engine = Engine(SERVICES, SETTINGS, sequence, small_table, draw)
        self.now = 1_000 * MS
        self.up: set[int] = set()
        self.open: dict[FlowKey, int] = {}
        self.decided: set[FlowKey] = set()
        self.probes: dict[tuple[int, int], SendProbe] = {}
        self.has_table: set[int] = set()
        self.port = 0

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, SendProbe):
                self.send(command)
            elif isinstance(command, WriteBinding):
                key = command.first.key
                assert key in self.open
                assert command.backend == NO_BACKEND or command.backend in self.up
                self.obey(self.engine.handle(BindingWritten(key), self.now))
            elif isinstance(command, LogDecision):
                key = command.decision.key
                del self.open[key]
                assert key not in self.decided
                self.decided.add(key)
            elif isinstance(command, PublishPickTable):
                self.check_table(command)
            elif isinstance(command, SetServiceMode):
                assert command.mode is Mode.SNAPSHOT
                assert command.service in self.has_table

    def send(self, command: SendProbe) -> None:
        assert command.backend in self.up
        at = probed_endpoint(BACKENDS[command.backend])
        self.probes[at.addr, command.probe_port] = command
        sent = ProbeSent(command.backend, command.probe_port, command.seq, self.now)
        self.obey(self.engine.handle(sent, self.now))

    def check_table(self, command: PublishPickTable) -> None:
        assert len(command.slots) == PICK_SLOTS
        own = {each.id for each in SERVICES[command.service].backends}
        assert set(command.slots) <= (own & self.up) or set(command.slots) == {NO_BACKEND}
        assert command.made_ns <= self.now
        self.has_table.add(command.service)

    def until(self, then_ns: int) -> None:
        for _ in range(10_000):
            due = self.engine.deadline()
            if due is None or due > then_ns:
                break
            self.now = max(self.now, due)
            self.obey(self.engine.expire(self.now))
        else:
            raise AssertionError("the engine wants to be woken without end")
        self.now = then_ns

    @rule(service=st.integers(0, 1))
    def first_packet(self, service: int) -> None:
        """One that XDP hands on, whatever the mode."""
        self.port += 1
        at = SERVICES[service].endpoint
        key = FlowKey(0xC6120001, self.port, at.addr, at.port)
        self.open[key] = self.now + max(SERVICES[service].deadline_ns, LATE_GRACE_NS) + LATE_NS
        packet = FirstPacket(key, service, 2, self.now, self.port, 0, 7, b"syn")
        self.obey(self.engine.handle(packet, self.now))

    @rule(backend=st.integers(0, 4), up=st.booleans())
    def backend(self, backend: int, up: bool) -> None:
        """A backend comes or goes."""
        (self.up.add if up else self.up.discard)(backend)
        self.obey(self.engine.handle(BackendState(backend, up), self.now))

    @rule(
        which=st.integers(0, 30),
        answer=st.sampled_from([*[ProbeAnswer.SYNACK] * 3, ProbeAnswer.RST]),
        keep=st.booleans(),
    )
    def answer(self, which: int, answer: ProbeAnswer, keep: bool) -> None:
        """A probe is answered, maybe late, maybe twice."""
        if not self.probes:
            return
        addr, port = key = sorted(self.probes)[which % len(self.probes)]
        command = self.probes[key] if keep else self.probes.pop(key)
        self.now += 50 * US
        reply = ProbeReply(addr, 8080, port, command.seq, answer, self.now)
        self.obey(self.engine.handle(reply, self.now))

    @rule(service=st.integers(0, 1), mode=st.sampled_from(MODES))
    def mode(self, service: int, mode: Mode) -> None:
        """An operator changes his mind."""
        services = dict(self.engine.roster.services)
        services[service] = replace(services[service], mode=mode)
        self.obey(self.engine.apply(services.values(), SETTINGS, self.now))
        if mode is not Mode.SNAPSHOT:
            self.has_table.discard(service)

    @rule(backend=st.integers(0, 4), queue=st.integers(0, 9))
    def told(self, backend: int, queue: int) -> None:
        """Somebody says how a backend is doing."""
        self.engine.roster.tell(BACKENDS[backend], {"queue": queue}, self.now)

    @rule(took_us=st.integers(1, 60_000))
    def time_passes(self, took_us: int) -> None:
        """The engine is woken when it wants to be."""
        self.until(self.now + took_us * US)

    @invariant()
    def flows_are_decided_in_time(self) -> None:
        """None is open past its deadline, when the engine has had its turn."""
        self.until(self.now)
        assert all(self.now <= due for due in self.open.values())

    @invariant()
    def ports_are_not_lost(self) -> None:
        """Those that are held are of probes that are waited for: none is older than a second."""
        for addr in range(3):
            at = replace(BACKENDS[0].endpoint, addr=0xC6120100 + addr)
            server = self.engine.roster.shared.servers.find(at)
            if server is not None:
                for port in server.ports.held:
                    probe = ProbeReply(at.addr, at.port, port, 0, ProbeAnswer.SYNACK, self.now)
                    assert any(each.awaits(probe) for each in self.engine.roster.all_strategies)


TestRouter = Router.TestCase
TestRouter.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
