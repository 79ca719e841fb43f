# SPDX-License-Identifier: Apache-2.0
"""Who decides, exactly once: the daemon's late answer against XDP's own, in every order.

The daemon inserts REPLY, then FORWARD; XDP does both in one pass, on a SYN that is sent again
after the deadline. That pass is put before, between and after the daemon's two steps. What XDP
finds when the daemon was quicker than its own look-up is shown to ``stage_decide`` alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bpf.corpus.degrade import overdue, refusal
from tests.bpf.corpus.first import OPEN
from tests.bpf.corpus.flows import (
    AGE_NS,
    flow_keys,
    forward_key,
    put_flow,
    put_pending,
    read_pending,
    reply_entry,
    reply_key,
    reply_value,
)
from tests.bpf.corpus.world import (
    B1,
    B2,
    B3,
    CLIENT_ISN,
    CLIENT_SCALE,
    MARK,
    NAT_PORT,
    PROBE_SOURCE,
    SECOND,
    SHOP,
    WEB,
    Server,
    World,
    endpoint_of,
    flow_key,
    to_backend,
    to_service,
)
from tests.support.frames import End
from tests.support.instants import before
from tests.support.program import REDIRECT, TX, Outcome
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core import abi
from xdp_router.core.commands import Reinject, WriteBinding
from xdp_router.core.config import RouterConfig, Settings
from xdp_router.core.events import (
    BindingTaken,
    BindingWritten,
    Event,
    FirstPacket,
    ReplyTupleTaken,
)
from xdp_router.core.model import NO_BACKEND, Backend, Forwarding, Mode, Reason, Service
from xdp_router.daemon.executor import Executor
from xdp_router.daemon.nat_ports import NatPorts

pytest_plugins = ("tests.support.worlds",)

SYN_FRAME = to_service(OPEN)


class Interrupted:
    """The daemon's ``pending_flows``; something happens before its insert number ``at``."""

    def __init__(self, pending: Any, at: int, happens: Callable[[], object]) -> None:
        self._pending, self._at, self._happens = pending, at, happens
        self.read, self.delete = pending.read, pending.delete

    def insert_noexist(self, key: bytes, value: bytes) -> int:
        if self._at == 0:
            self._happens()
        self._at -= 1
        code: int = self._pending.insert_noexist(key, value)
        return code


class Sent:
    """Takes the place of the packet socket: what the daemon sends stays here."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []

    def send_frame(self, ifindex: int, frame: bytes) -> None:
        self.frames.append((ifindex, frame))


class Daemon:
    """The real executor over a world's maps and program."""

    def __init__(
        self,
        world: World,
        at: int,
        happens: Callable[[], object],
        nat_ports: NatPorts | None = None,
        backends: Sequence[Backend] | None = None,
    ) -> None:
        self._world = world
        self.sent = Sent()
        own = world.maps.by_family[world.family]
        tables = SimpleNamespace(
            pending=Interrupted(own.pending, at, happens), flows=own.flows, flood=own.flood
        )
        maps = SimpleNamespace(
            flows_of=lambda _addr: tables, control=world.maps.control, pressure=world.maps.pressure
        )
        state: Any = SimpleNamespace(
            maps=maps, shared={world.native_endpoint(B1.end)}, vlan=lambda _backend: 0
        )
        sender: Any = self.sent
        backends = backends or [
            Backend(s.id, "b", world.native_endpoint(s.end), s.service) for s in (B1, B2)
        ]
        reinjector = Reinjector(world.program.plane.entry, MARK)
        self._executor = Executor(
            state, backends, reinjector, sender, lambda decision: None, nat_ports
        )
        self._first = FirstPacket(
            world.native_key(flow_key()),
            0,
            world.wires.client,
            world.now_ns - AGE_NS,
            CLIENT_ISN,
            0,
            CLIENT_SCALE,
            world.native(SYN_FRAME),
        )

    def decide(self, server: Server | None) -> Event | None:
        """Carry out a decision."""
        number = server.id if server else NO_BACKEND
        mode, reason = (
            (Mode.RACE, Reason.RACE_WON) if server else (Mode.REFUSED, Reason.ALL_REFUSED)
        )
        return self._executor.execute(WriteBinding(self._first, number, mode, reason, 1000))

    def reinject(self) -> None:
        """Run the held frame through the program and send it."""
        self._executor.execute(Reinject(self._first))


