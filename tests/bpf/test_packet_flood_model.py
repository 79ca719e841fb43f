# SPDX-License-Identifier: Apache-2.0
"""Random lives of flows over budget: each packet becomes what a pure model says.

The steps are those of ``test_packet_model``, of two clients of one service; and its budget is
spent, and not, and what the flood's table holds is evicted. Once as a service whose flows over
budget have entries there, and once as a stateless one. In either address family.
"""

from __future__ import annotations

import dataclasses

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.bpf.corpus.stateless import routed
from tests.bpf.corpus.world import SECOND, World, from_backend, to_service
from tests.bpf.test_packet_model import Flows, show, show_outcome
from tests.conftest import LIVES_SEED
from tests.support.flood_model import FloodModel
from tests.support.flood_side import (
    CLIENTS,
    HASH_ORDER,
    PLACES,
    SERVERS,
    FloodSide,
    made_of,
    server_of,
    told,
    told_pressure,
)
from tests.support.flow_parts import ACK, FIN, PAUSES_S, RST, SYN, Outcome, Seg
from tests.support.flow_sides import ANSWERS, ISNS, Held, segment_of
from tests.support.instants import before
from xdp_router.core import abi
from xdp_router.core.commands import WriteBinding
from xdp_router.core.events import FirstPacket, FlowEstablished
from xdp_router.core.model import NO_BACKEND, Mode, Reason

pytest_plugins = ("tests.support.worlds",)

EXAMPLES = 20
FAR = 0x7F000000
"""Beyond the window of a flow whose window scale nobody has seen, which is the largest."""

WHO = st.sampled_from((0, 0, 0, 1))
NAME = st.sampled_from(tuple(SERVERS))
SENDER = st.sampled_from(("client", "server"))


