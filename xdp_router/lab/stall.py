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
    after the start.

    ``one_of`` backends may share a seed, each with a number of its own (``number``, from 0): in
    each period one of them stalls, drawn from the seed. What was held back at the end of a window
    is delivered within its period as well, so never do two of them stall at once.
    Raises LabError for a window that is not within its period, and a number that is not below
    ``one_of``.
    """

    extra_ns: int = 50_000_000
    window_ns: int = 200_000_000
    period_ns: int = 500_000_000
    seed: int = 1
    one_of: int = 1
    number: int = 0

    def __post_init__(self) -> None:
        if self.extra_ns < 0 or not 0 < self.window_ns <= self.period_ns:
            raise LabError(
                f"stall of {self.extra_ns} ns for {self.window_ns} of each {self.period_ns} ns: "
                "the window must be longer than 0 and at most one period, the extra not negative"
            )
        if not 0 <= self.number < self.one_of:
            raise LabError(f"stalling backend {self.number} of {self.one_of}: count from 0")
        if self.slack_ns < 0:
            raise LabError(
                f"stall of {self.extra_ns} ns for {self.window_ns} of each {self.period_ns} ns, "
                f"one backend of {self.one_of} at a time: window and extra must fit into a period"
            )

    @property
    def slack_ns(self) -> int:
        """How far a window may lie from the begin of its period."""
        held_ns = self.extra_ns if self.one_of > 1 else 0
        return self.period_ns - self.window_ns - held_ns


class StallSchedule:
    """The stall of each instant, for instants that do not go far back."""

    __slots__ = ("_begin_ns", "_end_ns", "_next_period_ns", "_start_ns", "_stall")

    def __init__(self, stall: Stall, start_ns: int) -> None:
        self._stall = stall
        self._start_ns = start_ns
        self._begin_ns = self._end_ns = self._next_period_ns = start_ns

    def window(self, period: int) -> tuple[int, int]:
        """First and past-the-last instant of the window in the given period (0, 1, ...).

        They are the same in a period in which another backend stalls.
        """
        stall = self._stall
        drawn = random.Random(f"{stall.seed}:{period}")
        begin = self._start_ns + period * stall.period_ns + drawn.randint(0, stall.slack_ns)
        turn = drawn.randrange(stall.one_of)
        return begin, begin + (stall.window_ns if turn == stall.number else 0)

    def extra_ns(self, now_ns: int) -> int:
        """How much longer a packet of that instant takes."""
        if now_ns >= self._next_period_ns:
            period = (now_ns - self._start_ns) // self._stall.period_ns
            self._begin_ns, self._end_ns = self.window(period)
            self._next_period_ns = self._start_ns + (period + 1) * self._stall.period_ns
        return self._stall.extra_ns if self._begin_ns <= now_ns < self._end_ns else 0
