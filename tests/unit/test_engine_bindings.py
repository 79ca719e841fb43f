# SPDX-License-Identifier: Apache-2.0
"""Conversations with the engine: who decides a flow, and what becomes of it afterwards."""

from __future__ import annotations

import dataclasses

from tests.support.cast import (
    DEADLINE,
    DEFAULTS,
    T0,
    decision,
    engine,
    first,
    key,
    probe,
    reply,
    sequence,
    service,
)
from tests.support.playbook import EXPIRE, MS, play
from xdp_router.core.commands import LogDecision, LogEstablished, Reinject, WriteBinding
from xdp_router.core.engine import Engine
from xdp_router.core.events import (
    BackendState,
    BindingFailed,
    BindingTaken,
    BindingWritten,
    FirstPacket,
    FlowClosed,
    FlowEstablished,
    ReplyTupleTaken,
    XdpDecided,
)
from xdp_router.core.flow import FlowState
from xdp_router.core.model import (
    NO_BACKEND,
    Decision,
    Forwarding,
    Mode,
    ProbeAnswer,
    ProbeRecord,
    Reason,
)
from xdp_router.core.selection import build_table

# Who decides


def decided_by_race() -> tuple[Engine, FirstPacket]:
    """A flow whose race backend 2 has won, backend 3 and then 1 answering; nothing written."""
    made = engine(1, 2, 3, count=3)
    packet = first(1)
    made.handle(packet, T0)
    made.handle(reply(2, T0 + 10), T0 + 10)
    made.handle(reply(3, T0 + 20), T0 + 20)
    return made, packet


def test_somebody_else_decided_first() -> None:
    """Theirs is taken over, and the frame is sent all the same: a lost SYN costs a second."""
    made, packet = decided_by_race()
    [reinject, log] = made.handle(BindingTaken(key(1), 3, Mode.HASH, Reason.DEADLINE), T0 + 30)
    assert reinject == Reinject(packet)
    assert isinstance(log, LogDecision)
    assert (log.decision.backend, log.decision.mode) == (3, Mode.HASH)
    assert log.decision.reason is Reason.DEADLINE
    assert made.counters["binding_taken"] == 1
    assert made.open_decisions == 0


def test_nobodys_port_is_taken_over() -> None:
    """Each candidate of a fullnat service is asked for a free port once, then nobody is left."""
    web = dataclasses.replace(service(2), forwarding=Forwarding.FULLNAT)
    made = Engine([web], DEFAULTS, sequence, build_table)
    for backend in (1, 2):
        made.handle(BackendState(backend, True), T0 - 1)
    packet = first(1)
    made.handle(packet, T0)
    made.handle(reply(2, T0 + 10), T0 + 10)
    [other] = made.handle(ReplyTupleTaken(key(1), 2), T0 + 20)
    assert isinstance(other, WriteBinding)
    assert (other.backend, other.take_over) == (1, False)
    [nobody] = made.handle(ReplyTupleTaken(key(1), 1), T0 + 30)
    assert isinstance(nobody, WriteBinding)
    assert (nobody.backend, nobody.mode) == (NO_BACKEND, Mode.REFUSED)


def test_a_taken_reply_tuple_moves_on_through_all_candidates() -> None:
    """First those that answered, in order, then the rest by hash.

    Then the same ones once more, each as it was chosen, whose flow may give way; then refused.
    """
    made, packet = decided_by_race()
    taken = Reason.TUPLE_TAKEN
    play(
        made,
        (
            T0 + 30,
            ReplyTupleTaken(key(1), 2),
            [WriteBinding(packet, 3, Mode.RACE, taken, 30)],
        ),
        (
            T0 + 40,
            ReplyTupleTaken(key(1), 3),
            [WriteBinding(packet, 1, Mode.HASH, taken, 40)],
        ),
        (
            T0 + 50,
            ReplyTupleTaken(key(1), 1),
            [WriteBinding(packet, 2, Mode.RACE, Reason.RACE_WON, 50, take_over=True)],
        ),
        (
            T0 + 60,
            ReplyTupleTaken(key(1), 2),
            [WriteBinding(packet, 3, Mode.RACE, taken, 60, take_over=True)],
        ),
        (
            T0 + 70,
            ReplyTupleTaken(key(1), 3),
            [WriteBinding(packet, 1, Mode.HASH, taken, 70, take_over=True)],
        ),
        (
            T0 + 80,
            ReplyTupleTaken(key(1), 1),
            [WriteBinding(packet, NO_BACKEND, Mode.REFUSED, taken, 80, take_over=True)],
        ),
    )
    assert made.counters["binding_tuple_taken"] == 6


def test_taking_over_passes_over_who_went_down_meanwhile() -> None:
    """The race's winner lost its path while others were tried: the next one is asked."""
    made, packet = decided_by_race()
    made.handle(ReplyTupleTaken(key(1), 2), T0 + 30)
    made.handle(ReplyTupleTaken(key(1), 3), T0 + 40)
    made.handle(BackendState(2, False), T0 + 45)
    play(
        made,
        (
            T0 + 50,
            ReplyTupleTaken(key(1), 1),
            [WriteBinding(packet, 3, Mode.RACE, Reason.TUPLE_TAKEN, 50, take_over=True)],
        ),
    )


