# SPDX-License-Identifier: Apache-2.0
"""A gain over the control arm as plain data, in milliseconds."""

from __future__ import annotations

from typing import Any

from xdp_router.measure.experiment import Gain, Interval

_NS_PER_MS = 1e6


def gain_view(found: Gain) -> dict[str, Any]:
    """What is gained, and control over mode; a bound is null while there is too little for it."""
    return {
        "gain_ms": _interval(found.difference),
        "ratio": {
            "estimate": _rounded(found.ratio),
            "low": _rounded(found.ratio_low),
            "high": _rounded(found.ratio_high),
        },
    }


def in_ms(nanoseconds: int) -> float:
    """To a microsecond."""
    return round(nanoseconds / _NS_PER_MS, 3)


def _interval(value: Interval) -> dict[str, float | None]:
    return {
        "estimate": in_ms(value.estimate),
        "low": None if value.low is None else in_ms(value.low),
        "high": None if value.high is None else in_ms(value.high),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
