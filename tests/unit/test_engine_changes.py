# SPDX-License-Identifier: Apache-2.0
"""An engine that is changed: equal to one that was made so, and nobody's first packet is lost."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.cast import DEFAULTS, sequence
from tests.support.cast import service as web_of
from tests.support.playbook import MS
from xdp_router.core.commands import (
    Command,
    LogDecision,
    PublishHashTable,
    PublishPickTable,
    SendProbe,
    SetServiceMode,
    WriteBinding,
)
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.events import (
    BackendDrain,
    BackendPath,
    BackendState,
    BindingWritten,
    Event,
    FirstPacket,
    ProbeReply,
    ProbeSent,
)
from xdp_router.core.model import (
    NO_BACKEND,
    Backend,
    Endpoint,
    FlowKey,
    Mode,
    Probe,
    ProbeAnswer,
    Reason,
    Service,
)
from xdp_router.core.probe_kinds import probed_endpoint
from xdp_router.core.strategy.control_arm import Arm, arm_of

MODES = (Mode.INLINE, Mode.SNAPSHOT)
PROBES = (Probe(), Probe(port=99))
SERVICES, PER_SERVICE = 3, 3
IDS = [10 * service + place for service in range(SERVICES) for place in range(PER_SERVICE)]


@st.composite
def some_services(draw: st.DrawFn, modes: Sequence[Mode] = MODES) -> tuple[Service, ...]:
    """Any of three services with any of three backends each, whose ids are always the same."""
    made = []
    for number in draw(st.sets(st.integers(0, SERVICES - 1))):
        members = draw(st.sets(st.integers(0, PER_SERVICE - 1), min_size=1))
        backends = tuple(
            Backend(
                10 * number + place,
                f"b{number}{place}",
                # The first of each is one server.
                Endpoint(0xC6130000 + (number * 16 if place else 0) + place, 8080),
                number,
                weight=draw(st.integers(1, 3)),
                probe=draw(st.sampled_from(PROBES)),
            )
            for place in sorted(members)
        )
        mode = draw(st.sampled_from([Mode.RACE, Mode.RACE, *modes]))
        made.append(
            Service(
                number,
                f"s{number}",
                Endpoint(0xC6126401 + number, 80),
                backends,
                fallback=draw(st.sampled_from([NO_BACKEND, backends[0].id])),
                affinity_ns=draw(st.sampled_from([0, 60_000 * MS])),
                deadline_ns=draw(st.sampled_from([20, 50])) * MS,
                mode=mode,
                candidates=draw(st.sampled_from([0, 2])),
                control_arm=draw(st.sampled_from([0, 50])) if mode is Mode.RACE else 0,
                probe_interval_ns=200 * MS,
                snapshot_age_ns=2_000 * MS,
            )
        )
    return tuple(made)


SETTINGS = st.builds(
    EngineSettings,
    coalesce_window_ns=st.sampled_from([0, 2 * MS]),
    probe_rate=st.sampled_from([100, 1000]),
    probe_burst=st.sampled_from([3, 50]),
    decisions_kept=st.sampled_from([0, 2, 100]),
    max_open_decisions=st.sampled_from([2, 100]),
)
STATES = st.lists(
    st.tuples(st.sampled_from([BackendState, BackendDrain]), st.sampled_from(IDS), st.booleans())
)
FIRSTS = st.tuples(st.just("first"), st.integers(0, SERVICES - 1), st.integers(1, 9))
WAITS = st.tuples(st.just("wait"), st.sampled_from([0, 1, 3, 30]), st.just(0))
CHANGES = st.tuples(st.just("state"), st.sampled_from(IDS), st.sampled_from([0, 1, 2]))
SCRIPT = st.lists(FIRSTS | WAITS | CHANGES, max_size=25)
RTT_NS = (400 * MS, 4 * MS, 1 * MS)
"""By place in the service; the first one's answer is too late, at any moment: probes of which none
waits for long when the next one is answered would make it known now and then."""
ALL_UP: list[tuple[type, int, bool]] = [(BackendState, backend, True) for backend in IDS]


def small_table(backends: Sequence[Backend], up: AbstractSet[int]) -> tuple[int, ...]:
    """A table that is quick to build, and tells weights and who is up."""
    usable = [
        each.id
        for each in sorted(backends, key=lambda each: each.id)
        if each.id in up
        for _ in range(each.weight)
    ]
    return tuple(usable[slot % len(usable)] for slot in range(9)) if usable else (NO_BACKEND,) * 9


def in_maps(service: Service) -> Mode:
    """The mode that is written with a service: without a table nobody can pick by one."""
    return Mode.RACE if service.mode is Mode.SNAPSHOT else service.mode


class World:
    """Kernel, network and backends of one engine; ``heard`` is all that it was told to do."""

    def __init__(self, services: Sequence[Service], limits: EngineSettings) -> None:
        self.engine = Engine(services, limits, sequence, small_table)
        self.now = 1_000 * MS
        self.heard: list[Command] = []
        self.tables: dict[int, tuple[int, ...]] = {}
        self.picks: dict[int, tuple[int, ...]] = {}
        self.modes = {service.id: in_maps(service) for service in services}
        self.answers: list[tuple[int, Event]] = []
        self.open: dict[FlowKey, FirstPacket] = {}
        self.know(services)
        self.obey(list(self.engine.start()))

    def know(self, services: Sequence[Service]) -> None:
        self.services = {service.id: service for service in services}
        self.backends = {each.id: each for service in services for each in service.backends}

    def tell(self, event: Event) -> None:
        self.obey(self.engine.handle(event, self.now))

    def obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self.heard.append(command)
            if isinstance(command, SendProbe):
                backend = self.backends[command.backend]
                self.tell(ProbeSent(backend.id, command.probe_port, command.seq, self.now))
                at, where = self.now + RTT_NS[backend.id % 10], probed_endpoint(backend)
                answer = ProbeReply(
                    where.addr, where.port, command.probe_port, command.seq, ProbeAnswer.SYNACK, at
                )
                self.answers.append((at, answer))
            elif isinstance(command, WriteBinding):
                assert command.backend == NO_BACKEND or command.backend in self.engine.up
                self.tell(BindingWritten(command.first.key))
            elif isinstance(command, LogDecision):
                self.open.pop(command.decision.key, None)
            elif isinstance(command, PublishHashTable):
                assert command.service in self.services
                assert set(command.slots) <= {*self.backends, NO_BACKEND}
                self.tables[command.service] = command.slots
            elif isinstance(command, PublishPickTable):
                assert self.services[command.service].mode is Mode.SNAPSHOT
                assert set(command.slots) <= {*self.engine.up, NO_BACKEND}
                self.picks[command.service] = command.slots
            elif isinstance(command, SetServiceMode):
                self.modes[command.service] = command.mode

    def wait(self, until_ns: int) -> None:
        while True:
            due = [at for at, _ in self.answers]
            deadline = self.engine.deadline()
            if deadline is not None:
                due.append(deadline)
            if not due or min(due) > until_ns:
                break
            self.now = max(self.now, min(due))
            ripe = [each for each in self.answers if each[0] <= self.now]
            self.answers = [each for each in self.answers if each[0] > self.now]
            for _, event in ripe:
                self.tell(event)
            self.obey(self.engine.expire(self.now))
        self.now = max(self.now, until_ns)

    def step(self, what: str, one: int, two: int) -> None:
        if what == "wait":
            self.wait(self.now + one * MS)
        elif what == "state":
            self.tell(BackendDrain(one, two == 2) if two else BackendState(one, True))
        else:
            key = FlowKey(0xC6120000 + two % 3, two, 0xC6126401 + one, 80)
            first = FirstPacket(key, one, 2, self.now, two, 0, 7, b"syn")
            if one in self.services and key not in self.open:
                self.open[key] = first
            self.tell(first)

    def change(self, services: Sequence[Service], limits: EngineSettings) -> list[Command]:
        """Bring another configuration; first packets of services that go are let go."""
        before = self.services
        commands = self.engine.apply(services, limits, self.now)
        self.know(services)
        self.modes = {
            service.id: self.modes[service.id]
            if service.id in before and before[service.id].mode is service.mode
            else in_maps(service)
            for service in services
        }
        picked_by = {each.id for each in services if each.mode is Mode.SNAPSHOT}
        self.picks = {each: table for each, table in self.picks.items() if each in picked_by}
        self.open = {key: each for key, each in self.open.items() if each.service in self.services}
        self.tables = {each: table for each, table in self.tables.items() if each in self.services}
        return commands


def but_ports(heard: Sequence[Command]) -> list[object]:
    """Which port a probe leaves by goes by those that were used before."""
    return [("probe", each.backend) if isinstance(each, SendProbe) else each for each in heard]


def states(world: World, told: Sequence[tuple[type, int, bool]]) -> None:
    """Say what is so of backends, and where each is."""
    for kind, backend, value in told:
        world.tell(kind(backend, value))
    for backend in IDS:
        # Who comes in where the second of each stands may be in its subnet.
        world.tell(BackendPath(backend, 2 + (backend % 10 != 1), ((0xC6120000, 0xFFFFFFFE),)))


@settings(max_examples=300, deadline=None)
@given(some_services(), some_services((Mode.INLINE,)), SETTINGS, SETTINGS, STATES, SCRIPT)
def test_one_that_was_changed_equals_one_that_was_made_so(
    old: tuple[Service, ...],
    new: tuple[Service, ...],
    limits_then: EngineSettings,
    limits: EngineSettings,
    told: list[tuple[type, int, bool]],
    script: list[tuple[str, int, int]],
) -> None:
    """Whatever comes afterwards is answered by the same commands, in the same order."""
    changed, made = World(old, limits_then), World(new, limits)
    states(changed, told)
    changed.wait(changed.now + 1_000 * MS)  # buckets are full, tables have left
    changed.obey(changed.change(new, limits))
    for world in (changed, made):
        states(world, told + ALL_UP)
        # Tables have left, and no budget is short of what the other one has saved.
        world.wait(5_000 * MS)
        world.heard.clear()
    assert changed.engine.up == made.engine.up
    for step in script:
        for world in (changed, made):
            world.step(*step)
        assert but_ports(changed.heard) == but_ports(made.heard)
        assert changed.engine.deadline() == made.engine.deadline()
    for world in (changed, made):
        world.wait(world.now + 1_000 * MS)
        assert world.tables == {
            service.id: small_table(service.backends, world.engine.up) for service in new
        }
    assert list(changed.engine.decisions) == list(made.engine.decisions)
    for backend in made.backends:
        assert changed.engine.backend_stats(backend) == made.engine.backend_stats(backend)


@settings(max_examples=300, deadline=None)
@given(
    some_services(),
    SETTINGS,
    STATES,
    st.lists(st.tuples(SCRIPT, some_services(), SETTINGS), min_size=1, max_size=4),
)
def test_a_first_packet_is_decided_whatever_changes_meanwhile(
    services: tuple[Service, ...],
    limits: EngineSettings,
    told: list[tuple[type, int, bool]],
    rounds: list[tuple[list[tuple[str, int, int]], tuple[Service, ...], EngineSettings]],
) -> None:
    """Each of a service that stays gets one decision, in time, and nothing of a race is left."""
    world = World(services, limits)
    states(world, told)
    for script, changed_to, changed_limits in rounds:
        for step in script:
            world.step(*step)
        world.obey(world.change(changed_to, changed_limits))
        assert set(world.engine.up) <= set(world.backends)
        assert world.engine.open_decisions == len(world.open)
    world.wait(world.now + 1_000 * MS)
    assert not world.open
    assert world.engine.open_decisions == 0
    assert world.engine.open_races == 0
    assert world.engine.tables_waiting == 0
    assert world.tables.keys() == world.services.keys()
    if all(service.mode is not Mode.SNAPSHOT for service in world.services.values()):
        assert world.engine.deadline() is None


def test_who_waits_for_a_flow_of_its_source_is_decided_though_affinity_ends() -> None:
    """A reload takes ``affinity`` away while the source's first flow is decided."""
    together = replace(web_of(2), affinity_ns=60_000 * MS)
    world = World((together,), DEFAULTS)
    for backend in (1, 2):
        world.tell(BackendState(backend, True))
    world.step("first", 0, 3)
    world.step("first", 0, 6)  # of the same client
    world.obey(world.change((replace(together, affinity_ns=0),), DEFAULTS))
    world.wait(world.now + 1_000 * MS)
    assert not world.open


