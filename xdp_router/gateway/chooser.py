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
from collections.abc import Callable, Sequence
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


@dataclass(slots=True)
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


Look = Callable[[Sequence[int]], list[Known]]
"""What is known of these backends at the moment of the call."""


class Order:
    """The candidates of one request, best first; those that are not available come last.

    ``first`` is there at once. The others are put in order when one of them is asked for, by what
    is known then: most requests never need them. ``known``: those that were looked at for the
    first one. ``control``: the request is of the control arm.
    """

    __slots__ = (
        "first",
        "known",
        "control",
        "_chooser",
        "_candidates",
        "_look",
        "_rest",
        "_urgency",
    )

    def __init__(
        self,
        chooser: Chooser,
        candidates: Sequence[int],
        look: Look,
        urgency: float,
        draws: tuple[float, float, float],
    ) -> None:
        self._chooser = chooser
        self._candidates = candidates
        self._look: Look | None = look
        self._urgency = urgency
        self._rest: list[int] | None = None
        self.control, self.first, self.known = chooser.pick(candidates, look, urgency, draws)

    def __len__(self) -> int:
        return len(self._candidates)

    def __getitem__(self, place: int) -> int:
        """Index of a backend. Raises IndexError beyond the last one, and after ``settle``."""
        if not place:
            return self.first
        if self._rest is None:
            if self._look is None:
                raise IndexError(f"place {place} of an order that is settled")
            others = [each for each in self._candidates if each != self.first]
            self._rest = self._chooser.ranked(self._look(others), self._urgency)
        return self._rest[place - 1]

    @property
    def cached(self) -> float:
        """How much of the prompt the first one has in its cache, as far as is known: 0 to 1."""
        return next((each.cache or 0.0 for each in self.known if each.index == self.first), 0.0)

    def settle(self) -> None:
        """Nobody else is asked any more; ``told`` stays."""
        self._look = None

    def told(self) -> list[tuple[int, Terms, int]]:
        """Of each that was looked at first: index, the terms of its score, requests in flight."""
        terms = self._chooser.terms(self.known, self._urgency)
        return [
            (each.index, of, each.in_flight) for each, of in zip(self.known, terms, strict=True)
        ]


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
        self,
        candidates: Sequence[int],
        look: Look,
        urgency: float,
        draws: tuple[float, float, float],
    ) -> Order:
        """All of ``candidates``, of which there is one at least.

        ``urgency``: how much more the terms of latency count. ``draws``: random numbers from 0
        to 1, below 1.
        """
        return Order(self, candidates, look, urgency, draws)

    def pick(
        self,
        candidates: Sequence[int],
        look: Look,
        urgency: float,
        draws: tuple[float, float, float],
    ) -> tuple[bool, int, list[Known]]:
        """Whether it is of the control arm, who comes first, and who was looked at for that."""
        turn = draws[2]
        if self._arm and turn * 100 < self._arm:
            known = look(candidates)
            usable = [each.index for each in known if each.available] or list(candidates)
            self._turn += 1
            return True, usable[self._turn % len(usable)], known
        if self._mode is Mode.INLINE and len(candidates) > 1:
            one = int(draws[0] * len(candidates))
            other = int(draws[1] * (len(candidates) - 1))
            other += other >= one
            known = look((candidates[one], candidates[other]))
            usable_two = [each for each in known if each.available]
            if usable_two:
                return False, min(usable_two, key=_cost).index, known
        if self._arm:  # what is left of the draw, from 0 on again
            turn = (turn * 100 - self._arm) / (100 - self._arm)
        turned = int(turn * len(candidates))
        # Equals in another order each time: the first of the file would get all otherwise.
        known = look([*candidates[turned:], *candidates[:turned]])
        if self._mode is Mode.SNAPSHOT and self._policy is Policy.SCORE:
            return False, self._by_chance(known, urgency, draws[0]), known
        return False, self.ranked(known, urgency)[0], known

    def terms(self, known: Sequence[Known], urgency: float) -> list[Terms]:
        """What each one's score is made of, among these."""
        measured = [
            Measured(each.rtt_ns, each.ttft_ns, each.cache, each.load, each.usage) for each in known
        ]
        return scores(measured, _urgent(self._weights, urgency), self._noise_ns)

    def ranked(self, known: Sequence[Known], urgency: float) -> list[int]:
        """By the policy; equals as they are."""
        if self._policy is Policy.HCL:
            loads = [Load(math.ceil(each.load), _latency(each) or None) for each in known]
            self._in_flight.note(loads)
            found = [known[at] for at in hcl(loads, self._hot_line(loads))]
            return [each.index for each in sorted(found, key=lambda each: not each.available)]
        keyed = [
            (not each.available, -of.score, each.load, place)
            for place, (each, of) in enumerate(zip(known, self.terms(known, urgency), strict=True))
        ]
        return [known[each[3]].index for each in sorted(keyed)]

    def _hot_line(self, loads: Sequence[Load]) -> int | None:
        """Of few candidates one that is always busy is itself the quantile of what was seen: more
        than twice what is usual among them is hot as well."""
        line = self._in_flight.line
        usual = sorted(each.in_flight for each in loads)[(len(loads) - 1) // 2]
        return None if line is None else min(line, 2 * usual + 2)

    def _by_chance(self, known: Sequence[Known], urgency: float, draw: float) -> int:
        """In proportion to weight and squared score."""
        usable = [each for each in known if each.available] or known
        shares = pick_weights(self.terms(usable, urgency), [each.weight for each in usable])
        at = draw * sum(shares)
        for each, share in zip(usable, shares, strict=True):
            at -= share
            if at < 0:
                return each.index
        return usable[-1].index


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
