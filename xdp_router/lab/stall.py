# SPDX-License-Identifier: Apache-2.0
"""When a stalling backend stalls: one window at a random place of every period."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .errors import LabError


@dataclass(frozen=True, slots=True)
class Stall:
    """For ``window_ns`` of every ``period_ns``, packets to the backend take ``extra_ns`` longer.

    The place of each window is drawn from ``seed``: the same seed stalls at the same moments
    after the start. Raises LabError for a window that is not within its period.
    """

    extra_ns: int = 50_000_000
    window_ns: int = 200_000_000
    period_ns: int = 500_000_000
    seed: int = 1

    def __post_init__(self) -> None:
        if self.extra_ns < 0 or not 0 < self.window_ns <= self.period_ns:
            raise LabError(
                f"stall of {self.extra_ns} ns for {self.window_ns} of each {self.period_ns} ns: "
                "the window must be longer than 0 and at most one period, the extra not negative"
            )


class StallSchedule:
    """The stall of each instant, for instants that do not go far back."""

    __slots__ = ("_begin_ns", "_end_ns", "_next_period_ns", "_start_ns", "_stall")

    def __init__(self, stall: Stall, start_ns: int) -> None:
        self._stall = stall
        self._start_ns = start_ns
        self._begin_ns = self._end_ns = self._next_period_ns = start_ns

    def window(self, period: int) -> tuple[int, int]:
        """First and past-the-last instant of the window in the given period (0, 1, ...)."""
        stall = self._stall
        slack = stall.period_ns - stall.window_ns
        offset = random.Random(f"{stall.seed}:{period}").randint(0, slack)
        begin = self._start_ns + period * stall.period_ns + offset
        return begin, begin + stall.window_ns

    def extra_ns(self, now_ns: int) -> int:
        """How much longer a packet of that instant takes."""
        if now_ns >= self._next_period_ns:
            period = (now_ns - self._start_ns) // self._stall.period_ns
            self._begin_ns, self._end_ns = self.window(period)
            self._next_period_ns = self._start_ns + (period + 1) * self._stall.period_ns
        return self._stall.extra_ns if self._begin_ns <= now_ns < self._end_ns else 0
