# SPDX-License-Identifier: Apache-2.0
"""The figures of the field, as ``services`` and ``status`` tell them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from xdp_router.core.model import Service
from xdp_router.measure.experiment import CONFIDENCE
from xdp_router.measure.field import fppl_share, probe_overhead, retention
from xdp_router.measure.histogram import Histogram

from .gain_view import gain_view, in_ms
from .latencies import ArmFigures

if TYPE_CHECKING:
    from .app import Router


def p99_ns(figures: ArmFigures, now_ns: int) -> int | None:
    """Of the first-byte times of the last hour; None: there are none."""
    newest = figures.newest.merged(now_ns)
    return newest.quantile(0.99) if newest.count else None


def first_byte_view(router: Router, service: Service) -> dict[str, Any]:
    """For ``services``: first-byte times of the last hour, FPPL's share, and the control arm.

    ``gain_p99_ms`` is the control arm's p99 less the mode's; a bound is null while there are too
    few flows for it.
    """
    now_ns = time.monotonic_ns()
    figures = router.figures.latencies.by_service.get(service.id)
    arms = figures.arms if figures is not None else {}
    share = fppl_share(figures.fppl_ns, figures.first_byte_ns) if figures is not None else None
    view: dict[str, Any] = {
        "fppl_share": None if share is None else round(share, 4),
        "arms": {arm.value: _arm(each, now_ns) for arm, each in arms.items()},
        "control_arm": None,
    }
    if service.control_arm:
        found = router.figures.latencies.gain(service.id, now_ns)
        view["control_arm"] = {
            "percent": service.control_arm,
            "by": service.control_arm_by.name.lower(),
            "confidence": CONFIDENCE,
            "gain_p99_ms": None,
            "p99_ratio": None,
        }
        if found is not None:
            told = gain_view(found)
            view["control_arm"].update(gain_p99_ms=told["gain_ms"], p99_ratio=told["ratio"])
    return view


def _arm(figures: ArmFigures, now_ns: int) -> dict[str, Any]:
    newest: Histogram = figures.newest.merged(now_ns)
    return {
        "decided": figures.decided,
        "established": figures.established,
        "sampled": figures.sampled,
        "silent": figures.silent,
        "count": newest.count,
        "p50_ms": in_ms(newest.quantile(0.5)) if newest.count else None,
        "p99_ms": in_ms(newest.quantile(0.99)) if newest.count else None,
    }


def retention_of(counters: dict[str, int]) -> float | None:
    """By the counters of XDP: a segment of a connection that nobody knows may be of a lost one."""
    established = sum(
        counters[name] for name in ("promoted", "one_sided_promoted", "stateless_promoted")
    )
    return retention(established, counters["orphan_reset"] + counters["orphan_hashed"])


def overhead_of(router: Router) -> float | None:
    """Of what was sent since the start. An answer is as long as its probe; a SYN-ACK costs a RST
    more."""
    sent, octets = (router.sender.counters[name] for name in ("probe_sent", "probe_bytes"))
    if not sent:
        return None
    engine = router.engine.counters
    answers = 2 * engine["probes_synack"] + sum(
        engine[f"probes_{kind}"] for kind in ("rst", "unreachable", "echo", "stun", "datagram")
    )
    return probe_overhead(
        round(octets * (1 + answers / sent)), router.figures.traffic.octets_since_start
    )
