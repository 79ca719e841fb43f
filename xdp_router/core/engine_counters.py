# SPDX-License-Identifier: Apache-2.0
"""What the engine counts; ``status`` shows it."""

from __future__ import annotations

from .surroundings import UNFIT_AS

ENGINE_COUNTERS: tuple[str, ...] = (
    "first_packets",
    "first_packets_duplicate",
    "first_packets_unknown_service",
    "first_packets_overload",
    "datagrams_held",
    "datagrams_dropped",
    *UNFIT_AS.values(),
    "decided_race",
    "decided_snapshot",
    "decided_inline",
    "decided_fallback",
    "decided_hash",
    "decided_refused",
    "decided_sticky",
    "decided_round_robin",
    "decided_by_xdp",
    "decided_by_xdp_known",
    "binding_taken",
    "binding_tuple_taken",
    "binding_failed",
    "binding_answers_unmatched",
    "flow_updates_unmatched",
    "flow_updates_illegal",
    "backend_unknown",
    "probe_answers_unknown_backend",
)


def engine_counters() -> dict[str, int]:
    """Every counter, at zero."""
    return dict.fromkeys(ENGINE_COUNTERS, 0)
