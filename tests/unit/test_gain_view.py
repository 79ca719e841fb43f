# SPDX-License-Identifier: Apache-2.0
"""A gain as plain data."""

from __future__ import annotations

from xdp_router.daemon.gain_view import gain_view
from xdp_router.measure.experiment import Gain, Interval


def test_bounds_may_be_missing() -> None:
    """With few values one of them is; all in milliseconds."""
    found = Gain(Interval(1_234_567, None, 2_000_000), 2.346, None, 3.0)
    assert gain_view(found) == {
        "gain_ms": {"estimate": 1.235, "low": None, "high": 2.0},
        "ratio": {"estimate": 2.35, "low": None, "high": 3.0},
    }
