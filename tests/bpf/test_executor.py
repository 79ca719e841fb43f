# SPDX-License-Identifier: Apache-2.0
"""The executor's commands, carried out on real maps, the real program and real wires."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyroute2 import IPRoute

from tests.support.cast import BACKENDS, decision, first, key
from tests.support.fresh_netns import in_fresh_netns
from tests.support.small_router import (
    CLIENT_MAC,
    SmallRouter,
    WiredRouter,
    small_router,
    wired_router,
)
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.netlink import Path
from xdp_router.adapters.probe_socket import ProbeSocket
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core import abi
from xdp_router.core.address import format_addr
from xdp_router.core.commands import (
    Command,
    EndFlows,
    FindReplies,
    LogDecision,
    LogFailOpen,
    PublishHashTable,
    Reinject,
    SendProbe,
    SetBackendDead,
    SetBackendShare,
    SetBackendUp,
    WriteBinding,
)
from xdp_router.core.events import (
    BindingFailed,
    BindingTaken,
    BindingWritten,
    Event,
    FirstPacket,
    ProbeSent,
    ReplyTupleTaken,
)
from xdp_router.core.model import NO_BACKEND, FlowKey, Mode, Reason
from xdp_router.core.selection import build_table
from xdp_router.daemon.executor import Executor
from xdp_router.daemon.kernel_state import KernelState

B1, B2 = BACKENDS[0], BACKENDS[1]
ROUTER_MAC = b"\2\0\0\0\0\1"
HELD = replace(first(1), frame=ROUTER_MAC + CLIENT_MAC + b"\x08\x00" + bytes(46), wscale=7)


def executor_of(router: SmallRouter) -> Executor:
    """An executor that sends nothing."""
    return Executor(
        router.state,
        router.backends,
        Reinjector(router.plane.entry, router.state.reinject_mark),
        ProbeSocket(),
        router.decisions.append,
    )


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


@pytest.fixture
def executor(router: SmallRouter) -> Executor:
    return executor_of(router)


def bind(executor: Executor, backend: int, held: FirstPacket = HELD) -> Event | None:
    """Write the binding of a race's winner."""
    return executor.execute(WriteBinding(held, backend, Mode.RACE, Reason.RACE_WON, 400_000))


def pending(router: SmallRouter, key_: bytes) -> abi.PendingValue | None:
    """What the kernel has under a key."""
    raw = router.maps.pending_flows.read(key_)
    return None if raw is None else abi.unpack_pending(raw)


def forward_key(flow: FlowKey = HELD.key) -> bytes:
    return abi.pack_flow_key(flow, abi.Kind.FORWARD)


def reply_key(backend: int, flow: FlowKey = HELD.key) -> bytes:
    return abi.pack_reply_key(BACKENDS[backend - 1].endpoint, flow, abi.Kind.REPLY)


# Bindings


def test_a_binding_is_two_entries(router: SmallRouter, executor: Executor) -> None:
    """FORWARD goes to the backend, REPLY back to the client by the way it came."""
    assert bind(executor, 2) == BindingWritten(HELD.key)
    forward, reply = pending(router, forward_key()), pending(router, reply_key(2))
    assert forward is not None
    assert reply is not None
    assert (forward.new_daddr, forward.new_dport) == (B2.endpoint.addr, 8080)
    assert (forward.new_saddr, forward.new_sport) == (HELD.key.client_addr, 1)
    assert (forward.isn, forward.wscale, forward.latency_ns) == (1, 7, 400_000)
    assert (reply.new_saddr, reply.new_sport) == (HELD.key.service_addr, 80)
    assert (reply.dmac, reply.smac, reply.ifindex) == (CLIENT_MAC, ROUTER_MAC, 2)
    for entry in (forward, reply):
        assert (entry.backend, entry.seen_ns) == (2, HELD.seen_ns)
        assert (entry.mode, entry.reason) == (Mode.RACE, Reason.RACE_WON)


