# SPDX-License-Identifier: Apache-2.0
"""Counts decisions, and logs them: one line each, so many a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from xdp_router.core.address import format_endpoint, protocol_name
from xdp_router.core.model import NO_BACKEND, Decision, Endpoint, FlowKey, Mode, Reason

from .beside import Beside
from .logs import Sampler

LINES_PER_SECOND = 100

_NS_PER_US = 1000
_log = structlog.get_logger()


class DecisionReport:
    """Takes every decision. ``service_name`` and ``backend_name`` give names by id."""

    def __init__(
        self, service_name: Callable[[int], str], backend_name: Callable[[int], str]
    ) -> None:
        self._service_name = service_name
        self._backend_name = backend_name
        self._sampler = Sampler(LINES_PER_SECOND)
        self._beside = Beside(service_name, backend_name)
        self.also: Callable[[Decision], None] = lambda _decision: None
        """Gets every decision, too; so does ``feed``."""
        self.feed: Callable[[Decision], None] = lambda _decision: None
        self.total = 0
        self.by_service: dict[int, int] = {}
        """By service id; those without a decision are not in it."""
        self.by_kind: dict[tuple[int, Mode, Reason], int] = {}
        """By service id, mode and reason, likewise."""

    def report(self, decision: Decision) -> None:
        """Count a decision, and log it unless there have been too many lines this second."""
        self.total += 1
        kind = decision.service, decision.mode, decision.reason
        self.by_kind[kind] = self.by_kind.get(kind, 0) + 1
        self.by_service[decision.service] = self.by_service.get(decision.service, 0) + 1
        self.also(decision)
        self.feed(decision)
        if decision.unfit:
            self._beside.look(decision)
        if not self._sampler.take(decision.decided_ns):
            return
        line = self.line(decision)
        skipped = self._sampler.skipped()
        if skipped:
            line["lines_skipped"] = skipped
        if decision.error:
            _log.error("decision_lost", error=decision.error, **line)
        else:
            _log.info("decision", **line)

    def line(self, decision: Decision) -> dict[str, Any]:
        """Keys of its line in the log."""
        backend = decision.backend
        return decision_line(
            decision,
            self._service_name(decision.service),
            "" if backend == NO_BACKEND else self._backend_name(backend),
            self._backend_name,
        )


def decision_line(
    decision: Decision, service: str, backend: str, backends: Callable[[int], str]
) -> dict[str, Any]:
    """Keys of the one log line that explains a decision."""
    key: FlowKey = decision.key
    unfit = {backends(each): why.name.lower() for each, why in decision.unfit}
    extra: dict[str, Any] = {"unfit": unfit} if unfit else {}
    tied = [backends(probe.backend) for probe in decision.probes if probe.tied]
    if tied:
        extra["tied"] = tied
    if decision.snapshot is not None:
        extra["scores"] = {
            backends(each.backend): round(each.score, 3) for each in decision.snapshot.scored
        }
    if decision.compared:
        extra["compared"] = {
            backends(each.backend): {
                "wait_us": round(each.wait_ns / _NS_PER_US, 1),
                "open": each.open,
            }
            for each in decision.compared
        }
    return {
        "client": format_endpoint(Endpoint(key.client_addr, key.client_port)),
        "protocol": protocol_name(key.proto),
        "service": service,
        "backend": backend or None,
        "mode": decision.mode.name.lower(),
        "reason": decision.reason.name.lower(),
        "latency_us": round((decision.decided_ns - decision.seen_ns) / _NS_PER_US, 1),
        "rtts_us": {
            backends(probe.backend): round(probe.rtt_ns / _NS_PER_US, 1)
            for probe in decision.probes
            if probe.rtt_ns
        },
    } | extra