def _replies(world: World) -> set[int]:
    servers = (B1, B2)
    return {s.id for s in servers if read_pending(world, reply_key(s)) is not None}


def _one_decision(world: World) -> int:
    """The backend that FORWARD names; REPLY must be there for it and for no other."""
    entry = read_pending(world, forward_key())
    assert entry is not None
    wanted = set() if entry.backend == NO_BACKEND else {entry.backend}
    assert _replies(world) == wanted
    return entry.backend


def _goes_to(world: World, outcome: Outcome, backend: int) -> None:
    if backend == NO_BACKEND:
        assert (outcome.verdict, outcome.frame) == (TX, world.native(refusal(OPEN)))
    else:
        frame = world.native(to_backend(OPEN, (B1, B2)[backend]))
        assert (outcome.verdict, outcome.frame) == (REDIRECT, frame)


@pytest.mark.parametrize("at", [0, 1, 2], ids=["before", "between", "after"])
@pytest.mark.parametrize("server", [B1, B2, None], ids=["same", "another", "refusal"])
def test_exactly_one_decision(at: int, server: Server | None, world: World) -> None:
    """Whoever is first, one backend gets every copy of the SYN, and no REPLY is left over."""
    world.reset()
    overdue(world)
    outcomes: list[Outcome] = []

    def again() -> None:
        outcomes.append(world.run(SYN_FRAME))

    daemon = Daemon(world, at, again)
    answer = daemon.decide(server)
    if not outcomes:  # the daemon was done first; a refusal has one insert only
        again()
    backend = _one_decision(world)
    daemon.reinject()
    again()
    for outcome in outcomes:
        _goes_to(world, outcome, backend)
    assert _one_decision(world) == backend
    if backend == NO_BACKEND:
        assert daemon.sent.frames == [(world.wires.client, world.native(refusal(OPEN)))]
    else:
        copy = world.native(to_backend(OPEN, (B1, B2)[backend]))
        assert daemon.sent.frames == [(world.wires.backend, copy)]
    decided_by_daemon = (server is not None and at == 2) or (server is None and at >= 1)
    if decided_by_daemon:
        assert isinstance(answer, BindingWritten)
        assert backend == (server.id if server else NO_BACKEND)
    else:
        assert answer == BindingTaken(
            world.native_key(flow_key()), B1.id, Mode.FALLBACK, Reason.DEADLINE
        )
        assert backend == B1.id


def test_daemon_meets_a_taken_tuple(world: World) -> None:
    """REPLY of another service's flow stays, and the daemon is told to take the next one."""
    world.reset()
    theirs = reply_value(world, B1, SHOP)
    put_pending(world, reply_key(B1), theirs)
    daemon = Daemon(world, -1, lambda: None)
    assert daemon.decide(B1) == ReplyTupleTaken(world.native_key(flow_key()), B1.id)
    assert read_pending(world, reply_key(B1)) == theirs
    assert read_pending(world, forward_key()) is None
    assert isinstance(daemon.decide(B2), BindingWritten)


def test_daemon_meets_a_tuple_of_an_established_flow(world: World) -> None:
    """The other service's flow is in ``flow_table`` alone: its tuple is taken all the same."""
    world.reset()
    put_flow(world, flow_keys(B1, SHOP)[1], reply_entry(world, B1, service=SHOP))
    daemon = Daemon(world, -1, lambda: None)
    assert daemon.decide(B1) == ReplyTupleTaken(world.native_key(flow_key()), B1.id)
    assert _replies(world) == set()
    assert read_pending(world, forward_key()) is None
    assert isinstance(daemon.decide(B2), BindingWritten)