def test_xdp_decided_first_for_another_backend(router: SmallRouter, executor: Executor) -> None:
    """Its decision is taken over, untouched; the own REPLY, which nobody needs, is gone."""
    theirs, value = abi.pack_forward_pending(HELD, B1, Mode.FALLBACK, Reason.DEADLINE, 50)
    router.maps.pending_flows.insert_noexist(theirs, value)
    assert bind(executor, 2) == BindingTaken(HELD.key, 1, Mode.FALLBACK, Reason.DEADLINE)
    assert router.maps.pending_flows.read(theirs) == value
    assert pending(router, reply_key(2)) is None


def test_xdp_decided_first_for_the_same_backend(router: SmallRouter, executor: Executor) -> None:
    """Its REPLY serves both: nothing is removed, nothing overwritten."""
    reply, reply_value = abi.pack_reply_pending(HELD, B2, Mode.HASH, Reason.DEADLINE)
    router.maps.pending_flows.insert_noexist(reply, reply_value)
    theirs, value = abi.pack_forward_pending(HELD, B2, Mode.HASH, Reason.DEADLINE, 50)
    router.maps.pending_flows.insert_noexist(theirs, value)
    assert bind(executor, 2) == BindingTaken(HELD.key, 2, Mode.HASH, Reason.DEADLINE)
    assert router.maps.pending_flows.read(reply) == reply_value
    assert router.maps.pending_flows.read(theirs) == value


def test_xdp_is_between_its_two_inserts(router: SmallRouter, executor: Executor) -> None:
    """REPLY is there, FORWARD not yet: the daemon's FORWARD arbitrates, and is the decision."""
    reply, value = abi.pack_reply_pending(HELD, B2, Mode.HASH, Reason.DEADLINE)
    router.maps.pending_flows.insert_noexist(reply, value)
    assert bind(executor, 2) == BindingWritten(HELD.key)
    assert router.maps.pending_flows.read(reply) == value


def test_the_reply_tuple_is_another_flows(router: SmallRouter, executor: Executor) -> None:
    """Two services share a backend: the second flow of a client port is told to go elsewhere."""
    other = replace(HELD, key=replace(HELD.key, service_addr=0xC6126402))
    assert bind(executor, 2, other) == BindingWritten(other.key)
    assert bind(executor, 2) == ReplyTupleTaken(HELD.key, 2)
    assert pending(router, forward_key()) is None
    assert bind(executor, 1) == BindingWritten(HELD.key)


def test_a_refused_flow_has_one_entry(router: SmallRouter, executor: Executor) -> None:
    """FORWARD alone, flagged: XDP answers the client by RST."""
    command = WriteBinding(HELD, NO_BACKEND, Mode.REFUSED, Reason.ALL_REFUSED, 1)
    assert executor.execute(command) == BindingWritten(HELD.key)
    entry = pending(router, forward_key())
    assert entry is not None
    assert (entry.flags, entry.backend) == (abi.PENDING_REFUSED, NO_BACKEND)
    assert sum(batch.count for batch in router.maps.pending_flows.batches(64)) == 1


def test_a_full_table_is_an_answer(router: SmallRouter) -> None:
    """The kernel takes REPLY and refuses FORWARD: the reason is told, REPLY is not left behind."""
    spec = bpf.map_info(router.plane.maps["pending_flows"])
    tiny = bpf.map_create(bpf.MapType.HASH, "tiny", spec.key_size, spec.value_size, 1)
    plane = DataPlane({**router.plane.maps, "pending_flows": tiny}, router.plane.programs)
    cramped = SmallRouter(plane, router.config, KernelState(plane, router.config))
    answer = bind(executor_of(cramped), 1)
    assert answer == BindingFailed(HELD.key, "pending_flows, forward: Argument list too long")
    assert pending(cramped, reply_key(1)) is None
    os.close(tiny)


def test_an_entry_that_cannot_be_read_is_an_answer(router: SmallRouter, executor: Executor) -> None:
    """Garbage in the kernel ends this decision and no other."""
    router.maps.pending_flows.insert_noexist(forward_key(), b"\xff" * abi.PENDING_FLOW_SIZE)
    answer = bind(executor, 1)
    assert isinstance(answer, BindingFailed)
    assert "Mode has no value 255" in answer.error
    assert bind(executor, 1, replace(HELD, key=key(2))) == BindingWritten(key(2))


# Maps and log


