# SPDX-License-Identifier: Apache-2.0
"""What somebody tells of a backend by a control socket (``push``), checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdp_router.adapters.control import CommandError

_PUSHED: dict[str, tuple[str, float, float, float]] = {
    "ttft_ms": ("ttft_ns", 1e6, 0.0, 3_600_000.0),
    "cache_hit": ("cache", 1.0, 0.0, 1.0),
    "queue": ("queue", 1.0, 0.0, 1e9),
    "cache_usage": ("usage", 1.0, 0.0, 1.0),
}
"""By argument: what the score calls it, its unit, the least and the most that it may be."""
INPUT_NAMES = {"ttft_ns": "ttft_ms", "cache": "cache_hit", "queue": "queue", "usage": "cache_usage"}
"""What scores call an input, and what whoever looks or tells calls it."""
METRIC_NAMES = {**INPUT_NAMES, "ttft_ns": "ttft_seconds"}
"""The same in metrics, in base units."""


def read_pushed(args: Mapping[str, Any], backend: str) -> tuple[dict[str, float], dict[str, float]]:
    """What is told of ``backend``: any of ``queue``, ``ttft_ms``, ``cache_hit``, ``cache_usage``;
    and the same as scores call it. Raises CommandError."""
    unknown = sorted(set(args) - {"backend", *_PUSHED})
    if unknown:
        raise CommandError(f"{unknown[0]}: expected one of {', '.join(_PUSHED)}")
    told = {name: _number(name, args[name]) for name in _PUSHED if args.get(name) is not None}
    if not told:
        raise CommandError(f"nothing is told of {backend}: expected {', '.join(_PUSHED)}")
    return told, {_PUSHED[name][0]: value * _PUSHED[name][1] for name, value in told.items()}


def shown_input(name: str, value: float) -> float:
    """In the unit in which it is told."""
    return round(value / 1e6, 3) if name == "ttft_ns" else value


def _number(name: str, value: object) -> float:
    _, _, least, most = _PUSHED[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise CommandError(f"{name}: found {value!r}, expected a number from {least:g} to {most:g}")
    return float(value)
