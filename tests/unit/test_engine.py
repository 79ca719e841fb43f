# SPDX-License-Identifier: Apache-2.0
"""Conversations with the engine: races, the degrade chain, backends, views."""

from __future__ import annotations

import pytest

from tests.support.cast import (
    BACKENDS,
    DEADLINE,
    T0,
    backend_by_hash,
    decision,
    engine,
    final,
    first,
    key,
    probe,
    reply,
    sent,
    sequence,
)
from tests.support.playbook import EXPIRE, MS, START, US, play
from xdp_router.core.commands import PublishHashTable, SetBackendUp, WriteBinding
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.events import BackendState, BindingWritten, FirstPacket, ProbeReply, ProbeSent
from xdp_router.core.flow_hash import flow_hash
from xdp_router.core.model import (
    NO_BACKEND,
    Endpoint,
    FlowKey,
    Mode,
    ProbeAnswer,
    ProbeRecord,
    Reason,
    Service,
)
from xdp_router.core.selection import EMPTY_TABLE, build_table

# Races


def test_a_race_from_first_packet_to_log_line() -> None:
    """Probe all, the first answer binds leader and follower, written bindings are re-injected."""
    lead, follow = first(1), first(2, T0 + 100 * US)
    won = T0 + 400 * US
    records = [ProbeRecord(1, T0 + 10), ProbeRecord(2, T0 + 20, ProbeAnswer.SYNACK, won - 50)]
    play(
        engine(1, 2),
        (T0, lead, [probe(1), probe(2)]),
        (T0 + 30, sent(1, T0 + 10), []),
        (T0 + 30, sent(2, T0 + 20), []),
        (T0 + 100 * US, follow, []),
        (
            won,
            reply(2, won - 50),
            [
                WriteBinding(lead, 2, Mode.RACE, Reason.RACE_WON, 400 * US),
                WriteBinding(follow, 2, Mode.RACE, Reason.RACE_JOINED, 300 * US),
            ],
        ),
        (
            won,
            BindingWritten(key(1)),
            final(lead, decision(lead, 2, Mode.RACE, Reason.RACE_WON, won, records)),
        ),
        (
            won,
            BindingWritten(key(2)),
            final(follow, decision(follow, 2, Mode.RACE, Reason.RACE_JOINED, won, records)),
        ),
    )


def test_a_first_packet_just_after_the_race_is_decided_in_the_same_call() -> None:
    """Inside the coalescing window the last winner is taken, with the time it really took."""
    late = first(2, T0 + 1 * MS)
    made = engine(1, 2)
    play(
        made,
        (T0, first(1), [probe(1), probe(2)]),
        (
            T0 + 9,
            reply(1, T0 + 5),
            [WriteBinding(first(1), 1, Mode.RACE, Reason.RACE_WON, 9)],
        ),
        (
            T0 + 1 * MS + 30,
            late,
            [WriteBinding(late, 1, Mode.RACE, Reason.RACE_JOINED, 30)],
        ),
    )
    assert made.counters["races_joined_after"] == 1


def test_late_answers_show_up_in_the_kept_decision() -> None:
    """``explain`` shows the slower candidate's RTT although the decision was final before."""
    made = engine(1, 2)
    write = WriteBinding(first(1), 1, Mode.RACE, Reason.RACE_WON, 300)
    records = [ProbeRecord(1, T0 + 100, ProbeAnswer.SYNACK, T0 + 200), ProbeRecord(2, T0 + 110)]
    known = decision(first(1), 1, Mode.RACE, Reason.RACE_WON, T0 + 300, records)
    play(
        made,
        (T0, first(1), [probe(1), probe(2)]),
        (T0 + 120, sent(1, T0 + 100), []),
        (T0 + 120, sent(2, T0 + 110), []),
        (T0 + 300, reply(1, T0 + 200), [write]),
        (T0 + 300, BindingWritten(key(1)), final(first(1), known)),
        (T0 + 9 * MS, reply(2, T0 + 8 * MS), []),
    )
    [kept] = made.decisions
    assert [each.rtt_ns for each in kept.probes] == [100, 8 * MS - 110]
    assert made.backend_stats(2).last_rtt_ns == 8 * MS - 110
    assert made.backend_stats(1).wins == 1


