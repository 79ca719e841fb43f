# SPDX-License-Identifier: Apache-2.0
"""Random lives of UDP flows: each datagram becomes what a pure model says, by every method.

The real program, the daemon's real executor and its real ager run in lockstep with the model, in
either address family. Verdict, whole frame, sums, counters, events and tables are compared after
each step. Time is made by moving the instants in the tables, for the program reads the real clock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter
from dataclasses import dataclass

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.bpf.corpus.world import SECOND, World
from tests.conftest import LIVES_SEED
from tests.support.frames import difference
from tests.support.instants import before
from tests.support.program import REDIRECT, VERDICTS
from tests.support.tunnels import inner_frame
from tests.support.udp_frames import Datagram, datagram_errors, is_datagram
from tests.support.udp_model import UdpModel
from tests.support.udp_parts import ANY, PAUSES_S, UDP_IDLE_S, Method, Outcome
from tests.support.udp_side import CLIENTS, PORTS, SERVERS, VERDICT_OF, UdpSide
from xdp_router.core import abi
from xdp_router.core import events as heard
from xdp_router.core.commands import Reinject, WriteBinding
from xdp_router.core.config import Settings
from xdp_router.core.model import NO_BACKEND, Mode, Reason
from xdp_router.daemon.aging import Ager

pytest_plugins = ("tests.support.worlds",)

WHO = st.sampled_from((0, 0, 0, 1, 2))
BACKEND = st.sampled_from(tuple(SERVERS))
HOME = st.sampled_from((True, True, True, False))
HASH_ORDER = ("B2", "B3", "B1")
EVENTS = {
    heard.FirstPacket: "first",
    heard.Datagram: "later",
    heard.XdpDecided: "decided",
    heard.FlowEstablished: "established",
}
ANSWERS = {
    heard.BindingWritten: "written",
    heard.BindingTaken: "taken",
    heard.ReplyTupleTaken: "tuple",
}
EXAMPLES = 20
EMPTY_FRAME = {4: 42, 6: 62}
SUMS = st.sampled_from(("right", "right", "none", "zero"))
"""Of a datagram: right, none at all, or such that the one which leaves has a sum of 0."""


@dataclass(slots=True)
class Held:
    """A datagram that the daemon holds, and what it looked like."""

    event: heard.FirstPacket | heard.Datagram
    datagram: Datagram
    home: bool
    number: int
    age: float = 0


class UdpFlows(RuleBasedStateMachine):
    """Everything that can happen to three clients of a service, in any order."""

    world: World
    method: Method

    def __init__(self) -> None:
        super().__init__()
        self.side = UdpSide(self.world, self.method, LIVES_SEED)
        self.model = UdpModel(self.method, "B1", frozenset(PORTS), set(SERVERS))
        self.story: list[str] = []
        self.firsts: list[tuple[int, Held]] = []
        self.queue: dict[int, list[Held]] = {who: [] for who in range(len(CLIENTS))}
        self.released: set[int] = set()
        self.sent = 0
        self.delivered: Counter[int] = Counter()
        self.at: dict[tuple[int, int], set[str]] = {}
        self._since_ns = time.monotonic_ns()
        self._publish()

    @property
    def is_told_by_chance(self) -> bool:
        """Whether the same steps may lead elsewhere: then none may be offered by where they led.

        Which port of ours a flow gets is random, and who has one is spoken to.
        """
        return self.method is Method.FULLNAT

    # --- the world around --------------------------------------------------------------------

    @initialize(spent=st.booleans())
    def begins(self, spent: bool) -> None:
        """Half of the lives begin in a flood."""
        self.budget_is_spent_or_not(spent)

    @rule(seconds=st.sampled_from(PAUSES_S))
    def time_passes(self, seconds: float) -> None:
        passed = self.model.pass_time(seconds)
        self._tell(f"{passed} s pass")
        for held in (*(h for _, h in self.firsts), *(h for q in self.queue.values() for h in q)):
            held.age += passed
        self._settle()

    @rule()
    def daemon_dies_or_returns(self) -> None:
        self.model.alive = not self.model.alive
        self._tell(f"the daemon {'is back' if self.model.alive else 'dies'}")
        if self.model.alive:
            self.model.heartbeat_age = 0
        else:
            self.time_passes(40)

    @rule(name=BACKEND)
    def backend_up_or_down(self, name: str) -> None:
        self.model.up ^= {name}
        self._tell(f"{name} is {'up' if name in self.model.up else 'down'}")
        self.side.set_up(SERVERS[name], name in self.model.up)
        self._publish()

    @rule(spent=st.booleans())
    def budget_is_spent_or_not(self, spent: bool) -> None:
        self._tell(f"the budget is {'spent' if spent else 'unlimited'}")
        self.model.spent = spent
        self.side.spend(spent)

    @rule(who=WHO, count=st.integers(1, 2), lost=st.sampled_from(("", "", "FORWARD", "REPLY")),
          goes_on=st.booleans())  # fmt: skip
    def flood(self, who: int, count: int, lost: str, goes_on: bool) -> None:
        """Flows are decided over budget; some are pushed out by others, or half of them."""
        self.budget_is_spent_or_not(True)
        for _ in range(count):
            self._client_sends(who, 8)
        if lost:
            self.eviction(lost, who, True)
        self.budget_is_spent_or_not(goes_on)

    @rule(full=st.booleans())
    def table_fills_up_or_empties(self, full: bool) -> None:
        self._tell(f"the table is {'full' if full else 'empty'}")
        self.model.full = full

    @rule(kind=st.sampled_from(("SEEN", "FORWARD", "REPLY")), who=WHO, flood=st.booleans())
    def eviction(self, kind: str, who: int, flood: bool) -> None:
        """Of what either table has, looked at or not."""
        flood = flood and kind != "SEEN"
        entries = self.model.flood if flood else self.model.pending
        there = {"SEEN": who in self.model.seen, "FORWARD": who in entries.forward}.get(kind)
        if self.model.own(who, entries) if there is None else there:
            self._evict(kind, who, flood)

    def _evict(self, kind: str, who: int, flood: bool) -> None:
        self._tell(f"{kind} of {who}, {'in a flood' if flood else 'pending'}, is evicted")
        self.side.delete(kind, who, flood, self.model.evict(kind, who, flood))

    def _is_over(self) -> bool:
        return self.model.alive and self.model.is_anything_over()

    @precondition(lambda self: self.is_told_by_chance or self._is_over())
    @rule()
    def ager_sweeps(self) -> None:
        """The daemon's own, when it has something to do."""
        if not self._is_over():
            return
        self._settle()
        self._tell("the ager sweeps")
        first, *others = self.world.program.maps.by_family.values()
        idle = dataclasses.replace(Settings(), udp_idle_ns=UDP_IDLE_S * SECOND)
        ager = Ager(
            first.flows, first.pending, idle, lambda _closed: None, others=others, flood=first.flood
        )
        asyncio.run(ager.sweep())
        self.model.sweep()

    # --- the daemon --------------------------------------------------------------------------

    @precondition(lambda self: self.is_told_by_chance or (self.model.alive and self.firsts))
    @rule(which=st.integers(0, 3), choice=st.sampled_from(("B1", "B1", "B2", "B3", "")))
    def daemon_decides(self, which: int, choice: str) -> None:
        """An answer to any first datagram that was ever held, early or very late."""
        if not self.model.alive or not self.firsts:
            return
        who, first = self.firsts[-1 - which % len(self.firsts)]
        forward = self.model.pending.forward.get(who)
        if (
            self.method is Method.FULLNAT
            and forward
            and forward.backend == choice
            and (choice, forward.port) not in self.model.pending.reply
        ):
            return  # it may find that very port, or another
        answer = self.model.daemon_decides(who, first.age, choice, first.home)
        self._tell(f"the daemon decides {who}: {choice or 'nobody'}, {answer}")
        assert isinstance(first.event, heard.FirstPacket)
        aged = dataclasses.replace(
            first.event, seen_ns=before(time.monotonic_ns(), int(first.age * SECOND))
        )
        mode, reason = (Mode.RACE, Reason.RACE_WON) if choice else (Mode.REFUSED, Reason.NONE)
        number = SERVERS[choice].id if choice else NO_BACKEND
        told = self.side.executor.execute(WriteBinding(aged, number, mode, reason, 1000))
        assert ANSWERS.get(type(told)) == answer, self._report(str(told))
        if self.model.wanted is not None:
            self.model.chosen(self.side.port_taken(who, False))
        if answer != "tuple":
            self.released.add(who)

    @precondition(
        lambda self: self.is_told_by_chance or any(self.queue[who] for who in self.released)
    )
    @rule(who=WHO)
    def daemon_sends_the_next(self, who: int) -> None:
        """Of those that it holds, in the order in which they came."""
        if who not in self.released or not self.queue[who]:
            return
        held = self.queue[who].pop(0)
        self._settle()
        length = len(held.event.frame)
        outcome = self.model.from_client(who, length, held.home, held=True)
        self._tell(f"the daemon sends {held.number} of {who} -> {_show(outcome)}")
        self.side.sent.clear()
        self.side.executor.execute(Reinject(held.event))
        counters, records = self.world.program.changes()
        expected = Counter(outcome.counters)
        if outcome.what in ("backend", "unreachable"):
            expected["reinjected"] += 1
            frames = [frame for _, frame in self.side.sent]
            to = self.world.wires.client if outcome.what != "backend" else self.world.wires.backend
            assert [where for where, _ in self.side.sent] == [to], self._report("not sent")
            self._check_frame(who, held.datagram, held.home, outcome, frames[0])
        else:
            assert not self.side.sent, self._report("it was sent")
        self._check_counters(outcome, expected, counters)
        self._hear(who, outcome, records, held.datagram, held.home, held.number)
        self._deliver(who, outcome, held.number)

    # --- the client ---------------------------------------------------------------------------

    @rule(who=WHO, size=st.sampled_from((0, 1, 8, 8, 1200, 1440, 1600)), home=HOME, sums=SUMS,
          ttl=st.sampled_from((64, 64, 64, 64, 2, 1)))  # fmt: skip
    def client_sends(self, who: int, size: int, home: bool, sums: str, ttl: int) -> None:
        """A datagram, long or short, by the usual way or another."""
        self._client_sends(who, size, home, sums, ttl)

    @rule(who=WHO, count=st.integers(2, 6))
    def client_sends_many(self, who: int, count: int) -> None:
        """A few at once, as a large hello is."""
        for _ in range(count):
            self._client_sends(who, 8)

    @rule(who=WHO, backend=BACKEND, more=st.integers(0, 2))
    def conversation(self, who: int, backend: str, more: int) -> None:
        """Question, decision and answer, as far as they come."""
        for _ in range(1 + more):
            self._client_sends(who, 8)
        if self.model.alive and self.firsts and self.firsts[-1][0] == who:
            self.daemon_decides(0, backend)
        while self.queue[who] and who in self.released:
            self.daemon_sends_the_next(who)
        self.backend_answers(who, 9, "right")
        self._client_sends(who, 8)

    def _client_sends(
        self, who: int, size: int, home: bool = True, sums: str = "right", ttl: int = 64
    ) -> None:
        if self.model.is_up_to_chance(who):
            self._evict("FORWARD", who, True)
        self._settle()
        self.sent += 1
        datagram = Datagram(self.sent.to_bytes(4, "big")[-size:].rjust(size, b"\xa5"), ttl=ttl)
        if not size:
            datagram = datagram.but(payload=b"")
        if sums == "none":
            datagram = datagram.but(check=0)
        length = EMPTY_FRAME[self.world.family] + size
        outcome = self.model.from_client(who, length, home, ttl=ttl)
        if sums == "zero" and size >= 2 and outcome.what == "backend" and outcome.port != ANY:
            datagram = self._that_sums_to_zero(who, datagram, outcome)
        self._tell(f"{who} sends {self.sent} ({size} bytes, sum {sums}, ttl {ttl}"
                   f"{'' if home else ', from elsewhere'}) -> {_show(outcome)}")  # fmt: skip
        got = self.world.run_native(self.side.asked(who, datagram, home))
        verdict = VERDICT_OF[outcome.what]
        wrong = f"{VERDICTS[got.verdict]}, wanted {VERDICTS[verdict]}, {got.counters}"
        assert got.verdict == verdict, self._report(wrong)
        self._check_frame(who, datagram, home, outcome, got.frame)
        self._check_counters(outcome, Counter(outcome.counters), got.counters)
        self._hear(who, outcome, got.records, datagram, home, self.sent)
        self._deliver(who, outcome, self.sent)

    def _that_sums_to_zero(self, who: int, datagram: Datagram, outcome: Outcome) -> Datagram:
        body = datagram.payload[: len(datagram.payload) // 2 * 2 - 2]
        blank = datagram.but(payload=body + bytes(2))
        out = inner_frame(self.side.at_backend(who, blank, outcome.backend, outcome.port))
        at = EMPTY_FRAME[self.world.family] - 2
        return datagram.but(payload=body + out[at : at + 2])

    # --- the backends -------------------------------------------------------------------------

    @rule(who=WHO, size=st.sampled_from((0, 1, 9, 1200)), sums=st.sampled_from(("right", "none")))
    def backend_answers(self, who: int, size: int, sums: str) -> None:
        """The one that has the flow, as far as anybody knows."""
        flow = self.model.bound.get(who) or self.model.decision(who)
        if flow and flow.backend:
            self._backend_sends(flow.backend, flow.port, size, sums)

    @precondition(lambda self: self.method is Method.FULLNAT)
    @rule(who=WHO)
    def backend_is_late(self, who: int) -> None:
        """It answers what was over, and what its client has begun anew."""
        forward = self.model.decision(who)
        if not forward or not forward.backend:
            return
        self.time_passes(PAUSES_S[-1])
        self._client_sends(who, 8)
        self._backend_sends(forward.backend, forward.port, 9, "right")

    @rule(backend=BACKEND, which=st.integers(0, 2))
    def backend_speaks(self, backend: str, which: int) -> None:
        """Any, to any client or port."""
        port = PORTS[which] if self.method is Method.FULLNAT else which
        self._backend_sends(backend, port, 9, "right")

    def _backend_sends(self, backend: str, port: int, size: int, sums: str) -> None:
        self._settle()
        datagram = Datagram(bytes(size), check=0 if sums == "none" else None)
        outcome, who = self.model.from_backend(backend, port)
        self._tell(f"{backend} sends to {port} -> {who} {_show(outcome)}")
        frame = self.side.answered(backend, port, datagram)
        got = self.world.run_native(frame, "backend")
        self._check_counters(outcome, Counter(outcome.counters), got.counters)
        if outcome.what == "client":
            assert who is not None
            wanted = REDIRECT, self.side.at_client(who, datagram, outcome.home)
        else:
            wanted = VERDICT_OF[outcome.what], frame
        assert got.verdict == wanted[0], self._report(VERDICTS[got.verdict])
        assert got.frame == wanted[1], self._report(difference(got.frame, wanted[1]))
        assert not got.records, self._report("an event")

    # --- what holds at any time ---------------------------------------------------------------

    @invariant()
    def tables_are_as_the_model_says(self) -> None:
        found, wanted = self.side.tables(self._since_ns), self.side.told(self.model)
        lines = [
            f"{name}: {found.get(name)}, wanted {wanted.get(name)}"
            for name in sorted(found.keys() | wanted.keys())
            if found.get(name) != wanted.get(name)
        ]
        assert not lines, self._report(*lines)

    @invariant()
    def one_backend_for_each_incarnation(self) -> None:
        several = {at: names for at, names in self.at.items() if len(names) > 1}
        assert not several, self._report(f"(client, incarnation) at several: {several}")

    @invariant()
    def nothing_comes_twice(self) -> None:
        twice = [number for number, count in self.delivered.items() if count > 1]
        assert not twice, self._report(f"came twice: {twice}")

    # --- how ----------------------------------------------------------------------------------

    def _settle(self) -> None:
        self.side.write_control(self.model.heartbeat_age)
        self.side.settle(self.model)
        self.side.fill(self.model.full)
        self._since_ns = time.monotonic_ns()

    def _check_frame(
        self, who: int, datagram: Datagram, home: bool, outcome: Outcome, frame: bytes
    ) -> None:
        if self.model.wanted is not None:
            port = self.side.port_taken(who, self.model.wanted[1] is self.model.flood)
            self.model.chosen(port)
            outcome = dataclasses.replace(outcome, port=port)
        wanted = self.side.made_of(who, datagram, home, outcome)
        assert frame == wanted, self._report(difference(frame, wanted))
        if outcome.what == "backend" and is_datagram(inner := inner_frame(frame)):
            errors = datagram_errors(inner)
            assert not errors, self._report(*errors)

    def _check_counters(
        self, outcome: Outcome, wanted: Counter[str], found: dict[str, int]
    ) -> None:
        assert self.side.is_window_as(self.model.left), self._report(
            f"the flood is not looked at for {self.model.left} s"
        )
        if outcome.what == "backend" and self.method is Method.IPIP:
            wanted["tunneled"] += 1
        if self.method is Method.FULLNAT:
            tried = found.pop("nat_port_taken", 0) - wanted.pop("nat_port_taken", 0)
            assert 0 <= tried < len(PORTS), self._report(f"{tried} ports tried in vain")
        assert found == dict(wanted), self._report(f"counters {found}, wanted {dict(wanted)}")

    def _hear(
        self, who: int, outcome: Outcome, records: list[bytes], datagram: Datagram, home: bool,
        number: int,
    ) -> None:  # fmt: skip
        """What the daemon makes of the events: it holds, or sends what it holds."""
        told = [abi.decode_event(record) for record in records]
        kinds = tuple(EVENTS[type(event)] for event in told)
        assert kinds == outcome.events, self._report(f"events {kinds}, wanted {outcome.events}")
        for event in told:
            if isinstance(event, heard.XdpDecided):
                self.released.add(who)
            elif isinstance(event, (heard.FirstPacket, heard.Datagram)):
                held = Held(event, datagram, home, number)
                if isinstance(event, heard.FirstPacket):
                    self.firsts.append((who, held))
                    if not self.queue[who]:
                        self.released.discard(who)
                self.queue[who].append(held)

    def _deliver(self, who: int, outcome: Outcome, number: int) -> None:
        if outcome.what == "backend":
            self.delivered[number] += 1
            at = who, self.model.incarnation[who]
            self.at.setdefault(at, set()).add(outcome.backend)

    def _publish(self) -> None:
        name = next((name for name in HASH_ORDER if name in self.model.up), "")
        self.model.hashed = name
        self.side.publish(name)

    def _tell(self, line: str) -> None:
        self.story.append(line)

    def _report(self, *wrong: str) -> str:
        return "\n".join(["", *(f"{n:3} {line}" for n, line in enumerate(self.story, 1)), *wrong])


def _show(outcome: Outcome) -> str:
    to = f"{outcome.backend}:{outcome.port}" if outcome.backend else outcome.what
    return f"{to} {dict(outcome.counters)} {' '.join(outcome.events)}"


@pytest.mark.timeout(400)  # a failing life is made shorter first
@pytest.mark.parametrize("method", Method, ids=lambda method: method.value)
@pytest.mark.parametrize("world", [("object", 4), ("object", 6)], ids=("ipv4", "ipv6"),
                         indirect=True)  # fmt: skip
def test_random_lives(world: World, method: Method) -> None:
    """Any order of datagrams, pauses, decisions, evictions and deaths: as the model says."""
    machine = type("UdpFlowsHere", (UdpFlows,), {"world": world, "method": method})
    how = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None, database=None,
                   suppress_health_check=list(hypothesis.HealthCheck), print_blob=True,
                   report_multiple_bugs=False)  # fmt: skip
    run_state_machine_as_test(hypothesis.seed(LIVES_SEED)(machine), settings=how)
