# SPDX-License-Identifier: Apache-2.0
"""Values of the maps, with and without something that goes on meanwhile."""

from __future__ import annotations

from dataclasses import replace

from tests.support.cast import BACKENDS, service
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import NO_BACKEND, Backend, Service
from xdp_router.daemon.map_plan import Plan, carried, make_plan, names_of
from xdp_router.daemon.map_values import NOBODY

B1, B2, B3 = BACKENDS
WEB = service(2)


def planned(
    *services: Service, retired: tuple[Backend, ...] = (), before: Plan | None = None
) -> Plan:
    """A plan beside what another one has written; nothing is shared, or stateless."""
    config = RouterConfig(services)
    running = {} if before is None else {s.endpoint: v for s, v in before.services.values()}
    values = {} if before is None else before.backends
    return make_plan(
        config,
        retired,
        running,
        values,
        shared=(),
        is_stateless=lambda _service: False,
    )


def test_of_a_router_that_begins() -> None:
    """All services are new, all backends down, and each endpoint names its backend."""
    plan = planned(WEB)
    assert plan.new == [WEB]
    assert {number: value.flags for number, value in plan.backends.items()} == {1: 0, 2: 0}
    assert plan.index == {B1.endpoint: (1, 0), B2.endpoint: (2, 0)}
    assert names_of(RouterConfig((WEB,))) == ({0: "web"}, {1: "b1", 2: "b2"})


def test_what_goes_on_keeps_its_path_and_its_state() -> None:
    """Up or draining; who is retired is neither, and keeps its place and its endpoint."""
    before = planned(WEB)
    flags = abi.BACKEND_UP | abi.BACKEND_DRAINING
    for number in (1, 2):
        before.backends[number] = replace(before.backends[number], ifindex=7, flags=flags)
    before.services[0] = (WEB, replace(before.services[0][1], hash_active=1))
    plan = planned(replace(WEB, backends=(B1, B3)), retired=(B2,), before=before)
    assert plan.new == []
    assert plan.services[0][1].hash_active == 1
    kept, gone, new = (plan.backends[number] for number in (1, 2, 3))
    assert (kept.ifindex, kept.flags) == (7, flags)
    assert (gone.ifindex, gone.flags) == (7, 0)
    assert (new.ifindex, new.flags) == (0, 0)
    assert plan.index[B2.endpoint] == (2, 0)


def test_a_number_that_was_anothers_inherits_nothing() -> None:
    """Neither the path of another address, nor that somebody wanted another backend drained."""
    before = planned(WEB)
    value = before.backends[1]
    before.backends[1] = replace(value, ifindex=7, flags=abi.BACKEND_DRAINING)
    moved = planned(replace(WEB, backends=(replace(B3, id=1),)), before=before).backends[1]
    assert (moved.ifindex, moved.flags) == (0, 0)
    other = replace(WEB, id=5, backends=(replace(B1, service=5),), fallback=NO_BACKEND)
    again = planned(other, before=before).backends[1]
    assert (again.ifindex, again.flags) == (7, 0)


def test_which_hash_tables_may_be_used_as_they_are() -> None:
    """Those of services that have the very backends that they had."""
    before = planned(WEB)
    running = {WEB.endpoint: before.services[0][1]}
    same = RouterConfig((WEB,))
    assert carried(same, running, before.backends) == {0}
    fewer = RouterConfig((replace(WEB, backends=(B1,)),))
    assert carried(fewer, running, before.backends) == set()
    assert carried(same, {}, before.backends) == set()
    assert NOBODY not in before.backends.values()
