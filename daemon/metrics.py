# SPDX-License-Identifier: Apache-2.0
"""The values of the metrics, read from a running router as they are asked for."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector, exposition

from xdp_router import __version__
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.traffic import NO_TRAFFIC
from xdp_router.core import abi
from xdp_router.core.model import Backend, Mode, Reason
from xdp_router.measure.catalogue import METRICS, Metric, xdp_counter
from xdp_router.measure.exposition import Sample, pieces
from xdp_router.measure.field import fppl_share

from .field_view import overhead_of, p99_ns, retention_of
from .score_view import told_now

if TYPE_CHECKING:
    from .app import Router

_NS = 1e9
_PROCESS = ProcessCollector(registry=None)
_RING_LOST = {
    "first_packet": abi.Counter.ring_full,
    "other": abi.Counter.event_lost,
}
_RESULTS = ("wins", "answers", "losses")


class RouterMetrics:
    """Reads a router; changes nothing."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._began = time.time() - (time.monotonic() - router.started_s)

    def text(self) -> Generator[bytes, None, None]:
        """All of it, in pieces."""
        yield from pieces(self._families(), time.monotonic_ns)
        yield exposition.generate_latest(_PROCESS)

    def _families(self) -> Iterator[tuple[Metric, Iterator[Sample | None]]]:
        for name, metric in METRICS.items():
            yield metric, getattr(self, f"_{name}")()
        for name, value in self._counters().items():
            yield xdp_counter(name), iter([((), float(value))])

    def _counters(self) -> dict[str, int]:
        return self._router.state.maps.counters.read()

    # The router itself

    def _build_info(self) -> Iterator[Sample]:
        yield (__version__, self._router.plane.loader, str(abi.ABI_VERSION)), 1.0

    def _start_time_seconds(self) -> Iterator[Sample]:
        yield (), self._began

    def _interface_attached(self) -> Iterator[Sample]:
        for each in self._router.attachments:
            yield (each.name, each.mode.value if each.mode else ""), float(each.mode is not None)

    def _loop_late_seconds(self) -> Iterator[Sample]:
        yield (), self._router.loop.lateness

    def _races_open(self) -> Iterator[Sample]:
        yield (), float(self._router.engine.open_races)

    def _decisions_open(self) -> Iterator[Sample]:
        yield (), float(self._router.engine.open_decisions)

    def _used(self) -> dict[str, int]:
        ager, config = self._router.ager, self._router.config
        flows = {
            f"flow_table{'6' * (family == 6)}": n
            for family, n in ager.entries_of.items()
            if self._router.figures.traffic.known
        }
        backends = sum(len(service.backends) for service in config.services)
        return {
            **flows,
            **ager.pending_entries,
            **self._router.figures.fill.entries,
            "services": len(config.services),
            "backends": backends,
        }

    def _map_entries(self) -> Iterator[Sample]:
        for name, used in self._used().items():
            yield (name,), float(used)

    def _map_max_entries(self) -> Iterator[Sample]:
        for name in self._used():
            yield (name,), float(bpf.map_info(self._router.plane.maps[name]).max_entries)

    def _ring_lost_total(self) -> Iterator[Sample]:
        counters = self._counters()
        for what, counter in _RING_LOST.items():
            yield (what,), float(counters[counter.name])

    def _daemon_events_total(self) -> Iterator[Sample]:
        router = self._router
        totals = {**router.engine.counters, **router.executor.counters, **router.sender.counters}
        totals["bad_records"] = router.loop.bad_records
        totals["loop_faults"] = router.loop.faults
        for name, value in totals.items():
            yield (name,), float(value)

    # Traffic

    def _backends(self) -> Iterator[tuple[tuple[str, str], Backend]]:
        there = self._router.engine.roster.service_of
        for service in self._router.config.services:
            for backend in service.backends:
                if backend.id in there:  # a reload may take it away between two rows
                    yield (service.name, backend.name), backend

    def _swept(self) -> Iterator[tuple[tuple[str, str], Backend]]:
        # A 0 of a daemon that has not looked yet would be a total that goes back, and count twice.
        return self._backends() if self._router.figures.traffic.known else iter(())

    def _packets_total(self) -> Iterator[Sample]:
        for labels, backend in self._swept():
            total = self._router.figures.traffic.totals.get(backend.id, NO_TRAFFIC)
            yield (*labels, "request"), float(total.packets)
            yield (*labels, "reply"), float(total.reply_packets)

    def _bytes_total(self) -> Iterator[Sample]:
        for labels, backend in self._swept():
            total = self._router.figures.traffic.totals.get(backend.id, NO_TRAFFIC)
            yield (*labels, "request"), float(total.octets)
            yield (*labels, "reply"), float(total.reply_octets)

    def _flows_total(self) -> Iterator[Sample]:
        for labels, backend in self._swept():
            yield (
                labels,
                float(self._router.figures.traffic.totals.get(backend.id, NO_TRAFFIC).flows),
            )

    def _flows(self) -> Iterator[Sample]:
        for labels, backend in self._swept():
            yield labels, float(self._router.figures.traffic.live.get(backend.id, 0))

    def _flows_open(self) -> Iterator[Sample]:
        for labels, backend in self._backends():
            yield labels, float(self._router.state.maps.backend_loads.open(backend.id))

    # Decisions and backends

    def _decisions_total(self) -> Iterator[Sample]:
        names = {service.id: service.name for service in self._router.config.services}
        for (service, mode, reason), count in list(self._router.decisions.by_kind.items()):
            yield (names.get(service, str(service)), _word(mode), _word(reason)), float(count)

    def _backend_up(self) -> Iterator[Sample]:
        for labels, backend in self._backends():
            yield labels, float(self._router.engine.backends.is_up(backend.id))

    def _backend_well(self) -> Iterator[Sample]:
        for labels, backend in self._backends():
            condition = self._router.engine.standing.condition(backend.id)
            if condition is not None:
                yield labels, float(condition.well)

    def _backend_falls_total(self) -> Iterator[Sample]:
        for labels, backend in self._backends():
            yield labels, float(self._router.engine.standing.falls.get(backend.id, 0))

    def _flows_ended_total(self) -> Iterator[Sample]:
        yield (), float(self._router.health.flows_ended)

    def _probe_rtt_seconds(self) -> Iterator[Sample | None]:
        for labels, backend in self._backends():
            rtt_ns = self._router.engine.backend_stats(backend.id).last_rtt_ns
            yield (labels, rtt_ns / _NS) if rtt_ns else None

    def _probe_results_total(self) -> Iterator[Sample]:
        for labels, backend in self._backends():
            stats = self._router.engine.backend_stats(backend.id)
            for result in _RESULTS:
                yield (*labels, result), float(getattr(stats, result))

    def _scrapes_total(self) -> Iterator[Sample]:
        for labels, backend in self._backends():
            state = self._router.scraper.state(backend.id)
            if state is not None:
                yield (*labels, "ok"), float(state.ok)
                yield (*labels, "failed"), float(state.failed)

    def _scrape_seconds(self) -> Iterator[Sample | None]:
        for labels, backend in self._backends():
            state = self._router.scraper.state(backend.id)
            yield (labels, state.took_ns / _NS) if state is not None and state.took_ns else None

    def _score_input(self) -> Iterator[Sample]:
        for (service, backend), name, value, source in told_now(self._router, self._backends()):
            yield (service, backend, name, source), value

    def _probe_bytes_total(self) -> Iterator[Sample]:
        yield (), float(self._router.sender.counters["probe_bytes"])

    # The four of the field

    def _service_names(self) -> Iterator[tuple[int, str]]:
        names = {service.id: service.name for service in self._router.config.services}
        for number in list(self._router.figures.latencies.by_service):
            if number in self._router.figures.latencies.by_service:  # as above
                yield number, names.get(number, str(number))

    def _fppl_seconds(self) -> Iterator[Sample]:
        for number, name in self._service_names():
            yield (name,), self._router.figures.latencies.by_service[number].fppl

    def _fppl_share_ratio(self) -> Iterator[Sample]:
        for number, name in self._service_names():
            figures = self._router.figures.latencies.by_service[number]
            share = fppl_share(figures.fppl_ns, figures.first_byte_ns)
            if share is not None:
                yield (name,), share

    def _first_byte_seconds(self) -> Iterator[Sample]:
        for number, name in self._service_names():
            for arm, figures in self._router.figures.latencies.by_service[number].arms.items():
                if figures.sampled:
                    yield (name, arm.value), figures.first_byte

    def _first_byte_p99_seconds(self) -> Iterator[Sample]:
        now_ns = time.monotonic_ns()
        for number, name in self._service_names():
            for arm, figures in self._router.figures.latencies.by_service[number].arms.items():
                newest = p99_ns(figures, now_ns)
                if newest is not None:
                    yield (name, arm.value), newest / _NS

    def _first_byte_gain_seconds(self) -> Iterator[Sample]:
        now_ns = time.monotonic_ns()
        for number, name in self._service_names():
            found = self._router.figures.latencies.gain(number, now_ns)
            if found is None:
                continue
            for bound in ("estimate", "low", "high"):
                value = getattr(found.difference, bound)
                if value is not None:
                    yield (name, bound), value / _NS

    def _first_byte_silent_total(self) -> Iterator[Sample]:
        for number, name in self._service_names():
            for arm, figures in self._router.figures.latencies.by_service[number].arms.items():
                yield (name, arm.value), float(figures.silent)

    def _arm_flows_total(self) -> Iterator[Sample]:
        for number, name in self._service_names():
            for arm, figures in self._router.figures.latencies.by_service[number].arms.items():
                for stage in ("decided", "established", "sampled"):
                    yield (name, arm.value, stage), float(getattr(figures, stage))

    def _flow_binding_retention_ratio(self) -> Iterator[Sample]:
        kept = retention_of(self._counters())
        if kept is not None:
            yield (), kept

    def _probe_overhead_ratio(self) -> Iterator[Sample]:
        overhead = overhead_of(self._router)
        if overhead is not None:
            yield (), overhead


def _word(value: Mode | Reason) -> str:
    return value.name.lower()
