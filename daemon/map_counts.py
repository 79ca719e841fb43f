# SPDX-License-Identifier: Apache-2.0
"""What XDP counts by the numbers of services and backends, when a number gets another owner."""

from __future__ import annotations

import time
from collections.abc import Iterable

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.core import abi
from xdp_router.core.model import Service

from .map_plan import Plan

_NS_PER_S = 1_000_000_000


def fill_budgets(maps: Maps, services: Iterable[Service]) -> None:
    """Give each of the services a whole budget of events."""
    full_ns = time.monotonic_ns() - _NS_PER_S
    for service in services:
        maps.tokens.fill(abi.TOKENS_SERVICE + service.id, 0, full_ns)


def forget_counts(maps: Maps, plan: Plan) -> None:
    """Nothing is known yet of the services and backends that are new: who had their numbers
    before may have left something."""
    for service in plan.new:
        maps.pressure.reset(service.id)
        maps.usage.reset(service.id)
        maps.pick_tables.reset(service.id)
    for backend in plan.new_backends:
        maps.backend_loads.reset(backend)
        maps.backend_signs.reset(backend)
        maps.traffic.reset(backend)
