# SPDX-License-Identifier: Apache-2.0
"""A million forged first packets a second offered, while honest clients are at work and connect."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.lab import BackendSpec, Lab, LabSpec
from xdp_router.lab.spec import Family, Kind

from .forged import INTERFACE, ForgedSyns
from .honest import FAR_INTERFACE, PAUSE_S, Clients, Seen, far_away
from .router import Router, running
from .rows import Options, Row, Table, percentile, summary
from .traffic import PROTOCOLS

_OFFERED = 1_000_000
_DAEMON_CPU, _FLOOD_CPU = 0, 1
_STREAMS, _NEWCOMERS = 100, 100
_FAR_STREAMS, _FAR_NEWCOMERS = 10, 20
_FAR_NS = 100_000_000
_CALM_S = 2.0
_LOOK_S = 0.25
_WARM_S = 0.5

ARRIVED = (
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
    "datagram_first",
    "datagram_held",
    "datagram_dropped",
    "datagrams_over",
)
"""Each SYN and each first datagram that XDP sees moves one of these."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a flood comes, and what is done about it. ``back``: an attribute of ``ForgedSyns``."""

    what: str
    by: str
    family: Family = 4
    protocol: str = "tcp"
    stateless: bool = False
    threaded: bool = False
    back: str = "own"
    brief: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.what}, IPv{self.family}, by {self.by}"

    @property
    def strict(self) -> bool:
        """Whether no honest SYN has a reason to be lost: else a full queue takes some."""
        return self.back == "own" and not self.threaded and self.protocol == "tcp"


_OWN, _THREAD = "an interface of its own", "an interface and a NAPI thread of its own"
_LRU, _STATELESS, _DATAGRAMS = "SYNs, flood_flows", "SYNs, stateless", "datagrams"
WAYS = (
    Way(_LRU, _OWN),
    Way(_STATELESS, _OWN, stateless=True),
    Way(_DATAGRAMS, _OWN, protocol="udp"),
    Way(_LRU, _THREAD, threaded=True),
    Way(_STATELESS, _THREAD, threaded=True, stateless=True),
    Way(_LRU, "the clients' interface", back="shared", brief=True),
    Way(_LRU, _OWN, family=6, brief=True),
    Way(_STATELESS, _OWN, family=6, stateless=True, brief=True),
    Way(_DATAGRAMS, _OWN, family=6, protocol="udp", brief=True),
)
"""Entries of what is over budget are in flood_flows, unless the service is stateless."""

COLUMNS = (
    "flood",
    "offered/s",
    "sent/s",
    "seen by XDP/s",
    "goodput kept",
    "new tried",
    "succeeded",
    "sent again",
    "probes/s",
    "daemon CPU",
    "daemon RSS",
)


def syn_flood(options: Options) -> Iterator[Row]:
    """Each way by itself, and all of them in one table."""
    lines = []
    for way in WAYS:
        values, seen = _flood(options, way)
        lines.append(table_line(way, values, seen))
        yield _row(way, values, seen)
    yield Row(
        "what a flood of forged first packets does",
        "reported",
        "see the table",
        None,
        f"as above. Goodput kept: verified bytes a second of the {_STREAMS + _FAR_STREAMS} "
        "established streams, none of which sends more than a block each "
        f"{1000 * PAUSE_S:.0f} ms, while the flood was on and others connected, against the "
        f"{_CALM_S:.0f} seconds before. Sent again: SYNs by the clients' kernels, datagrams by the "
        "clients. Daemon CPU: of one; RSS: growth at its peak",
        {},
        table=Table(COLUMNS, tuple(lines)),
    )


