# SPDX-License-Identifier: Apache-2.0
"""Predicted and measured hits of engines' prefix caches, side by side."""

from __future__ import annotations

from xdp_router.core.config import parse_config
from xdp_router.daemon.gateway.cache_check import CacheCheck
from xdp_router.daemon.gateway.totals import Figures

S = 10**9
ENGINE = "127.0.0.1:8000"
CONFIG = parse_config(
    "".join(
        f'[[listener]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\ntype = "llm"\n'
        f'[[listener.backend]]\nname = "b1"\naddress = "{ENGINE}"\n'
        for name, port in (("one", 80), ("two", 81))
    ),
    "x",
).gateway


def figures(predicted: int, prompts: int) -> Figures:
    """Of both listeners, of which the second has half as much as the first."""
    return {
        "predicted_bytes_total": [[["one", "b1"], predicted], [["two", "b1"], predicted // 2]],
        "prompt_bytes_total": [[["one", "b1"], prompts], [["two", "b1"], prompts // 2]],
    }


def test_one_engine_of_two_listeners() -> None:
    """It counts what comes from both; they have predicted together."""
    check = CacheCheck(0)
    check.look(CONFIG, figures(200, 1000), S)
    assert check.view(ENGINE) is None
    check.measured(ENGINE, 0, 0)
    assert check.view(ENGINE) == {"predicted": 0.2, "measured": None}
    check.measured(ENGINE, 30, 100)
    check.measured(ENGINE, 30, 100)
    check.look(CONFIG, figures(400, 1000), 2 * S)
    assert check.view(ENGINE) == {"predicted": 0.4, "measured": 0.3}
    assert check.counted == {ENGINE: (60, 200)}
    assert check.shares("none") == (None, None)
    check.keep_only([])
    assert check.view(ENGINE) is None


def test_the_last_minutes_count() -> None:
    """What was before is no part of it."""
    check = CacheCheck(0)
    check.measured(ENGINE, 90, 100)
    check.look(CONFIG, figures(900, 1000), S)
    for minute in range(1, 12):
        check.look(CONFIG, figures(900, 1000), minute * 60 * S)
    check.measured(ENGINE, 10, 100)
    check.look(CONFIG, figures(1000, 2000), 12 * 60 * S)
    assert check.view(ENGINE) == {"predicted": 0.1, "measured": 0.1}
