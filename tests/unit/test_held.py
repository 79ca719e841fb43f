# SPDX-License-Identifier: Apache-2.0
"""Datagrams behind the first one of a flow: held while it is decided, sent on in their order."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support import cast
from tests.support.cast import T0, decision, engine, probe, reply
from tests.support.playbook import MS, play
from xdp_router.core.commands import Command, LogDecision, Reinject, WriteBinding
from xdp_router.core.engine import Engine
from xdp_router.core.events import (
    BindingFailed,
    BindingTaken,
    BindingWritten,
    Datagram,
    FirstPacket,
    XdpDecided,
)
from xdp_router.core.flow import Flow
from xdp_router.core.held import HELD_BYTES, HELD_MAX, UDP, hold, is_udp, release
from xdp_router.core.model import FlowKey, Mode, Reason
from xdp_router.core.strategy.base import Evidence

KEY = dataclasses.replace(cast.key(1), proto=UDP)
FIRST = dataclasses.replace(cast.first(1), key=KEY, frame=b"first")
WON = T0 + 300
WRITE = WriteBinding(FIRST, 1, Mode.RACE, Reason.RACE_WON, 300)


def later(number: int, size: int = 100) -> Datagram:
    """A later datagram of the flow."""
    return Datagram(KEY, 0, 2, bytes([number]) * size)


def flow(size: int = 100) -> Flow:
    """A flow whose first datagram is held."""
    return Flow(dataclasses.replace(FIRST, frame=bytes(size)), cast.service(), Evidence())


def racing() -> Engine:
    """A first datagram and two more are held, and nobody has answered yet."""
    made = engine(1, 2)
    play(
        made,
        (T0, FIRST, [probe(1), probe(2)]),
        (T0 + 10, later(1), []),
        (T0 + 20, later(2), []),
    )
    return made


def sent_on(
    made: Engine, mode: Mode = Mode.RACE, reason: Reason = Reason.RACE_WON
) -> list[Command]:
    """What comes out when the flow of ``racing`` is decided."""
    (known,) = made.decisions
    assert (known.mode, known.reason) == (mode, reason)
    return [Reinject(FIRST), Reinject(later(1)), Reinject(later(2)), LogDecision(known)]


def test_protocols_are_told_apart() -> None:
    """Only UDP's flows are of datagrams."""
    assert is_udp(KEY)
    assert not is_udp(cast.key(1))


def test_four_are_held_and_no_more() -> None:
    """The first counts; they come out in their order."""
    one = flow()
    held = [later(number) for number in range(HELD_MAX)]
    assert [hold(one, each) for each in held] == [True] * (HELD_MAX - 1) + [False]
    assert list(release(one)) == [Reinject(one.first), *(Reinject(each) for each in held[:-1])]


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_six_kilobytes_are_held_and_no_more(more: int, fits: bool) -> None:
    """All frames of a flow together."""
    one = flow(2000)
    assert hold(one, later(1, 3000))
    assert hold(one, later(2, HELD_BYTES - 5000 + more)) is fits


def test_the_winner_gets_all_of_them_in_order() -> None:
    """The first, then the others, and one log line."""
    made = racing()
    play(made, (WON, reply(1, WON), [WRITE]))
    out = made.handle(BindingWritten(KEY), WON)
    assert out == sent_on(made)
    assert made.counters["datagrams_held"] == 2
    assert made.open_decisions == 0


def test_one_that_comes_after_the_decision_goes_on_at_once() -> None:
    """It was in the ring when the flow was decided: behind those that have just left."""
    made = racing()
    made.handle(reply(1, WON), WON)
    made.handle(BindingWritten(KEY), WON)
    play(made, (WON + 5, later(3), [Reinject(later(3))]))


def test_another_first_of_the_same_flow_is_the_next() -> None:
    """The kernel forgot that it held one: nothing of it is lost."""
    made = racing()
    again = dataclasses.replace(FIRST, frame=b"again", seen_ns=T0 + 30)
    play(made, (T0 + 30, again, []), (WON, reply(1, WON), [WRITE]))
    out = made.handle(BindingWritten(KEY), WON)
    assert out[3] == Reinject(again)
    assert made.counters["first_packets_duplicate"] == 1


def test_too_many_are_dropped_and_counted() -> None:
    """The kernel's limit is the same: this is only for events that crossed."""
    made = racing()
    play(made, (T0 + 30, later(3), []), (T0 + 31, later(4), []))
    assert made.counters["datagrams_held"] == 3
    assert made.counters["datagrams_dropped"] == 1


def test_what_xdp_decided_is_sent_on_too() -> None:
    """A SYN comes again; a datagram that is held is like no other."""
    made = racing()
    decided = XdpDecided(KEY, 0, 2, Mode.HASH, Reason.DATAGRAMS, T0, T0 + 9)
    out = made.handle(decided, T0 + 40)
    assert out == sent_on(made, Mode.HASH, Reason.DATAGRAMS)


def test_a_held_syn_that_xdp_decided_is_let_go() -> None:
    """Its retransmit was forwarded."""
    made = engine(1, 2)
    made.handle(cast.first(1), T0)
    decided = XdpDecided(cast.key(1), 0, 2, Mode.HASH, Reason.DEADLINE, T0, T0 + 9)
    (line,) = made.handle(decided, T0 + 40)
    assert isinstance(line, LogDecision)


def test_somebody_elses_binding_gets_them() -> None:
    """XDP was first with the binding, and its event is still to come."""
    made = racing()
    made.handle(reply(1, WON), WON)
    out = made.handle(BindingTaken(KEY, 2, Mode.HASH, Reason.DATAGRAMS), WON)
    assert out == sent_on(made, Mode.HASH, Reason.DATAGRAMS)


def test_a_failed_binding_drops_them() -> None:
    """Nobody knows where they would go; they are counted."""
    made = racing()
    made.handle(reply(1, WON), WON)
    (line,) = made.handle(BindingFailed(KEY, "no memory"), WON)
    assert isinstance(line, LogDecision)
    assert made.counters["datagrams_dropped"] == 2


def test_at_the_deadline_they_follow_the_fallback() -> None:
    """Down the degrade chain as a SYN, and all of them go."""
    made = engine(1, 2, fallback=2)
    play(made, (T0, FIRST, [probe(1), probe(2)]), (T0 + 10, later(1), []))
    (write,) = made.expire(T0 + 50 * MS)
    assert write == WriteBinding(FIRST, 2, Mode.FALLBACK, Reason.DEADLINE, 50 * MS)
    out = made.handle(BindingWritten(KEY), T0 + 50 * MS)
    assert out[:2] == [Reinject(FIRST), Reinject(later(1))]


def test_flows_of_both_protocols_with_one_tuple_are_two() -> None:
    """A datagram is not held behind a SYN from the same port."""
    made = engine(1, 2)
    syn: FirstPacket = cast.first(1)
    made.handle(syn, T0)
    assert isinstance(KEY, FlowKey)
    play(made, (T0 + 1, later(1), [Reinject(later(1))]))
    made.handle(reply(1, WON), WON)
    out = made.handle(BindingWritten(cast.key(1)), WON)
    assert out[0] == Reinject(syn)
    (known,) = made.decisions
    assert known == decision(syn, 1, Mode.RACE, Reason.RACE_WON, WON, known.probes)
