# SPDX-License-Identifier: Apache-2.0
"""Rise and fall of backends, how long they are held down, and how they come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.playbook import MS
from xdp_router.core.health import (
    FIRST_SHARE,
    FORGIVEN_NS,
    Change,
    Health,
    HealthSettings,
    Ill,
    Source,
)

S = 1000 * MS
PROBE, TRAFFIC = Source.PROBE, Source.TRAFFIC
SETTINGS = HealthSettings(rise=2, fall=3, hold_ns=S, hold_max_ns=5 * S, slow_start_ns=10 * S)


class Told:
    """Tells of backend 7, each observation a millisecond after the one before."""

    def __init__(self, settings: HealthSettings = SETTINGS) -> None:
        self.health = Health(settings)
        self.now_ns = 100 * S

    def good(self, times: int = 1, source: Source = PROBE) -> list[Change]:
        return self._tell(None, times, source)

    def bad(self, times: int = 1, source: Source = PROBE, why: Ill = Ill.REFUSED) -> list[Change]:
        return self._tell(why, times, source)

    def wait(self, span_ns: int) -> None:
        self.now_ns += span_ns

    def _tell(self, why: Ill | None, times: int, source: Source) -> list[Change]:
        changes = []
        for _ in range(times):
            self.now_ns += MS
            change = self.health.heard(7, source, why, self.now_ns)
            if change is not None:
                changes.append(change)
                assert self.health.is_well(7) == change.well
        return changes


def fallen(told: Told) -> Change:
    """It falls now."""
    (change,) = told.bad(told.health.settings.fall)
    return change


def test_a_hold_that_is_lowered_meanwhile_is_over_sooner() -> None:
    """Whoever lowers ``health_hold_max`` wants those back that are held."""
    told = Told(HealthSettings(rise=2, fall=3, hold_ns=3600 * S, hold_max_ns=3600 * S))
    fallen(told)
    told.wait(5 * S)
    assert told.good(2) == []
    told.health.settings = HealthSettings(rise=2, fall=3, hold_ns=S, hold_max_ns=6 * S)
    assert told.good() == []
    told.wait(S)
    (change,) = told.good()
    assert change.well


def test_who_was_never_heard_of_is_well() -> None:
    """It has its whole share, and good news about it are no news."""
    told = Told()
    assert told.health.is_well(7)
    assert told.health.share(7, told.now_ns) == 1
    assert told.good(10) == []


def test_it_falls_by_three_in_a_row() -> None:
    """Two are not enough, a good one between them begins the count anew; more change nothing."""
    told = Told()
    assert told.bad(2) == told.good() == told.bad(2) == []
    change = fallen(Told())
    assert change == Change(7, False, Ill.REFUSED, PROBE, 100 * S + 3 * MS + S, 1)
    told.bad(1)
    assert told.health.ill() == {7}
    assert told.bad(5) == []


def test_traffic_and_probes_are_counted_apart() -> None:
    """A hung process answers probes: they do not make good what its connections say."""
    told = Told()
    for _ in range(2):
        assert told.bad(1, TRAFFIC, Ill.UNANSWERED) == told.good(1) == []
    (change,) = told.bad(1, TRAFFIC, Ill.UNANSWERED)
    assert (change.why, change.source) == (Ill.UNANSWERED, TRAFFIC)
    apart = Told()
    assert apart.bad(2, TRAFFIC) == apart.bad(2, PROBE) == []


def test_it_rises_when_its_time_is_served() -> None:
    """Two good probes in a row, the last of them after the time that it is held down."""
    told = Told()
    fallen(told)
    assert told.good(5) == []
    told.wait(S)
    (change,) = told.good(1)
    assert (change.well, change.times) == (True, 1)
    again = Told()
    fallen(again)
    again.wait(S)
    assert again.good(1) == again.bad(1) == again.good(1) == []
    assert again.good(1) != []


def test_traffic_does_not_raise_it() -> None:
    """Connections of before may still be answered; new ones say nothing: it has none."""
    told = Told()
    fallen(told)
    told.wait(S)
    assert told.good(10, TRAFFIC) == []
    told.good(1)
    told.bad(1, TRAFFIC)
    assert told.good(1) == []


def test_one_that_flaps_is_held_down_longer_each_time() -> None:
    """Twice as long, up to the greatest; after a time of health it has no past."""
    told = Told()
    spans = []
    for times in range(1, 6):
        change = fallen(told)
        assert change.times == times
        spans.append((change.held_until_ns - told.now_ns) // S)
        told.wait(change.held_until_ns - told.now_ns)
        assert told.good(2)[0].well
    assert spans == [1, 2, 4, 5, 5]
    told.wait(FORGIVEN_NS + 5 * S)
    assert fallen(told).times == 1
    assert told.health.is_well(8)


def test_it_comes_back_slowly() -> None:
    """A tenth of its share at first, all of it in the end; none while it is down."""
    told = Told()
    fallen(told)
    assert told.health.share(7, told.now_ns) == 0
    told.wait(S)
    told.good(2)
    assert told.health.share(7, told.now_ns) == FIRST_SHARE
    told.wait(5 * S)
    assert told.health.share(7, told.now_ns) == pytest.approx(FIRST_SHARE + 0.45)
    told.wait(5 * S)
    assert told.health.share(7, told.now_ns) == 1
    fallen(told)
    assert told.health.share(7, told.now_ns) == 0


def test_without_slow_start_it_has_all_at_once() -> None:
    """0 seconds."""
    told = Told(HealthSettings(slow_start_ns=0))
    fallen(told)
    told.wait(S)
    told.good(2)
    assert told.health.share(7, told.now_ns) == 1


def test_who_is_forgotten_is_well() -> None:
    """Another backend has the number."""
    told = Told()
    fallen(told)
    told.health.forget([7, 8])
    assert told.health.is_well(7)
    assert told.health.ill() == frozenset()


@given(
    st.lists(
        st.tuples(st.sampled_from(Source), st.sampled_from([None, *Ill]), st.integers(0, 10 * S))
    )
)
def test_whatever_is_told(story: list[tuple[Source, Ill | None, int]]) -> None:
    """Changes alternate, nobody rises before its time, and shares are parts of a whole."""
    health, now_ns, well, held_until_ns = Health(SETTINGS), S, True, 0
    for source, why, span_ns in story:
        now_ns += span_ns
        change = health.heard(1, source, why, now_ns)
        if change is not None:
            assert change.well is not well
            assert not change.well or now_ns >= held_until_ns
            well, held_until_ns = change.well, change.held_until_ns
        assert health.is_well(1) is well
        assert 0 <= health.share(1, now_ns) <= 1


@pytest.mark.parametrize("pause_ns", [S, 40 * S, 600 * S])
def test_good_probes_do_not_shorten_what_flows_bring_down(pause_ns: int) -> None:
    """However seldom flows come: the hold grows with each fall, until one has fared well."""
    told = Told()
    held = []
    for _ in range(4):
        while told.health.is_well(7):
            told.wait(pause_ns)
            told.good()
            held += [change.held_until_ns - told.now_ns for change in told.bad(1, TRAFFIC)]
        told.wait(5 * S)
        told.good(2)
    assert held == [S, 2 * S, 4 * S, 5 * S]
    told.good(1, TRAFFIC)
    told.wait(FORGIVEN_NS + 5 * S)
    told.good()
    (change,) = told.bad(3, TRAFFIC)
    assert (change.times, change.held_until_ns - told.now_ns) == (1, S)


def test_who_was_brought_down_by_probes_is_forgiven_by_time() -> None:
    """Nobody may have asked it for anything."""
    told = Told()
    fallen(told)
    told.wait(S)
    told.good(2)
    told.wait(FORGIVEN_NS + S)
    assert fallen(told).times == 1
