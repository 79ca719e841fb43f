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
    # the workers'
    ("gateway_connections", Kind.GAUGE, _LISTENER, "clients that are connected"),
    ("gateway_connections_total", Kind.COUNTER, _LISTENER, "clients that were accepted"),
)

GATEWAY_METRICS = {name: Metric(name, kind, labels, text) for name, kind, labels, text in _TABLE}
"""By name without the prefix."""
