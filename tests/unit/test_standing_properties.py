# SPDX-License-Identifier: Apache-2.0
"""What holds of backends' health whatever happens to them."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.cast import BACKENDS, DEFAULTS, service
from tests.support.health_cast import HealthWorld
from tests.support.playbook import MS
from xdp_router.core.commands import HealthNews, SetBackendUp
from xdp_router.core.events import BackendDrain, BackendState
from xdp_router.core.model import NO_BACKEND, Backend, Endpoint, Mode, ProbeAnswer, Service

WELL = HealthNews.WELL
PAIR = Service(1, "api", Endpoint(0xC6126402, 80), ())


class Health(RuleBasedStateMachine):
    """Two services, one of whose servers they share; whatever is said of them."""

    def __init__(self) -> None:
        super().__init__()
        shared = Backend(4, "b4", BACKENDS[0].endpoint, 1)
        other = Backend(5, "b5", Endpoint(0xC6120109, 80), 1)
        api = dataclasses.replace(PAIR, backends=(shared, other), mode=Mode.INLINE)
        chance = random.Random(7)
        self.world = HealthWorld([service(3), api], draw=chance.randrange)
        self.reached = dict.fromkeys(self.world.backends, True)
        self.draining = dict.fromkeys(self.world.backends, False)
        self.port = 0

    backends = st.sampled_from([1, 2, 3, 4, 5])

    @rule(backend=backends, answer=st.sampled_from([None, *list(ProbeAnswer)[1:4]]))
    def answers(self, backend: int, answer: ProbeAnswer | None) -> None:
        for each in (1, 4) if backend in (1, 4) else (backend,):
            self.world.answers[each] = answer

    @rule(backend=backends, up=st.booleans(), lost=st.booleans())
    def reach(self, backend: int, up: bool, lost: bool) -> None:
        self.world.tell(BackendState(backend, up, lost=lost and not up))
        self.reached[backend] = up

    @rule(backend=backends, draining=st.booleans())
    def drain(self, backend: int, draining: bool) -> None:
        self.world.tell(BackendDrain(backend, draining))
        self.draining[backend] = draining

    @rule(backend=backends, unanswered=st.integers(0, 3), cut=st.integers(0, 3))
    def flows(self, backend: int, unanswered: int, cut: int) -> None:
        self.world.signs(backend, unanswered=unanswered, cut=cut, sources=unanswered)

    @rule(backend=backends)
    def speaks(self, backend: int) -> None:
        self.world.heard ^= {backend}

    @rule(spans=st.integers(1, 40))
    def wait(self, spans: int) -> None:
        self.world.run(spans * 100 * MS)

    @rule(number=st.sampled_from([0, 1]), mode=st.sampled_from([Mode.RACE, Mode.INLINE]))
    def change(self, number: int, mode: Mode) -> None:
        world = self.world
        world.services[number] = dataclasses.replace(world.services[number], mode=mode)
        world.obey(world.engine.apply(world.services, DEFAULTS, world.now_ns))

    @rule()
    def new_flow(self) -> None:
        self.port += 1
        before = self.world.usable
        chosen = self.world.choose(self.port)
        assert chosen == NO_BACKEND or chosen in before | self.world.usable

    @invariant()
    def an_ill_one_is_chosen_only_if_nobody_is_well(self) -> None:
        engine = self.world.engine
        for one in self.world.services:
            able = [
                each.id
                for each in one.backends
                if self.reached[each.id] and not self.draining[each.id]
            ]
            well = [each for each in able if self.world.news(each)[-1:] in ([], [WELL])]
            usable = {each.id for each in one.backends} & engine.up
            if well:
                assert usable == set(well)
            else:
                assert usable == set(able) - engine.standing.dead
                assert not able or usable or engine.standing.dead

    @invariant()
    def nobody_is_chosen_who_is_dead(self) -> None:
        assert self.world.dead == self.world.engine.standing.dead
        assert not self.world.dead & self.world.usable

    @invariant()
    def the_maps_agree(self) -> None:
        up: dict[int, bool] = {}
        for each in self.world.said:
            if isinstance(each, SetBackendUp):
                assert up.get(each.backend) is not each.up, "no news"
                up[each.backend] = each.up
        backends = self.world.engine.backends
        assert {each for each, is_up in up.items() if is_up} == {
            each for each in self.world.backends if backends.is_up(each)
        }


TestHealth = Health.TestCase
TestHealth.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
