# SPDX-License-Identifier: Apache-2.0
"""The daemon decides in ``pending_flows``, XDP in ``flood_flows``: still at most one goes on."""

from __future__ import annotations

import struct

import pytest

from tests.bpf.corpus.first import OPEN
from tests.bpf.corpus.flows import (
    AGE_NS,
    forward_key,
    forward_value,
    put_pending,
    read_pending,
    reply_key,
    reply_value,
)
from tests.bpf.corpus.world import B1, B2, SHOP, Server, World, flow_key, to_backend, to_service
from tests.bpf.test_packet_arbiter import SYN_FRAME, Daemon
from tests.support.program import DROP, REDIRECT
from xdp_router.core.events import BindingTaken, BindingWritten, ReplyTupleTaken
from xdp_router.core.model import NO_BACKEND, Mode, Reason

pytest_plugins = ("tests.support.worlds",)


def over_budget(world: World) -> None:
    """What stage_syn hands to stage_decide about a SYN for which there is no event."""
    state = struct.pack(
        "=QQBB18xII", world.now_ns, world.now_ns, Reason.BUDGET, 7, NO_BACKEND, NO_BACKEND
    )
    size = world.program.scratch.info.value_size
    cpus = len(world.program.scratch.read(bytes(4)) or b"") // size
    world.program.scratch.write(bytes(4), state.ljust(size, b"\0") * cpus)


def counts(world: World) -> tuple[int, int]:
    """Entries of pending_flows and flood_flows."""
    pending, flood = world.program.pending, world.program.flood
    return len(list(pending.each_key())), len(list(flood.each_key()))


@pytest.mark.parametrize("at", [0, 1, 2], ids=["before", "between", "after"])
@pytest.mark.parametrize("server", [B1, B2], ids=["another", "same"])
def test_at_most_one_decision(at: int, server: Server, world: World) -> None:
    """One backend gets the SYN, or for this time nobody, and nothing of the other is left."""
    world.reset()
    outcomes = []

    def decide() -> None:
        over_budget(world)
        outcomes.append(world.run(SYN_FRAME, program="stage_decide"))

    answer = Daemon(world, at, decide).decide(server)
    if not outcomes:
        decide()
    (outcome,) = outcomes
    entry = read_pending(world, forward_key())
    assert entry is not None
    if at == 2:  # the daemon was first: XDP withdraws, and sends where the daemon says
        assert isinstance(answer, BindingWritten)
        assert counts(world) == (2, 0)
    else:
        assert answer == BindingTaken(world.native_key(flow_key()), B2.id, Mode.HASH, Reason.BUDGET)
        assert counts(world) == (0, 2)
    chosen = (B1, B2)[entry.backend]
    assert outcome.verdict == REDIRECT
    assert outcome.frame == world.native(to_backend(OPEN, chosen))


def test_the_daemon_meets_a_tuple_of_a_flood(world: World) -> None:
    """REPLY of another service's flow is in ``flood_flows``: the tuple is taken."""
    world.reset()
    put_pending(world, reply_key(B1), reply_value(world, B1, SHOP))
    world.move_to_flood()
    daemon = Daemon(world, -1, lambda: None)
    assert daemon.decide(B1) == ReplyTupleTaken(world.native_key(flow_key()), B1.id)
    assert counts(world) == (0, 1)
    assert isinstance(daemon.decide(B2), BindingWritten)


def test_what_an_earlier_flood_has_left_is_no_decision(world: World) -> None:
    """XDP does not look there any more: the daemon's decision is the only one, and stays so."""
    world.reset()
    put_pending(world, forward_key(), forward_value(world, B2))
    put_pending(world, reply_key(B1), reply_value(world, B1, SHOP))
    world.move_to_flood()
    world.write_pressure()
    assert isinstance(Daemon(world, -1, lambda: None).decide(B1), BindingWritten)
    assert counts(world) == (2, 1)
    assert world.run(SYN_FRAME).frame == world.native(to_backend(OPEN, B1))


def test_what_a_flood_has_no_time_for_is_over(world: World) -> None:
    """FORWARD and REPLY of a flow of a flood that is over are removed when a new one begins."""
    world.reset()
    put_pending(world, forward_key(), forward_value(world, last_seen_ns=world.now_ns - AGE_NS))
    put_pending(world, reply_key(B1), reply_value(world, B1))
    world.move_to_flood()
    world.change_control(pending_idle_ns=AGE_NS // 2)
    outcome = world.run(to_service(OPEN.but(seq=OPEN.seq + 77)))
    assert outcome.verdict == DROP
    assert outcome.counters == {"syn_reopened": 1, "first_packet": 1}
    assert counts(world) == (1, 0)
