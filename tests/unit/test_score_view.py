# SPDX-License-Identifier: Apache-2.0
"""Scores as ``backends`` and ``explain`` show them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

from tests.support.cast import BACKENDS, T0, change_mode, engine, key
from tests.support.playbook import MS, US
from tests.unit.test_modes import with_table
from xdp_router.core.abi import LoadValue
from xdp_router.core.model import Decision, Mode, Reason, Scored, Snapshot
from xdp_router.daemon.app import Router
from xdp_router.daemon.score_view import candidates_of, score_view, snapshot_view, told_now

SOURCES = (("ttft_ns", "scrape"), ("cache", "push"))
SCRAPER = SimpleNamespace(view=lambda backend, now_ns: {"url": f"of {backend}"})
SNAPSHOT = Snapshot(
    T0,
    (
        Scored(1, 1, 0.005, 20 * MS, None, None, None, 0.005),
        Scored(2, 255, 0.75, 100 * US, 90 * MS, 0.5, 3.0, 1.0, 1.0, 0.5, 0.25, SOURCES),
    ),
)


def loads(ewma_ns: int, flows: int) -> SimpleNamespace:
    """Maps by which each backend answers after so long times its number, and has so many flows."""
    return SimpleNamespace(
        backend_loads=SimpleNamespace(
            read=lambda backend: LoadValue(ewma_ns=ewma_ns * backend), open=lambda backend: flows
        )
    )


def test_a_backend_of_a_race_has_no_share() -> None:
    """Its load is known all the same."""
    made = engine(1, 2)
    state = SimpleNamespace(maps=loads(1_500, 7))
    router = cast(Router, SimpleNamespace(engine=made, state=state, scraper=SCRAPER))
    assert score_view(router, BACKENDS[1]) == {
        "mode": "race",
        "share": None,
        "score": None,
        "terms": None,
        "told": {},
        "scrape": {"url": "of 2"},
        "open": 7,
        "synack_us": 3.0,
    }


def test_a_backend_of_a_snapshot_has_its_share_and_terms() -> None:
    """And what was told of it; one without a slot has 0, before the first table nobody anything."""
    made = engine(1, count=2)
    state = SimpleNamespace(maps=loads(0, 0))
    router = cast(Router, SimpleNamespace(engine=made, state=state, scraper=SCRAPER))
    change_mode(made, 0, Mode.SNAPSHOT, T0)
    assert score_view(router, BACKENDS[0])["share"] is None
    with_table(made, T0)
    made.roster.tell(BACKENDS[0], {"ttft_ns": 5e7}, T0)
    shown = score_view(router, BACKENDS[0])
    assert (shown["mode"], shown["share"], shown["score"]) == ("snapshot", 1.0, 1.0)
    assert shown["terms"] == {"rtt": 1.0, "ttft": None, "cache": None, "queue": None, "usage": None}
    assert (shown["told"]["ttft_ms"]["value"], shown["told"]["ttft_ms"]["source"]) == (50.0, "push")
    assert (shown["open"], shown["synack_us"]) == (0, None)
    assert score_view(router, BACKENDS[1])["share"] == 0.0


def test_a_decision_is_shown_with_its_snapshot() -> None:
    """How old it was, who had which share, and what the score was made of."""
    decision = Decision(key(1), 0, 2, Mode.SNAPSHOT, Reason.SNAPSHOT, T0 + 4 * MS, T0 + 5 * MS)
    assert snapshot_view(decision, str) is None
    decision.snapshot = SNAPSHOT
    shown = snapshot_view(decision, lambda backend: f"b{backend}")
    assert shown is not None
    assert shown["age_us"] == 5000.0
    assert shown["backends"][0] == {
        "backend": "b1",
        "share": 0.0039,
        "score": 0.005,
        "terms": {"rtt": 0.005, "ttft": None, "cache": None, "queue": None, "usage": None},
        "rtt_us": 20_000.0,
        "ttft_ms": None,
        "cache_hit": None,
        "queue": None,
        "cache_usage": None,
        "sources": {},
    }
    assert shown["backends"][1]["terms"] == {
        "rtt": 1.0,
        "ttft": 1.0,
        "cache": 0.5,
        "queue": 0.5,
        "usage": 0.75,
    }
    assert shown["backends"][1]["ttft_ms"] == 90.0
    assert shown["backends"][1]["cache_usage"] == 0.25
    assert shown["backends"][1]["sources"] == {"ttft_ms": "scrape", "cache_hit": "push"}


def test_candidates_have_the_form_of_a_races() -> None:
    """So that who reads ``flows --json`` needs no other."""
    assert candidates_of(SNAPSHOT, lambda backend: f"b{backend}") == [
        {"backend": "b1", "rtt_us": 20_000.0, "answer": "snapshot", "tied": False},
        {"backend": "b2", "rtt_us": 100.0, "answer": "snapshot", "tied": False},
    ]


def test_what_counts_now_is_a_metric() -> None:
    """In base units, by its input and who has told it; what is too old counts no more."""
    made = engine(1, 2)
    router = cast(Router, SimpleNamespace(engine=made))
    now_ns = time.monotonic_ns()
    made.roster.tell(BACKENDS[0], {"ttft_ns": 2.5e8}, now_ns)
    made.roster.tell(BACKENDS[1], {"usage": 0.5}, now_ns, "scrape")
    made.roster.tell(BACKENDS[1], {"queue": 4}, now_ns - 11 * 10**9)
    pairs = [(("web", each.name), each) for each in BACKENDS[:2]]
    assert list(told_now(router, pairs)) == [
        (pairs[0][0], "ttft_seconds", 0.25, "push"),
        (pairs[1][0], "cache_usage", 0.5, "scrape"),
    ]
