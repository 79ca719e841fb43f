# SPDX-License-Identifier: Apache-2.0
"""A million forged SYNs a second offered, while honest clients stream and connect."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.lab import BackendSpec, Lab, LabSpec

from .forged import INTERFACE, ForgedSyns
from .honest import FAR_INTERFACE, Clients, Seen, far_away
from .router import Router, running
from .rows import Options, Row, percentile, summary

_OFFERED = 1_000_000
_DAEMON_CPU, _FLOOD_CPU = 0, 1
_STREAMS, _NEWCOMERS = 100, 100
_FAR_STREAMS, _FAR_NEWCOMERS = 10, 20
_FAR_NS = 100_000_000
_LOOK_S = 0.25

_ARRIVED = (
    "first_packet",
    "syn_held_again",
    "syn_retransmit",
    "syn_on_live_flow",
    "budget_global",
    "budget_service",
    "budget_prefix",
    "ring_deep",
    "ring_full",
    "heartbeat_stale",
    "deadline_passed",
)
"""Each SYN that XDP sees moves one of these."""


def syn_flood(options: Options) -> Iterator[Row]:
    """By an interface of its own, with a thread of its own, and by the clients' interface."""
    for way, told, threaded in (
        ("own", "an interface of its own", False),
        ("own", "an interface and a NAPI thread of its own", True),
        ("shared", "the clients' interface", False),
    ):
        values, seen = _flood(options, way, threaded)
        near, far = seen["near"], seen["far"]
        honest = near.connect_ms + far.connect_ms
        failed = near.failed + far.failed
        again = near.syn_retransmits + far.syn_retransmits
        kept = near.streams_kept + far.streams_kept
        streams = _STREAMS + _FAR_STREAMS
        strict = way == "own" and not threaded  # else a full queue takes honest SYNs, too
        yield Row(
            f"flood of forged SYNs by {told}",
            "no stream lost, each honest connection succeeds"
            + (", no SYN of theirs sent again" if strict else ""),
            f"{_OFFERED:,}/s offered, {values['sent']:,.0f}/s sent, {values['arrived']:,.0f}/s "
            f"arrived at XDP ({100 * values['lost_before']:.1f} % lost in front of it), "
            f"{values['by_xdp']:,.0f}/s decided by XDP, {values['events']:,.0f} events/s, "
            f"{values['probes']:,.0f} probes/s; {kept} of {streams} streams kept, "
            f"{(near.stream_bytes + far.stream_bytes) / 1e6:.0f} MB verified; honest "
            f"{len(honest):,} of {len(honest) + len(failed):,}, {again} SYNs again, near p99 "
            f"{percentile(near.connect_ms, 0.99):.0f} ms, 100 ms away p99 "
            f"{percentile(far.connect_ms, 0.99):.0f} ms; daemon cpu {values['cpu']:.0%}, "
            f"{values['rss_mb']:.0f} MB (+{values['grown_mb']:.1f}); pending entries evicted "
            f"{values['evicted']:,.0f}/s",
            kept == streams and not failed and not (strict and again),
            f"live frames from one CPU, {values['seconds']:.0f} s; "
            + (
                "router, backends and the answers' way back have the other one, with the daemon "
                "and all clients"
                if threaded
                else "sent is what that CPU could, since router, backends and the answers' way "
                "back share it"
            )
            + "; backends answer forged SYNs by XDP, all others by their stacks; "
            f"{_NEWCOMERS} + {_FAR_NEWCOMERS} new connections/s, each echoing once; evicted: "
            "entries made, less those in the table",
            {
                **values,
                "streams_kept": kept,
                "failed": failed,
                "syns_again": again,
                "near_connect_ms": summary(near.connect_ms),
                "far_connect_ms": summary(far.connect_ms),
            },
        )


def _flood(options: Options, way: str, threaded: bool) -> tuple[dict[str, Any], dict[str, Seen]]:
    seconds = float(options.pick(5, 10))
    with ExitStack() as undo:
        parts: dict[str, Any] = {}

        def prepare(lab: Lab) -> list[str]:
            parts["forged"] = ForgedSyns(lab, options.directory, undo, threaded)
            parts["far"] = undo.enter_context(far_away(lab, _FAR_NS))
            return [INTERFACE, FAR_INTERFACE]

        spec = LabSpec(tuple(BackendSpec(f"b{number}") for number in (1, 2, 3)))
        router = undo.enter_context(running(spec, cpu=_DAEMON_CPU, prepare=prepare))
        service = router.lab.addresses.service
        near, far = Clients(router.lab.client, service), Clients(parts["far"], service)
        near.during(0, 20, 1.0)
        far.during(0, 20, 1.0)
        seen: dict[str, Seen] = {}

        def go(name: str, clients: Clients, streams: int, rate: int) -> None:
            seen[name] = clients.during(streams, rate, seconds)

        threads = [
            threading.Thread(target=go, args=("near", near, _STREAMS, _NEWCOMERS)),
            threading.Thread(target=go, args=("far", far, _FAR_STREAMS, _FAR_NEWCOMERS)),
        ]
        forger = getattr(parts["forged"], way)
        before, at = _look(router), time.monotonic()
        peak_bytes = 0
        with forger.flooding(_OFFERED, _FLOOD_CPU):
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                peak_bytes = max(peak_bytes, router.rss_bytes())
                time.sleep(_LOOK_S)
            for thread in threads:
                thread.join()
        after, took = _look(router), time.monotonic() - at
        sent = forger.sent()
        pending = sum(b.count for b in BpfMap(router.plane.maps["pending_flows"]).batches(4096))
    if len(seen) < len(threads):
        raise RuntimeError("clients failed; what they met is told above")
    change = {name: after[name] - before[name] for name in after}
    arrived = sum(change[name] for name in _ARRIVED)
    by_xdp = change["decided_hash"] + change["decided_fallback"]
    honest = sum(len(each.connect_ms) + len(each.failed) for each in seen.values())
    offered = sent + honest + _STREAMS + _FAR_STREAMS
    return {
        "seconds": seconds,
        "sent": sent / took,
        "arrived": arrived / took,
        "lost_before": max(0.0, 1 - arrived / offered),
        "by_xdp": by_xdp / took,
        "events": change["first_packet"] / took,
        "probes": change["probes"] / took,
        "cpu": change["cpu"] / took,
        "rss_mb": peak_bytes / 1e6,
        "grown_mb": (peak_bytes - before["rss"]) / 1e6,
        # SEEN, FORWARD, REPLY of what was handed to the daemon; the last two of the rest.
        "evicted": max(0.0, 2 * by_xdp + 3 * change["first_packet"] - pending) / took,
        "counters": {name: value for name, value in change.items() if value},
    }, seen


def _look(router: Router) -> dict[str, float]:
    return {
        **router.counters(),
        "probes": router.status()["engine"]["probe_sent"],
        "cpu": router.cpu_seconds(),
        "rss": router.rss_bytes(),
    }