def test_daemon_does_not_mind_its_own_established_flow(world: World) -> None:
    """An entry of this very flow in ``flow_table`` takes nothing from it."""
    world.reset()
    put_flow(world, flow_keys(B1)[1], reply_entry(world, B1))
    assert isinstance(Daemon(world, -1, lambda: None).decide(B1), BindingWritten)


def _about_to_decide(world: World) -> None:
    """What the stage before hands to ``stage_decide``: the first packet waits since AGE_NS."""
    waits_since_ns = world.now_ns - AGE_NS
    state = struct.pack(
        "=QQBB18xII", world.now_ns, waits_since_ns, Reason.DEADLINE, 7, NO_BACKEND, NO_BACKEND
    )
    size = world.program.scratch.info.value_size
    cpus = len(world.program.scratch.read(bytes(4)) or b"") // size
    world.program.scratch.write(bytes(4), state.ljust(size, b"\0") * cpus)


@pytest.mark.parametrize("reply_too", [True, False], ids=["both entries", "FORWARD only"])
@pytest.mark.parametrize("server", [B1, B2, None], ids=["same", "another", "refusal"])
def test_xdp_yields_to_a_decision_made_meanwhile(
    server: Server | None, reply_too: bool, world: World
) -> None:
    """FORWARD of the daemon is there as XDP inserts: theirs counts, the own REPLY goes."""
    world.reset()
    assert isinstance(Daemon(world, -1, lambda: None).decide(server), BindingWritten)
    if server and not reply_too:
        world.maps.pending_flows.delete(reply_key(server))
    _about_to_decide(world)
    outcome = world.run(SYN_FRAME, program="stage_decide")
    backend = server.id if server else NO_BACKEND
    _goes_to(world, outcome, backend)
    entry = read_pending(world, forward_key())
    assert entry is not None
    assert (entry.backend, entry.reason) == (
        (backend, Reason.RACE_WON) if server else (NO_BACKEND, Reason.ALL_REFUSED)
    )
    # Of the own REPLY only what fits their decision may stay.
    own = {B1.id} if server is B1 else set()
    assert _replies(world) == ({server.id} if server and reply_too else own)
    assert outcome.counters == ({} if server else {"refused_by_daemon": 1})
    assert outcome.records == []


@pytest.mark.parametrize("server", [B1, None], ids=["bound", "refusal"])
def test_xdp_that_finds_nobody_yields_too(server: Server | None, world: World) -> None:
    """Every backend is down for XDP, but the daemon's decision came meanwhile: it stays."""
    world.reset()
    assert isinstance(Daemon(world, -1, lambda: None).decide(server), BindingWritten)
    for each in (B1, B2, B3):
        world.change_server(each, flags=0)
    _about_to_decide(world)
    outcome = world.run(SYN_FRAME, program="stage_decide")
    _goes_to(world, outcome, server.id if server else NO_BACKEND)
    assert _replies(world) == ({server.id} if server else set())
    assert read_pending(world, forward_key()) is not None


def test_xdp_shares_a_reply_that_the_daemon_inserted(world: World) -> None:
    """REPLY of this flow is there already: it stays as it is, and FORWARD is XDP's."""
    world.reset()
    theirs = reply_value(world, B1)
    put_pending(world, reply_key(B1), theirs)
    _about_to_decide(world)
    outcome = world.run(SYN_FRAME, program="stage_decide")
    _goes_to(world, outcome, B1.id)
    assert outcome.counters == {"decided_fallback": 1}
    assert read_pending(world, reply_key(B1)) == theirs
    (record,) = outcome.records
    assert abi.unpack_event_header(record).type == abi.EventType.XDP_DECIDED


# fullnat: either side has taken a port of its own by the time that FORWARD decides.


def _nat_ports(world: World, port: int) -> NatPorts:
    """The daemon's, with one port."""
    told = world.native_endpoint
    backends = tuple(Backend(s.id, "b", told(s.end), s.service) for s in (B1, B2))
    web = Service(0, "web", told(WEB), backends, forwarding=Forwarding.FULLNAT)
    config = RouterConfig((web,), Settings(nat_port_min=port, nat_port_max=port))
    return NatPorts(config, lambda _backend: told(PROBE_SOURCE).addr)


