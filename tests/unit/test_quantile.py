# SPDX-License-Identifier: Apache-2.0
"""Percentiles by nearest rank."""

from __future__ import annotations

import pytest

from xdp_router.core.quantile import percentile


@pytest.mark.parametrize(
    ("values", "p0", "p50", "p99", "p100"),
    [
        ([], 0, 0, 0, 0),
        ([7], 7, 7, 7, 7),
        ([2, 1], 1, 1, 2, 2),
        ([*range(100, 50, -1), *range(1, 51)], 1, 50, 99, 100),
        ([0.5, 0.25, 4.0], 0.25, 0.5, 4.0, 4.0),
    ],
)
def test_nearest_rank(values: list[float], p0: float, p50: float, p99: float, p100: float) -> None:
    """Always one of the values, whatever their order; of none it is 0."""
    found = [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)]
    assert found == [p0, p50, p99, p100]