def test_a_taken_reply_tuple_never_leads_to_a_backend_that_refused() -> None:
    """The only other candidate has answered the probe with a RST: refuse."""
    made = engine(1, 2)
    made.handle(first(1), T0)
    made.handle(reply(2, T0 + 5, ProbeAnswer.RST), T0 + 5)
    made.handle(reply(1, T0 + 9), T0 + 9)
    play(
        made,
        (
            T0 + 30,
            ReplyTupleTaken(key(1), 1),
            [WriteBinding(first(1), 1, Mode.RACE, Reason.RACE_WON, 30, take_over=True)],
        ),
        (
            T0 + 40,
            ReplyTupleTaken(key(1), 1),
            [
                WriteBinding(
                    first(1), NO_BACKEND, Mode.REFUSED, Reason.TUPLE_TAKEN, 40, take_over=True
                )
            ],
        ),
    )


def test_a_taken_reply_tuple_passes_over_who_went_down_meanwhile() -> None:
    """Backend 3 answered second, but has lost its path since: backend 1 is next."""
    made, packet = decided_by_race()
    made.handle(BackendState(3, False), T0 + 25)
    play(
        made,
        (
            T0 + 30,
            ReplyTupleTaken(key(1), 2),
            [WriteBinding(packet, 1, Mode.HASH, Reason.TUPLE_TAKEN, 30)],
        ),
    )


def test_a_taken_reply_tuple_of_another_choice_changes_nothing() -> None:
    """The answer names a backend that is not the one being written."""
    made, _ = decided_by_race()
    play(made, (T0 + 30, ReplyTupleTaken(key(1), 3), []))
    assert made.counters["binding_answers_unmatched"] == 1


def test_a_binding_that_the_kernel_refuses_closes_the_flow() -> None:
    """The record says why; the frame is dropped and XDP decides on the retransmit."""
    made, _ = decided_by_race()
    [log] = made.handle(BindingFailed(key(1), "pending_flows: ENOMEM"), T0 + 30)
    assert isinstance(log, LogDecision)
    assert log.decision.error == "pending_flows: ENOMEM"
    assert log.decision.closed_ns == T0 + 30
    assert log.decision.reinjected_ns == 0
    assert made.open_decisions == 0
    retransmit = XdpDecided(key(1), 0, 3, Mode.HASH, Reason.DEADLINE, T0, T0 + 999 * MS)
    [log] = made.handle(retransmit, T0 + 1_000 * MS)
    assert isinstance(log, LogDecision)
    assert [each.error for each in made.decisions] == ["", "pending_flows: ENOMEM"]
    assert kept(made).decided_ns == T0 + 999 * MS


def test_xdp_decides_a_flow_that_is_open_here() -> None:
    """No second binding is written, neither by a late answer nor at the deadline."""
    made = engine(1, 2)
    packet = first(1)
    records = [ProbeRecord(1, 0), ProbeRecord(2, 0)]
    adopted = decision(packet, 2, Mode.HASH, Reason.DEADLINE, T0 + 30, records)
    adopted.reinjected_ns = 0
    play(
        made,
        (T0, packet, [probe(1), probe(2)]),
        (
            T0 + 40,
            XdpDecided(key(1), 0, 2, Mode.HASH, Reason.DEADLINE, T0, T0 + 30),
            [LogDecision(adopted)],
        ),
        (T0 + 50, reply(1, T0 + 50), []),
        (DEADLINE, EXPIRE, []),
    )
    assert made.counters["decided_by_xdp"] == 1


def test_xdp_decision_without_an_open_flow_is_kept() -> None:
    """The daemon never saw the first packet; ``explain`` knows about it all the same."""
    made = engine(1)
    by_xdp = Decision(key(1), 0, 1, Mode.HASH, Reason.RING_FULL, T0, decided_ns=T0 + 2)
    play(
        made,
        (
            T0 + 70,
            XdpDecided(key(1), 0, 1, Mode.HASH, Reason.RING_FULL, T0, T0 + 2),
            [LogDecision(by_xdp)],
        ),
    )
    assert list(made.decisions) == [by_xdp]


def test_the_event_of_a_decision_that_was_already_adopted_is_no_second_one() -> None:
    """The write found XDP's binding before its event came through the ring."""
    made, _ = decided_by_race()
    made.handle(BindingTaken(key(1), 3, Mode.HASH, Reason.DEADLINE), T0 + 30)
    play(made, (T0 + 40, XdpDecided(key(1), 0, 3, Mode.HASH, Reason.DEADLINE, T0, T0 + 20), []))
    assert len(made.decisions) == 1
    assert kept(made).decided_ns == T0 + 20  # not when the daemon learnt of it
    assert made.counters["decided_by_xdp_known"] == 1


