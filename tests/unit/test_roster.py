# SPDX-License-Identifier: Apache-2.0
"""Which services there are, and who decides for them, over a change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cast import BACKENDS, first, sequence, service
from xdp_router.core.model import Mode, Probe
from xdp_router.core.roster import Departed, Roster
from xdp_router.core.strategy.base import ProbeSettings, Verdict

SETTINGS = ProbeSettings()


def test_its_dictionaries_are_changed_in_place() -> None:
    """Who holds one sees what is new; the strategy of a mode stays the same one."""
    roster = Roster({1, 2}, sequence)
    roster.apply([service(1)], SETTINGS)
    services, of, strategies = roster.services, roster.service_of, roster.strategies
    (race,) = roster.all_strategies
    assert (services[0], of[1], strategies[0]) == (service(1), service(1), race)
    assert roster.departing([replace(service(2), id=4)]) == Departed(frozenset({0}), frozenset())
    roster.apply([replace(service(2), id=4)], SETTINGS)
    assert list(services) == [4]
    assert set(of) == {1, 2}
    assert strategies == {4: race}
    assert roster.all_strategies == [race]
    assert set(roster.by_probed) == {(each.endpoint.addr, 8080, 6) for each in BACKENDS[:2]}
    roster.apply([], SETTINGS)
    assert not services
    assert not of
    assert roster.all_strategies == [race], "its races may still be running"


def test_a_mode_that_is_not_available_changes_nothing() -> None:
    """It is told before anything is taken away."""
    roster = Roster({1}, sequence)
    roster.apply([service(1)], SETTINGS)
    unknown = replace(service(2), mode=Mode.STICKY)
    for attempt in (roster.departing, lambda each: roster.apply(each, SETTINGS)):
        with pytest.raises(ValueError, match="mode 'sticky' is not available"):
            attempt([unknown])
    assert roster.services == {0: service(1)}
    assert set(roster.service_of) == {1}


def test_nobody_waits_for_who_departs_or_is_asked_otherwise() -> None:
    """Their ports are free, the race goes on without them, and ends at its deadline."""
    roster = Roster({1, 2, 3}, sequence)
    roster.apply([service(3)], SETTINGS)
    (race,) = roster.all_strategies
    packet = first(7)
    _, steps = race.admit(service(3), packet, packet.seen_ns)
    assert len(steps) == 3
    b1, b2 = BACKENDS[:2]
    asked_otherwise = replace(b2, probe=Probe(port=99))
    roster.apply([replace(service(2), backends=(b1, asked_otherwise))], SETTINGS)
    assert race.counters["probes_backend_down"] == 2
    assert roster.open_races == 1
    due = roster.deadline()
    assert due is not None
    (verdict,) = race.expire(due)
    assert isinstance(verdict, Verdict)
    assert verdict.first is packet
    assert roster.open_races == 0
