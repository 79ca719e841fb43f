# SPDX-License-Identifier: Apache-2.0
"""What a mode gains over the control arm of its listener, by workers' figures."""

from __future__ import annotations

from dataclasses import replace

from tests.support.listeners import listener
from xdp_router.daemon.gateway.arms import ARM_TIMES, Arms
from xdp_router.daemon.gateway.totals import Figures, merge, spread_of
from xdp_router.measure.histogram import Histogram

MS, S = 10**6, 10**9
FRONT = replace(listener("control_arm = 20", kind="llm"), name="front")


def figures(**times_ms: list[int]) -> Figures:
    """What one worker has measured, by arm."""
    rows = []
    for arm, each in times_ms.items():
        times = Histogram()
        for value in each:
            times.add(value * MS)
        rows.append([["front", arm], spread_of(times)])
    return {ARM_TIMES: rows}


def test_the_gain_of_two_workers() -> None:
    """Both arms at both quantiles, with bounds where there is enough for them."""
    arms = Arms(0)
    assert arms.view(FRONT)["gain"] == {"p50": None, "p99": None}
    one = figures(race=[10] * 500, control=[20] * 500)
    other = figures(race=[10] * 500, control=[20] * 480 + [500] * 20)
    arms.look(merge([one, other]), S)
    view = arms.view(FRONT)
    assert (view["listener"], view["mode"], view["percent"]) == ("front", "race", 20)
    assert (view["measured"], view["confidence"]) == ("first token", 0.95)
    assert view["arms"]["mode"]["count"] == view["arms"]["control"]["count"] == 1000
    assert 9.9 < view["arms"]["mode"]["p99_ms"] < 10.1
    p50, p99 = view["gain"]["p50"], view["gain"]["p99"]
    assert 9.5 < p50["gain_ms"]["low"] <= p50["gain_ms"]["estimate"] < 10.5
    assert 1.9 < p50["ratio"]["low"] <= p50["ratio"]["high"] < 2.1
    assert 480 < p99["gain_ms"]["estimate"] < 500
    assert p99["gain_ms"]["low"] is not None


def test_what_was_an_hour_ago_is_forgotten() -> None:
    """Counters grow for ever; what is told is of the last hour."""
    arms = Arms(0)
    slow = figures(race=[900] * 50, control=[900] * 50)
    arms.look(slow, S)
    fast = merge([slow, figures(race=[10] * 7, control=[10] * 9)])
    for minute in range(10, 70, 10):
        arms.look(slow if minute < 60 else fast, minute * 60 * S)
    told = arms.view(FRONT)["arms"]
    assert (told["mode"]["count"], told["control"]["count"]) == (7, 9)
    assert told["mode"]["p99_ms"] < 11


def test_arms_of_another_mode_do_not_count() -> None:
    """After a reload the former mode's requests say nothing of the new one."""
    arms = Arms(0)
    arms.look(figures(race=[5], control=[9]), S)
    changed = replace(FRONT, mode=listener('mode = "inline"').mode)
    assert arms.view(changed)["arms"]["mode"]["count"] == 0
    assert list(arms.gains(changed)) == []
