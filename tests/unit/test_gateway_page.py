# SPDX-License-Identifier: Apache-2.0
"""The gateway's page for Prometheus: its own figures, and sums of its workers'."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.parser import text_string_to_metric_families

from xdp_router.core.config import parse_config
from xdp_router.daemon.gateway import page as page_module
from xdp_router.daemon.gateway.board import ILL, IN_FLIGHT, RTT, RTT_AT, STATE, WELL, Board
from xdp_router.daemon.gateway.hearsay import Hearsay
from xdp_router.daemon.gateway.page import PASSING, FiguresPage
from xdp_router.daemon.gateway.rows import Rows
from xdp_router.daemon.gateway.supervisor import Supervisor
from xdp_router.daemon.gateway.totals import Totals
from xdp_router.daemon.tasks import Tasks
from xdp_router.measure.catalogue import Kind, Metric
from xdp_router.measure.catalogue_gateway import GATEWAY_METRICS

CONFIG = parse_config(
    '[[listener]]\naddress = "127.0.0.1:80"\ntype = "tls"\n'
    '[[listener.backend]]\naddress = "127.0.0.1:8000"\n'
    '[[listener.backend]]\naddress = "[::1]:8000"\n',
    "x",
).gateway


def test_the_page(monkeypatch: Any) -> None:
    """Backends by their addresses; counters of workers that have ended are in, gauges are not."""
    times = Metric("gateway_ttfb_seconds", Kind.HISTOGRAM, ("listener",), "times")
    known = {**GATEWAY_METRICS, "gateway_ttfb_seconds": times}
    monkeypatch.setattr(page_module, "GATEWAY_METRICS", known)
    fd = Board.create()
    board = Board(fd)
    rows = Rows(board)
    rows.assign(["127.0.0.1:8000", "[::1]:8000"], [])
    worker = Board(fd, board.claim(fd, os.getpid()))
    worker.add_own(0, IN_FLIGHT, 3)
    board.say(0, STATE, WELL)
    board.say(0, RTT, 2_000_000)
    board.say(0, RTT_AT, 1)
    board.say(1, STATE, ILL)
    totals = Totals(PASSING)
    value = {"bounds": [10**6, 10**7], "counts": [1, 2, 3], "total": 10**8}
    totals.keep(
        {"connections_total": [[["web"], 5]], "connections": [[["web"], 1]], "unknown": [[[], 1]]}
    )
    totals.deaths = 1
    figures = {
        "connections_total": [[["web"], 2]],
        "connections": [[["web"], 1]],
        "ttfb_seconds": [[["web"], value]],
    }
    supervisor = SimpleNamespace(
        workers=[SimpleNamespace(state="serving", figures=figures)],
        totals=totals,
        board=board,
        rows=rows,
        config=CONFIG,
        deaths=totals.deaths,
        reloads=SimpleNamespace(done=2, refused=1),
        hearsay=Hearsay(board, Tasks()),
    )
    page = FiguresPage(("127.0.0.1", 9), cast(Supervisor, supervisor))
    text = b"".join(page.text()).decode()
    samples = {
        (
            each.name.removeprefix("xdp_router_gateway_"),
            *(value for _, value in sorted(each.labels.items(), reverse=True)),
        ): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }
    assert samples == {
        ("workers", "starting"): 0,
        ("workers", "serving"): 1,
        ("workers", "retiring"): 0,
        ("worker_deaths_total",): 1,
        ("reloads_total", "done"): 2,
        ("reloads_total", "refused"): 1,
        ("backend_state", "127.0.0.1:8000"): 1,
        ("backend_state", "[::1]:8000"): 0,
        ("backend_rtt_seconds", "127.0.0.1:8000"): 0.002,
        ("backend_in_flight", "127.0.0.1:8000"): 3,
        ("backend_in_flight", "[::1]:8000"): 0,
        ("connections", "web"): 1,
        ("connections_total", "web"): 7,
        ("ttfb_seconds_bucket", "web", "0.001"): 1,
        ("ttfb_seconds_bucket", "web", "0.01"): 3,
        ("ttfb_seconds_bucket", "web", "+Inf"): 6,
        ("ttfb_seconds_count", "web"): 6,
        ("ttfb_seconds_sum", "web"): 0.1,
    }
    for each in (board, worker):
        each.close()
    os.close(fd)


def test_what_is_passing() -> None:
    """Gauges, by their names without the prefix."""
    assert "connections" in PASSING
    assert "connections_total" not in PASSING
