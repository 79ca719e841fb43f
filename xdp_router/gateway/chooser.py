# SPDX-License-Identifier: Apache-2.0
"""In which order the candidates of a request are asked, by what is known of them now.

* ``race``: by policy; the first few are raced.
* ``snapshot``: one by chance, in proportion to weight and squared score, then by policy.
* ``inline``: the better of two that are picked at random (power of two choices), then by policy.

Policies: ``score`` (:mod:`xdp_router.core.score`), and ``hcl`` (:mod:`.hot_cold`), which leaves
the busy ones alone and takes the quickest of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdp_router.core.listeners import Listener, ListenerKind, Policy
from xdp_router.core.model import Mode, ScoreWeights
from xdp_router.core.score import Measured, Terms, pick_weights, scores

from .hot_cold import InFlightWindow, Load, hcl

NOISE_NS = {
    ListenerKind.TLS: 100_000,
    ListenerKind.HTTP: 300_000,
    ListenerKind.LLM: 2_000_000,
}
"""Round trips that differ by no more are equal: what a probe takes beside the way itself, and what
is nothing beside the time to a first token."""


@dataclass(frozen=True, slots=True)
class Known:
    """One candidate. ``available``: whether it is well, and has not asked to be left alone."""

    index: int
    weight: int
    in_flight: int
    rtt_ns: int | None = None
    ttft_ns: int | None = None
    cache: float | None = None
    usage: float | None = None
    waiting: float = 0.0
    available: bool = True

    @property
    def load(self) -> float:
        """Requests there and waiting there, by weight."""
        return (self.in_flight + self.waiting) / self.weight


@dataclass(frozen=True, slots=True)
class Order:
    """Candidates, the first one first, and the terms of each (by index) that decided."""

    indices: tuple[int, ...]
    terms: dict[int, Terms]
    control: bool = False


class Chooser:
    """Of one listener in one worker."""

    def __init__(self, listener: Listener) -> None:
        self._mode = listener.mode
        self._policy = listener.policy
        self._weights = listener.score
        self._arm = listener.control_arm
        self._noise_ns = NOISE_NS[listener.kind]
        self._turn = 0
        self._in_flight = InFlightWindow()

    def order(
        self, candidates: Sequence[Known], urgency: float, draws: tuple[float, float, float]
    ) -> Order:
        """All candidates, best first; those that are not available come last.

        ``urgency``: how much more the terms of latency count. ``draws``: random numbers from 0
        to 1, below 1.
        """
        terms = scores(
            [
                Measured(each.rtt_ns, each.ttft_ns, each.cache, each.load, each.usage)
                for each in candidates
            ],
            _urgent(self._weights, urgency),
            self._noise_ns,
        )
        by_index = {each.index: term for each, term in zip(candidates, terms, strict=True)}
        if self._arm and draws[2] * 100 < self._arm:
            return Order(self._in_turn(candidates), by_index, control=True)
        ranked = self._ranked(candidates, by_index, draws[2])
        first = self._first(candidates, by_index, draws)
        if first is not None:
            ranked = [first, *(each for each in ranked if each != first)]
        return Order(tuple(ranked), by_index)

    def _in_turn(self, candidates: Sequence[Known]) -> tuple[int, ...]:
        self._turn += 1
        usable = [each.index for each in candidates if each.available]
        others = [each.index for each in candidates if not each.available]
        at = self._turn % len(usable) if usable else 0
        return (*usable[at:], *usable[:at], *others)

    def _ranked(
        self, candidates: Sequence[Known], terms: dict[int, Terms], draw: float
    ) -> list[int]:
        # Equals in another order each time: the first of the file would get all otherwise.
        turned = math.floor(draw * len(candidates))
        shuffled = [*candidates[turned:], *candidates[:turned]]
        if self._policy is Policy.HCL:
            loads = [Load(math.ceil(each.load), _latency(each) or None) for each in shuffled]
            self._in_flight.note(loads)
            ranked = [shuffled[at] for at in hcl(loads, self._hot_line(loads))]
            return [each.index for each in sorted(ranked, key=lambda each: not each.available)]
        return [
            each.index
            for each in sorted(
                shuffled,
                key=lambda each: (not each.available, -terms[each.index].score, each.load),
            )
        ]

    def _hot_line(self, loads: Sequence[Load]) -> int | None:
        """Of few candidates one that is always busy is itself the quantile of what was seen: more
        than twice what is usual among them is hot as well."""
        line = self._in_flight.line
        usual = sorted(each.in_flight for each in loads)[(len(loads) - 1) // 2]
        return None if line is None else min(line, 2 * usual + 2)

    def _first(
        self,
        candidates: Sequence[Known],
        terms: dict[int, Terms],
        draws: tuple[float, float, float],
    ) -> int | None:
        usable = [each for each in candidates if each.available]
        if len(usable) < 2 or self._mode is Mode.RACE:
            return None
        if self._mode is Mode.SNAPSHOT and self._policy is Policy.SCORE:
            shares = pick_weights(
                [terms[each.index] for each in usable], [each.weight for each in usable]
            )
            at = draws[0] * sum(shares)
            for each, share in zip(usable, shares, strict=True):
                at -= share
                if at < 0:
                    return each.index
            return usable[-1].index
        if self._mode is Mode.INLINE:
            one = math.floor(draws[0] * len(usable))
            other = math.floor(draws[1] * (len(usable) - 1))
            other += other >= one
            return min(usable[one], usable[other], key=_cost).index
        return None


def _cost(each: Known) -> tuple[float, float]:
    """What a request there has to expect: its latency for each one that is before it."""
    return (each.load + 1) * (_latency(each) or 1), each.load


def _latency(each: Known) -> int:
    return each.ttft_ns or each.rtt_ns or 0


def _urgent(weights: ScoreWeights, urgency: float) -> ScoreWeights:
    if urgency == 1.0:
        return weights
    rtt, ttft = weights.rtt * urgency, weights.ttft * urgency
    total = rtt + ttft + weights.cache + weights.queue + weights.usage
    if not total:
        return weights
    return ScoreWeights(
        rtt / total,
        ttft / total,
        weights.cache / total,
        weights.queue / total,
        weights.usage / total,
    )  # fmt: skip - one line each would say less