@settings(max_examples=100, deadline=None)
@given(some_services(), some_services(), SETTINGS, STATES)
def test_tables_that_are_picked_by_are_those_of_one_that_was_made_so(
    old: tuple[Service, ...],
    new: tuple[Service, ...],
    limits: EngineSettings,
    told: list[tuple[type, int, bool]],
) -> None:
    """And XDP decides in the same modes. When an answer comes is up to chance, what they all say
    in the end is not."""
    limits = replace(limits, probe_rate=1000, probe_burst=50)
    changed, made = World(old, limits), World(new, limits)
    states(changed, ALL_UP)
    changed.wait(changed.now + 1_000 * MS)
    changed.obey(changed.change(new, limits))
    for world in (changed, made):
        states(world, ALL_UP)
        states(world, told)
        world.wait(5_000 * MS)
    assert changed.modes == made.modes == {service.id: service.mode for service in new}
    assert changed.picks == made.picks
    assert changed.tables == made.tables


@given(some_services(), SETTINGS)
def test_a_change_to_the_same_changes_nothing(
    services: tuple[Service, ...], limits: EngineSettings
) -> None:
    """Not a table is made anew, and who is up stays so."""
    world = World(services, limits)
    states(world, [(BackendState, backend, True) for backend in IDS])
    world.wait(world.now + 1_000 * MS)
    before = world.engine.up
    assert world.change(services, limits) == []
    assert world.engine.up == before
    renamed = tuple(replace(service, name="other") for service in services)
    assert world.change(renamed, limits) == []


