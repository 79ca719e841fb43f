# SPDX-License-Identifier: Apache-2.0
"""Every case of the packet corpus, with the program as either loader loads it."""

from __future__ import annotations

import collections

import pytest

from tests.bpf.corpus import CASES, starved
from tests.bpf.corpus.case import Case, judge
from tests.bpf.corpus.world import World
from tests.support.worlds import WORLDS, world_id
from xdp_router.core import abi

pytest_plugins = ("tests.support.worlds",)


def _everywhere(cases: list[Case], fixture: str) -> pytest.MarkDecorator:
    """Each case in every world of its families."""
    runs = [
        pytest.param(case, which, id=f"{case.name}-{world_id(which)}")
        for which in WORLDS
        for case in cases
        if which[1] in case.families
    ]
    return pytest.mark.parametrize(("case", fixture), runs, indirect=[fixture])


@_everywhere(CASES, "world")
def test_case(case: Case, world: World) -> None:
    """Verdict, whole outgoing frame, counters, event and tables are what the case says."""
    judge(case, world)


@_everywhere(starved.CASES, "starved_world")
def test_case_without_memory(case: Case, starved_world: World) -> None:
    """A failing insert is counted, answered and leaves no half of a decision."""
    judge(case, starved_world)


def test_names_are_unique() -> None:
    """A failing case can be found by its name."""
    twice = [
        n
        for n, count in collections.Counter(c.name for c in [*CASES, *starved.CASES]).items()
        if count > 1
    ]
    assert not twice


def test_every_counter_is_provoked() -> None:
    """Each reason that the program can count is the expectation of some case; the others are what
    the kernel's stack asks another program (tests/bpf/test_socket_lookup.py)."""
    asked = {"gateway_steered", "gateway_absent", "taken_up_refused"}
    provoked = {name for case in [*CASES, *starved.CASES] for name in case.counters}
    assert {counter.name for counter in abi.Counter} - provoked == asked
