# SPDX-License-Identifier: Apache-2.0
"""Every metric that is served: its name, kind, labels and meaning. docs/metrics.md has them all."""

from __future__ import annotations

import enum
from dataclasses import dataclass

PREFIX = "xdp_router_"


class Kind(enum.Enum):
    """What a metric's values are."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One family of values; ``name`` without the prefix."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def full_name(self) -> str:
        """As it is served."""
        return PREFIX + self.name


_BACKEND = ("service", "backend")
_WAY = (*_BACKEND, "direction")

_TABLE: tuple[tuple[str, Kind, tuple[str, ...], str], ...] = (
    # the router itself
    ("build_info", Kind.GAUGE, ("version", "loader", "abi"), "1, and what runs"),
    ("start_time_seconds", Kind.GAUGE, (), "when the daemon was started, since 1970"),
    ("interface_attached", Kind.GAUGE, ("interface", "mode"), "1 where XDP is attached, else 0"),
    ("loop_late_seconds", Kind.HISTOGRAM, (), "how late heartbeats of the event loop came"),
    ("races_open", Kind.GAUGE, (), "races that flows wait for"),
    ("decisions_open", Kind.GAUGE, (), "first packets that are held and not decided"),
    ("map_entries", Kind.GAUGE, ("map",), "entries in use"),
    ("map_max_entries", Kind.GAUGE, ("map",), "entries that there is room for"),
    ("ring_lost_total", Kind.COUNTER, ("what",), "records that found no room in the ring buffer"),
    ("daemon_events_total", Kind.COUNTER, ("event",), "what the daemon counts, as status shows it"),
    # traffic
    ("packets_total", Kind.COUNTER, _WAY, "packets of flows"),
    ("bytes_total", Kind.COUNTER, _WAY, "IP bytes of flows"),
    ("flows_total", Kind.COUNTER, _BACKEND, "flows that were established"),
    ("flows", Kind.GAUGE, _BACKEND, "established flows, those that are closing too"),
    ("flows_open", Kind.GAUGE, _BACKEND, "established flows that nobody has ended"),
    # decisions and backends
    ("decisions_total", Kind.COUNTER, ("service", "mode", "reason"), "decisions by how and why"),
    ("backend_up", Kind.GAUGE, _BACKEND, "1 if the backend may be chosen, else 0"),
    ("backend_well", Kind.GAUGE, _BACKEND, "1 if the backend is well, 0 if it is ill or dead"),
    ("backend_falls_total", Kind.COUNTER, _BACKEND, "how often the backend was found ill"),
    ("flows_ended_total", Kind.COUNTER, (), "flows ended because their backend had died"),
    ("probe_rtt_seconds", Kind.GAUGE, _BACKEND, "round trip of the newest probe that was answered"),
    ("probe_results_total", Kind.COUNTER, (*_BACKEND, "result"), "what became of probes and races"),
    ("scrapes_total", Kind.COUNTER, (*_BACKEND, "result"), "requests for a backend's metrics"),
    ("scrape_seconds", Kind.GAUGE, _BACKEND, "how long the newest one took that was answered"),
    ("score_input", Kind.GAUGE, (*_BACKEND, "input", "source"), "what was told of a backend"),
    ("probe_bytes_total", Kind.COUNTER, (), "IP bytes of probes that were sent"),
    # the four of the field
    ("fppl_seconds", Kind.HISTOGRAM, ("service",), "first packet in to the same packet out"),
    ("fppl_share_ratio", Kind.GAUGE, ("service",), "FPPL's part of the first-byte time"),
    ("first_byte_seconds", Kind.HISTOGRAM, ("service", "arm"), "first packet to first reply byte"),
    ("first_byte_p99_seconds", Kind.GAUGE, ("service", "arm"), "p99 of that, of the last hour"),
    ("first_byte_gain_seconds", Kind.GAUGE, ("service", "bound"), "p99 control arm minus mode"),
    ("first_byte_silent_total", Kind.COUNTER, ("service", "arm"), "sampled flows without a byte"),
    ("arm_flows_total", Kind.COUNTER, ("service", "arm", "stage"), "flows of each arm"),
    ("flow_binding_retention_ratio", Kind.GAUGE, (), "established flows that kept their binding"),
    ("probe_overhead_ratio", Kind.GAUGE, (), "bytes of probing for each forwarded byte"),
)

METRICS = {name: Metric(name, kind, labels, text) for name, kind, labels, text in _TABLE}
"""By name without the prefix. Beside them stands one for each counter, see ``xdp_counter``."""


def xdp_counter(counter: str) -> Metric:
    """The metric of one of the counters of the XDP program."""
    return Metric(
        f"xdp_{counter}_total", Kind.COUNTER, (), "counter of the XDP program, see operations.md"
    )
