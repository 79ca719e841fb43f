# SPDX-License-Identifier: Apache-2.0
"""What the page for Prometheus has of what others say, and of gains."""

from __future__ import annotations

import os

from xdp_router.core.config import parse_config
from xdp_router.daemon.gateway.arms import ARM_TIMES
from xdp_router.daemon.gateway.board import Board
from xdp_router.daemon.gateway.estate import PREFIX
from xdp_router.daemon.gateway.hearsay import Hearsay
from xdp_router.daemon.gateway.page_told import told_figures
from xdp_router.daemon.gateway.totals import spread_of
from xdp_router.daemon.tasks import Tasks
from xdp_router.measure.catalogue_gateway import GATEWAY_METRICS
from xdp_router.measure.histogram import Histogram

CONFIG = parse_config(
    '[[listener]]\nname = "front"\naddress = "127.0.0.1:80"\ntype = "llm"\ncontrol_arm = 10\n'
    '[[listener.backend]]\nname = "b1"\naddress = "127.0.0.1:8000"\n',
    "x",
).gateway


def test_figures_of_what_is_told() -> None:
    """By their names in the catalogue, in base units; what nobody knows is not there."""
    fd = Board.create()
    board = Board(fd)
    hearsay = Hearsay(board, Tasks())
    hearsay.follow(CONFIG, {"127.0.0.1:8000": 0})
    assert not any(told_figures(CONFIG, hearsay).values())
    hearsay.push({"backend": "b1", "queue": 4, "ttft_ms": 250, "cache_usage": 0.5})
    fast, slow = Histogram(), Histogram()
    fast.add(1_000_000, 1000)
    slow.add(3_000_000, 1000)
    hearsay.cache.measured("127.0.0.1:8000", 30, 100)
    hearsay.look(
        {
            ARM_TIMES: [
                [["front", "race"], spread_of(fast)],
                [["front", "control"], spread_of(slow)],
            ],
            "prompt_bytes_total": [[["front", "b1"], 100]],
            "predicted_bytes_total": [[["front", "b1"], 25]],
        }
    )
    found = told_figures(CONFIG, hearsay)
    assert {f"{PREFIX}{name}" for name in found} <= set(GATEWAY_METRICS)
    assert sorted(found["score_input"]) == [
        (("front", "b1", "cache_usage", "push"), 0.5),
        (("front", "b1", "queue", "push"), 4.0),
        (("front", "b1", "ttft_seconds", "push"), 0.25),
    ]
    assert found["others_in_flight"] == [(("front", "b1"), 4.0)]
    assert found["prefix_cache_share"] == [
        (("127.0.0.1:8000", "predicted"), 0.25),
        (("127.0.0.1:8000", "measured"), 0.3),
    ]
    assert found["prefix_cache_hits_total"] == [(("127.0.0.1:8000",), 30)]
    assert found["prefix_cache_queries_total"] == [(("127.0.0.1:8000",), 100)]
    gains = {labels: value for labels, value in found["gain_seconds"] if isinstance(value, float)}
    assert len(gains) == 6
    assert 0.0019 < gains["front", "p99", "low"] <= gains["front", "p99", "estimate"] < 0.0021
    for name, samples in found.items():
        labels = GATEWAY_METRICS[f"{PREFIX}{name}"].labels
        assert all(len(each[0]) == len(labels) for each in samples), name
    board.close()
    os.close(fd)
