# SPDX-License-Identifier: Apache-2.0
"""What is measured of a running router, and where it is served."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import Backend

from .decision_report import DecisionReport
from .executor import Executor
from .latencies import Latencies
from .map_fill import MapFill
from .traffic_keeper import TrafficKeeper

if TYPE_CHECKING:
    from .app import Router


class Figures:
    """Of one router."""

    def __init__(
        self,
        config: RouterConfig,
        maps: Maps,
        fds: Mapping[str, int],
        decisions: DecisionReport,
        executor: Executor,
    ) -> None:
        """``fds``: of the maps, by name."""
        self.fill = MapFill(fds)
        self.latencies = Latencies(config.services, maps.flows_of)
        self.traffic = TrafficKeeper(maps.traffic, _backends(config))
        decisions.also = self.latencies.decided
        executor.log_established = self.latencies.established

    def change(self, config: RouterConfig) -> None:
        """Go on with another configuration; what is of a service or backend that is not in it, or
        is another one's now, is forgotten."""
        self.latencies.change(config.services)
        self.traffic.change(_backends(config))


def _backends(config: RouterConfig) -> Iterator[Backend]:
    return (backend for service in config.services for backend in service.backends)


async def serve_metrics(router: Router, undo: contextlib.AsyncExitStack) -> None:
    """Listen, if the configuration says so: until the router is ready they are refused.

    Raises MetricsError.
    """
    address = router.config.settings.metrics
    if address is None:
        return
    # Here, because it takes 3 MB that nobody needs who does not want metrics.
    from xdp_router.adapters.metrics_http import MetricsServer
    from xdp_router.measure.exposition import CONTENT_TYPE

    from .metrics import RouterMetrics

    metrics = RouterMetrics(router)
    server = MetricsServer(address, CONTENT_TYPE, metrics.text, lambda: router.ready)
    await server.start()
    undo.push_async_callback(server.close)
