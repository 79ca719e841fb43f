# SPDX-License-Identifier: Apache-2.0
"""Keeps the numbers of flows of services and backends true, by what the ager meets."""

from __future__ import annotations

from typing import Protocol

import structlog

from xdp_router.adapters.pick_maps import BackendLoads
from xdp_router.adapters.service_maps import Usage
from xdp_router.core import abi
from xdp_router.core.usage_audit import Tally, UsageAudit

_log = structlog.get_logger()


class _Totals(Protocol):
    """Where numbers of flows are kept."""

    def totals(self) -> dict[int, tuple[int, int]]: ...

    def age(self, number: int, by: int = 1, /) -> None: ...


class UsageKeeper:
    """Of all services, and of all backends. The daemon alone writes what was aged out.

    A service has the flows that are in ``flow_table``; a backend those of which nobody has said
    goodbye.
    """

    def __init__(self, usage: Usage | None = None, loads: BackendLoads | None = None) -> None:
        """None: nothing is kept."""
        self._usage = usage
        self._loads = loads
        self._audits: list[tuple[str, _Totals, UsageAudit]] = []
        if usage is not None:
            self._audits.append(("service", usage, UsageAudit()))
        if loads is not None:
            self._audits.append(("backend", loads, UsageAudit()))

    def begin(self) -> None:
        """A walk of the tables begins."""
        for _, totals, audit in self._audits:
            audit.begin(_kept(totals))

    def flows(self, values: bytes, family: int) -> None:
        """A batch of ``flow_table`` entries was met."""
        for what, _, audit in self._audits:
            count = abi.flow_services if what == "service" else abi.flow_open
            audit.met(count(values, family))

    def aged(self, forward: abi.FlowEntryValue) -> None:
        """The daemon has taken a flow out, of which this was the FORWARD entry."""
        if self._usage is not None:
            self._usage.age(forward.service)
        if self._loads is not None and forward.open:
            self._loads.age(forward.backend)

    def end(self) -> None:
        """The walk is over: what was kept wrongly is corrected."""
        for what, totals, audit in self._audits:
            for number, by in audit.end(_kept(totals)).items():
                totals.age(number, by)
                _log.info("usage_corrected", by=-by, **{what: number})


def _kept(totals: _Totals) -> dict[int, Tally]:
    return {number: Tally(opened, gone) for number, (opened, gone) in totals.totals().items()}
