# SPDX-License-Identifier: Apache-2.0
"""What the gateway has counted and measured, as a page for Prometheus.

Workers' figures are those of the last time that they were asked, a second ago at most: under the
names of ``measure/catalogue_gateway``, without its ``gateway_``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from xdp_router.adapters.metrics_http import MetricsServer
from xdp_router.measure.catalogue import Kind, Metric
from xdp_router.measure.catalogue_gateway import GATEWAY_METRICS
from xdp_router.measure.exposition import CONTENT_TYPE, Sample, pieces
from xdp_router.measure.histogram import Buckets

from .board import RTT, RTT_AT, STATE, UNKNOWN, WELL
from .estate import PREFIX
from .page_told import told_figures
from .totals import Figures, merge

if TYPE_CHECKING:
    from .supervisor import Supervisor

PASSING: Final = frozenset(
    name.removeprefix(PREFIX)
    for name, metric in GATEWAY_METRICS.items()
    if metric.kind is Kind.GAUGE
)
"""What goes with the worker that says it."""
_STATES: Final = ("starting", "serving", "retiring")
_NS: Final = 1e9


class FiguresPage:
    """Served at one address."""

    def __init__(self, address: tuple[str, int], supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._server = MetricsServer(address, CONTENT_TYPE, self.text, self._is_ready)

    def _is_ready(self) -> bool:
        return self._supervisor.state != "starting"

    async def start(self) -> None:
        """Listen. Raises MetricsError."""
        await self._server.start()

    async def close(self) -> None:
        """Stop listening. Calling it again does nothing."""
        await self._server.close()

    def text(self) -> Generator[bytes, None, None]:
        """The page, in pieces."""
        return pieces(self._families())

    def _families(self) -> Iterator[tuple[Metric, Iterable[Sample]]]:
        found = figures_of(self._supervisor)
        for name, metric in GATEWAY_METRICS.items():
            rows = found.get(name.removeprefix(PREFIX))
            if rows is not None:
                yield metric, [(labels, _value(value)) for labels, value in rows]


def figures_of(supervisor: Supervisor) -> Figures:
    """All that the page has: the supervisor's own, its workers', and what was inherited."""
    totals = supervisor.totals
    own: Figures = {
        name: [[list(labels), value] for labels, value in samples]
        for name, samples in _own(supervisor).items()
    }
    told = totals.sum([each.figures for each in supervisor.workers])
    return merge((totals.inherited, told, own))


def _own(supervisor: Supervisor) -> dict[str, list[Sample]]:
    states = Counter(each.state for each in supervisor.workers)
    figures: dict[str, list[Sample]] = {
        "workers": [((state,), states[state]) for state in _STATES],
        "worker_deaths_total": [((), supervisor.deaths)],
        "reloads_total": [
            (("done",), supervisor.reloads.done),
            (("refused",), supervisor.reloads.refused),
        ],
        "backend_state": [],
        "backend_rtt_seconds": [],
        "backend_in_flight": [],
    }
    board, config = supervisor.board, supervisor.config
    found = {str(each.address) for one in config.listeners for each in one.backends}
    for address in sorted(found):
        row = supervisor.rows.all.get(address)
        if row is None:
            continue  # there are no workers yet
        state = board.common(row, STATE)
        if state != UNKNOWN:
            figures["backend_state"].append(((address,), int(state == WELL)))
        if board.common(row, RTT_AT):
            rtt_s = board.common(row, RTT) / _NS
            figures["backend_rtt_seconds"].append(((address,), rtt_s))
        figures["backend_in_flight"].append(((address,), board.in_flight(row)))
    return {**figures, **told_figures(config, supervisor.hearsay)}


def _value(value: Any) -> float | Buckets:
    if isinstance(value, dict):
        return Buckets.of(value["bounds"], value["counts"], value["total"])
    return float(value)