def test_all_candidates_refused_refuses_the_client_at_once() -> None:
    """The refusal is written, then the frame goes through XDP, which answers with the RST."""
    packet = first(1)
    records = [
        ProbeRecord(1, 0, ProbeAnswer.RST, T0 + 10),
        ProbeRecord(2, 0, ProbeAnswer.UNREACHABLE, T0 + 20),
    ]
    refused = decision(packet, NO_BACKEND, Mode.REFUSED, Reason.ALL_REFUSED, T0 + 20, records)
    made = engine(1, 2, fallback=1)
    play(
        made,
        (T0, packet, [probe(1), probe(2)]),
        (T0 + 10, reply(1, T0 + 10, ProbeAnswer.RST), []),
        (
            T0 + 20,
            reply(2, T0 + 20, ProbeAnswer.UNREACHABLE),
            [WriteBinding(packet, NO_BACKEND, Mode.REFUSED, Reason.ALL_REFUSED, 20)],
        ),
        (T0 + 20, BindingWritten(key(1)), final(packet, refused)),
    )
    assert made.counters["decided_refused"] == 1


def test_a_duplicate_first_packet_of_an_open_decision_is_ignored() -> None:
    """One flow, one decision; the second event is counted."""
    made = engine(1, 2)
    play(
        made,
        (T0, first(1), [probe(1), probe(2)]),
        (T0 + 5, first(1, T0 + 5), []),
        (T0 + 9, reply(1, T0 + 9), [WriteBinding(first(1), 1, Mode.RACE, Reason.RACE_WON, 9)]),
    )
    assert made.counters["first_packets_duplicate"] == 1
    assert made.open_decisions == 1


# The degrade chain


def test_at_the_deadline_the_configured_fallback_is_taken() -> None:
    """Nobody answered: the fallback, if it is up and has not refused in this race."""
    packet = first(1)
    made = engine(1, 2, fallback=2)
    play(
        made,
        (T0, packet, [probe(1), probe(2)]),
        (DEADLINE - 1, EXPIRE, []),
        (
            DEADLINE,
            EXPIRE,
            [WriteBinding(packet, 2, Mode.FALLBACK, Reason.DEADLINE, 50 * MS)],
        ),
    )
    assert made.deadline() is None


def test_a_fallback_that_refused_in_this_race_is_passed_over() -> None:
    """The hash takes over, and it passes over who refused, too."""
    packet = first(1)
    play(
        engine(1, 2, fallback=2),
        (T0, packet, [probe(1), probe(2)]),
        (T0 + 9, reply(2, T0 + 9, ProbeAnswer.RST), []),
        (DEADLINE, EXPIRE, [WriteBinding(packet, 1, Mode.HASH, Reason.DEADLINE, 50 * MS)]),
    )


def test_without_a_fallback_the_hash_decides_like_xdp() -> None:
    """The flow's own slot of the published table."""
    usable = (1, 2, 3)
    made = engine(*usable, count=3)
    packets = [first(port) for port in range(1, 20)]
    for packet in packets:
        made.handle(packet, T0)
    chosen = [backend_by_hash(port, *usable) for port in range(1, 20)]
    assert len(set(chosen)) > 1
    assert made.expire(DEADLINE) == [
        WriteBinding(packet, backend, Mode.HASH, Reason.DEADLINE, 50 * MS)
        for packet, backend in zip(packets, chosen, strict=True)
    ]


def test_nobody_up_refuses_at_once() -> None:
    """No candidate, no fallback, an empty table: refused, not left hanging."""
    packet = first(1)
    made = engine(fallback=1)
    refused = decision(packet, NO_BACKEND, Mode.REFUSED, Reason.NO_CANDIDATE, T0 + 5, [])
    play(
        made,
        (
            T0 + 5,
            packet,
            [WriteBinding(packet, NO_BACKEND, Mode.REFUSED, Reason.NO_CANDIDATE, 5)],
        ),
        (T0 + 5, BindingWritten(key(1)), final(packet, refused)),
    )
    assert made.deadline() is None
    assert made.open_decisions == 0


def test_spent_probe_budget_degrades_at_once() -> None:
    """No token for any candidate: the chain is walked without waiting."""
    settings = EngineSettings(coalesce_window_ns=0, probe_rate=0, probe_burst=1)
    packet = first(2, T0 + 20)
    play(
        engine(1, fallback=1, settings=settings),
        (T0, first(1), [probe(1)]),
        (T0 + 9, reply(1, T0 + 9), [WriteBinding(first(1), 1, Mode.RACE, Reason.RACE_WON, 9)]),
        (
            T0 + 20,
            packet,
            [WriteBinding(packet, 1, Mode.FALLBACK, Reason.PROBE_BUDGET, 0)],
        ),
    )


