# SPDX-License-Identifier: Apache-2.0
"""Conversations about backends that drain: neither raced, nor fallback, nor hashed to."""

from __future__ import annotations

from tests.support.cast import (
    BACKENDS,
    T0,
    decision,
    engine,
    final,
    first,
    key,
    probe,
    reply,
    sent,
)
from tests.support.playbook import MS, START, play
from xdp_router.core.commands import (
    PublishHashTable,
    SetBackendDraining,
    SetBackendUp,
    WriteBinding,
)
from xdp_router.core.events import BackendDrain, BackendState, BindingWritten
from xdp_router.core.model import Mode, ProbeAnswer, ProbeRecord, Reason
from xdp_router.core.selection import build_table

BOTH = build_table(BACKENDS[:2])
ONLY_2 = build_table([BACKENDS[1]])


def test_who_drains_is_no_candidate_and_in_no_table() -> None:
    """Not even as the fallback; what it answers now is nobody's; undrained it is as before."""
    router = engine(1, 2, fallback=1)
    records = [ProbeRecord(2, T0 + 10, ProbeAnswer.SYNACK, T0 + 2 * MS)]
    play(
        router,
        (T0, START, [PublishHashTable(0, BOTH)]),
        (T0, BackendDrain(1, True), [SetBackendDraining(1, True), PublishHashTable(0, ONLY_2)]),
        (T0, BackendDrain(1, True), []),
        (T0, first(7), [probe(2)]),
        (T0, sent(2, T0 + 10), []),
        (
            T0 + 2 * MS,
            reply(2, T0 + 2 * MS),
            [WriteBinding(first(7), 2, Mode.RACE, Reason.RACE_WON, 2 * MS)],
        ),
        (
            T0 + 2 * MS,
            BindingWritten(key(7)),
            final(
                first(7), decision(first(7), 2, Mode.RACE, Reason.RACE_WON, T0 + 2 * MS, records)
            ),
        ),
        (
            T0 + 9 * MS,
            BackendDrain(1, False),
            [SetBackendDraining(1, False), PublishHashTable(0, BOTH)],
        ),
    )
    assert router.up == {1, 2}


def test_up_and_down_go_on_while_it_drains() -> None:
    """Its path may come and go: the flag says so, and nothing else follows before undrain."""
    router = engine(1, 2)
    play(
        router,
        (T0, START, [PublishHashTable(0, BOTH)]),
        (T0, BackendDrain(1, True), [SetBackendDraining(1, True), PublishHashTable(0, ONLY_2)]),
        (T0, BackendState(1, False), [SetBackendUp(1, False)]),
        (T0, BackendDrain(1, False), [SetBackendDraining(1, False)]),
        (T0, BackendDrain(1, True), [SetBackendDraining(1, True)]),
        (T0 + MS, BackendState(1, True), [SetBackendUp(1, True)]),
    )
    assert router.up == {2}
    assert router.backends.reached == {1, 2}
    play(
        router,
        (
            T0 + 9 * MS,
            BackendDrain(1, False),
            [SetBackendDraining(1, False), PublishHashTable(0, BOTH)],
        ),
    )


def test_a_race_that_runs_goes_on_without_it() -> None:
    """Its answer comes too late; the flow waits for the others, and goes to whoever answers."""
    router = engine(1, 2)
    play(
        router,
        (T0, first(7), [probe(1), probe(2)]),
        (T0, sent(1, T0), []),
        (T0, sent(2, T0), []),
        (
            T0 + MS,
            BackendDrain(1, True),
            [SetBackendDraining(1, True), PublishHashTable(0, ONLY_2)],
        ),
        (T0 + 2 * MS, reply(1, T0 + 2 * MS), []),
        (
            T0 + 3 * MS,
            reply(2, T0 + 3 * MS),
            [WriteBinding(first(7), 2, Mode.RACE, Reason.RACE_WON, 3 * MS)],
        ),
    )


def test_a_router_may_begin_with_one_that_drains() -> None:
    """As a former daemon has left it."""
    router = engine()
    router.begin({1, 2}, {2, 77})
    assert router.up == frozenset({1})
    assert router.backends.reached == frozenset({1, 2})
    assert router.backends.draining == frozenset({2})
