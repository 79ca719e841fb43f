# SPDX-License-Identifier: Apache-2.0
"""Random lives of fullnat flows that want the same few ports: who has one has it alone.

The real program, the daemon's real executor and its real ager work on the same tables. The model
only notes who was seen with which port; which one that is, is theirs to choose. Both families.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.bpf.corpus.first import OPEN
from tests.bpf.corpus.flows import seen_key
from tests.bpf.corpus.fullnat import OURS, fullnat
from tests.bpf.corpus.world import (
    B1,
    B2,
    CLIENT,
    IN,
    MARK,
    SECOND,
    WEB,
    Server,
    World,
    endpoint_of,
    flow_key,
    to_client,
    to_service,
)
from tests.conftest import LIVES_SEED
from tests.support.frames import ACK, PSH, RST, SYN, End, Segment, difference
from tests.support.program import DROP, REDIRECT, TX, Outcome
from tests.support.worlds import world_id
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core import abi
from xdp_router.core.commands import Reinject, WriteBinding
from xdp_router.core.config import RouterConfig, Settings
from xdp_router.core.events import BindingWritten, FirstPacket, ReplyTupleTaken
from xdp_router.core.model import Backend, Forwarding, Mode, Reason, Service
from xdp_router.daemon.aging import Ager
from xdp_router.daemon.executor import Executor
from xdp_router.daemon.nat_ports import NatPorts

pytest_plugins = ("tests.support.worlds",)

PORTS = range(20_000, 20_003)
CLIENTS = tuple(End(CLIENT.addr, 40_000 + number) for number in range(8))
SERVERS = (B1, B2)
SERVER_ISN = 5_000_000
WHO = st.sampled_from((0, 0, 0, 0, 1, 1, *range(2, len(CLIENTS))))

Place = tuple[int, int]
"""Backend and port."""


@dataclass(slots=True)
class Flow:
    """What is known of a client's flow."""

    isn: int
    place: Place
    state: str = "opening"  # then "answered", "established"; "over" at any time


