# SPDX-License-Identifier: Apache-2.0
"""Predictions of what is in an engine's prefix cache against what the engine counts itself.

Predicted is the share of the bytes of prompts that went there, legs that lost included, that were
thought to be in its cache; measured is by how much its counters of hits have grown for each query
(vLLM counts tokens). Nothing is corrected by that: it tells an operator whether ``cache_blocks``
fits what engines have room for, and whether others than this gateway use them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from xdp_router.core.listeners import GatewayConfig
from xdp_router.measure.window import Earlier

from .totals import Figures

PROMPTS: Final = "prompt_bytes_total"
PREDICTED: Final = "predicted_bytes_total"
_SLICES: Final = 10
_SLICE_NS: Final = 60_000_000_000

_Sums = Mapping[str, tuple[float, float, float, float]]


class CacheCheck:
    """Of all backends, by their addresses, in the last ten minutes."""

    def __init__(self, now_ns: int) -> None:
        self.counted: dict[str, tuple[float, float]] = {}
        """Hits and queries that engines have counted since they were asked first."""
        self._now: _Sums = {}
        self._then: _Sums = {}
        self._earlier: Earlier[_Sums] = Earlier({}, now_ns, _SLICES, _SLICE_NS)

    def measured(self, address: str, hits: float, queries: float) -> None:
        """An engine has counted so much more."""
        before = self.counted.get(address, (0.0, 0.0))
        self.counted[address] = before[0] + hits, before[1] + queries

    def keep_only(self, addresses: Collection[str]) -> None:
        """Nobody asks the others any more."""
        self.counted = {name: each for name, each in self.counted.items() if name in addresses}

    def look(self, config: GatewayConfig, figures: Figures, now_ns: int) -> None:
        """These are the sums over all workers now."""
        sums: dict[str, tuple[float, float, float, float]] = {}
        predicted, prompts = (
            {(labels[0], labels[1]): value for labels, value in figures.get(name, ())}
            for name in (PREDICTED, PROMPTS)
        )
        for listener in config.listeners:
            for backend in listener.backends:
                address, key = str(backend.address), (listener.name, backend.name)
                hits, queries = self.counted.get(address, (0.0, 0.0))
                before = sums.get(address, (0.0, 0.0, 0.0, 0.0))
                sums[address] = (
                    before[0] + predicted.get(key, 0),
                    before[1] + prompts.get(key, 0),
                    hits,
                    queries,
                )
        self._now = sums
        self._then = self._earlier.note(sums, now_ns)

    def shares(self, address: str) -> tuple[float | None, float | None]:
        """Predicted and measured, from 0 to 1; None: there is nothing to tell it by."""
        none = (0.0, 0.0, 0.0, 0.0)
        now, then = self._now.get(address, none), self._then.get(address, none)
        hit, of, hits, queries = (a - b for a, b in zip(now, then, strict=True))
        return _share(hit, of), _share(hits, queries)

    def view(self, address: str) -> dict[str, Any] | None:
        """For the list of backends; None: the engine counts nothing that could be compared."""
        predicted, measured = self.shares(address)
        if address not in self.counted:
            return None
        return {
            "predicted": None if predicted is None else round(predicted, 4),
            "measured": None if measured is None else round(measured, 4),
        }


def _share(part: float, whole: float) -> float | None:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else None
