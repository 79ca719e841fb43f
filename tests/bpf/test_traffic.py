# SPDX-License-Identifier: Apache-2.0
"""What flows have carried that are over, in the real maps."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.support.small_router import SmallRouter, small_router
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.traffic import NO_TRAFFIC, Traffic
from xdp_router.core import abi

ONE = abi.TrafficValue(1, 3, 300, 2, 2000)


@pytest.fixture(scope="module")
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def traffic(router: SmallRouter) -> Traffic:
    """As a daemon that has just begun sees it."""
    fds = router.plane.maps
    return Traffic(fds["traffic_ended"], fds["traffic_aged"])


def ended_by_xdp(router: SmallRouter, backend: int, value: abi.TrafficValue) -> None:
    table = bpf.BpfMap(router.plane.maps["traffic_ended"])
    table.write(backend.to_bytes(4, sys.byteorder), abi.pack_traffic(value))


def everything(found: Traffic) -> list[tuple[int, abi.TrafficValue]]:
    return [each for batch in found.batches() for each in batch]


def test_both_shares_are_told_and_a_successor_goes_on(router: SmallRouter) -> None:
    """What XDP has taken out and what the daemon has; the next daemon adds to it."""
    ended_by_xdp(router, 1, ONE)
    traffic(router).age(1, ONE)
    after = traffic(router)
    after.age(1, ONE)
    assert after.read(1) == abi.TrafficValue(3, 9, 900, 6, 6000)
    assert sorted(everything(after), key=lambda each: each[1].flows) == [
        (1, ONE),
        (1, ONE.plus(ONE)),
    ]


def test_a_number_that_is_another_backends_now(router: SmallRouter) -> None:
    """Begins at nothing, and one that there is no room for is not counted."""
    found = traffic(router)
    found.age(2, ONE)
    found.reset(2)
    found.reset(1)
    found.age(1_000_000, ONE)
    found.reset(1_000_000)
    assert found.read(2) == traffic(router).read(2) == NO_TRAFFIC
    assert everything(traffic(router)) == []