def one(*places: int, **said: Any) -> Service:
    """Service 0 with these backends."""
    backends = tuple(
        Backend(place, f"b{place}", Endpoint(0xC6130000 + place, 8080), 0) for place in places
    )
    return Service(0, "web", Endpoint(0xC6126401, 80), backends, **said)


def up(*services: Service) -> World:
    """An engine whose backends are all up."""
    world = World(services, EngineSettings())
    states(world, ALL_UP)
    world.wait(world.now + 1_000 * MS)
    world.heard.clear()
    return world


def decided(world: World) -> list[tuple[int, Reason]]:
    """Backends, and why, of what was decided so far."""
    found = [each.decision for each in world.heard if isinstance(each, LogDecision)]
    return [(each.backend, each.reason) for each in found]


def test_a_flow_that_waits_goes_to_whoever_is_there_at_its_end() -> None:
    """All of its candidates depart: the service's new backend has it, and it is not refused."""
    world = up(one(0))
    world.step("first", 0, 5)
    world.obey(world.change([one(1)], EngineSettings()))
    world.tell(BackendState(1, True))
    world.wait(world.now + 60 * MS)
    assert decided(world) == [(1, Reason.DEADLINE)]


def test_nobody_waits_behind_a_flow_that_was_let_go() -> None:
    """A service that comes back knows nothing of where its sources went, or were about to go."""
    affine = one(0, 1, affinity_ns=60_000 * MS)
    world = up(affine)
    world.step("first", 0, 1)
    world.step("first", 0, 4)  # the same source: it waits for the first one
    world.change([], EngineSettings())
    assert world.engine.open_decisions == 0
    world.obey(world.change([affine], EngineSettings()))
    world.tell(BackendState(1, True))
    world.step("first", 0, 7)
    world.wait(world.now + 10 * MS)
    assert decided(world) == [(1, Reason.RACE_WON)]
    world.obey(world.change([one(2, affinity_ns=60_000 * MS)], EngineSettings()))
    world.tell(BackendState(2, True))
    world.step("first", 0, 10)
    world.wait(world.now + 10 * MS)
    assert decided(world)[1:] == [(2, Reason.RACE_WON)]