def test_up_flag_and_hash_table_reach_the_maps(router: SmallRouter, executor: Executor) -> None:
    """SetBackendUp and PublishHashTable are seen by XDP; neither has an answer."""
    assert executor.execute(SetBackendUp(1, True)) is None
    slots = build_table([B1])
    assert executor.execute(PublishHashTable(0, slots)) is None
    value = router.maps.backends.read(1)
    assert value is not None
    assert value.flags == abi.BACKEND_UP
    assert router.maps.hash_tables.read(0, 1) == slots


def test_what_health_wants(router: SmallRouter, executor: Executor) -> None:
    """Flags and shares are written; what takes its time, or is only said, is handed on."""
    executor.execute(SetBackendDead(1, True))
    executor.execute(SetBackendShare(1, 25))
    value = router.maps.backends.read(1)
    assert value is not None
    assert (value.flags & abi.BACKEND_DEAD, value.share) == (abi.BACKEND_DEAD, 25)
    executor.execute(SetBackendDead(1, False))
    value = router.maps.backends.read(1)
    assert value is not None
    assert not value.flags & abi.BACKEND_DEAD
    handed: list[Command] = []
    executor.execute(EndFlows(1))
    executor.about_health = handed.append
    wanted: list[Command] = [FindReplies(1, 5), EndFlows(1), LogFailOpen(0, True)]
    for command in wanted:
        assert executor.execute(command) is None
    assert handed == wanted


def test_a_decision_is_handed_on(router: SmallRouter, executor: Executor) -> None:
    """LogDecision reaches the callback."""
    made = decision(HELD, 1, Mode.RACE, Reason.RACE_WON, 5, [])
    assert executor.execute(LogDecision(made)) is None
    assert router.decisions == [made]


# Frames


@in_fresh_netns
def test_a_probe_leaves_by_the_backends_path() -> None:
    """The SYN is on the wire, to the backend; the answer carries when it was sent."""
    with wired_router() as wired:
        wired.bring_up(B1)
        before_ns = time.monotonic_ns()
        answer = wired.executor.execute(SendProbe(1, 61_000, 0xABCDEF01))
        frame = wired.at_backend.recv(2048)
        assert isinstance(answer, ProbeSent)
        assert before_ns <= answer.sent_ns <= time.monotonic_ns()
        assert answer == ProbeSent(1, 61_000, 0xABCDEF01, answer.sent_ns)
        assert frame[0:6] == wired.path().dmac
        assert frame[30:34] == B1.endpoint.addr.to_bytes(4, "big")
        assert frame[34:42] == (61_000 << 48 | 8080 << 32 | 0xABCDEF01).to_bytes(8, "big")


def test_a_probe_without_a_path_is_not_sent(executor: Executor) -> None:
    """The engine is told so, and it is counted; also after the path went."""
    assert executor.execute(SendProbe(1, 61_000, 7)) == ProbeSent(1, 61_000, 7, 0)
    executor.set_target(1, None)
    assert executor.execute(SendProbe(1, 61_000, 8)) == ProbeSent(1, 61_000, 8, 0)
    assert executor.counters["probe_without_path"] == 2


def _hold(wired: WiredRouter, ttl: int | None = None) -> FirstPacket:
    return replace(HELD, frame=wired.syn(1, isn=1, ttl=ttl), ifindex=wired.client.ifindex)


@in_fresh_netns
def test_a_bound_first_packet_goes_out_to_its_backend() -> None:
    """Re-injected, it runs through the program and leaves rewritten by the backend's path."""
    with wired_router() as wired:
        wired.bring_up(B2)
        wired.router.state.open_services()
        held = _hold(wired)
        assert bind(wired.executor, 2, held) == BindingWritten(held.key)
        assert wired.executor.execute(Reinject(held)) is None
        frame = wired.at_backend.recv(2048)
        assert frame[0:12] == wired.path().dmac + wired.path().smac
        assert frame[26:30] == held.key.client_addr.to_bytes(4, "big")
        assert frame[30:34] == B2.endpoint.addr.to_bytes(4, "big")
        assert frame[34:42] == (1 << 48 | 8080 << 32 | 1).to_bytes(8, "big")
        assert wired.router.maps.counters.read()["reinjected"] == 1


