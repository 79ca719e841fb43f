# SPDX-License-Identifier: Apache-2.0
"""What a worker knows of a listener's backends at the moment in which it is asked: by the board,
and by the prompts that it has seen itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from xdp_router.core.listeners import Listener
from xdp_router.core.model import Mode
from xdp_router.gateway.chooser import Known
from xdp_router.gateway.prefix_cache import PrefixCache

from .asked import expected_ns
from .board import CACHE, ILL, QUEUE, STATE, TOLD_TTFT, USAGE, Board

FRESH_NS = 10_000_000_000
"""How long a first-token time is believed."""
_THOUSANDTHS = 1e-3


class LiveSight:
    """Of one listener. ``rows``: of the board, by backend; ``cache``: None if none is kept."""

    def __init__(
        self,
        listener: Listener,
        board: Board,
        rows: Sequence[int],
        clock: Callable[[], int],
        cache: PrefixCache | None,
    ) -> None:
        self._board = board
        self._rows = rows
        self._clock = clock
        self._cache = cache
        self._weights = [each.weight for each in listener.backends]
        self._told_age_ns = listener.told_age_ns
        self._rtt_fresh_ns = (
            listener.snapshot_age_ns
            if listener.mode is Mode.SNAPSHOT
            else max(listener.snapshot_age_ns, FRESH_NS)
        )

    def known(self, backends: Sequence[int], blocks: Sequence[int]) -> list[Known]:
        """What is known of each; ``blocks``: of the prompt."""
        board, rows, weights, now_ns = self._board, self._rows, self._weights, self._clock()
        fresh_ns, rtt_fresh_ns = now_ns - FRESH_NS, now_ns - self._rtt_fresh_ns
        told_ns = now_ns - self._told_age_ns
        cache = self._cache if blocks else None
        out = []
        for index in backends:
            row = rows[index]
            in_flight, ttft_ns, held_ns, late_ns, late_at_ns, since_ns = board.look(row, fresh_ns)
            rtt_ns, rtt_at_ns, state, told_at_ns = board.probed(row)
            known = Known(index, weights[index], in_flight if in_flight > 0 else 0)
            if late_at_ns or since_ns:
                ttft_ns = expected_ns(ttft_ns, late_ns, late_at_ns, since_ns, now_ns)
            known.ttft_ns = ttft_ns
            known.available = held_ns <= now_ns and state != ILL
            if rtt_at_ns > rtt_fresh_ns:
                known.rtt_ns = rtt_ns or None
            if told_at_ns > told_ns:
                self._hear(known, row, told_ns)
            if cache is not None:
                known.cache = cache.hit(index, blocks)
            out.append(known)
        return out

    def available(self, backends: Iterable[int], most: int) -> list[int]:
        """The first ones that are neither ill nor to be left alone."""
        board, now_ns = self._board, self._clock()
        found: list[int] = []
        for index in backends:
            row = self._rows[index]
            if board.common(row, STATE) != ILL and board.held_until_ns(row) <= now_ns:
                found.append(index)
                if len(found) >= most:
                    break
        return found

    def holders(self, blocks: Sequence[int]) -> Sequence[int]:
        """A few of those that have the most of a prompt."""
        return self._cache.holders(blocks) if blocks and self._cache is not None else ()

    def _hear(self, known: Known, row: int, told_ns: int) -> None:
        """What others say; of a first-token time what was seen here counts before that."""
        board = self._board
        cache, usage = board.told(row, CACHE, told_ns), board.told(row, USAGE, told_ns)
        known.cache = None if cache is None else cache * _THOUSANDTHS
        known.usage = None if usage is None else usage * _THOUSANDTHS
        known.waiting = (board.told(row, QUEUE, told_ns) or 0) * _THOUSANDTHS
        if known.ttft_ns is None:
            known.ttft_ns = board.told(row, TOLD_TTFT, told_ns)