def table_line(way: Way, values: Mapping[str, Any], seen: Mapping[str, Seen]) -> tuple[str, ...]:
    """One way as a line under ``COLUMNS``."""
    return (
        way.name,
        f"{_OFFERED:,}",
        f"{values['sent']:,.0f}",
        f"{values['arrived']:,.0f}",
        f"{100 * goodput_kept(seen.values()):.0f} %",
        f"{sum(each.newcomers for each in seen.values()):,}",
        f"{sum(len(each.connect_ms) for each in seen.values()):,}",
        f"{sum(each.syn_retransmits for each in seen.values()):,}",
        f"{values['probes']:,.0f}",
        f"{100 * values['cpu']:.0f} %",
        f"{values['grown_mb']:+.1f} MB",
    )


def goodput_kept(seen: Iterable[Seen]) -> float:
    """Bytes a second of established streams during the flood, against before; 0: none before."""
    before = during = 0.0
    for each in seen:
        before += each.calm_bytes / each.calm_s if each.calm_s else 0.0
        during += each.flood_bytes / each.flood_s if each.flood_s else 0.0
    return during / before if before else 0.0


def _row(way: Way, values: Mapping[str, Any], seen: Mapping[str, Seen]) -> Row:
    near, far = seen["near"], seen["far"]
    tried = near.newcomers + far.newcomers
    got_in = len(near.connect_ms) + len(far.connect_ms)
    failed = near.failed + far.failed
    again = near.syn_retransmits + far.syn_retransmits
    kept = near.streams_kept + far.streams_kept
    streams = _STREAMS + _FAR_STREAMS
    return Row(
        f"flood of forged {way.name}",
        "no stream lost, each honest connection succeeds"
        + (", no SYN of theirs sent again" if way.strict else ""),
        f"{_OFFERED:,}/s offered, {values['sent']:,.0f}/s sent, {values['arrived']:,.0f}/s "
        f"arrived at XDP ({100 * values['lost_before']:.1f} % lost in front of it), "
        f"{values['by_xdp']:,.0f}/s decided by XDP, {values['events']:,.0f} events/s; "
        f"{kept} of {streams} streams kept, {100 * goodput_kept(seen.values()):.0f} % of their "
        f"goodput; honest {got_in:,} of {tried:,}, {again} sent again, near p99 "
        f"{percentile(near.connect_ms, 0.99):.0f} ms, 100 ms away p99 "
        f"{percentile(far.connect_ms, 0.99):.0f} ms; pending entries evicted "
        f"{values['evicted']:,.0f}/s",
        kept == streams and not failed and not (way.strict and again),
        f"live frames from one CPU, {values['seconds']:.0f} s; "
        + (
            "router, backends and the answers' way back have the other one, with the daemon "
            "and all clients"
            if way.threaded
            else "sent is what that CPU could, since router, backends and the answers' way "
            "back share it"
        )
        + "; backends answer what is forged by XDP, all others by their servers; "
        f"{_NEWCOMERS} + {_FAR_NEWCOMERS} new connections/s, each heard once; evicted: "
        "entries made, less those in the tables",
        {
            **values,
            "streams_kept": kept,
            "goodput_kept": goodput_kept(seen.values()),
            "tried": tried,
            "failed": failed,
            "sent_again": again,
            "near_connect_ms": summary(near.connect_ms),
            "far_connect_ms": summary(far.connect_ms),
        },
    )


def _service(way: Way) -> str:
    """Lines of the service's that make it what it is to be."""
    if way.protocol == "udp":
        return 'probe = "icmp"'
    return f"stateless = {str(way.stateless).lower()}"


