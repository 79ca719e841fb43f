# SPDX-License-Identifier: Apache-2.0
"""How backends are, as ``backends`` and ``status`` show it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from xdp_router.core.engine import Engine
from xdp_router.core.model import Backend

if TYPE_CHECKING:
    from .app import Router

_NS = 1e9


def state_of(engine: Engine, backend: int) -> str:
    """In a word: off (its health is not looked at), well, ill, or dead."""
    condition = engine.standing.condition(backend)
    if condition is None:
        return "off"
    if engine.standing.is_dead(backend):
        return "dead"
    return "well" if condition.well else "ill"


def health_view(engine: Engine, backend: Backend, now_ns: int | None = None) -> dict[str, Any]:
    """Of one backend. ``why`` and ``source`` are of its last fall, as long as that counts."""
    now_ns = time.monotonic_ns() if now_ns is None else now_ns
    condition = engine.standing.condition(backend.id)
    since_ns = condition.since_ns if condition is not None else 0
    held_ns = condition.held_until_ns - now_ns if condition is not None else 0
    share = engine.standing.watch.share(backend.id, now_ns)
    return {
        "state": state_of(engine, backend.id),
        "why": condition.why.value if condition is not None and condition.why else "",
        "source": condition.source.value if condition is not None and condition.source else "",
        "since_s": round((now_ns - since_ns) / _NS, 1) if since_ns else None,
        "held_s": round(max(held_ns, 0) / _NS, 1),
        "times": condition.times if condition is not None else 0,
        "falls": engine.standing.falls.get(backend.id, 0),
        "share": round(share, 2) if condition is None or condition.well else 0.0,
        "ignored": backend.service in engine.standing.failing_open,
    }


def health_totals(router: Router) -> Mapping[str, int]:
    """For ``status``; of backends that only flows have, nothing."""
    standing = router.engine.standing
    return {
        "backends_ill": len(standing.watch.health.ill() - standing.retired),
        "backends_dead": len(standing.dead - standing.retired),
        "flows_ended": router.health.flows_ended,
    }
