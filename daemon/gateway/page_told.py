# SPDX-License-Identifier: Apache-2.0
"""The part of the page for Prometheus that is about what others say, and what the mode gains."""

from __future__ import annotations

import time
from typing import Final

from xdp_router.core.listeners import GatewayConfig
from xdp_router.daemon.pushed import METRIC_NAMES
from xdp_router.measure.exposition import Sample

from .hearsay import Hearsay

COUNTED: Final = ("scrapes_total", "prefix_cache_hits_total", "prefix_cache_queries_total")
"""Of these, what the supervisor counts itself, as long as it asks backends."""
_NS: Final = 1e9


def told_figures(config: GatewayConfig, hearsay: Hearsay) -> dict[str, list[Sample]]:
    """By name, as in the catalogue without ``gateway_``; what nobody knows is left out."""
    figures: dict[str, list[Sample]] = {
        "scrapes_total": [],
        "scrape_seconds": [],
        "score_input": [],
        "others_in_flight": [],
        "prefix_cache_hits_total": [],
        "prefix_cache_queries_total": [],
        "prefix_cache_share": [],
        "gain_seconds": [],
    }
    now_ns = time.monotonic_ns()
    for listener in config.listeners:
        for backend in listener.backends:
            labels = listener.name, backend.name
            state = hearsay.state(listener, backend)
            if state is not None:
                figures["scrapes_total"] += [
                    ((*labels, "ok"), state.ok),
                    ((*labels, "failed"), state.failed),
                ]
                if state.took_ns:
                    figures["scrape_seconds"].append((labels, state.took_ns / _NS))
            for name, (value, told_ns, source) in hearsay.told(str(backend.address)).items():
                if now_ns - told_ns < listener.told_age_ns:
                    shown = value / _NS if name == "ttft_ns" else value
                    figures["score_input"].append(((*labels, METRIC_NAMES[name], source), shown))
            others = hearsay.others(listener, backend)
            if others is not None:
                figures["others_in_flight"].append((labels, others))
        if listener.control_arm:
            for quantile, found in hearsay.arms.gains(listener):
                for bound in ("estimate", "low", "high"):
                    gained_ns = getattr(found.difference, bound)
                    if gained_ns is not None:
                        sample = (listener.name, quantile, bound), gained_ns / _NS
                        figures["gain_seconds"].append(sample)
    for address, (hits, queries) in sorted(hearsay.cache.counted.items()):
        figures["prefix_cache_hits_total"].append(((address,), hits))
        figures["prefix_cache_queries_total"].append(((address,), queries))
        for by, share in zip(("predicted", "measured"), hearsay.cache.shares(address), strict=True):
            if share is not None:
                figures["prefix_cache_share"].append(((address, by), share))
    return figures