class Ports(RuleBasedStateMachine):
    """Eight clients, three ports at each of two backends."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        world = self.world
        world.reset()
        fullnat(world)
        world.change_hash((B2.id,) * abi.HASH_SLOTS)  # the second choice, behind the fallback
        self._beat(alive=False)
        self.flows: dict[int, Flow] = {}
        self.owner: dict[Place, int | None] = {}
        """None: it rests."""
        self.isn = 1_000
        native = world.native_endpoint
        backends = tuple(Backend(s.id, "b", native(s.end), 0) for s in SERVERS)
        web = Service(0, "web", native(WEB), backends, forwarding=Forwarding.FULLNAT)
        self.settings = Settings(nat_port_min=PORTS[0], nat_port_max=PORTS[-1])
        ours = world.native_addr(OURS.number)
        nat_ports = NatPorts(RouterConfig((web,), self.settings), lambda _backend: ours)
        self.sent: list[bytes] = []
        sender: Any = SimpleNamespace(send_frame=lambda _ifindex, frame: self.sent.append(frame))
        state: Any = SimpleNamespace(maps=world.maps, shared=frozenset(), vlan=lambda _backend: 0)
        reinjector = Reinjector(world.program.plane.entry, MARK)
        self.executor = Executor(
            state, backends, reinjector, sender, lambda _decision: None, nat_ports
        )

    # --- opening ---------------------------------------------------------------------------

    @rule(who=WHO)
    def opens(self, who: int) -> None:
        """A SYN with a new number; the daemon is silent."""
        self.isn += 100_000
        syn = self._syn(self.isn)
        outcome = self._from_client(who, syn)
        flow = self.flows.get(who)
        if flow and flow.state != "over":
            assert self._place_of(outcome, syn) == flow.place
            return
        self._leave(who)
        self._gets(who, outcome, syn)

    @rule(who=WHO)
    def opens_by_the_daemon(self, who: int) -> None:
        """The same, decided by the daemon."""
        flow = self.flows.get(who)
        if flow and flow.state != "over":
            return
        self.isn += 100_000
        self._beat(alive=True)
        syn = self._syn(self.isn)
        outcome = self._from_client(who, syn)
        self._beat(alive=False)
        assert outcome.verdict == DROP
        self._leave(who)
        frame = self.world.native(to_service(syn, client=CLIENTS[who]))
        first = FirstPacket(
            self.world.native_key(flow_key(client=CLIENTS[who])), 0, self.world.wires.client,
            time.monotonic_ns(), self.isn, 0, 7, frame,
        )  # fmt: skip
        for server in SERVERS:
            answer = self.executor.execute(
                WriteBinding(first, server.id, Mode.RACE, Reason.RACE_WON, 1000)
            )
            if isinstance(answer, BindingWritten):
                self.sent.clear()
                self.executor.execute(Reinject(first))
                self.world.program.changes()  # of counters: the next run's are its own
                (sent,) = self.sent
                self._takes(who, self._read(sent, syn))
                return
            assert isinstance(answer, ReplyTupleTaken)
            assert self._is_full(server)
        self.world.maps.pending_flows.delete(seen_key(client=CLIENTS[who]))

    @rule(who=WHO)
    def sends_its_syn_again(self, who: int) -> None:
        """It keeps its place."""
        if flow := self.flows.get(who):
            self._reaches_server(who, flow.place, self._syn(flow.isn))

    # --- talking ---------------------------------------------------------------------------

    @rule(who=WHO)
    def is_established(self, who: int) -> None:
        """SYN-ACK, and the ACK that proves that it was seen."""
        flow = self.flows.get(who)
        if not flow or flow.state != "opening":
            return
        answer = Segment(flags=SYN | ACK, seq=SERVER_ISN, ack=flow.isn + 1)
        self._reaches_client(who, flow.place, answer)
        segment = Segment(flags=ACK, seq=flow.isn + 1, ack=SERVER_ISN + 1)
        assert self._reaches_server(who, flow.place, segment) == {"promoted": 1}
        flow.state = "established"

    @rule(who=WHO)
    def both_sides_speak(self, who: int) -> None:
        """Each reaches the other."""
        flow = self.flows.get(who)
        if flow and flow.state == "established":
            segment = Segment(flags=ACK, seq=flow.isn + 1, ack=SERVER_ISN + 1)
            self._reaches_server(who, flow.place, segment)
            back = Segment(flags=PSH | ACK, seq=SERVER_ISN + 1, ack=flow.isn + 1, payload=b"x")
            self._reaches_client(who, flow.place, back)

    @rule(who=WHO)
    def is_reset(self, who: int) -> None:
        """By the client, or by the backend that refuses it: it is over, and has its port still."""
        flow = self.flows.get(who)
        if not flow or flow.state == "over":
            return
        if flow.state == "established":
            segment = Segment(flags=RST | ACK, seq=flow.isn + 1, ack=SERVER_ISN + 1)
            self._reaches_server(who, flow.place, segment)
        else:
            refusal = Segment(flags=RST | ACK, ack=flow.isn + 1)
            self._reaches_client(who, flow.place, refusal)
        flow.state = "over"

    @rule(who=WHO)
    def comes_again(self, who: int) -> None:
        """The same client, when its flow is over: by another port, and the first one rests."""
        self.is_reset(who)
        self.opens(who)

    @rule()
    def pending_entries_of_the_established_are_evicted(self) -> None:
        """Nothing is lost by that, no port is free."""
        pending = self.world.maps.pending_flows
        for who, flow in self.flows.items():
            if flow.state != "established":
                continue
            client, (backend, port) = CLIENTS[who], flow.place
            for kind in (abi.Kind.SEEN, abi.Kind.FORWARD):
                pending.delete(abi.pack_flow_key(flow_key(client=client), kind))
            pending.delete(self._reply_key(backend, port))

    # --- time ------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((11, 58, 62)))
    def time_passes(self, seconds: int) -> None:
        """As the ager sees it: what was used just now, was so many seconds ago."""
        first, *others = self.world.program.maps.by_family.values()
        now_ns = time.monotonic_ns() + seconds * SECOND
        settings_ = dataclasses.replace(self.settings, pending_idle_ns=10 * SECOND)
        self._beat(alive=False)
        ager = Ager(first.flows, first.pending, settings_, lambda _closed: None, lambda: now_ns,
                    others=others)  # fmt: skip
        asyncio.run(ager.sweep())
        if seconds < 60:
            return
        self.flows = {who: f for who, f in self.flows.items() if f.state == "established"}
        kept = {flow.place: who for who, flow in self.flows.items()}
        self.owner = dict(kept)

    # --- always ----------------------------------------------------------------------------

    @invariant()
    def what_comes_to_a_port_without_a_flow_is_reset(self) -> None:
        """Those that rest, and those that nobody has."""
        segment = Segment(flags=PSH | ACK, seq=77, ack=88, payload=b"late")
        for server in SERVERS:
            for port in PORTS:
                if self.owner.get((server.id, port)) is None:
                    outcome = self._from_server((server.id, port), segment)
                    assert outcome.verdict == TX
                    assert outcome.counters == {"nat_reply_unknown": 1}

    # --- the words -------------------------------------------------------------------------

    def _beat(self, alive: bool) -> None:
        beat_ns = time.monotonic_ns()
        self.world.limit(
            nat_port_min=PORTS[0],
            nat_port_max=PORTS[-1],
            heartbeat_ns=beat_ns,
            heartbeat_stale_ns=3600 * SECOND if alive else 0,
        )

    @staticmethod
    def _syn(isn: int) -> Segment:
        return OPEN.but(seq=isn)

    def _from_client(self, who: int, segment: Segment) -> Outcome:
        return self.world.run(to_service(segment, client=CLIENTS[who]))

    def _from_server(self, place: Place, segment: Segment) -> Outcome:
        server = SERVERS[place[0]]
        ours = End(OURS.addr, place[1])
        return self.world.run(segment.frame(server.end, ours, server.hop.back), "backend")

    def _reaches_client(self, who: int, place: Place, segment: Segment) -> None:
        outcome = self._from_server(place, segment)
        wanted = self.world.native(to_client(segment, client=CLIENTS[who]))
        assert (outcome.verdict, outcome.frame) == (REDIRECT, wanted)

    def _reaches_server(self, who: int, place: Place, segment: Segment) -> dict[str, int]:
        """What is counted on the way."""
        outcome = self._from_client(who, segment)
        assert self._place_of(outcome, segment) == place
        return outcome.counters

    def _place_of(self, outcome: Outcome, segment: Segment) -> Place:
        assert outcome.verdict == REDIRECT
        return self._read(outcome.frame, segment)

    def _read(self, frame: bytes, segment: Segment) -> Place:
        """Whom the frame of a segment is for, and its source port, one of our address."""
        at = 34 if self.world.family == 4 else 54
        port = int.from_bytes(frame[at : at + 2], "big")
        sent = segment.but(ttl=segment.ttl - 1)
        (server,) = (s for s in SERVERS if s.mac == frame[:6])
        wanted = self.world.native(sent.frame(End(OURS.addr, port), server.end, server.hop))
        assert frame == wanted, difference(frame, wanted)
        return server.id, port

    @staticmethod
    def _reply_key(backend: int, port: int) -> bytes:
        ours = endpoint_of(End(OURS.addr, port))
        return abi.pack_reply_key(
            endpoint_of(SERVERS[backend].end), flow_key(), abi.Kind.REPLY, ours
        )

    def _is_full(self, server: Server) -> bool:
        return all((server.id, port) in self.owner for port in PORTS)

    def _leave(self, who: int) -> None:
        if old := self.flows.pop(who, None):
            self.owner[old.place] = None

    def _takes(self, who: int, place: Place) -> None:
        assert place not in self.owner, "somebody has that port, or it rests"
        self.owner[place] = who
        self.flows[who] = Flow(self.isn, place)

    def _gets(self, who: int, outcome: Outcome, syn: Segment) -> None:
        if outcome.verdict == TX:
            assert all(map(self._is_full, SERVERS))
            assert outcome.counters["nat_ports_exhausted"] == len(SERVERS)
            rst = outcome.frame
            assert rst[:12] == IN.back.dst + IN.back.src
            return
        place = self._place_of(outcome, syn)
        assert place[0] == B1.id or self._is_full(B1)
        self._takes(who, place)


RUNS = [("object", 4), ("bcc", 4), ("object", 6)]


@pytest.mark.timeout(400)  # a failing life is made shorter first
@pytest.mark.parametrize("world", RUNS, ids=world_id, indirect=True)
def test_nobody_shares_a_port(world: World) -> None:
    """Whatever happens, in any order, a port has one flow, and rests when it is over."""
    machine = type("PortsHere", (Ports,), {"world": world})
    how = settings(
        max_examples=12,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        database=None,
    )
    run_state_machine_as_test(hypothesis.seed(LIVES_SEED)(machine), settings=how)