def test_too_many_open_decisions_degrade_at_once() -> None:
    """The limit is on flows that are held; those already open are not touched."""
    made = engine(1, fallback=1, settings=EngineSettings(max_open_decisions=1))
    play(
        made,
        (T0, first(1), [probe(1)]),
        (T0 + 1, first(2), [WriteBinding(first(2), 1, Mode.FALLBACK, Reason.OVERLOAD, 1)]),
        (T0 + 9, reply(1, T0 + 9), [WriteBinding(first(1), 1, Mode.RACE, Reason.RACE_WON, 9)]),
    )
    assert made.counters["first_packets_overload"] == 1


def test_a_first_packet_of_no_service_is_left_to_xdp() -> None:
    """It is counted and nothing is held."""
    made = engine(1)
    stray = FirstPacket(key(1), 9, 2, T0, 1, 0, 7, b"syn")
    play(made, (T0, stray, []))
    assert made.counters["first_packets_unknown_service"] == 1
    assert made.open_decisions == 0


def test_latency_is_told_as_it_is() -> None:
    """Also of a flow handled seconds late: the entry, which holds 32 bits of it, is also dated."""
    [write] = engine().handle(first(1, T0), T0 + 5_000 * MS)
    assert isinstance(write, WriteBinding)
    assert write.latency_ns == 5_000 * MS


# Backends


def test_start_publishes_empty_tables() -> None:
    """Nothing is usable before netlink has said so."""
    play(engine(), (T0, START, [PublishHashTable(0, EMPTY_TABLE)]))


def test_a_backend_that_comes_or_goes_is_flagged_before_the_table_says_so() -> None:
    """The flag alone keeps XDP from choosing it. A repeat changes nothing."""
    made = engine()
    one, both = build_table(BACKENDS[:1]), build_table(BACKENDS[:2])
    play(
        made,
        (T0, BackendState(1, True), [SetBackendUp(1, True), PublishHashTable(0, one)]),
        (T0, BackendState(2, True), [SetBackendUp(2, True), PublishHashTable(0, both)]),
        (T0, BackendState(2, True), []),
        (T0, BackendState(2, False), [SetBackendUp(2, False), PublishHashTable(0, one)]),
        (T0, BackendState(9, True), []),
        (T0, ProbeSent(9, 61_000, 1, T0), []),
        (T0, ProbeReply(1, 2, 61_000, 1, ProbeAnswer.SYNACK, T0), []),
    )
    assert made.up == {1}
    assert made.counters["backend_unknown"] == 2
    assert made.counters["probe_answers_unknown_backend"] == 1


def test_a_winner_that_went_down_before_its_answer_does_not_win() -> None:
    """The candidate has lost with its path; the others decide."""
    down = SetBackendUp(1, False), PublishHashTable(0, build_table(BACKENDS[1:2]))
    play(
        engine(1, 2),
        (T0, first(1), [probe(1), probe(2)]),
        (T0 + 5, BackendState(1, False), list(down)),
        (T0 + 6, reply(1, T0 + 6), []),
        (T0 + 9, reply(2, T0 + 9), [WriteBinding(first(1), 2, Mode.RACE, Reason.RACE_WON, 9)]),
    )


# Views


def test_views_show_what_is_open() -> None:
    """Status reads counts and the next deadline without changing anything."""
    made = engine(1, 2)
    assert (made.open_races, made.open_decisions, made.deadline()) == (0, 0, None)
    made.handle(first(1), T0)
    made.handle(first(2, T0 + 1), T0 + 1)
    assert (made.open_races, made.open_decisions, made.deadline()) == (1, 2, DEADLINE)
    assert made.counters["races_started"] == 1
    assert made.counters["races_joined"] == 1
    with pytest.raises(KeyError):
        made.backend_stats(9)


def test_a_mode_that_is_not_built_is_refused_when_the_engine_is_made() -> None:
    """The message names the mode and what there is instead."""
    odd = Service(0, "web", Endpoint(1, 80), (), mode=Mode.STICKY)
    with pytest.raises(ValueError, match="'sticky' is not available; choose one of race"):
        Engine([odd], EngineSettings(), sequence, build_table)


@pytest.mark.parametrize(
    ("five_tuple", "value"),
    [
        (FlowKey(0xC6120001, 40_000, 0xC6126401, 80), 3711582519),
        (FlowKey(0xC613FFFF, 65_535, 0xC6126401, 443), 4005760313),
        (FlowKey(0xC6120001, 40_001, 0xC6126401, 80), 1397833236),
    ],
)
def test_flow_hash_is_the_one_of_the_xdp_program(five_tuple: FlowKey, value: int) -> None:
    """Values that the C function in ebpf/lib/binding.h gives for the same five-tuples."""
    assert flow_hash(five_tuple) == value
