# SPDX-License-Identifier: Apache-2.0
"""Every metric that the gateway serves, as ``catalogue`` has those of the router."""

from __future__ import annotations

from .catalogue import Kind, Metric

_LISTENER = ("listener",)
_BACKEND = ("listener", "backend")

_TABLE: tuple[tuple[str, Kind, tuple[str, ...], str], ...] = (
    # the supervisor's
    ("gateway_workers", Kind.GAUGE, ("state",), "worker processes"),
    ("gateway_worker_deaths_total", Kind.COUNTER, (), "workers that ended without being told to"),
    ("gateway_reloads_total", Kind.COUNTER, ("result",), "reloads, done or refused"),
    ("gateway_backend_state", Kind.GAUGE, ("backend",), "1 well, 0 ill, by its probes"),
    ("gateway_backend_rtt_seconds", Kind.GAUGE, ("backend",), "round trip of its probes"),
    ("gateway_backend_in_flight", Kind.GAUGE, ("backend",), "requests that it has not answered"),
    ("gateway_scrapes_total", Kind.COUNTER, (*_BACKEND, "result"), "requests for metrics"),
    ("gateway_scrape_seconds", Kind.GAUGE, _BACKEND, "how long the newest one took"),
    (
        "gateway_score_input",
        Kind.GAUGE,
        (*_BACKEND, "input", "source"),
        "what counts of what was told",
    ),
    ("gateway_others_in_flight", Kind.GAUGE, _BACKEND, "requests there that are not ours"),
    ("gateway_prefix_cache_hits_total", Kind.COUNTER, ("backend",), "hits, as engines count them"),
    ("gateway_prefix_cache_queries_total", Kind.COUNTER, ("backend",), "of so many queries"),
    ("gateway_prefix_cache_share", Kind.GAUGE, ("backend", "by"), "hits, predicted or measured"),
    ("gateway_gain_seconds", Kind.GAUGE, ("listener", "at", "bound"), "control minus mode"),
    # the workers'
    ("gateway_connections", Kind.GAUGE, _LISTENER, "clients that are connected"),
    ("gateway_connections_total", Kind.COUNTER, _LISTENER, "clients that were accepted"),
    (
        "gateway_connections_refused_total",
        Kind.COUNTER,
        ("listener", "limit"),
        "clients beyond a limit",
    ),
    ("gateway_streams", Kind.GAUGE, _LISTENER, "requests under way"),
    ("gateway_requests_total", Kind.COUNTER, (*_BACKEND, "status"), "requests that are over"),
    ("gateway_decisions_total", Kind.COUNTER, ("listener", "mode", "reason"), "who was taken"),
    ("gateway_legs_total", Kind.COUNTER, _BACKEND, "backends that were asked"),
    ("gateway_hedges_total", Kind.COUNTER, _BACKEND, "of those, beside another one"),
    ("gateway_cancelled_legs_total", Kind.COUNTER, _BACKEND, "of those, cancelled"),
    ("gateway_failed_legs_total", Kind.COUNTER, _BACKEND, "of those, lost"),
    ("gateway_retries_total", Kind.COUNTER, _LISTENER, "legs in the place of failed ones"),
    ("gateway_tokens_total", Kind.COUNTER, (*_BACKEND, "model"), "events with tokens, to clients"),
    (
        "gateway_loser_tokens_total",
        Kind.COUNTER,
        _BACKEND,
        "the same of legs that lost against another one",
    ),
    ("gateway_broken_off_total", Kind.COUNTER, _BACKEND, "answers that broke off"),
    ("gateway_refused_total", Kind.COUNTER, ("listener", "status"), "answers of our own"),
    ("gateway_deadline_closes_total", Kind.COUNTER, ("listener", "deadline"), "closed as late"),
    ("gateway_ttft_seconds", Kind.HISTOGRAM, (*_BACKEND, "model"), "time to the first token"),
    ("gateway_ttfb_seconds", Kind.HISTOGRAM, (*_BACKEND,), "time to the first byte"),
    ("gateway_prompt_bytes_total", Kind.COUNTER, _BACKEND, "bytes of prompts that were sent"),
    ("gateway_predicted_bytes_total", Kind.COUNTER, _BACKEND, "of those, thought to be cached"),
    ("gateway_arm_first_seconds", Kind.HISTOGRAM, ("listener", "arm"), "what clients waited for"),
    ("gateway_token_gap_seconds", Kind.HISTOGRAM, (*_BACKEND, "model"), "between pieces"),
)

GATEWAY_METRICS = {name: Metric(name, kind, labels, text) for name, kind, labels, text in _TABLE}
"""By name without the prefix."""
