# SPDX-License-Identifier: Apache-2.0
"""What backends' flows have carried, against the real tables."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.cast import first
from tests.support.small_router import SETTINGS, SmallRouter, flow_entries, put_flow, small_router
from xdp_router.core import abi
from xdp_router.core.events import FlowClosed
from xdp_router.core.model import Mode, Reason
from xdp_router.daemon.aging import Ager
from xdp_router.daemon.traffic_keeper import TrafficKeeper, carried

BACKEND = 0
SOON = dataclasses.replace(SETTINGS, flow_idle_ns=60_000_000_000)
"""What was seen last when the machine began to run is idle, however short that is ago."""


SOON = dataclasses.replace(SETTINGS, flow_idle_ns=20_000_000_000)
"""An entry of the machine's first moment is idle, on one that was just started, too."""


@pytest.fixture
def router() -> Iterator[SmallRouter]:
    with small_router() as made:
        yield made


def sweep(
    router: SmallRouter,
    keeper: TrafficKeeper,
    on_closed: Callable[[FlowClosed], None] = lambda _closed: None,
) -> None:
    """One sweep of an ager."""
    maps = router.maps
    ager = Ager(maps.flow_table, maps.pending_flows, SOON, on_closed, traffic=keeper)
    asyncio.run(ager.sweep())


def backend(router: SmallRouter) -> int:
    return router.backends[0].id


def test_what_is_over_stays_counted(router: SmallRouter) -> None:
    """Live flows and those that were aged out, both directions; a successor knows it, too."""
    keeper = TrafficKeeper(router.maps.traffic)
    number = backend(router)
    put_flow(router.maps, flow_entries(1, time.monotonic_ns()))
    doomed, _ = put_flow(router.maps, flow_entries(2, time.monotonic_ns()))
    sweep(router, keeper)
    both = abi.TrafficValue(2, 6, 600, 4, 4000)
    assert (keeper.totals, keeper.live) == ({number: both}, {number: 2})
    for key in (doomed, abi.peer_key(doomed, router.maps.flow_table.read(doomed) or b"")):
        router.maps.flow_table.delete(key)
    put_flow(router.maps, flow_entries(2, 1))
    sweep(router, keeper)
    assert keeper.totals == {number: both}
    sweep(router, keeper)
    assert (keeper.totals, keeper.live) == ({number: both}, {number: 1})
    after = TrafficKeeper(router.maps.traffic)
    sweep(router, after)
    assert after.totals == {number: both}


def test_totals_never_go_back(router: SmallRouter) -> None:
    """In no sweep, though 900 flows end during it, one direction met and the other not."""
    keeper = TrafficKeeper(router.maps.traffic)
    number = backend(router)
    now_ns = time.monotonic_ns()
    for port in range(1, 901):
        put_flow(router.maps, flow_entries(port, now_ns))
    sweep(router, keeper)
    before = keeper.totals[number]
    assert before == abi.TrafficValue(900, 2700, 270_000, 1800, 1_800_000)
    table = router.maps.flow_table
    for batch in list(table.batches(1024)):
        for key, raw in batch:
            entry = abi.unpack_flow_entry(raw)
            table.delete(key)
            old = abi.FlowEntryValue(
                **{n: getattr(entry, n) for n in entry.__slots__} | {"last_seen_ns": 1}
            )
            assert table.insert_noexist(key, abi.pack_flow_entry(old)) == 0
    closed: list[FlowClosed] = []
    sweep(router, keeper, closed.append)
    assert len(closed) == 900
    assert keeper.totals[number] == before
    sweep(router, keeper)
    assert keeper.totals[number] == before
    assert keeper.live == {}


def test_without_maps_nothing_is_kept(router: SmallRouter) -> None:
    """Sweeps go on."""
    put_flow(router.maps, flow_entries(1, 1))
    keeper = TrafficKeeper()
    sweep(router, keeper)
    assert keeper.totals == {}


def test_a_number_that_is_another_backends_now_begins_anew(router: SmallRouter) -> None:
    """What it was at most is forgotten with it, also in the middle of a sweep."""
    keeper = TrafficKeeper(router.maps.traffic, router.backends)
    number = backend(router)
    router.maps.traffic.age(number, abi.TrafficValue(1, 1, 1, 1, 1))
    put_flow(router.maps, flow_entries(1, time.monotonic_ns()))
    sweep(router, keeper)
    keeper.change(router.backends)
    assert keeper.totals[number].flows == 2
    list(keeper.begin())
    other = dataclasses.replace(router.backends[0], endpoint=router.backends[1].endpoint)
    keeper.change([other, *router.backends[1:]])
    keeper.end()
    assert keeper.totals == {}
    for batch in list(router.maps.flow_table.batches(1024)):
        for key, _ in batch:
            router.maps.flow_table.delete(key)
    sweep(router, keeper)
    assert keeper.totals == {}


def test_flows_that_were_never_established_count_when_they_are_aged(router: SmallRouter) -> None:
    """A question and its answer; not again what was promoted, nor what nobody had."""
    keeper = TrafficKeeper(router.maps.traffic)
    number = backend(router)
    one, other, refused = first(1), first(2), first(3)
    for each, flags in ((one, 0), (other, abi.PENDING_PROMOTED)):
        for key, raw in (
            abi.pack_forward_pending(each, router.backends[0], Mode.RACE, Reason.RACE_WON, 5),
            abi.pack_reply_pending(each, router.backends[0], Mode.RACE, Reason.RACE_WON),
        ):
            value = dataclasses.replace(
                abi.unpack_pending(raw), packets=2, octets=150, flags=flags, last_seen_ns=1
            )
            assert router.maps.pending_flows.insert_noexist(key, abi.pack_pending(value)) == 0
    key, raw = abi.pack_forward_pending(refused, None, Mode.REFUSED, Reason.NO_CANDIDATE, 5)
    value = dataclasses.replace(abi.unpack_pending(raw), packets=1, octets=60, last_seen_ns=1)
    assert router.maps.pending_flows.insert_noexist(key, abi.pack_pending(value)) == 0
    sweep(router, keeper)
    sweep(router, keeper)
    assert keeper.totals == {number: abi.TrafficValue(0, 2, 150, 2, 150)}


def test_the_first_sweep_misses_nothing(router: SmallRouter) -> None:
    """Of a successor, whose predecessor has told totals: with 900 flows that are idle, and some
    that XDP takes out while it is swept, nothing is less than before."""
    first = TrafficKeeper(router.maps.traffic)
    number = backend(router)
    doomed = [put_flow(router.maps, flow_entries(port, 1)) for port in range(1, 901)]
    sweep(router, first)
    before = first.totals[number]
    assert before == abi.TrafficValue(900, 2700, 270_000, 1800, 1_800_000)
    table, traffic = router.maps.flow_table, router.maps.traffic

    class Meanwhile(TrafficKeeper):
        """A flow ends as soon as what is over has been read."""

        def begin(self) -> Iterator[None]:
            yield from super().begin()
            for key in doomed[0]:
                raw = table.read(key)
                assert raw is not None
                table.delete(key)
                traffic.age(number, carried(abi.unpack_flow_entry(raw)))

    successor = Meanwhile(traffic)
    sweep(router, successor)
    assert successor.totals[number] == before
    assert successor.live[number] == 899
    doomed.pop(0)
    sweep(router, successor)
    assert successor.totals[number] == before
    third = TrafficKeeper(traffic)
    sweep(router, third)
    assert third.totals[number] == before