@in_fresh_netns
def test_a_bound_first_packet_is_left_to_the_kernel() -> None:
    """Its backend's neighbour is not known any more: the host's own stack resolves and sends."""
    with wired_router() as wired, IPRoute() as ipr:
        ipr.addr("add", index=wired.backend.ifindex, address="198.18.1.1", prefixlen=24)
        far = wired.wires[1]
        to = format_addr(B2.endpoint.addr)
        far.at_far(lambda other: other.addr("add", index=far.far, address=to, prefixlen=24))
        state = wired.router.state
        state.set_path(2, None, by_kernel=True)
        state.open_services()
        held = _hold(wired)
        bind(wired.executor, 2, held)
        wired.executor.execute(Reinject(held))
        assert wired.executor.counters["reinject_not_forwarded"] == 1  # not allowed there
        state.set_handoff({wired.client.ifindex: abi.IF_HANDOFF_FORWARD4})
        wired.executor.execute(Reinject(held))
        frame = wired.at_backend.recv(2048)
        assert frame[6:12] == wired.backend.mac
        assert frame[22] == held.frame[22] - 1
        assert frame[26:30] == held.key.client_addr.to_bytes(4, "big")
        assert frame[30:34] == B2.endpoint.addr.to_bytes(4, "big")
        counted = wired.router.maps.counters.read()
        assert (counted["handed_to_kernel"], counted["no_path"]) == (1, 1)
        wired.executor.close()


@in_fresh_netns
def test_a_refused_first_packet_is_answered_by_rst() -> None:
    """Re-injected, it comes back as a RST to the client, by the interface that it came in by."""
    with wired_router() as wired:
        wired.router.state.open_services()
        held = _hold(wired)
        wired.executor.execute(WriteBinding(held, NO_BACKEND, Mode.REFUSED, Reason.ALL_REFUSED, 1))
        wired.executor.execute(Reinject(held))
        frame = wired.at_client.recv(2048)
        assert frame[0:12] == CLIENT_MAC + wired.client.mac
        assert frame[47] == 0x14  # RST|ACK
        assert frame[42:46] == (2).to_bytes(4, "big")  # ISN + 1


@in_fresh_netns
def test_a_frame_that_may_not_go_on_is_counted() -> None:
    """The program drops it for its TTL, or its interface is gone: counted, nothing raised."""
    with wired_router() as wired:
        wired.bring_up(B1)
        wired.router.state.open_services()
        held = _hold(wired, ttl=1)
        bind(wired.executor, 1, held)
        wired.executor.execute(Reinject(held))
        assert wired.executor.counters["reinject_not_forwarded"] == 1
        wired.executor.execute(Reinject(replace(held, ifindex=9999)))
        assert wired.executor.counters["reinject_failed"] == 1


@in_fresh_netns
def test_a_forgotten_interface_is_opened_anew() -> None:
    """After an interface has gone, the next probe looks for it again."""
    with wired_router() as wired:
        wired.bring_up(B1)
        for seq in (1, 2):
            answer = wired.executor.execute(SendProbe(1, 61_000, seq))
            assert isinstance(answer, ProbeSent)
            assert answer.sent_ns
            wired.executor.forget_interface(wired.backend.ifindex)


@pytest.mark.parametrize(
    ("tag", "noted"), [(b"", abi.VLAN_NONE), (b"\x81\x00\x00\x05", abi.VLAN_TAG | 5)]
)
def test_a_backend_with_a_tag_has_the_clients_noted(
    router: SmallRouter, executor: Executor, tag: bytes, noted: int
) -> None:
    """REPLY says how frames to the client get his tag back; without a backend's own, nothing."""
    frame = HELD.frame[:12] + tag + HELD.frame[12:]
    for vlan, wanted in ((None, abi.VLAN_KEEP), (7, noted)):
        router.state.set_path(1, Path(7, bytes(6), bytes(6), 0xC6120101, vlan=vlan))
        assert isinstance(bind(executor, 1, replace(HELD, frame=frame)), BindingWritten)
        value = pending(router, reply_key(1))
        assert value is not None
        assert value.vlan == wanted
        for each in (reply_key(1), forward_key()):
            router.maps.pending_flows.delete(each)
