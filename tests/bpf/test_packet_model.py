# SPDX-License-Identifier: Apache-2.0
"""Random lives of two flows that collide: each packet becomes what a pure model says.

The real program, as either loader loads it, and the daemon's real executor run in lockstep with
the model. Verdict, whole frame, counters and both tables are compared after each step. Time is
made by moving the instants in the tables back, for the program reads the real clock.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

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

from tests.bpf.corpus.flows import forward_key, reply_key, seen_key
from tests.bpf.corpus.world import (
    SECOND,
    World,
    from_backend,
    to_service,
)
from tests.conftest import LIVES_SEED
from tests.support.flow_model import FlowModel
from tests.support.flow_parts import (
    ACK,
    FIN,
    PAUSES_S,
    RST,
    SYN,
    Outcome,
    Seg,
)
from tests.support.flow_sides import (
    ANSWERS,
    BACKENDS,
    EXAMPLES,
    FAR,
    HASH_ORDER,
    ISNS,
    SERVERS,
    SERVICES,
    Held,
    Side,
    made_of,
    pressure_of,
    rst_for,
    segment_of,
    tables_of,
)
from tests.support.frames import difference
from tests.support.instants import before
from tests.support.program import REDIRECT, TX, VERDICTS
from xdp_router.core import abi
from xdp_router.core.commands import Reinject, WriteBinding
from xdp_router.core.events import FirstPacket
from xdp_router.core.model import NO_BACKEND, Mode, Reason

pytest_plugins = ("tests.support.worlds",)

SERVICE = st.sampled_from((0, 0, 1))
WEB_BACKEND = st.sampled_from(("B1", "B2", "B3"))
SENDER = st.sampled_from(("client", "server"))


class Flows(RuleBasedStateMachine):
    """Everything that can happen to the flows of one client tuple, in any order."""

    worlds: tuple[World, ...] = ()
    far = FAR

    def __init__(self) -> None:
        super().__init__()
        self._make()
        self.held: list[Held] = []
        self.delivered: dict[tuple[int, int], set[str]] = {}
        self.story: list[str] = []
        self._publish()

    def _make(self) -> None:
        self.sides = [Side(world) for world in self.worlds]
        self.flows = FlowModel(
            fallback={0: BACKENDS["B1"], 1: BACKENDS["SHOP_B1"]}, up=set(BACKENDS)
        )

    # --- the world around -----------------------------------------------------------------

    @rule(seconds=st.sampled_from(PAUSES_S))
    def time_passes(self, seconds: int) -> None:
        self._tell(f"{seconds} s pass")
        self._pause(seconds)
        self.flows.pass_time(seconds)
        self._write_control()

    @rule()
    def daemon_dies_or_returns(self) -> None:
        if self.flows.alive:
            self._tell("the daemon dies")
            self._pause(PAUSES_S[0])
            self.flows.die(PAUSES_S[0])
        else:
            self._tell("the daemon is back")
            self.flows.come_back()
        self._write_control()

    @rule(name=st.sampled_from(sorted(BACKENDS)))
    def backend_up_or_down(self, name: str) -> None:
        self.flows.up ^= {name}
        self._tell(f"{name} is {'up' if name in self.flows.up else 'down'}")
        for side in self.sides:
            side.set_up(SERVERS[name], name in self.flows.up)
        self._publish()

    @rule(full=st.booleans())
    def table_fills_up_or_empties(self, full: bool) -> None:
        """Other flows take all places, or leave them."""
        self._tell(f"the table is {'full' if full else 'empty'}")
        self.flows.full = full

    @precondition(lambda self: self.flows.forward or self.flows.seen)
    @rule(kind=st.sampled_from(("SEEN", "FORWARD", "REPLY")), service=SERVICE)
    def eviction(self, kind: str, service: int) -> None:
        forward = self.flows.forward.get(service)
        if kind == "SEEN":
            key = seen_key(SERVICES[service])
        elif kind == "FORWARD":
            key = forward_key(SERVICES[service])
        elif forward and forward.backend:
            owner = self.flows.reply.get(forward.backend.address)
            if not owner or owner.service != service:
                return
            key = reply_key(SERVERS[forward.backend.name])
        else:
            return
        self._tell(f"{kind} of service {service} is evicted")
        for side in self.sides:
            side.world.maps.pending_flows.delete(key)
        self.flows.evict(kind, service)

    @precondition(lambda self: self.flows.alive and self.held)
    @rule(which=st.integers(0, 7), choice=st.sampled_from(("B1", "B2", "B3", "nobody")),
          take_over=st.booleans())  # fmt: skip
    def daemon_decides(self, which: int, choice: str, take_over: bool = False) -> None:
        """The answer to any first packet that was ever held, early or very late."""
        held = self.held[-1 - which % len(self.held)]
        name = "SHOP_B1" if held.service and choice != "nobody" else choice
        backend = BACKENDS.get(name)
        answer = self.flows.daemon_decides(held.service, held.isn, held.age, backend, take_over)
        how = "takes over" if take_over else "decides"
        self._tell(f"the daemon {how} service {held.service}, isn {held.isn}: {name}, {answer}")
        mode, reason = (
            (Mode.RACE, Reason.RACE_WON) if backend else (Mode.REFUSED, Reason.ALL_REFUSED)
        )
        number = backend.id if backend else NO_BACKEND
        for side, first in zip(self.sides, held.packets, strict=True):
            aged = dataclasses.replace(first, seen_ns=before(first.seen_ns, held.age * SECOND))
            event = side.executor.execute(WriteBinding(aged, number, mode, reason, 1000, take_over))
            assert ANSWERS.get(type(event)) == answer, self._report(str(event))
        if answer != "tuple":
            seg = Seg(SYN, held.isn)
            outcome = self.flows.from_client(held.service, seg)
            self._reinject(held, seg, outcome)

    # --- the client -----------------------------------------------------------------------

    @initialize(service=st.sampled_from((None, None, 0, 1)), full=st.booleans())
    def begins(self, service: int | None, full: bool) -> None:
        """Some lives begin with a connection, or in a full table."""
        self.flows.full = full
        if service is not None:
            self._connect(service, 0, "B1")

    @rule(service=SERVICE, isn=st.integers(0, len(ISNS) - 1), name=WEB_BACKEND)
    def handshake(self, service: int, isn: int, name: str) -> None:
        """All of it at once, as far as the flow's state lets it happen."""
        self._connect(service, isn, name)

    @rule(service=SERVICE, through=st.booleans(), again=st.booleans())
    def tuple_changes_hands(self, service: int, through: bool, again: bool) -> None:
        """A flow loses its REPLY, the other service's flow takes the tuple, the first one asks."""
        self._ask(service, "B1")
        self.eviction("REPLY", service)
        if through:
            self._connect(1 - service, 0, "B1")
        else:
            self._ask(1 - service, "B1")
        self.client_syn(service, again, ISNS[2])

    def _ask(self, service: int, name: str) -> None:
        self.client_syn(service, True, ISNS[0])
        if self.flows.alive and service in self.flows.seen and service not in self.flows.forward:
            self.daemon_decides(0, name)

    def _connect(self, service: int, isn: int, name: str) -> None:
        self.client_syn(service, False, ISNS[isn])
        if self.flows.alive and service in self.flows.seen and service not in self.flows.forward:
            self.daemon_decides(0, name)
        self.backend_answers_syn(service, False)
        self.client_completes_handshake(service, 7)

    @rule(service=SERVICE, again=st.booleans(), isn=st.sampled_from(ISNS))
    def client_syn(self, service: int, again: bool, isn: int) -> None:
        """A first SYN, the same again, or one with another number."""
        talk = self.flows.talk.get(service)
        self._from_client(service, Seg(SYN, talk.client_isn if again and talk else isn))

    @precondition(lambda self: self.flows.talk)
    @rule(service=SERVICE, payload=st.sampled_from((0, 7)))
    def client_completes_handshake(self, service: int, payload: int) -> None:
        if talk := self.flows.talk.get(service):
            known = talk.client_next == talk.client_isn + 1 & 0xFFFFFFFF
            self._client_sends(
                service, Seg(ACK, talk.client_isn + 1 & 0xFFFFFFFF, talk.server_isn + 1
                             & 0xFFFFFFFF, payload if known else 0)
            )  # fmt: skip

    @precondition(lambda self: self.flows.talk)
    @rule(service=SERVICE)
    def guessed_handshake(self, service: int) -> None:
        """Who did not see the SYN-ACK establishes nothing."""
        if talk := self.flows.talk.get(service):
            ack = talk.server_next + self.far & 0xFFFFFFFF
            self._from_client(service, Seg(ACK, talk.client_isn + 1 & 0xFFFFFFFF, ack, 0, False))

    @precondition(lambda self: self.flows.talk)
    @rule(service=SERVICE, sender=SENDER, payload=st.sampled_from((0, 1, 10)),
          flag=st.sampled_from((0, 0, FIN, RST)))  # fmt: skip
    def honest_segment(self, service: int, sender: str, payload: int, flag: int) -> None:
        """Data, FIN or RST, each with the next numbers of its sender."""
        talk = self.flows.talk.get(service)
        if not talk:
            return
        if sender == "client":
            numbers = talk.client_next, talk.server_next
            self._client_sends(service, Seg(ACK | flag, *numbers, payload if not flag else 0))
        elif name := self._speaker(service):
            numbers = talk.server_next, talk.client_next
            seg = Seg(ACK | flag, *numbers, payload if not flag else 0)
            self._from_backend(name, seg)
            if not flag & RST:
                talk.server_next = talk.server_next + seg.length & 0xFFFFFFFF

    @precondition(lambda self: self.flows.talk)
    @rule(service=SERVICE, sender=SENDER, flags=st.sampled_from((ACK, ACK | FIN, RST, RST | ACK)),
          by=st.sampled_from((FAR, 100)))  # fmt: skip
    def blind_segment(self, service: int, sender: str, flags: int, by: int) -> None:
        """Somebody else guesses: no flow is cut, which the comparison of the tables shows."""
        talk = self.flows.talk.get(service)
        if not talk:
            return
        by = by if flags & RST else FAR  # inside the window only a RST has to be exact
        if sender == "client":
            seg = Seg(flags, talk.client_next + by & 0xFFFFFFFF, talk.server_next, 0, False)
            self._from_client(service, seg)
        elif name := self._speaker(service):
            seg = Seg(flags, talk.server_next + by & 0xFFFFFFFF, talk.client_next, 0, False)
            self._from_backend(name, seg)

    # --- the backends ---------------------------------------------------------------------

    @precondition(lambda self: self.flows.forward)
    @rule(service=SERVICE, refuses=st.sampled_from((False, False, True)))
    def backend_answers_syn(self, service: int, refuses: bool) -> None:
        """SYN-ACK or RST of the backend that the decision names."""
        forward, talk = self.flows.forward.get(service), self.flows.talk.get(service)
        if not forward or not forward.backend or not talk or self.flows.there.get(service):
            return
        owner = self.flows.back.get(forward.backend.address)
        if owner:  # REPLY was lost and given away: this would be the other flow's segment
            return
        ack = talk.client_isn + 1 & 0xFFFFFFFF
        seg = Seg(RST | ACK, 0, ack) if refuses else Seg(SYN | ACK, talk.server_isn, ack)
        self._from_backend(forward.backend.name, seg)

    @precondition(lambda self: self.flows.there)
    @rule(service=SERVICE)
    def backend_repeats_synack(self, service: int) -> None:
        bound, talk = self.flows.there.get(service), self.flows.talk.get(service)
        if bound and talk:
            ack = talk.client_isn + 1 & 0xFFFFFFFF
            self._from_backend(bound.backend.name, Seg(SYN | ACK, talk.server_isn, ack))

    @rule(service=SERVICE)
    def backend_takes_a_later_syn(self, service: int) -> None:
        """Its old connection is gone: it answers the SYN with another number that came."""
        forward, bound = self.flows.forward.get(service), self.flows.there.get(service)
        later = bound.later if bound else forward.later if forward else 0
        backend = bound.backend if bound else forward.backend if forward else None
        owner = self.flows.back.get(backend.address) if backend else None
        if not backend or not later or (owner and owner.service != service):
            return
        ack = later + 1 & 0xFFFFFFFF
        self._from_backend(backend.name, Seg(SYN | ACK, later ^ 0x55555555, ack))

    @rule(name=st.sampled_from(("B1", "B2", "B3")))
    def stranger_speaks(self, name: str) -> None:
        """A backend that no flow is bound to: not ours."""
        reply = self.flows.reply.get(BACKENDS[name].address)
        if BACKENDS[name].address not in self.flows.back and not (
            reply and (reply.proven or reply.orphan)
        ):
            self._from_backend(name, Seg(ACK, 77, 88, 3))

    # --- what holds at any time -----------------------------------------------------------

    @invariant()
    def tables_are_as_the_model_says(self) -> None:
        wanted = tables_of(self.flows)
        for side in self.sides:
            found = side.tables()
            lines = [
                f"{name}: {found.get(name)}, wanted {wanted.get(name)}"
                for name in sorted(found.keys() | wanted.keys())
                if found.get(name) != wanted.get(name)
            ]
            assert not lines, self._report(side.world.program.loader, *lines)
        self._settle()

    @invariant()
    def one_backend_for_each_incarnation(self) -> None:
        several = {at: names for at, names in self.delivered.items() if len(names) > 1}
        assert not several, self._report(f"(service, incarnation) at several: {several}")

    @invariant()
    def no_reply_is_left_over(self) -> None:
        """Every REPLY has its FORWARD, unless that was evicted."""
        for address, reply in self.flows.reply.items():
            forward = self.flows.forward.get(reply.service)
            fits = forward and forward.backend and forward.backend.address == address
            assert fits or address in self.flows.strays, self._report(f"REPLY of {address}")

    # --- how ------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Before each packet: XDP noted what the model says, and a full table is full."""
        for side in self.sides:
            found, wanted = side.pressure(), pressure_of(self.flows)
            assert found == wanted, self._report(f"{found}, wanted {wanted}")
            side.write_pressure(self.flows)
            side.fill(self.flows.full)

    def _speaker(self, service: int) -> str | None:
        """The backend that has a connection with the client, as far as anybody knows."""
        forward, bound = self.flows.forward.get(service), self.flows.there.get(service)
        if bound:
            return bound.backend.name
        if not forward or not forward.backend or not (forward.proven or forward.orphan):
            return None
        owner = self.flows.reply.get(forward.backend.address)
        taken = forward.backend.address in self.flows.back
        return forward.backend.name if owner and owner.service == service and not taken else None

    def _client_sends(self, service: int, seg: Seg) -> None:
        self._from_client(service, seg)
        talk = self.flows.talk[service]
        forward = self.flows.forward.get(service)
        knows = service in self.flows.there or (forward and (forward.proven or forward.orphan))
        if knows and seg.seq == talk.client_next and not seg.flags & RST:
            talk.client_next = talk.client_next + seg.length & 0xFFFFFFFF

    def _from_client(self, service: int, seg: Seg) -> Outcome:
        self._settle()
        outcome = self.flows.from_client(service, seg)
        self._tell(f"client > service {service}: {show(seg)} -> {show_outcome(outcome)}")
        self._deliver(service, outcome)
        frame = to_service(segment_of(seg), SERVICES[service])
        self._run(frame, "client", outcome, *self._wanted(service, seg, outcome))
        return outcome

    def _from_backend(self, name: str, seg: Seg) -> Outcome:
        self._settle()
        outcome = self.flows.from_backend(BACKENDS[name], seg)
        self._tell(f"{name} > client: {show(seg)} -> {show_outcome(outcome)}")
        frame = from_backend(segment_of(seg), SERVERS[name])
        self._run(frame, "backend", outcome, *made_of(seg, outcome))
        return outcome

    def _wanted(self, service: int, seg: Seg, outcome: Outcome) -> tuple[int, bytes | None]:
        verdict, out = made_of(seg, outcome)
        return verdict, rst_for(service, seg) if verdict == TX else out

    def _run(
        self, frame: bytes, at: str, outcome: Outcome, verdict: int, out: bytes | None
    ) -> None:
        records = []
        for side in self.sides:
            got = side.world.run(frame, at)
            wanted = side.world.native(frame if out is None else out)
            wrong = []
            if got.verdict != verdict:
                wrong.append(f"{VERDICTS[got.verdict]}, wanted {VERDICTS[verdict]}")
            if got.frame != wanted:
                wrong.append(difference(got.frame, wanted))
            if got.counters != dict(outcome.counters):
                wrong.append(f"counters {got.counters}, wanted {dict(outcome.counters)}")
            assert not wrong, self._report(side.world.program.loader, *wrong)
            records.append(got.records)
        self._hold(records)

    def _reinject(self, held: Held, seg: Seg, outcome: Outcome) -> None:
        """The held frame runs again; what comes out of it is what the executor sends."""
        self._tell(f"    re-injected -> {show_outcome(outcome)}")
        self._deliver(held.service, outcome)
        verdict, out = self._wanted(held.service, seg, outcome)
        counters = Counter(outcome.counters)
        if verdict in (REDIRECT, TX):
            counters["reinjected"] += 1
        records = []
        for side, first in zip(self.sides, held.packets, strict=True):
            side.sent.clear()
            side.executor.execute(Reinject(first))
            changed, left = side.world.program.changes()
            to = side.world.wires.client if verdict == TX else side.world.wires.backend
            wanted = [] if out is None else [(to, side.world.native(out))]
            assert side.sent == wanted, self._report(side.world.program.loader, str(side.sent))
            assert changed == dict(counters), self._report(f"{changed}, wanted {dict(counters)}")
            records.append(left)
        self._hold(records)

    def _hold(self, records: list[list[bytes]]) -> None:
        """What the daemon hears: the same in every world."""
        events = [[abi.decode_event(record) for record in each] for each in records]
        kinds = [[type(event) for event in each] for each in events]
        assert kinds.count(kinds[0]) == len(kinds), self._report(f"events {kinds}")
        for same in zip(*events, strict=True):
            packets = [event for event in same if isinstance(event, FirstPacket)]
            if packets:
                isn = packets[0].isn
                self.held.append(Held(packets[0].service, isn, 0, packets))

    def _deliver(self, service: int, outcome: Outcome) -> None:
        if outcome.backend:
            at = service, self.flows.incarnation[service]
            self.delivered.setdefault(at, set()).add(outcome.backend.name)

    def _pause(self, seconds: int) -> None:
        for side in self.sides:
            side.grow_older(seconds)
        for held in self.held:
            held.age += seconds

    def _write_control(self) -> None:
        for side in self.sides:
            side.write_control(self.flows.alive, self.flows.heartbeat_age, self.flows.resumed_age)
            side.write_pressure(self.flows)

    def _publish(self) -> None:
        """As the daemon does when the set of usable backends changes."""
        for service, order in enumerate(HASH_ORDER):
            name = next((name for name in order if name in self.flows.up), None)
            self.flows.hashed[service] = BACKENDS[name] if name else None
            slot = BACKENDS[name].id if name else NO_BACKEND
            for side in self.sides:
                side.world.change_hash((slot,) * abi.HASH_SLOTS, service)

    def _tell(self, line: str) -> None:
        self.story.append(line)

    def _report(self, *wrong: str) -> str:
        return "\n".join(["", *(f"{n:3} {line}" for n, line in enumerate(self.story, 1)), *wrong])


def show(seg: Seg) -> str:
    flags = "".join(c for bit, c in ((SYN, "S"), (FIN, "F"), (RST, "R"), (ACK, "A"))
                    if seg.flags & bit)  # fmt: skip
    guess = "" if seg.honest else " (a guess)"
    return f"{flags} seq {seg.seq} ack {seg.ack} {seg.payload} bytes{guess}"


def show_outcome(outcome: Outcome) -> str:
    to = outcome.backend.name if outcome.backend else outcome.what
    return f"{to} {dict(outcome.counters)}"


@pytest.mark.timeout(400)  # a failing life is made shorter first
def test_random_lives(worlds: dict[str, World]) -> None:
    """Any order of packets, pauses, decisions, evictions, deaths: as the model says."""

    class Lives(Flows):
        pass

    Lives.worlds = tuple(worlds.values())
    hypothesis.seed(LIVES_SEED)(Lives)
    examples = EXAMPLES if worlds["object"].family == 4 else EXAMPLES // 2
    run_state_machine_as_test(
        Lives, settings=settings(max_examples=examples, stateful_step_count=50, print_blob=True)
    )
