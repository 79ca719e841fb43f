# SPDX-License-Identifier: Apache-2.0
"""How full the maps are that nobody walks for another reason."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.map_specs import MAP_SPECS

from .aging import BATCH, in_batches

EVERY_S = 10.0
_HASHES = (bpf.MapType.HASH, bpf.MapType.LRU_HASH)
_COUNTED_ELSEWHERE = frozenset(
    name + family for name in ("flow_table", "pending_flows", "flood_flows") for family in ("", "6")
)
NAMES = tuple(
    spec.name for spec in MAP_SPECS if spec.type in _HASHES and spec.name not in _COUNTED_ELSEWHERE
)
"""The maps that are counted here; those of flows are counted by the sweep that ages them."""


class MapFill:
    """Counts the entries of hash maps: the kernel keeps no number that could be asked for.

    ``fds``: by the map's name.
    """

    def __init__(self, fds: Mapping[str, int]) -> None:
        self._maps = {name: bpf.BpfMap(fds[name]) for name in NAMES}
        self.entries: dict[str, int] = {}
        """By the map's name, as it was at the newest count."""

    async def count(self) -> None:
        """Count once. Raises BpfError when a map cannot be read."""
        for name, table in self._maps.items():
            entries = 0
            async for batch in in_batches(table.batches(BATCH)):
                entries += batch.count
            self.entries[name] = entries

    async def run(self) -> None:
        """Count until cancelled."""
        while True:
            await self.count()
            await asyncio.sleep(EVERY_S)
