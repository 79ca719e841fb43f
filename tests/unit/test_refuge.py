# SPDX-License-Identifier: Apache-2.0
"""Who of a service is well, and whether clients of one that is silent have anybody to go to."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.cast import T0, sequence, service
from tests.support.health_cast import SETTINGS, S
from tests.support.playbook import MS
from xdp_router.core.availability import Availability
from xdp_router.core.health_watch import HealthWatch, Server
from xdp_router.core.model import ProbeAnswer
from xdp_router.core.refuge import Refuge, Refuges
from xdp_router.core.strategy.base import ProbeSettings
from xdp_router.core.strategy.probing import Servers, no_draw

NOBODY: frozenset[int] = frozenset()
WEB = dataclasses.replace(service(3), health=SETTINGS)


class Stage:
    """Three backends that are reached; the first has been silent since T0."""

    def __init__(self) -> None:
        self.watch = HealthWatch(sequence, Servers(ProbeSettings()), no_draw)
        self.watch.apply((), (WEB,))
        self.backends = Availability()
        self.backends.begin((1, 2, 3), ())
        self.refuges = Refuges(self.watch, self.backends)
        self.server(1).silent_ns, self.server(1).silences = T0, 3

    def server(self, backend: int) -> Server:
        found = self.watch.server_of(backend)
        assert found is not None
        return found

    def answered(self, backend: int, at_ns: int) -> None:
        self.watch.answered(backend, ProbeAnswer.SYNACK, at_ns)

    def of_first(self, at_ns: int, *ill: int) -> Refuge:
        return self.refuges.of(WEB, self.server(1), {1, *ill}, at_ns)


@pytest.mark.parametrize("number", [2, 3])
def test_an_answer_since_then_is_a_refuge(number: int) -> None:
    """One of before, or that may have been on its way then, says nothing yet."""
    stage = Stage()
    assert stage.of_first(T0 + S) is Refuge.LATER, "nobody was ever heard"
    stage.answered(number, T0 + 100 * MS)
    assert stage.of_first(T0 + 2 * S) is Refuge.LATER
    stage.answered(number, T0 + 2 * S)
    assert stage.of_first(T0 + 2 * S + 1) is Refuge.THERE
    assert stage.of_first(T0 + 2 * S + 1, 2, 3) is Refuge.NOWHERE


def test_who_is_no_refuge() -> None:
    """One that is ill, drains, has no path, or is silent by now; as soon as it is so."""
    stage = Stage()
    for backend in (2, 3):
        stage.answered(backend, T0 + S)
    now_ns = T0 + 2 * S
    assert stage.of_first(now_ns) is Refuge.THERE
    assert stage.of_first(now_ns, 2) is Refuge.THERE
    stage.backends.drain(3, True)
    assert stage.of_first(now_ns + 2, 2) is Refuge.NOWHERE
    stage.server(2).silences = 1
    assert stage.of_first(now_ns + 3) is Refuge.NOWHERE
    stage.backends.drain(3, False)
    assert stage.of_first(now_ns + 4) is Refuge.THERE
    stage.backends.reach(3, False)
    assert stage.of_first(now_ns + 5) is Refuge.NOWHERE


def test_a_service_is_gone_through_once_at_a_moment() -> None:
    """However many have fallen silent; unless somebody says that it is otherwise now."""
    stage = Stage()
    for _ in range(9):
        assert stage.of_first(T0 + S, 2, 3) is Refuge.NOWHERE
    assert stage.refuges.looked == 3
    stage.answered(2, T0 + S)
    stage.refuges.forget(WEB.id)
    assert stage.of_first(T0 + S, 3) is Refuge.THERE
    looked = stage.refuges.looked
    stage.answered(2, T0 + 9 * S)
    assert stage.of_first(T0 + 9 * S) is Refuge.THERE
    assert stage.refuges.looked == looked, "who was well the last time is asked first"


def test_all_are_ill() -> None:
    """Of those that could be chosen; if nobody could be, nobody is ill."""
    stage = Stage()
    refuges = stage.refuges
    assert not refuges.are_all_ill(WEB, NOBODY)
    assert refuges.looked == 1
    assert not refuges.are_all_ill(WEB, {2, 3})
    assert refuges.looked == 1
    assert not refuges.are_all_ill(WEB, {1, 3})
    assert refuges.are_all_ill(WEB, {1, 2, 3})
    stage.backends.drain(2, True)
    assert refuges.are_all_ill(WEB, {1, 3})
    stage.backends.reach(1, False)
    assert refuges.are_all_ill(WEB, {3})
    stage.backends.drain(3, True)
    assert not refuges.are_all_ill(WEB, NOBODY)
    assert not refuges.are_all_ill(WEB, {3})
