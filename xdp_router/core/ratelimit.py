# SPDX-License-Identifier: Apache-2.0
"""Token bucket in integer arithmetic. Time is an argument: nothing here reads a clock."""

from __future__ import annotations

NS_PER_S = 1_000_000_000


class TokenBucket:
    """At most ``burst + rate_per_s * seconds`` tokens over any span of time.

    Credit is counted in token-nanoseconds (one token = 10**9), so no fraction of a token is
    ever rounded away or invented. The bucket starts full.
    """

    __slots__ = ("_capacity", "_credit", "_last_ns", "_rate")

    def __init__(self, rate_per_s: int, burst: int, now_ns: int = 0) -> None:
        """Raise ValueError if the rate is negative or the burst is below 1."""
        if rate_per_s < 0 or burst < 1:
            raise ValueError(
                f"token bucket of {rate_per_s}/s, burst {burst}: expected rate >= 0, burst >= 1"
            )
        self._rate = rate_per_s
        self._capacity = burst * NS_PER_S
        self._credit = self._capacity
        self._last_ns = now_ns

    def change(self, rate_per_s: int, burst: int) -> None:
        """Other limits from now on; what has been saved up stays, as far as ``burst`` goes."""
        self._rate = rate_per_s
        self._capacity = burst * NS_PER_S
        self._credit = min(self._credit, self._capacity)

    def _refill(self, now_ns: int) -> None:
        # An instant before the last one (events of two CPUs) earns nothing and costs nothing.
        if now_ns > self._last_ns:
            earned = (now_ns - self._last_ns) * self._rate
            self._credit = min(self._capacity, self._credit + earned)
            self._last_ns = now_ns

    def available(self, now_ns: int) -> int:
        """Whole tokens that could be taken at ``now_ns``."""
        self._refill(now_ns)
        return self._credit // NS_PER_S

    def take(self, now_ns: int) -> bool:
        """Take one token; False, and nothing taken, if there is none."""
        self._refill(now_ns)
        if self._credit < NS_PER_S:
            return False
        self._credit -= NS_PER_S
        return True
