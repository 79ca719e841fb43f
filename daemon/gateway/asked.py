# SPDX-License-Identifier: Apache-2.0
"""What a worker says of the backends it has asked: how many requests are there, how long first
tokens take there, and who is silent now.

Three things make up the time that is expected of a backend:

* a mean of what winners took, in which one sample counts for twice the mean at most: a stall that
  is over says little of what comes;
* how long somebody was silent whose leg was given up (or what a winner took beyond that), which is
  believed less and less over ``LATE_NS``;
* how long the oldest request that has no token yet has been there: an engine that stands still is
  known for it by the next request, not by the first one that comes to an end.
"""

from __future__ import annotations

from typing import Final

from .board import IN_FLIGHT, LATE, LATE_AT, SILENT_SINCE, TTFT, TTFT_AT, Board

LATE_NS: Final = 2_000_000_000
_SHARE: Final = 4
_MOST: Final = 2
"""Times the mean, that one sample counts for."""


def expected_ns(
    ttft_ns: int | None, late_ns: int, late_at_ns: int, silent_since_ns: int, now_ns: int
) -> int | None:
    """How long the next first token is likely to take; None: nothing is known.

    0 for an instant that there is not.
    """
    left_ns = late_at_ns + LATE_NS - now_ns
    if late_at_ns and left_ns > 0:
        faded_ns = late_ns * left_ns // LATE_NS
        if ttft_ns is None or faded_ns > ttft_ns:
            ttft_ns = faded_ns
    # Of a backend that has never answered, a moment's silence is no time to a first token.
    if silent_since_ns and ttft_ns is not None and now_ns - silent_since_ns > ttft_ns:
        ttft_ns = now_ns - silent_since_ns
    return ttft_ns


class Asked:
    """The worker's own words of the board, by row; ``leg`` is whatever stands for one request."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._silent: dict[int, dict[object, int]] = {}

    def begin(self, row: int, leg: object, now_ns: int, *, owes: bool) -> None:
        """A request is there. ``owes``: a first token is waited for that could come at once."""
        self._board.add_own(row, IN_FLIGHT, 1)
        if owes:
            waiting = self._silent.setdefault(row, {})
            waiting[leg] = now_ns
            if len(waiting) == 1:
                self._board.set_own(row, SILENT_SINCE, now_ns)

    def answered(self, row: int, leg: object) -> None:
        """It has what it was waited for; once more does nothing."""
        waiting = self._silent.get(row)
        if waiting and waiting.pop(leg, None) is not None:
            oldest_ns = next(iter(waiting.values()), 0)
            self._board.set_own(row, SILENT_SINCE, oldest_ns)

    def end(self, row: int, leg: object) -> None:
        """The request is not there any more, whatever became of it."""
        self._board.add_own(row, IN_FLIGHT, -1)
        self.answered(row, leg)

    def took(self, row: int, took_ns: int, now_ns: int) -> None:
        """A winner had its first token after so long."""
        board = self._board
        before_ns = board.own(row, TTFT)
        sample_ns = took_ns
        if before_ns and took_ns > _MOST * before_ns:
            sample_ns = _MOST * before_ns
            self._late(row, took_ns, now_ns)
        mean_ns = before_ns + (sample_ns - before_ns) // _SHARE if before_ns else took_ns
        board.set_own(row, TTFT, mean_ns)
        board.set_own(row, TTFT_AT, now_ns)

    def lost(self, row: int, lasted_ns: int, now_ns: int, fresh_ns: int) -> None:
        """A leg was given up that had no token by then: it takes that long, or longer.

        Who never wins would count as one of whom nothing is known, and be asked first: if the
        mean is older than ``fresh_ns`` that is the mean from now on.
        """
        board = self._board
        self._late(row, lasted_ns, now_ns)
        if board.own(row, TTFT_AT) < now_ns - fresh_ns:
            board.set_own(row, TTFT, lasted_ns)
            board.set_own(row, TTFT_AT, now_ns)

    def _late(self, row: int, late_ns: int, now_ns: int) -> None:
        board = self._board
        left_ns = board.own(row, LATE_AT) + LATE_NS - now_ns
        if left_ns <= 0 or board.own(row, LATE) * left_ns // LATE_NS < late_ns:
            board.set_own(row, LATE, late_ns)
            board.set_own(row, LATE_AT, now_ns)
