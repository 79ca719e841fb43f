# SPDX-License-Identifier: Apache-2.0
"""The trouble of a chaos run: never more than the promises bear, and the same for the same seed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.cast import SERVICES, Wishes, host_of
from tests.chaos.schedule import (
    CALM_S,
    FLOODS,
    LENGTH_S,
    MIN_WELL,
    OF_BACKEND,
    OF_DAEMON,
    OF_HOST,
    OF_LINK,
    REST_OF_LINKS,
    SUITE_S,
    SUITE_SEED,
    Guard,
    Kind,
    Trouble,
    acts_of,
    make_schedule,
)
from xdp_router.core.config import parse_config

SEEDS = st.integers(0, 2**32)
LENGTHS = st.floats(0, 200)


def at_once(troubles: tuple[Trouble, ...], now_s: float) -> list[Trouble]:
    """What goes on at an instant."""
    return [each for each in troubles if each.at_s <= now_s < each.at_s + each.for_s]


@given(SEEDS, LENGTHS)
def test_never_more_than_the_promises_bear(seed: int, length_s: float) -> None:
    """At the beginning of each trouble, with all that goes on: backends of each service are well,
    and what must not meet does not."""
    troubles = make_schedule(seed, length_s)
    for trouble in troubles:
        going = [*at_once(troubles, trouble.at_s), trouble]
        for service in SERVICES:
            ill = {each.target for each in going if each.kind in OF_HOST}
            ill |= {
                host_of(each.target)
                for each in going
                if each.kind in OF_BACKEND and each.target.startswith(f"{service.name}-")
            }
            assert len(set(service.hosts) - ill) >= MIN_WELL[service.protocol]
        kinds = {each.number: each.kind for each in going}.values()
        for only_one in (OF_LINK, FLOODS, OF_DAEMON):
            assert sum(kind in only_one for kind in kinds) <= 1
        assert not (Kind.CLIENT_FLAP in kinds and FLOODS & set(kinds))


@given(SEEDS, LENGTHS)
def test_links_rest(seed: int, length_s: float) -> None:
    """After a link was down TCP has time to come back before the next one is."""
    links = [each for each in make_schedule(seed, length_s) if each.kind in OF_LINK]
    for before, after in itertools.pairwise(links):
        assert after.at_s >= before.at_s + (1 + REST_OF_LINKS) * before.for_s + 0.99


@given(SEEDS, LENGTHS)
def test_it_is_calm_at_both_ends(seed: int, length_s: float) -> None:
    """And each trouble is as long as its kind is."""
    for each in make_schedule(seed, length_s):
        assert each.at_s >= CALM_S
        assert each.at_s + each.for_s <= length_s - CALM_S + 0.02
        low, high = LENGTH_S[each.kind]
        assert low - 0.01 <= each.for_s <= high + 0.01


@given(SEEDS)
def test_everything_happens(seed: int) -> None:
    """In a minute each kind is there, whatever the seed; the same seed says the same."""
    troubles = make_schedule(seed, 60)
    assert {each.kind for each in troubles} == set(Kind)
    assert troubles == make_schedule(seed, 60)
    assert [each.number for each in troubles] == list(range(1, len(troubles) + 1))


def test_everything_happens_in_the_suite() -> None:
    """Its short run has a seed for which that holds."""
    assert {each.kind for each in make_schedule(SUITE_SEED, SUITE_S)} == set(Kind)


def test_seeds_differ() -> None:
    """Another seed, another run."""
    assert make_schedule(1, 60) != make_schedule(2, 60)


@given(SEEDS, LENGTHS, st.booleans())
def test_acts_are_in_order(seed: int, length_s: float, control: bool) -> None:
    """Each trouble begins before it ends, both lanes together have all; and between the end of a
    daemon and its start nobody is told anything."""
    troubles = make_schedule(seed, length_s)
    acts = acts_of(troubles, control=control)
    begun: set[int] = set()
    gone = False
    for act in acts:
        number = act.trouble.number
        assert (number in begun) is not act.begins
        begun.add(number)
        if act.trouble.kind in OF_DAEMON:
            assert gone is not act.begins
            gone = act.begins
        else:
            assert not gone or not control
    others = acts_of(troubles, control=not control)
    assert len(acts) + len(others) == 2 * len(troubles)


def test_a_guard_knows_when_to_say_no() -> None:
    """It is asked again when the time comes, for the machine may be late."""
    guard = Guard()
    first = Trouble(1, Kind.KILL, 0, 1, "b1")
    assert guard.may_begin(first, 0.0)
    guard.begin(first)
    assert not guard.may_begin(Trouble(2, Kind.STALL, 0, 1, "b1"), 0.0)
    second = Trouble(2, Kind.STALL, 0, 1, "b2")
    guard.begin(second)
    assert not guard.may_begin(Trouble(3, Kind.KILL, 0, 1, "b3"), 0.0)
    assert not guard.may_begin(Trouble(3, Kind.DRAIN, 0, 1, "web4-b3"), 0.0)
    # Where its host is in trouble anyway, a drained backend takes nothing more away.
    assert guard.may_begin(Trouble(3, Kind.DRAIN, 0, 1, "web4-b2"), 0.0)
    guard.end(first, 1.0, 1.0)
    assert guard.may_begin(Trouble(3, Kind.KILL, 0, 1, "b3"), 0.0)
    flap = Trouble(4, Kind.CLIENT_FLAP, 0, 1)
    guard.begin(flap)
    assert not guard.may_begin(Trouble(5, Kind.SYN_FLOOD, 0, 1), 1.0)
    guard.end(flap, 2.0, 10.0)
    assert not guard.may_begin(Trouble(6, Kind.HOST_FLAP, 0, 1, "b4"), 14.9)
    assert guard.may_begin(Trouble(6, Kind.HOST_FLAP, 0, 1, "b4"), 15.0)
    assert guard.going == (second,)


@pytest.mark.parametrize("absent", [set(), {"web4-b1", "ask6-u3"}])
def test_the_configuration_is_one(absent: set[str]) -> None:
    """What is wished is a file that the router takes."""
    wishes = Wishes(absent=absent)
    wishes.modes["web4"] = "inline"
    wishes.weights["web4-b2"] = 4
    config = parse_config(wishes.text(), "router.toml")
    (web4,) = (each for each in config.services if each.name == "web4")
    assert web4.mode.name == "INLINE"
    assert {each.name for each in web4.backends if each.weight == 4} == {"web4-b2"}
    assert not absent & {each.name for service in config.services for each in service.backends}
