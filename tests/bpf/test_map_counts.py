# SPDX-License-Identifier: Apache-2.0
"""Numbers that get another owner: what was counted of the one before is not the new one's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cast import service
from tests.support.small_router import SmallRouter, small_router
from xdp_router.core import abi
from xdp_router.daemon.map_counts import fill_budgets, forget_counts
from xdp_router.daemon.map_plan import Plan

LOAD = abi.LoadValue(ewma_ns=5, last_ns=6, opened=7, closed=1)


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    """One with maps."""
    with small_router() as made:
        yield made


def test_a_new_owner_begins_with_nothing(router: SmallRouter) -> None:
    """Of services and of backends; others keep what they have."""
    maps = router.maps
    for backend in (1, 2):
        maps.backend_loads.write(backend, LOAD)
        maps.traffic.age(backend, abi.TrafficValue(1, 2, 3, 4, 5))
    maps.usage.age(0)
    forget_counts(maps, Plan(new=[service()], new_backends=[1]))
    assert maps.backend_loads.read(1) == abi.LoadValue()
    assert maps.backend_loads.read(2) == LOAD
    assert maps.traffic.read(1) == abi.TrafficValue(0, 0, 0, 0, 0)
    assert maps.traffic.read(2) != abi.TrafficValue(0, 0, 0, 0, 0)
    assert maps.usage.read(0) == (0, 0, 0)


def test_a_service_begins_with_a_whole_budget(router: SmallRouter) -> None:
    """Nothing of it has been asked for yet."""
    fill_budgets(router.maps, [service()])
    assert not any(router.maps.tokens.asked(abi.TOKENS_SERVICE))
