# SPDX-License-Identifier: Apache-2.0
"""Inline decisions of the daemon: the better of two, by what XDP has seen."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from tests.support.cast import BACKENDS, T0, first, sequence, service
from tests.support.playbook import US
from xdp_router.core.events import ProbeSent
from xdp_router.core.model import NO_BACKEND, Compared, Mode, Reason
from xdp_router.core.strategy.base import BackendStats, ProbeSettings, Verdict
from xdp_router.core.strategy.inline import InlineStrategy, lightest
from xdp_router.core.strategy.probing import Load, Servers, Shared

SETTINGS = ProbeSettings()


def strategy(loads: dict[int, Load], *up: int) -> InlineStrategy:
    """Of the service with three backends."""
    shared = Shared(
        Servers(SETTINGS),
        draw=random.Random(3).randrange,
        load_of=lambda backend: loads.get(backend, Load()),
    )
    return InlineStrategy([service(3)], set(up), SETTINGS, sequence, shared)


def chosen(made: InlineStrategy, excluded: frozenset[int] = frozenset()) -> Counter[int]:
    """Who gets 300 first packets."""
    found: Counter[int] = Counter()
    for port in range(300):
        evidence, (verdict,) = made.admit(service(3), first(port), T0, excluded)
        assert not evidence.records
        assert isinstance(verdict, Verdict)
        assert verdict.mode is Mode.INLINE
        found[verdict.backend] += 1
    return found


def known(loads: dict[int, Load], count: int = 3) -> list[Load]:
    """Of the first backends, in their order."""
    return [loads[each.id] for each in BACKENDS[:count]]


def test_what_was_compared_is_told() -> None:
    """Both that were drawn, as they were; of one alone there is nothing to compare."""
    made = strategy({1: Load(300 * US, 2), 2: Load(100 * US, 5)}, 1, 2)
    evidence, (verdict,) = made.admit(service(3), first(1), T0)
    assert isinstance(verdict, Verdict)
    assert verdict.backend == 2
    assert sorted(evidence.compared, key=lambda each: each.backend) == [
        Compared(1, 300 * US, 2),
        Compared(2, 100 * US, 5),
    ]
    evidence, _ = made.admit(service(3), first(2), T0, frozenset({1}))
    assert evidence.compared == ()


def test_the_better_of_two_by_round_trip_and_open_flows() -> None:
    """A backend twice as far away is as good with half the flows; weights count."""
    loads = {1: Load(200 * US, 4), 2: Load(100 * US, 10), 3: Load(100 * US, 10)}
    assert lightest(BACKENDS, known(loads)).id == 1
    heavy = (BACKENDS[0], replace(BACKENDS[1], weight=3))
    assert lightest(heavy, known(loads, 2)).id == 2


def test_a_backend_without_a_sample_is_as_near_as_the_nearest() -> None:
    """So that it gets flows to be measured by, and not all of them."""
    loads = {1: Load(0, 1), 2: Load(100 * US, 0), 3: Load(900 * US, 0)}
    assert lightest(BACKENDS, known(loads)).id == 2
    loads[1] = Load(0, 0)
    assert lightest(BACKENDS, known(loads)).id == 1


def test_the_worst_of_three_gets_nothing() -> None:
    """It meets a better one in each pair; the others share."""
    found = chosen(strategy({1: Load(9000 * US), 2: Load(100 * US), 3: Load(100 * US)}, 1, 2, 3))
    assert set(found) == {2, 3}


def test_only_those_that_can_be_had() -> None:
    """Up, and not left out for this client; else nobody."""
    made = strategy({}, 1, 3)
    assert set(chosen(made)) == {1, 3}
    assert set(chosen(made, frozenset({1}))) == {3}
    _, (verdict,) = made.admit(service(3), first(1), T0, frozenset({1, 3}))
    assert verdict == Verdict(first(1), NO_BACKEND, Reason.NO_CANDIDATE, Mode.INLINE)


def test_nothing_is_probed() -> None:
    """No timer, no answer is its own, nobody waits."""
    made = strategy({}, 1)
    assert made.deadline() is None
    assert made.expire(T0) == ()
    assert made.probe_sent(ProbeSent(1, 61_000, 7, T0), T0) == ()
    assert made.stats(1) == BackendStats()
    assert made.apply((), SETTINGS) == ()
    assert made.stats(1) is None
