# SPDX-License-Identifier: Apache-2.0
"""Percentiles, one definition for everything that shows some."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def percentile(values: Iterable[Number], share: float) -> Number:
    """Nearest-rank percentile: the smallest value that ``share`` (0 to 1) of all reach at most.

    0 for no values.
    """
    ordered = sorted(values)
    if not ordered:
        return 0
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]