def _nat_replies(world: World) -> set[tuple[int, int]]:
    """Backends and ports that REPLY entries hold."""
    found = set()
    for server in (B1, B2):
        for port in (NAT_PORT, NAT_PORT + 1):
            ours = endpoint_of(End(PROBE_SOURCE.addr, port))
            key = abi.pack_reply_key(endpoint_of(server.end), flow_key(), abi.Kind.REPLY, ours)
            if read_pending(world, key) is not None:
                found.add((server.id, port))
    return found


@pytest.mark.parametrize("at", [0, 1, 2], ids=["before", "between", "after"])
@pytest.mark.parametrize("server", [B1, B2], ids=["same", "another"])
@pytest.mark.parametrize("port", [NAT_PORT, NAT_PORT + 1], ids=["one port", "two ports"])
def test_fullnat_decides_once(port: int, server: Server, at: int, world: World) -> None:
    """One backend, one port: whoever is second gives its port back, and uses the other one."""
    world.reset()
    overdue(world)
    world.change_service(forwarding=Forwarding.FULLNAT, deadline_ns=1)
    outcomes: list[Outcome] = []
    daemon = Daemon(
        world, at, lambda: outcomes.append(world.run(SYN_FRAME)), _nat_ports(world, port)
    )
    answer = daemon.decide(server)
    if at == 2:
        outcomes.append(world.run(SYN_FRAME))
    forward = read_pending(world, forward_key())
    assert forward is not None
    assert _nat_replies(world) == {(forward.backend, forward.new_sport)}
    assert forward.new_saddr == PROBE_SOURCE.number
    server_of = (B1, B2)[forward.backend]
    ours = End(PROBE_SOURCE.addr, forward.new_sport)
    wanted = world.native(OPEN.but(ttl=OPEN.ttl - 1).frame(ours, server_of.end, server_of.hop))
    daemon.reinject()
    assert (outcomes[0].verdict, outcomes[0].frame) == (REDIRECT, wanted)
    if not isinstance(answer, ReplyTupleTaken):  # the one port there is was XDP's
        assert daemon.sent.frames == [(world.wires.backend, wanted)]
    else:
        assert (port, server, at) == (NAT_PORT, B1, 0)


@pytest.mark.parametrize("method", [Forwarding.DSR, Forwarding.IPIP])
def test_both_make_the_same_entries_where_nothing_is_rewritten(
    method: Forwarding, world: World
) -> None:
    """The daemon's FORWARD and REPLY of a direct flow are those that XDP makes."""
    made = []
    for by_daemon in (True, False):
        world.reset()
        world.change_server(B1, flags=abi.BACKEND_UP | abi.BACKEND_METHOD[method])
        if by_daemon:
            own = world.native_endpoint(B1.end)
            direct = Backend(B1.id, "b", own, B1.service, forwarding=method)
            daemon = Daemon(world, 9, lambda: None, backends=[direct])
            assert daemon.decide(B1) == BindingWritten(world.native_key(flow_key()))
        else:
            world.change_control(heartbeat_ns=before(world.now_ns, 7200 * SECOND))
            assert world.run(SYN_FRAME).verdict == REDIRECT
        reply = read_pending(
            world, abi.pack_reply_key(endpoint_of(WEB), flow_key(), abi.Kind.REPLY)
        )
        forward = read_pending(world, forward_key())
        assert reply is not None
        assert forward is not None
        both = ("new_saddr", "new_daddr", "new_sport", "new_dport", "backend", "service")
        fields = {
            reply: (*both, "dmac", "smac", "ifindex"),
            forward: (*both, "isn", "flags", "wscale"),
        }
        made.append([(n, getattr(entry, n)) for entry, names in fields.items() for n in names])
    assert made[0] == made[1]
