# SPDX-License-Identifier: Apache-2.0
"""Whether background probes of services in mode ``snapshot`` can be as many as is asked for.

If not, intervals become longer by themselves, and tables older: it is told beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .address import format_endpoint
from .model import Endpoint, Mode, Service
from .probe_kinds import probed_endpoint
from .strategy.picks import look_work
from .strategy.snapshot import COST_NS, LOOK_EVERY
from .strategy.subject import SubjectKey

_NS_PER_S = 1_000_000_000
MOST_PER_S = _NS_PER_S // COST_NS
"""Probes a second of all servers, or as much other work: about a third of the daemon's time."""


@dataclass(frozen=True, slots=True)
class Overload:
    """Probes that cannot be sent: what is so, and what mends it."""

    text: str
    mend: str


def overloads(services: Iterable[Service], probe_rate: int) -> Iterator[Overload]:
    """What of the services' ``probe_interval`` cannot be kept. ``probe_rate``: of one server."""
    intervals: dict[SubjectKey, int] = {}
    asks: dict[Endpoint, str] = {}
    tables = work = 0
    for service in services:
        if service.mode is not Mode.SNAPSHOT:
            continue
        looks = _NS_PER_S // min(
            LOOK_EVERY * service.probe_interval_ns, service.snapshot_age_ns // 2
        )
        tables += looks
        work += looks * look_work(len(service.backends))
        for backend in service.backends:
            probed = probed_endpoint(backend)
            key = (probed, backend.probe, backend.vlan)
            before = intervals.get(key)
            if before is None or service.probe_interval_ns < before:
                intervals[key] = service.probe_interval_ns
                asks[probed] = service.name
    rates: dict[Endpoint, int] = {}
    for (probed, _, _), interval_ns in intervals.items():
        rates[probed] = rates.get(probed, 0) + _NS_PER_S // interval_ns
    total = sum(rates.values())
    work += total
    if work > MOST_PER_S:
        yield Overload(
            f"services in mode 'snapshot' ask for {total} probes of {len(rates)} servers and "
            f"{tables} looks at tables a second, which is {work / MOST_PER_S:.1f} times what the "
            "daemon has time for: intervals will be so much longer, and where that is longer than "
            "snapshot_age the fallback or the hash decides (snapshot_stale)",
            "a longer probe_interval and snapshot_age, or fewer services in mode 'snapshot'",
        )
    most = max(rates, key=rates.__getitem__, default=None)
    if most is not None and rates[most] > probe_rate:
        others = sum(rate > probe_rate for rate in rates.values()) - 1
        more = f", and so with {others} other servers" if others else ""
        yield Overload(
            f"probe_interval of service {asks[most]} is {rates[most]} probes a second to "
            f"{format_endpoint(most)}, and probe_rate allows {probe_rate}, races included{more}: "
            "those beyond are not sent (probes_over_budget)",
            f"probe_rate = {2 * rates[most]}, or a longer probe_interval",
        )