def test_who_departs_takes_its_turns_along() -> None:
    """Its number is another one's later, who begins as everybody does."""
    world = up(one(1, 2))
    for client in range(1, 10):
        world.step("first", 0, client)
        world.wait(world.now + 100 * MS)
    world.obey(world.change([], EngineSettings()))
    world.obey(world.change([one(1, 2)], EngineSettings()))
    for backend in (1, 2):
        world.tell(BackendState(backend, True))
    world.heard.clear()
    world.step("first", 0, 11)
    asked = [each.backend for each in world.heard if isinstance(each, SendProbe)]
    assert asked == [1, 2]


def test_so_it_does_with_those_of_the_control_arm() -> None:
    """Which has turns of its own."""
    world = up(one(1, 2, control_arm=50))
    (service,) = world.services.values()
    key = next(
        key
        for key in (FlowKey(0xC6120002, port, 0xC6126401, 80) for port in range(1, 99))
        if arm_of(service, key) is Arm.CONTROL
    )

    def decided_by_turns() -> int:
        world.tell(FirstPacket(key, 0, 2, world.now, 1, 0, 7, b"syn"))
        (backend, reason), *_ = decided(world)[-1:]
        assert reason is Reason.CONTROL_ARM
        return backend

    first = decided_by_turns()
    world.obey(world.change([], EngineSettings()))
    world.obey(world.change([service], EngineSettings()))
    for backend in (1, 2):
        world.tell(BackendState(backend, True))
    assert decided_by_turns() == first


def test_budgets_and_limits_hold_at_once() -> None:
    """Also for servers that were probed before."""
    world = up(one(1))
    world.step("first", 0, 1)
    world.wait(world.now + 100 * MS)
    few = EngineSettings(probe_rate=1, probe_burst=1, coalesce_window_ns=0, decisions_kept=1)
    assert world.change([one(1)], few) == []
    for client in (2, 3):
        world.step("first", 0, client)
        world.wait(world.now + 100 * MS)
    assert decided(world)[1:] == [(1, Reason.RACE_WON), (1, Reason.PROBE_BUDGET)]
    assert len(world.engine.decisions) == 1
