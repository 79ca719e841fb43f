# SPDX-License-Identifier: Apache-2.0
"""What is seen of all services, by real maps that the test writes as XDP would."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from tests.support.cast import service
from tests.support.small_router import SmallRouter, small_router
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig, Settings
from xdp_router.core.model import Endpoint
from xdp_router.daemon.service_watch import LINES_PER_LOOK, ServiceWatch

S = 1_000_000_000
NOW = 1_000 * S


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def put(router: SmallRouter, name: str, slot: int, value: bytes) -> None:
    bpf.BpfMap(router.plane.maps[name]).write(slot.to_bytes(4, sys.byteorder), value)


def over_budget(
    router: SmallRouter, number: int, until_ns: int, why: int = abi.Counter.budget_prefix
) -> None:
    value = abi.pack_pressure(0, until_ns, why)
    put(router, "pressure", 1 + number, value)


def used(router: SmallRouter, number: int, opened: int, closed: int, aged: int = 0) -> None:
    put(router, "usage", number, abi.pack_usage(opened, closed))
    put(router, "usage_aged", number, aged.to_bytes(8, sys.byteorder))


def watch(router: SmallRouter, count: int, limit: int = 0) -> ServiceWatch:
    many = [
        replace(
            service(),
            id=number,
            name=f"s{number}",
            endpoint=Endpoint(9, 80 + number),
            max_connections=limit,
        )
        for number in range(count)
    ]
    return ServiceWatch(router.maps, RouterConfig(tuple(many), Settings()).services, Settings())


def test_since_when_a_service_is_over_budget(router: SmallRouter) -> None:
    """From the look that saw it first, however often the window is extended; told twice."""
    seen = watch(router, 2)
    over_budget(router, 1, NOW + 2 * S)
    with capture_logs() as lines:
        seen.look(NOW)
        over_budget(router, 1, NOW + 4 * S)
        seen.look(NOW + 3 * S)
    assert [(line["event"], line["service"], line["budget"]) for line in lines] == [
        ("over_budget", "s1", "budget_prefix")
    ]
    assert seen.floods.keys() == {1}
    assert seen.floods[1].seen_ns == NOW
    assert seen.view()["over_budget"] == ["s1"]
    with capture_logs() as lines:
        seen.look(NOW + 5 * S)
        seen.look(NOW + 6 * S)
    assert [(line["event"], line["seconds"]) for line in lines] == [("over_budget_ended", 5)]
    assert not seen.floods
    over_budget(router, 1, NOW + 99 * S)
    with capture_logs():
        seen.look(NOW + 90 * S)
    assert seen.floods[1].seen_ns == NOW + 90 * S


def test_a_full_table_is_no_flood(router: SmallRouter) -> None:
    """A connection without a place opens a longer window. That is another line with another mend,
    not over budget, whatever budget was spent long ago; and it stays so to its end."""
    seen = watch(router, 1)
    over_budget(router, 0, NOW + 3_600 * S)
    with capture_logs() as lines:
        seen.look(NOW)
        seen.look(NOW + 3_599 * S)
    assert [(line["event"], line["service"]) for line in lines] == [("flow_table_full", "s0")]
    assert "max_flows" in lines[0]["mend"]
    assert (seen.view()["services_over_budget"], seen.view()["over_budget"]) == (0, [])
    over_budget(router, 0, NOW + 3_605 * S)  # a flood now
    with capture_logs() as lines:
        seen.look(NOW + 3_600 * S)
        seen.look(NOW + 3_606 * S)
    assert [(line["event"], line.get("seconds")) for line in lines] == [
        ("over_budget", None), ("over_budget_ended", 6),
    ]  # fmt: skip
    over_budget(router, 0, NOW + 4_000 * S, why=0)
    with capture_logs() as lines:
        seen.look(NOW + 3_999 * S)
        seen.look(NOW + 4_001 * S)
    assert [line["event"] for line in lines] == ["flow_table_full", "flow_table_full_ended"]


def test_what_a_former_configuration_left_is_nobodys(router: SmallRouter) -> None:
    """Slots of services that are not configured do not count."""
    seen = watch(router, 1)
    over_budget(router, 5, NOW + S)
    with capture_logs() as lines:
        seen.look(NOW)
    assert not lines
    assert not seen.floods


def test_a_flood_of_all_services_is_few_lines(router: SmallRouter) -> None:
    """The rest is counted in the next line that is written."""
    seen = watch(router, 50)
    for number in range(50):
        over_budget(router, number, NOW + S)
    with capture_logs() as lines:
        seen.look(NOW)
        seen.look(NOW + 2 * S)
    assert len(lines) == 2 * LINES_PER_LOOK
    assert lines[LINES_PER_LOOK]["lines_skipped"] == 50 - LINES_PER_LOOK
    view = seen.view()
    assert view["services_over_budget"] == 0
    with capture_logs():
        seen.look(NOW)
    assert (seen.view()["services_over_budget"], len(seen.view()["over_budget"])) == (50, 10)


def test_connections_and_who_is_full(router: SmallRouter) -> None:
    """What XDP and the daemon count is taken together; without a limit nobody is full."""
    seen = watch(router, 3, limit=5)
    used(router, 0, opened=9, closed=2, aged=2)
    used(router, 1, opened=9, closed=1, aged=5)
    used(router, 2, opened=1, closed=2)  # read between two writes
    seen.look(NOW)
    assert (seen.connections, seen.full) == (8, [0])
    assert (seen.view()["services_full"], seen.view()["full"]) == (1, ["s0"])
    free = watch(router, 3)
    free.look(NOW)
    assert (free.connections, free.full) == (8, [])


def test_no_step_looks_at_more_than_one_batch(router: SmallRouter) -> None:
    """The event loop has its turn in between, however many services there are."""
    steps: list[int] = []

    class Pressure:
        def batches(self) -> Iterator[list[tuple[int, int, None]]]:
            for start in range(0, 10_000, 4096):
                steps.append(start)
                yield [(number, 0, None) for number in range(start, min(start + 4096, 10_000))]

    seen = watch(router, 1)
    maps: Maps = seen._maps
    maps.pressure = Pressure()  # type: ignore[assignment]  # steps are counted, nothing else
    turns = seen.steps(NOW)
    for number in (1, 2, 3):
        next(turns)
        assert len(steps) == number
