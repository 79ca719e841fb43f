# SPDX-License-Identifier: Apache-2.0
"""What a worker of the gateway counts."""

from __future__ import annotations

import json

from xdp_router.daemon.gateway import figures as figures_module
from xdp_router.daemon.gateway.figures import BOUNDS_MS, Figures
from xdp_router.daemon.gateway.totals import merge
from xdp_router.measure.catalogue import Kind
from xdp_router.measure.catalogue_gateway import GATEWAY_METRICS

MS = 1_000_000


def test_two_workers_add_up() -> None:
    """In the form that goes through a channel: JSON."""
    one, other = Figures(), Figures()
    one.count("legs", "l", "a")
    other.count("legs", "l", "a", by=4)
    other.count("legs", "l", "b")
    for each in (one, other):
        each.time("ttft", 30 * MS, "l", "a", "m")
        each.time("ttft", 999_999 * MS, "l", "a", "m")
    total = merge(json.loads(json.dumps(each.plain())) for each in (one, other))
    assert sorted(total["legs_total"]) == [[["l", "a"], 5], [["l", "b"], 1]]
    ((labels, times),) = total["ttft_seconds"]
    assert labels == ["l", "a", "m"]
    assert times["counts"][BOUNDS_MS.index(50)] == 2
    assert times["counts"][-1] == 2
    assert times["total"] == 2 * (30 + 999_999) * MS


def test_names_of_models_do_not_fill_memory() -> None:
    """Beyond a bound they are counted under none."""
    figures = Figures()
    for number in range(figures_module.LABELS_MOST + 50):
        figures.time("ttft", MS, "l", "a", f"m{number}")
        figures.count("tokens", "l", "a", f"m{number}", by=2)
        figures.count("legs", "l", f"b{number}")
    assert len(figures.plain()["legs_total"]) == figures_module.LABELS_MOST + 50
    counts = figures.plain()["tokens_total"]
    assert len(counts) == figures_module.LABELS_MOST + 1
    assert [value for labels, value in counts if labels[-1] == ""] == [100]
    rows = figures.plain()["ttft_seconds"]
    assert len(rows) == figures_module.LABELS_MOST + 1
    assert sum(each["counts"][0] for labels, each in rows if labels[-1] == "") == 50


def test_no_counter_fills_memory() -> None:
    """Whatever its labels are made of: clients may have a hand in it."""
    figures = Figures()
    for number in range(figures_module.LABELS_MOST + 50):
        figures.count("tokens", "l", "a", f"m{number}", by=2)
    rows = figures.plain()["tokens_total"]
    assert len(rows) == figures_module.LABELS_MOST + 1
    assert rows[-1] == [["l", "a", ""], 100]


def test_every_metric_of_workers_has_a_name_that_is_served() -> None:
    """And is of the kind that its name says."""
    for name, metric in GATEWAY_METRICS.items():
        assert name.startswith("gateway_")
        assert name.endswith("_total") == (metric.kind is Kind.COUNTER)
        if metric.kind is Kind.HISTOGRAM:
            assert name.endswith("_seconds")
