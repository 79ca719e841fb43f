# SPDX-License-Identifier: Apache-2.0
"""Hands the event budgets each second to the CPUs where SYNs arrive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.bpf_syscall import online_cpus, possible_cpus
from xdp_router.core import abi
from xdp_router.core.event_budget import EventShares

EVERY_S = 1.0


class SharesKeeper:
    """Writes ``event_shares``. Raises BpfError when a map refuses."""

    def __init__(self, maps: Maps, rate: int, is_lost: Callable[[], bool] = lambda: False) -> None:
        """Starts with even shares. ``rate``: events a second of all services.

        ``is_lost``: whether the map is a successor's by now.
        """
        self._is_lost = is_lost
        self._maps = maps
        self._shares = EventShares(online_cpus(), possible_cpus(), rate)
        self._looked_ns = time.monotonic_ns()
        self._shares.begin(maps.tokens.asked(abi.TOKENS_EVENTS))
        self._written = self._shares.scales()
        maps.event_shares.write(self._written)

    def change(self, rate: int) -> None:
        """``rate`` events a second of all services, from the next step on."""
        self._shares.change(rate)

    async def run(self) -> None:
        """Look after the shares until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.step(time.monotonic_ns())

    def step(self, now_ns: int) -> None:
        """Set the shares by what has arrived since the last step."""
        asked = self._maps.tokens.asked(abi.TOKENS_EVENTS)
        scales = self._shares.update(asked, now_ns - self._looked_ns)
        self._looked_ns = now_ns
        if scales != self._written and not self._is_lost():
            self._maps.event_shares.write(scales)
            self._written = scales