def test_answers_for_flows_without_a_pending_write_change_nothing() -> None:
    """Unknown flow, or one that still waits for its race: counted, state untouched."""
    made = engine(1, 2)
    play(
        made,
        (T0, BindingWritten(key(9)), []),
        (T0, BindingTaken(key(9), 1, Mode.HASH, Reason.DEADLINE), []),
        (T0, BindingFailed(key(9), "?"), []),
        (T0, ReplyTupleTaken(key(9), 1), []),
        (T0, first(1), [probe(1), probe(2)]),
        (T0 + 1, BindingWritten(key(1)), []),
        (T0 + 9, reply(1, T0 + 9), [WriteBinding(first(1), 1, Mode.RACE, Reason.RACE_WON, 9)]),
    )
    assert made.counters["binding_answers_unmatched"] == 5


def test_a_verdict_for_an_older_flow_of_the_same_five_tuple_is_not_used() -> None:
    """XDP decided, the client came back by the same port: its new flow has its own race."""
    made = engine(1)
    again = first(1, T0 + 60 * MS)
    made.handle(first(1), T0)
    made.handle(XdpDecided(key(1), 0, 1, Mode.HASH, Reason.DEADLINE, T0, T0 + 30), T0 + 40)
    play(
        made,
        (T0 + 60 * MS, again, [probe(1, 61_001)]),
        (T0 + 60 * MS + 1, EXPIRE, []),
        (
            T0 + 60 * MS + 9,
            reply(1, T0 + 60 * MS + 5, port=61_001),
            [WriteBinding(again, 1, Mode.RACE, Reason.RACE_WON, 9)],
        ),
    )


# What becomes of the flow


def kept(made: Engine, port: int = 1) -> Decision:
    """The newest kept decision of client port ``port``."""
    decision = made.decisions.newest(key(port))
    assert decision is not None
    return decision


def test_the_record_follows_the_flow_to_its_end() -> None:
    """Handshake and closing figures are added to the kept decision; repeats are refused."""
    made, _ = decided_by_race()
    made.handle(BindingWritten(key(1)), T0 + 10)
    established = FlowEstablished(key(1), 2, T0 + 800, 700, 90_000)
    closed = FlowClosed(key(1), 5_000, T0 + 9 * MS)
    assert made.handle(established, T0 + 900) == [LogEstablished(kept(made))]
    play(made, (T0 + 10 * MS, closed, []))
    record = kept(made)
    assert (record.established_ns, record.synack_us, record.fppl_ns) == (T0 + 800, 700, 90_000)
    assert (record.first_data_us, record.closed_ns) == (5_000, T0 + 9 * MS)
    play(made, (T0 + 11 * MS, established, []), (T0 + 11 * MS, FlowClosed(key(1), 1, T0), []))
    assert made.counters["flow_updates_illegal"] == 2
    assert kept(made).first_data_us == 5_000


def test_an_open_flow_is_not_mistaken_for_its_predecessor() -> None:
    """XDP's event was lost, the handshake is done: the older flow's record stays as it was."""
    made, _ = decided_by_race()
    made.handle(BindingWritten(key(1)), T0 + 10)
    made.handle(first(1, T0 + 90 * MS), T0 + 90 * MS)
    established = FlowEstablished(key(1), 2, T0 + 95 * MS, 700, 90_000)
    play(made, (T0 + 96 * MS, established, []))
    assert kept(made).established_ns == 0
    assert made.counters["flow_updates_unmatched"] == 1


def test_the_state_of_a_flow_is_known_from_its_first_packet_to_its_end() -> None:
    """While it waits for the race, once bound, once established, once closed; else None."""
    made = engine(1)
    assert made.flow_state(key(1)) is None
    made.handle(first(1), T0)
    assert made.flow_state(key(1)) is FlowState.PROBING
    made.handle(reply(1, T0 + 9), T0 + 9)
    assert made.flow_state(key(1)) is FlowState.PROBING
    made.handle(BindingWritten(key(1)), T0 + 10)
    assert made.flow_state(key(1)) is FlowState.BOUND
    made.handle(FlowEstablished(key(1), 1, T0 + 20, 1, 1), T0 + 20)
    assert made.flow_state(key(1)) is FlowState.STREAMING
    made.handle(FlowClosed(key(1), 1, T0 + 30), T0 + 30)
    assert made.flow_state(key(1)) is FlowState.CLOSED


def test_updates_that_fit_no_kept_decision_are_counted() -> None:
    """Forgotten flows, another backend, an older flow of the same five-tuple: no change."""
    made, _ = decided_by_race()
    made.handle(BindingWritten(key(1)), T0 + 10)
    play(
        made,
        (T0 + 20, FlowEstablished(key(7), 1, T0 + 20, 1, 1), []),
        (T0 + 20, FlowClosed(key(7), 1, T0 + 20), []),
        (T0 + 20, FlowEstablished(key(1), 3, T0 + 20, 1, 1), []),
        (T0 + 20, FlowClosed(key(1), 1, T0 - 1), []),
    )
    assert made.counters["flow_updates_unmatched"] == 4
    assert (kept(made).established_ns, kept(made).closed_ns) == (0, 0)
