# SPDX-License-Identifier: Apache-2.0
"""Scores as plain data: what a backend's share of new flows is made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from xdp_router.core.abi import PICK_SLOTS
from xdp_router.core.model import Backend, Decision, Mode, Scored, Snapshot

from .loads import load_reader
from .pushed import INPUT_NAMES, METRIC_NAMES, shown_input

if TYPE_CHECKING:
    from .app import Router

_NS_PER_US = 1000
_NS_PER_MS = 1_000_000


def score_view(router: Router, backend: Backend) -> dict[str, Any]:
    """Of the list of backends: mode, share, score with its terms, what was told, load."""
    modes = router.engine.roster
    mode = modes.mode_of(backend.service)
    snapshot = modes.snapshot(backend.service)
    scored = next(
        (each for each in (snapshot.scored if snapshot else ()) if each.backend == backend.id), None
    )
    load = load_reader(router.state.maps)(backend.id)
    now_ns = time.monotonic_ns()
    told = modes.inputs.told(backend.id)
    return {
        "mode": mode.name.lower(),
        # Without a slot is 0; of a mode that has no table, or before the first one, nothing.
        "share": _share(scored)
        if mode is Mode.SNAPSHOT and snapshot and snapshot.made_ns
        else None,
        "score": round(scored.score, 4) if scored else None,
        "terms": _terms(scored) if scored else None,
        "told": {
            INPUT_NAMES[name]: {
                "value": shown_input(name, each.value),
                "age_s": round((now_ns - each.told_ns) / 1e9, 3),
                "source": each.source,
            }
            for name, each in told.items()
        },
        "scrape": router.scraper.view(backend.id, now_ns),
        "open": load.open,
        "synack_us": round(load.ewma_ns / _NS_PER_US, 1) if load.ewma_ns else None,
    }


def snapshot_view(decision: Decision, name_of: Callable[[int], str]) -> dict[str, Any] | None:
    """Of one decision: how old its snapshot was, and who had which share of it, and why."""
    snapshot = decision.snapshot
    if snapshot is None:
        return None
    return {
        "age_us": round((decision.decided_ns - snapshot.made_ns) / _NS_PER_US, 1),
        "backends": [
            {
                "backend": name_of(each.backend),
                "share": _share(each),
                "score": round(each.score, 4),
                "terms": _terms(each),
                "rtt_us": None if each.rtt_ns is None else round(each.rtt_ns / _NS_PER_US, 1),
                "ttft_ms": None if each.ttft_ns is None else shown_input("ttft_ns", each.ttft_ns),
                "cache_hit": each.cache,
                "queue": each.queue,
                "cache_usage": each.usage,
                "sources": {INPUT_NAMES[name]: source for name, source in each.sources},
            }
            for each in snapshot.scored
        ],
    }


def compared_view(
    decision: Decision, backends: Mapping[int, Backend], name_of: Callable[[int], str]
) -> list[dict[str, Any]]:
    """Of one decision by mode ``inline``: what each of the two was expected to cost."""
    rows = []
    for each in decision.compared:
        known = backends.get(each.backend)
        weight = known.weight if known is not None else 1
        wait_us = round(each.wait_ns / _NS_PER_US, 1)
        rows.append(
            {
                "backend": name_of(each.backend),
                "wait_us": wait_us if each.wait_ns else None,
                "open": each.open,
                "weight": weight,
                "cost_us": round(wait_us * (each.open + 1) / weight, 1) if each.wait_ns else None,
            }
        )
    return rows


def candidates_compared(decision: Decision, name_of: Callable[[int], str]) -> list[dict[str, Any]]:
    """The two, in the form that candidates of a race have."""
    return [
        _candidate(name_of(each.backend), each.wait_ns or None, "inline")
        for each in decision.compared
    ]


def candidates_of(snapshot: Snapshot, name_of: Callable[[int], str]) -> list[dict[str, Any]]:
    """Who could be picked, in the form that candidates of a race have."""
    return [_candidate(name_of(each.backend), each.rtt_ns, "snapshot") for each in snapshot.scored]


def _candidate(name: str, rtt_ns: int | None, answer: str) -> dict[str, Any]:
    rtt_us = None if rtt_ns is None else round(rtt_ns / _NS_PER_US, 1)
    return {"backend": name, "rtt_us": rtt_us, "answer": answer, "tied": False}


def _share(scored: Scored | None) -> float:
    return round(scored.slots / PICK_SLOTS, 4) if scored else 0.0


def _terms(scored: Scored) -> dict[str, float | None]:
    terms = {
        "rtt": scored.rtt_term,
        "ttft": scored.ttft_term,
        "cache": scored.cache,
        "queue": scored.queue_term,
        "usage": None if scored.usage is None else 1 - scored.usage,
    }
    return {name: None if value is None else round(value, 4) for name, value in terms.items()}


def told_now(
    router: Router, backends: Iterable[tuple[tuple[str, str], Backend]]
) -> Iterator[tuple[tuple[str, str], str, float, str]]:
    """What counts at this moment of what was told: of whom, which input, its value in base units
    (seconds), who has told it."""
    now_ns = time.monotonic_ns()
    roster = router.engine.roster
    for labels, backend in backends:
        age_ns = roster.service_of[backend.id].score_age_ns
        for name, each in roster.inputs.told(backend.id).items():
            if now_ns - each.told_ns < age_ns:
                value = each.value / 1e9 if name == "ttft_ns" else each.value
                yield labels, METRIC_NAMES[name], value, each.source
