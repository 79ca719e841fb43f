# SPDX-License-Identifier: Apache-2.0
"""How long first packets take here, and how long clients wait for their first byte.

The kernel's entry of a flow has the time of the backend's first payload, but nobody tells when it
is there: a sample of the flows is looked at again, later and later, until it is. Which flows are
in the sample is settled when they are established, before anything is known of their answers.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from xdp_router.adapters.bpf_maps import FlowTables
from xdp_router.core import abi
from xdp_router.core.model import ONE_SIDED, Decision, Service
from xdp_router.core.strategy.control_arm import Arm, arm_of
from xdp_router.measure.experiment import Gain, gain
from xdp_router.measure.histogram import Buckets
from xdp_router.measure.window import Window

from .logs import Sampler

BOUNDS_NS = tuple(
    round(each * 1000)
    for each in (10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6)
)
"""10 us to 1 s."""
LOOKS_MS = (50, 200, 1_000, 5_000, 15_000, 30_000)
"""When a flow is looked at after it was established; then it has no first byte."""
SAMPLE_PER_SECOND = 100
"""Flows of one arm of one service."""
WAITING_MAX = 20_000
EVERY_S = 0.1
STEP = 50
"""Flows that are looked at before the loop has its turn: about 1 ms."""


@dataclass(slots=True)
class ArmFigures:
    """One arm of one service. ``sampled`` flows have, or have not yet, or never had a first byte
    (``silent``)."""

    first_byte: Buckets
    newest: Window
    sampler: Sampler
    decided: int = 0
    established: int = 0
    sampled: int = 0
    silent: int = 0


@dataclass(slots=True)
class ServiceFigures:
    """One service. Of the sampled flows that the mode had: sums of both times, for their share."""

    fppl: Buckets
    arms: dict[Arm, ArmFigures]
    fppl_ns: int = 0
    first_byte_ns: int = 0


class Latencies:
    """Of all services. ``tables_of`` gives the tables of an address's family."""

    def __init__(
        self,
        services: Iterable[Service],
        tables_of: Callable[[int], FlowTables],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._services = {service.id: service for service in services}
        self._tables_of = tables_of
        self._clock = clock
        self._waiting: list[tuple[int, int, int, Decision]] = []  # due, number, look, whose
        self._numbers = itertools.count()
        self.by_service: dict[int, ServiceFigures] = {}
        """By service id; those that were not asked for yet are not in it."""

    def decided(self, decision: Decision) -> None:
        """A flow's decision is final."""
        figures = self._of(decision)
        if figures is not None:
            figures[1].decided += 1

    def established(self, decision: Decision) -> None:
        """A decided flow's handshake is verified."""
        figures = self._of(decision)
        if figures is None:
            return
        service, arm = figures
        arm.established += 1
        if decision.fppl_ns:
            service.fppl.add(decision.fppl_ns)
        if self._services[decision.service].forwarding in ONE_SIDED:
            return  # answers are not seen here
        now_ns = self._clock()
        if len(self._waiting) < WAITING_MAX and arm.sampler.take(now_ns):
            arm.sampled += 1
            self._wait(decision, 0)

    def change(self, services: Iterable[Service]) -> None:
        """These are the services from now on. Figures of one that is gone, is another one, or has
        another control arm, are forgotten."""
        before, self._services = self._services, {service.id: service for service in services}
        for number in list(self.by_service):
            if _compared(before.get(number)) != _compared(self._services.get(number)):
                del self.by_service[number]

    async def run(self) -> None:
        """Look at flows that are due, until cancelled."""
        while True:
            for _ in self._looks():
                await asyncio.sleep(0)
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """Look at all that are due now."""
        for _ in self._looks():
            pass

    def _looks(self) -> Iterator[None]:
        looked = 0
        while self._waiting and self._waiting[0][0] <= self._clock():
            _, _, look, decision = heapq.heappop(self._waiting)
            self._look(decision, look)
            looked += 1
            if not looked % STEP:
                yield

    def gain(self, service: int, now_ns: int) -> Gain | None:
        """How much shorter p99 is with the mode than in the control arm, in the last hour."""
        figures = self.by_service.get(service)
        if figures is None or Arm.CONTROL not in figures.arms:
            return None
        mode, control = (figures.arms[arm].newest.merged(now_ns) for arm in Arm)
        return gain(mode, control)

    def _of(self, decision: Decision) -> tuple[ServiceFigures, ArmFigures] | None:
        service = self._services.get(decision.service)
        if service is None:
            return None
        figures = self.by_service.get(service.id)
        if figures is None:
            arms = {
                arm: ArmFigures(Buckets(BOUNDS_NS), Window(), Sampler(SAMPLE_PER_SECOND))
                for arm in Arm
                if arm is Arm.MODE or service.control_arm
            }
            figures = self.by_service[service.id] = ServiceFigures(Buckets(BOUNDS_NS), arms)
        return figures, figures.arms[arm_of(service, decision.key)]

    def _wait(self, decision: Decision, look: int) -> None:
        due_ns = decision.established_ns + LOOKS_MS[look] * 1_000_000
        heapq.heappush(self._waiting, (due_ns, next(self._numbers), look, decision))

    def _look(self, decision: Decision, look: int) -> None:
        figures = self._of(decision)
        first_byte_us = self._first_byte_us(decision)
        if figures is None or first_byte_us is None:
            return
        service, arm = figures
        if not first_byte_us:
            if look + 1 < len(LOOKS_MS):
                self._wait(decision, look + 1)
            else:
                arm.silent += 1
            return
        first_byte_ns = first_byte_us * 1000
        arm.first_byte.add(first_byte_ns)
        arm.newest.add(first_byte_ns, self._clock())
        if arm is service.arms[Arm.MODE] and decision.fppl_ns:
            service.fppl_ns += decision.fppl_ns
            service.first_byte_ns += first_byte_ns

    def _first_byte_us(self, decision: Decision) -> int | None:
        """Since its first packet; 0: none yet; None: the flow is gone, nobody knows."""
        flows = self._tables_of(decision.key.service_addr).flows
        key = abi.pack_flow_key(decision.key)
        raw = flows.read(key)
        if raw is None or abi.unpack_flow_entry(raw).seen_ns != decision.seen_ns:
            return decision.first_data_us or None
        raw = flows.read(abi.peer_key(key, raw))
        return abi.unpack_flow_entry(raw).first_data_us if raw is not None else None


def _compared(service: Service | None) -> tuple[object, ...] | None:
    """What a service's figures are of."""
    if service is None:
        return None
    return service.endpoint, service.mode, service.control_arm, service.control_arm_by