def _flood(options: Options, way: Way) -> tuple[dict[str, Any], dict[str, Seen]]:
    seconds = float(options.pick(2, 4 if way.brief else 8))
    with ExitStack() as undo:
        parts: dict[str, Any] = {}

        def prepare(lab: Lab) -> list[str]:
            parts["forged"] = ForgedSyns(
                lab,
                options.directory,
                undo,
                way.threaded,
                family=way.family,
                proto=PROTOCOLS[way.protocol],
                back=way.back,
            )
            parts["far"] = undo.enter_context(far_away(lab, _FAR_NS))
            return [INTERFACE, FAR_INTERFACE]

        kind: Kind = "hash" if way.protocol == "udp" else "echo"
        backends = tuple(BackendSpec(f"b{number}", kind=kind) for number in (1, 2, 3))
        router = undo.enter_context(
            running(
                LabSpec(backends),
                cpu=_DAEMON_CPU,
                family=way.family,
                protocol=way.protocol,
                prepare=prepare,
                service=_service(way),
            )
        )
        service = router.lab.addresses_of(way.family).service
        near, far = (
            Clients(namespace, service, protocol=way.protocol)
            for namespace in (router.lab.client, parts["far"])
        )
        for clients in (near, far):
            clients.during(0, 20, _WARM_S)
        return _measured(way, router, parts["forged"], near, far, seconds)


def _measured(
    way: Way, router: Router, forged: ForgedSyns, near: Clients, far: Clients, seconds: float
) -> tuple[dict[str, Any], dict[str, Seen]]:
    seen: dict[str, Seen] = {}
    ready = threading.Barrier(3)

    def go(name: str, clients: Clients, streams: int, rate: int) -> None:
        try:
            seen[name] = clients.during(streams, rate, seconds, ready=ready, calm_s=_CALM_S)
        except BaseException:
            ready.abort()
            raise

    threads = [
        threading.Thread(target=go, args=("near", near, _STREAMS, _NEWCOMERS)),
        threading.Thread(target=go, args=("far", far, _FAR_STREAMS, _FAR_NEWCOMERS)),
    ]
    for thread in threads:
        thread.start()
    try:
        ready.wait()
    except threading.BrokenBarrierError:
        for thread in threads:
            thread.join()
        raise RuntimeError("clients failed before the flood; what they met is told above") from None
    time.sleep(_CALM_S)
    forger = getattr(forged, way.back)
    before, at = _look(router), time.monotonic()
    peak_bytes = 0
    with forger.flooding(_OFFERED, _FLOOD_CPU):
        while any(thread.is_alive() for thread in threads):
            peak_bytes = max(peak_bytes, router.rss_bytes())
            time.sleep(_LOOK_S)
        for thread in threads:
            thread.join()
    after, took = _look(router), time.monotonic() - at
    if len(seen) < len(threads):
        raise RuntimeError("clients failed; what they met is told above")
    change = {name: after[name] - before[name] for name in after}
    suffix = "" if way.family == 4 else "6"
    left = sum(
        batch.count
        for name in ("pending_flows", "flood_flows")
        for batch in BpfMap(router.plane.maps[name + suffix]).batches(4096)
    )
    arrived = sum(change[name] for name in ARRIVED)
    decided = change["decided_hash"] + change["decided_fallback"]
    held = change["first_packet"] + change["datagram_first"]
    sent = forger.sent()
    offered = sent + sum(each.newcomers for each in seen.values())
    return {
        "seconds": seconds,
        "offered": _OFFERED,
        "sent": sent / took,
        "arrived": arrived / took,
        "lost_before": max(0.0, 1 - arrived / offered),
        "by_xdp": (decided + change["stateless_forwarded"]) / took,
        "events": held / took,
        "probes": change["probes"] / took,
        "cpu": change["cpu"] / took,
        "rss_mb": peak_bytes / 1e6,
        "grown_mb": (peak_bytes - before["rss"]) / 1e6,
        # SEEN, FORWARD, REPLY of what was handed to the daemon; the last two of the rest.
        "evicted": max(0.0, 3 * held + 2 * decided - left) / took,
        "at_backends": forged.counts(),
        "counters": {name: value for name, value in change.items() if value},
    }, seen


def _look(router: Router) -> dict[str, float]:
    return {
        **router.counters(),
        "probes": router.status()["engine"]["probe_sent"],
        "cpu": router.cpu_seconds(),
        "rss": router.rss_bytes(),
    }