class Floods(Flows):
    """What can happen to the flows of two clients of a service that is over budget."""

    without = False
    far = FAR

    def __init__(self) -> None:
        self.hash_name: str | None = None
        self.real: dict[int, str] = {}
        """Who has got the client's newest SYN."""
        super().__init__()

    def _make(self) -> None:
        self.sides = [FloodSide(world, self.without) for world in self.worlds]
        self.flows: FloodModel = FloodModel(
            fallback={who: PLACES[f"B1@{who}"] for who in range(len(CLIENTS))},
            up=set(SERVERS),
            without=self.without,
        )

    # --- the world around -----------------------------------------------------------------

    @initialize(
        service=st.sampled_from((None, None, 0, 1)),
        full=st.sampled_from((False, False, True)),
        spent=st.sampled_from((True, True, True, False)),
    )
    def begins(self, service: int | None, full: bool, spent: bool = True) -> None:
        """Most lives begin in a flood, some with a connection, or in a full table."""
        self.budget_is_spent_or_not(spent)
        super().begins(service, full)

    @rule(spent=st.sampled_from((True, True, False)))
    def budget_is_spent_or_not(self, spent: bool) -> None:
        self._tell(f"the budget is {'spent' if spent else 'unlimited'}")
        self.flows.spent = spent
        for side in self._floods():
            side.spend(spent)

    @rule(name=NAME)
    def backend_up_or_down(self, name: str) -> None:
        self.flows.up ^= {name}
        self._tell(f"{name} is {'up' if name in self.flows.up else 'down'}")
        for side in self.sides:
            side.set_up(SERVERS[name], name in self.flows.up)
        self._publish()

    @rule(kind=st.sampled_from(("SEEN", "FORWARD", "REPLY")), service=WHO, flood=st.booleans())
    def eviction(self, kind: str, service: int, flood: bool = False) -> None:
        """Of what either table has, looked into or not."""
        forward = self.flows.forward.get(service)
        place = forward.backend if forward and forward.backend else PLACES[f"B2@{service}"]
        flood = flood and kind != "SEEN"
        self._tell(f"{kind} of {service}, {place.name}, flood {flood}, is evicted")
        for side in self._floods():
            side.delete(kind, service, place, flood)
        self.flows.lose(kind, service, place, flood)

    @precondition(lambda self: self.flows.alive and self.held)
    @rule(which=st.integers(0, 7), choice=st.sampled_from(("B1", "B2", "B3", "nobody")))
    def daemon_decides(self, which: int, choice: str, take_over: bool = False) -> None:
        held = self.held[-1 - which % len(self.held)]
        backend = PLACES.get(f"{choice}@{held.service}")
        answer = self.flows.daemon_decides(held.service, held.isn, held.age, backend)
        self._tell(f"the daemon decides {held.service}, isn {held.isn}: {choice}, {answer}")
        mode, reason = (
            (Mode.RACE, Reason.RACE_WON) if backend else (Mode.REFUSED, Reason.ALL_REFUSED)
        )
        number = backend.id if backend else NO_BACKEND
        for side, first in zip(self.sides, held.packets, strict=True):
            aged = dataclasses.replace(first, seen_ns=before(first.seen_ns, held.age * SECOND))
            event = side.executor.execute(WriteBinding(aged, number, mode, reason, 1000))
            assert ANSWERS.get(type(event)) == answer, self._report(str(event))
        seg = Seg(SYN, held.isn)
        self._reinject(held, seg, self.flows.from_client(held.service, seg))

    @rule(service=WHO, isn=st.sampled_from(ISNS), payload=st.sampled_from((0, 0, 10)),
          flag=st.sampled_from((0, 0, 0, FIN)), more=st.booleans())  # fmt: skip
    def conversation(self, service: int, isn: int, payload: int, flag: int, more: bool) -> None:
        """In a flood, from the client's SYN to what the backend says first, and an answer."""
        if not self.flows.alive:
            self.daemon_dies_or_returns()
        if service in self.flows.there or service in self.flows.forward:
            self.time_passes(PAUSES_S[-1])
        self.budget_is_spent_or_not(True)
        self.client_syn(service, False, isn)
        self.backend_answers_syn(service, False)
        self.client_completes_handshake(service, 7)
        self.honest_segment(service, "server", payload, flag)
        if more:
            self.honest_segment(service, "client", 1, 0)

    # --- the clients, and somebody else ---------------------------------------------------

    @precondition(lambda self: self.flows.talk)
    @rule(service=WHO, sender=SENDER, payload=st.sampled_from((0, 0, 1, 10)),
          flag=st.sampled_from((0, 0, FIN, RST)))  # fmt: skip
    def honest_segment(self, service: int, sender: str, payload: int, flag: int) -> None:
        """Data, a bare ACK, FIN or RST, each with the next numbers of its sender."""
        talk = self.flows.talk.get(service)
        if not talk:
            return
        payload = 0 if flag else payload
        if sender == "client":
            self._client_sends(
                service, Seg(ACK | flag, talk.client_next, talk.server_next, payload)
            )
        elif name := self._speaker(service):
            seg = Seg(ACK | flag, talk.server_next, talk.client_next, payload)
            if self._from_backend(name, seg).what == "client" and not flag & RST:
                talk.server_next = talk.server_next + seg.length & 0xFFFFFFFF

    @precondition(lambda self: self.flows.talk)
    @rule(service=WHO, sender=SENDER, flags=st.sampled_from((ACK, ACK | FIN, RST, RST | ACK)),
          by=st.sampled_from((FAR, 100)))  # fmt: skip
    def blind_segment(self, service: int, sender: str, flags: int, by: int) -> None:
        """Somebody else guesses: no flow is cut, or moved into the table."""
        talk = self.flows.talk.get(service)
        if not talk:
            return
        by = by if flags & RST else FAR
        knows = service in self.flows.there or service in self.flows.forward
        if sender == "client":
            seg = Seg(flags, talk.client_next + by & 0xFFFFFFFF, talk.server_next, 0, False)
            self._from_client(service, seg)
        elif knows and (name := self._speaker(service)):
            seg = Seg(flags, talk.server_next + by & 0xFFFFFFFF, talk.client_next, 0, False)
            self._from_backend(name, seg)

    @precondition(lambda self: self.flows.without and self.real)
    @rule(service=WHO, guess=st.booleans())
    def forgery(self, service: int, guess: bool) -> None:
        """A second SYN makes the backend tell its number by a bare ACK; nobody sees that one."""
        name, talk = self.real.get(service), self.flows.talk.get(service)
        if not name or not talk:
            return
        self._from_client(service, Seg(SYN, talk.client_next + FAR & 0xFFFFFFFF, honest=False))
        if self._speaker(service) == name:
            self._from_backend(name, Seg(ACK, talk.server_next, talk.client_next))
        if guess:
            ack = talk.server_next - 100 & 0xFFFFFFFF  # as if it were older
            self._from_client(service, Seg(ACK, talk.client_next, ack, 0, False))

    # --- the backends ---------------------------------------------------------------------

    @rule(service=WHO, refuses=st.sampled_from((False, False, False, True)))
    def backend_answers_syn(self, service: int, refuses: bool) -> None:
        """SYN-ACK or RST of who has the SYN."""
        forward, talk = self.flows.forward.get(service), self.flows.talk.get(service)
        name = forward.backend.name if forward and forward.backend else self.real.get(service)
        if name and talk and service not in self.flows.there:
            ack = talk.client_isn + 1 & 0xFFFFFFFF
            seg = Seg(RST | ACK, 0, ack) if refuses else Seg(SYN | ACK, talk.server_isn, ack)
            self._from_backend(name, seg)

    @rule(name=NAME, service=WHO, payload=st.sampled_from((0, 3)))
    def stranger_speaks(self, name: str, service: int = 0, payload: int = 3) -> None:
        """A backend that has nothing to do with the client, unless the service is stateless."""
        place = PLACES[f"{name}@{service}"]
        unknown = place.address not in self.flows.back and place.address not in self.flows.reply
        bound = self.flows.there.get(service) or self.flows.forward.get(service)
        if unknown and (bound or not self.flows.stateless[service]):
            self._from_backend(place.name, Seg(ACK, 77, 88, payload))

    # --- what holds at any time -----------------------------------------------------------

    @invariant()
    def tables_are_as_the_model_says(self) -> None:
        wanted = told(self.flows)
        for side in self.sides:
            found = side.tables()
            lines = [
                f"{name}: {found.get(name)}, wanted {wanted.get(name)}"
                for name in sorted(found.keys() | wanted.keys())
                if found.get(name) != wanted.get(name)
            ]
            assert not lines, self._report(side.world.program.loader, *lines)
        self._settle()

    def no_reply_is_left_over(self) -> None:
        """One that an eviction left is found by nobody else: each client has its own tuples."""

    # --- how ------------------------------------------------------------------------------

    def _floods(self) -> list[FloodSide]:
        return [side for side in self.sides if isinstance(side, FloodSide)]

    def _settle(self) -> None:
        for side in self.sides:
            found, wanted = side.pressure(), told_pressure(self.flows)
            assert found == wanted, self._report(f"{found}, wanted {wanted}")
            side.write_pressure(self.flows)
            side.fill(self.flows.full)

    def _speaker(self, service: int) -> str | None:
        name = super()._speaker(service)
        unknown = service not in self.flows.there and service not in self.flows.forward
        return self.real.get(service) if name is None and unknown else name

    def _client_sends(self, service: int, seg: Seg) -> None:
        outcome = self._from_client(service, seg)
        talk, forward = self.flows.talk[service], self.flows.forward.get(service)
        knows = forward is None or forward.proven or forward.orphan
        taken = outcome.what == "backend" and seg.seq == talk.client_next
        if taken and (knows or service in self.flows.there) and not seg.flags & RST:
            talk.client_next = talk.client_next + seg.length & 0xFFFFFFFF

    def _from_client(self, service: int, seg: Seg) -> Outcome:
        self._settle()
        outcome = self.flows.from_client(service, seg)
        self._tell(f"client {service}: {show(seg)} -> {show_outcome(outcome)}")
        if seg.flags & SYN and outcome.backend and self.flows.talk[service].client_isn == seg.seq:
            self.real[service] = outcome.backend.name
        self._deliver(service, outcome)
        frame = to_service(segment_of(seg), client=CLIENTS[service])
        self._run(frame, "client", outcome, *made_of(service, seg, outcome))
        return outcome

    def _from_backend(self, name: str, seg: Seg) -> Outcome:
        self._settle()
        outcome = self.flows.from_backend(PLACES[name], seg)
        who = PLACES[name].service
        self._tell(f"{name}: {show(seg)} -> {show_outcome(outcome)}")
        frame = from_backend(segment_of(seg), server_of(name), CLIENTS[who])
        self._run(frame, "backend", outcome, *made_of(who, seg, outcome))
        return outcome

    def _wanted(self, service: int, seg: Seg, outcome: Outcome) -> tuple[int, bytes | None]:
        return made_of(service, seg, outcome)

    def _hold(self, records: list[list[bytes]]) -> None:
        for record in records[0]:
            event = abi.decode_event(record)
            if isinstance(event, FirstPacket):
                who = event.key.client_port - CLIENTS[0].port
                self.held.append(Held(who, event.isn, 0, [event]))
            elif isinstance(event, FlowEstablished):
                assert event.key.client_port - CLIENTS[0].port in self.flows.there

    def _deliver(self, service: int, outcome: Outcome) -> None:
        """One without entries is nobody's, and goes wherever the hash says now."""
        if not outcome.counters["stateless_forwarded"]:
            super()._deliver(service, outcome)

    def _publish(self) -> None:
        name = next((name for name in HASH_ORDER if name in self.flows.up), None)
        for who in range(len(CLIENTS)):
            self.flows.hashed[who] = PLACES[f"{name}@{who}"] if name else None
        slot = SERVERS[name].id if name else NO_BACKEND
        for side in self.sides:
            side.world.change_hash((slot,) * abi.HASH_SLOTS)


@pytest.mark.timeout(400)  # a failing life is made shorter first
@pytest.mark.parametrize("without", [False, True], ids=("flood", "stateless"))
@pytest.mark.parametrize("world", [("object", 4), ("object", 6)], ids=("ipv4", "ipv6"),
                         indirect=True)  # fmt: skip
def test_random_lives(world: World, without: bool) -> None:
    """Any order of packets, pauses, floods, evictions, deaths: as the model says."""
    routed(world)
    machine = type("FloodsHere", (Floods,), {"worlds": (world,), "without": without})
    how = settings(max_examples=EXAMPLES, stateful_step_count=50, deadline=None, database=None,
                   suppress_health_check=list(hypothesis.HealthCheck), print_blob=True,
                   report_multiple_bugs=False)  # fmt: skip
    run_state_machine_as_test(hypothesis.seed(LIVES_SEED)(machine), settings=how)
