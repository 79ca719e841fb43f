# SPDX-License-Identifier: Apache-2.0
"""Looks at all services each second: who is over budget, who has connections without a place in
``flow_table``, since when, and who is full.

XDP alone writes what is looked at (``pressure``, ``usage``), and does not say when it began.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.core import abi
from xdp_router.core.config import Settings
from xdp_router.core.model import Service

from .logs import Sampler

EVERY_S = 1.0
LINES_PER_LOOK = 20
_NAMED = 10
_NS_PER_S = 1_000_000_000
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Flood:
    """A service whose segments without an entry are hashed. ``seen_ns``: when that was first seen
    for this reason, a second late at most; ``why``: the budget that was spent last, None: a
    connection has found no place in ``flow_table``; ``until_ns``: how long, as seen last."""

    seen_ns: int
    why: abi.Counter | None
    until_ns: int = 0


def reason_of(
    until_ns: int, why: abi.Counter | None, now_ns: int, pending_idle_ns: int, known: Flood | None
) -> abi.Counter | None:
    """The budget for which segments are hashed ``until_ns``; None: the table is full.

    ``why`` stays when a flood is over. But a budget opens a window of ``pending_idle`` and an
    eighth; longer ones are of flows without a place, which may be silent for ``flow_idle``: such
    a one is that to its end, unless it was extended (``known``: what was seen of it last).
    """
    if until_ns - now_ns > pending_idle_ns * 9 // 8:
        return None
    if known is not None and known.why is None and known.until_ns == until_ns:
        return None
    return why


class ServiceWatch:
    """What was seen last. Raises BpfError when a map cannot be read."""

    def __init__(self, maps: Maps, services: Sequence[Service], settings: Settings) -> None:
        self._maps = maps
        self._sampler = Sampler(LINES_PER_LOOK)
        self.floods: dict[int, Flood] = {}
        """By service id; those whose segments without an entry are hashed."""
        self.connections = 0
        """Established ones of all services."""
        self.full: list[int] = []
        """Ids of services that have as many connections as they may."""
        self.change(services, settings)

    def change(self, services: Sequence[Service], settings: Settings) -> None:
        """Look at these services from now on; what was seen of others is forgotten."""
        self._pending_idle_ns = settings.pending_idle_ns
        self._names = {service.id: service.name for service in services}
        self._limits = {
            service.id: service.max_connections for service in services if service.max_connections
        }
        self.floods = {each: flood for each, flood in self.floods.items() if each in self._names}
        self.full = [each for each in self.full if each in self._names]

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            for _ in self.steps(time.monotonic_ns()):
                await asyncio.sleep(0)
            await asyncio.sleep(EVERY_S)

    def look(self, now_ns: int) -> None:
        """Look at all of it now."""
        for _ in self.steps(now_ns):
            pass

    def steps(self, now_ns: int) -> Iterator[None]:
        """The same in pieces; what was seen is told at the end."""
        over: dict[int, tuple[int, abi.Counter | None]] = {}
        for batch in self._maps.pressure.batches():
            for service, until_ns, why in batch:
                if until_ns > now_ns and service in self._names:
                    over[service] = until_ns, why
            yield
        connections, full = 0, []
        for counts in self._maps.usage.batches_open():
            for service, count in counts:
                connections += count
                limit = self._limits.get(service)
                if limit is not None and count >= limit:
                    full.append(service)
            yield
        self.connections = connections  # services may have gone meanwhile
        self.full = [each for each in full if each in self._names]
        self._accept({each: seen for each, seen in over.items() if each in self._names}, now_ns)

    def reason(
        self, service: int, until_ns: int, why: abi.Counter | None, now_ns: int
    ) -> abi.Counter | None:
        """See ``reason_of``."""
        known = self.floods.get(service)
        return reason_of(until_ns, why, now_ns, self._pending_idle_ns, known)

    def _accept(self, over: dict[int, tuple[int, abi.Counter | None]], now_ns: int) -> None:
        found = {}
        for service, (until_ns, why) in over.items():
            why = self.reason(service, until_ns, why, now_ns)
            known = self.floods.get(service)
            same = known is not None and (known.why is None) == (why is None)
            found[service] = Flood(known.seen_ns if known and same else now_ns, why, until_ns)
            if not same:
                self._tell_begun(service, why, now_ns)
        for service, known in self.floods.items():
            if service not in found:
                self._tell_ended(service, known, now_ns)
        self.floods = found

    def _tell_begun(self, service: int, why: abi.Counter | None, now_ns: int) -> None:
        if not self._sampler.take(now_ns):
            return
        name, skipped = self._names[service], self._sampler.skipped()
        if why is not None:
            _log.warning(
                "over_budget",
                service=name,
                budget=why.name,
                consequence="first packets are decided by hash, not raced",
                lines_skipped=skipped,
            )
        else:
            _log.warning(
                "flow_table_full",
                service=name,
                consequence="connections without a place of their own go by hash",
                mend="raise max_flows (attach --max-flows), or lower flow_idle",
                lines_skipped=skipped,
            )

    def _tell_ended(self, service: int, known: Flood, now_ns: int) -> None:
        if self._sampler.take(now_ns):
            _log.info(
                "over_budget_ended" if known.why is not None else "flow_table_full_ended",
                service=self._names[service],
                seconds=round((now_ns - known.seen_ns) / _NS_PER_S),
                lines_skipped=self._sampler.skipped(),
            )

    def view(self) -> dict[str, Any]:
        """For ``status``: sums, and the first few names."""
        over = [each for each, flood in self.floods.items() if flood.why is not None]
        return {
            "connections": self.connections,
            "services_over_budget": len(over),
            "over_budget": [self._names[each] for each in over[:_NAMED]],
            "services_full": len(self.full),
            "full": [self._names[each] for each in self.full[:_NAMED]],
        }
