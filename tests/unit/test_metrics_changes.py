# SPDX-License-Identifier: Apache-2.0
"""A scrape that a reload comes into: rows are made while others may change things."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from tests.support.cast import DEFAULTS, T0, engine
from xdp_router.daemon.app import Router
from xdp_router.daemon.metrics import RouterMetrics
from xdp_router.daemon.traffic_keeper import TrafficKeeper


def test_rows_of_what_is_gone_are_left_out() -> None:
    """The scrape goes on without them."""
    made = engine(1, 2)
    (service,) = made.roster.services.values()
    by_service = {0: SimpleNamespace(fppl=0.25), 1: SimpleNamespace(fppl=0.5)}
    latencies = SimpleNamespace(by_service=by_service)
    router = SimpleNamespace(
        started_s=0.0,
        config=SimpleNamespace(services=(service,)),
        engine=made,
        figures=SimpleNamespace(latencies=latencies),
    )
    metrics = RouterMetrics(cast(Router, router))
    results = metrics._probe_results_total()
    fppl = metrics._fppl_seconds()
    first = [next(results)[0][1] for _ in range(3)]
    assert set(first) == {service.backends[0].name}
    assert next(fppl) == (("web",), 0.25)
    made.apply([], DEFAULTS, T0)
    del by_service[1]
    assert list(results) == []
    assert list(fppl) == []


def test_totals_that_are_not_known_yet_are_left_out() -> None:
    """A daemon that has taken over, and not swept the tables, says nothing: 0 would be a total
    that goes back."""
    made = engine(1)
    (service,) = made.roster.services.values()
    keeper = TrafficKeeper()
    router = SimpleNamespace(
        started_s=0.0,
        config=SimpleNamespace(services=(service,)),
        engine=made,
        figures=SimpleNamespace(traffic=keeper, fill=SimpleNamespace(entries={})),
        ager=SimpleNamespace(entries_of={4: 0, 6: 0}, pending_entries={}),
    )
    metrics = RouterMetrics(cast(Router, router))
    rows = (metrics._packets_total, metrics._bytes_total, metrics._flows_total, metrics._flows)
    assert [list(row()) for row in rows] == [[], [], [], []]
    assert {name for (name,), _ in metrics._map_entries()} == {"services", "backends"}
    keeper.end()
    count = len(service.backends)
    assert [len(list(row())) for row in rows] == [2 * count, 2 * count, count, count]
    assert "flow_table" in {name for (name,), _ in metrics._map_entries()}
