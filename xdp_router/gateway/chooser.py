# SPDX-License-Identifier: Apache-2.0
"""In which order the candidates of a request are asked, by what is known of them now.

* ``race``: by policy; the first few are raced.
* ``snapshot``: one by chance, in proportion to weight and squared score, then by policy.
* ``inline``: the better of two that are picked at random (power of two choices), then by policy.

Policies: ``score`` (:mod:`xdp_router.core.score`), and ``hcl`` (:mod:`.hot_cold`), which leaves
the busy ones alone and takes the quickest of the others.

Of many candidates those are compared that :mod:`.candidates` looks at: the former best ones, some
of the others in turn, and those that have the prompt in their caches. Whoever is not available is
only taken when nobody is, which is looked for among all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from xdp_router.core.listeners import Listener, ListenerKind, Policy
from xdp_router.core.model import Mode, ScoreWeights
from xdp_router.core.score import Terms, scores, shares, term_rows

from .candidates import LOOKED_AT, Candidates
from .hot_cold import InFlightWindow, Load, hcl

PLACES: Final = 32
"""Nobody beyond is ever asked: as many as `candidates` and `retries` of a race may be together."""

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

    @property
    def queue(self) -> float | None:
        """The load, as the term of a score."""
        return (self.in_flight + self.waiting) / self.weight


class Sight(Protocol):
    """What can be known of backends at this moment. ``blocks``: of the prompt."""

    def known(self, backends: Sequence[int], blocks: Sequence[int]) -> list[Known]:
        """Of each, in this order."""

    def available(self, backends: Iterable[int], most: int) -> list[int]:
        """The first ones of these that are available."""

    def holders(self, blocks: Sequence[int]) -> Sequence[int]:
        """A few of those that have the most of a prompt in their caches."""


class Order:
    """The candidates of one request, best first; those that are not available come last.

    ``first`` is there at once. The others are put in order when one of them is asked for, by what
    is known then: most requests never need them. ``known``: those that were looked at for the
    first one. ``control``: the request is of the control arm.
    """

    __slots__ = (
        "first", "known", "control",
        "_chooser", "_candidates", "_sight", "_blocks", "_placed", "_urgency",
    )  # fmt: skip

    def __init__(
        self,
        chooser: Chooser,
        candidates: Candidates,
        sight: Sight,
        blocks: Sequence[int],
        urgency: float,
        draws: tuple[float, float, float],
    ) -> None:
        self._chooser = chooser
        self._candidates = candidates
        self._sight: Sight | None = sight
        self._blocks = blocks
        self._urgency = urgency
        self.control, self.first, self.known = chooser.pick(
            candidates, sight, blocks, urgency, draws
        )
        self._placed = [self.first]

    def __len__(self) -> int:
        """As many as can be asked for one request."""
        return min(len(self._candidates), PLACES)

    def __getitem__(self, place: int) -> int:
        """Index of a backend. Raises IndexError beyond the last one, and after ``settle``."""
        while place >= len(self._placed):
            if self._sight is None:
                raise IndexError(f"place {place} of an order that is settled")
            if place >= len(self):
                raise IndexError(f"place {place} of {len(self)}")
            self._placed += self._chooser.following(
                self._candidates, self._placed, self._sight, self._blocks, self._urgency
            )
        return self._placed[place]

    @property
    def cached(self) -> float:
        """How much of the prompt the first one has in its cache, as far as is known: 0 to 1."""
        return self.cached_by(self.first) or 0.0

    def cached_by(self, index: int) -> float | None:
        """The same of any; None: it was not looked at, or nothing is known."""
        return next((each.cache for each in self.known if each.index == index), None)

    def settle(self) -> None:
        """Nobody else is asked any more; ``told`` stays."""
        self._sight = None
        self._blocks = ()

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
        self._in_flight = InFlightWindow()

    def order(
        self,
        candidates: Candidates,
        sight: Sight,
        blocks: Sequence[int],
        urgency: float,
        draws: tuple[float, float, float],
    ) -> Order:
        """All of ``candidates``, or the best of many.

        ``urgency``: how much more the terms of latency count. ``draws``: random numbers from 0
        to 1, below 1.
        """
        return Order(self, candidates, sight, blocks, urgency, draws)

    def pick(
        self,
        candidates: Candidates,
        sight: Sight,
        blocks: Sequence[int],
        urgency: float,
        draws: tuple[float, float, float],
    ) -> tuple[bool, int, list[Known]]:
        """Whether it is of the control arm, who comes first, and who was looked at for that."""
        turn = draws[2]
        if self._arm and turn * 100 < self._arm:
            return True, *_in_turn(candidates, sight, blocks, draws[0])
        size = len(candidates)
        if self._mode is Mode.INLINE and size > 1:
            one = int(draws[0] * size)
            other = int(draws[1] * (size - 1))
            other += other >= one
            known = sight.known((candidates.indices[one], candidates.indices[other]), blocks)
            better, second = known
            if not better.available or (second.available and _cost(second) < _cost(better)):
                better = second
            if better.available:
                return False, better.index, known
        if self._arm:  # what is left of the draw, from 0 on again
            turn = (turn * 100 - self._arm) / (100 - self._arm)
        known, alone = _looked(candidates, sight, blocks, turn)
        if self._mode is Mode.SNAPSHOT and self._policy is Policy.SCORE:
            first = self._by_chance(candidates, known, alone, urgency, draws[0])
        else:
            # Equals in another order each time: the first of the file would get all otherwise.
            turned = int(turn * len(known))
            fair = known if candidates.are_few else known[alone:]
            ranked = self._ranked([*known[turned:], *known[:turned]], urgency, fair)
            first = ranked[0].index
            if not candidates.are_few:
                candidates.keep([each.index for each in ranked if each.available])
        return False, first, known

    def following(
        self,
        candidates: Candidates,
        placed: Sequence[int],
        sight: Sight,
        blocks: Sequence[int],
        urgency: float,
    ) -> list[int]:
        """Who comes behind those that have their places: one at least, if anybody is left. Of many
        not all, but nobody who is not available before all that are."""
        if candidates.are_few:
            others = [each for each in candidates.indices if each not in placed]
            known = sight.known(others, blocks)
        else:
            indices, _ = candidates.chosen(0.0, sight.holders(blocks), placed)
            known = sight.known(indices, blocks)
            usable = [each for each in known if each.available]
            if not usable:
                rest = (each for each in candidates.walk() if each not in placed)
                found = sight.available(rest, LOOKED_AT)
                usable = sight.known(found, blocks)
            known = usable or known
        return [each.index for each in self._ranked(known, urgency, known)]

    def terms(self, known: Sequence[Known], urgency: float) -> list[Terms]:
        """What each one's score is made of, among these."""
        return scores(known, _urgent(self._weights, urgency), self._noise_ns)

    def _scores(self, known: Sequence[Known], urgency: float) -> list[float]:
        rows = term_rows(known, _urgent(self._weights, urgency), self._noise_ns)
        return [row[0] for row in rows]

    def _ranked(self, known: Sequence[Known], urgency: float, fair: Sequence[Known]) -> list[Known]:
        """By the policy; equals as they are. ``fair``: those that tell what is usual."""
        if self._policy is Policy.HCL:
            usual = [_load(each) for each in fair]
            self._in_flight.note(usual)
            loads = usual if known is fair else [_load(each) for each in known]
            ranked = [known[at] for at in hcl(loads, self._hot_line(usual))]
            return sorted(ranked, key=lambda each: not each.available)
        keyed = [
            (not each.available, -score, each.load, place)
            for place, (each, score) in enumerate(
                zip(known, self._scores(known, urgency), strict=True)
            )
        ]
        return [known[each[3]] for each in sorted(keyed)]

    def _hot_line(self, loads: Sequence[Load]) -> int | None:
        """Of few candidates one that is always busy is itself the quantile of what was seen: more
        than twice what is usual among them is hot as well."""
        line = self._in_flight.line
        if line is None or not loads:
            return line
        usual = sorted(each.in_flight for each in loads)[(len(loads) - 1) // 2]
        return min(line, 2 * usual + 2)

    def _by_chance(
        self,
        candidates: Candidates,
        known: list[Known],
        alone: int,
        urgency: float,
        draw: float,
    ) -> int:
        """In proportion to weight and squared score.

        Of many, each of the walk stands for as many as were not looked at.
        """
        stands_for = 1.0
        if alone < len(known):
            stands_for = (len(candidates) - alone) / (len(known) - alone)
        usable: list[Known] = []
        weights: list[float] = []
        for place, each in enumerate(known):
            if each.available:
                usable.append(each)
                weights.append(each.weight if place < alone else each.weight * stands_for)
        if not usable:
            usable, weights = known, [float(each.weight) for each in known]
        scored = self._scores(usable, urgency)
        if not candidates.are_few:
            own = shares(scored, [each.weight for each in usable])
            best = sorted(range(len(own)), key=own.__getitem__, reverse=True)
            candidates.keep([usable[at].index for at in best if usable[at].available])
        found = shares(scored, weights)
        at = draw * sum(found)
        for each, share in zip(usable, found, strict=True):
            at -= share
            if at < 0:
                return each.index
        return usable[-1].index


def _looked(
    candidates: Candidates, sight: Sight, blocks: Sequence[int], draw: float
) -> tuple[list[Known], int]:
    """What is known of those that are looked at, among whom is one that is available if anybody
    is; and how many of them, from the first on, stand for nobody else."""
    if candidates.are_few:
        known = sight.known(candidates.indices, blocks)
        return known, len(known)
    indices, alone = candidates.chosen(draw, sight.holders(blocks))
    known = sight.known(indices, blocks)
    if not any(each.available for each in known):
        found = sight.available(candidates.walk(), LOOKED_AT)
        if found:
            known, alone = sight.known(found, blocks), len(found)
    return known, alone


def _in_turn(
    candidates: Candidates, sight: Sight, blocks: Sequence[int], draw: float
) -> tuple[int, list[Known]]:
    """Whose turn it is, of those that are available if there are any; and who was looked at."""
    known = sight.known(candidates.in_turn(draw), blocks)
    found = next((each.index for each in known if each.available), None)
    if found is None and not candidates.are_few:
        beyond = sight.available(candidates.all_in_turn(), 1)
        known += sight.known(beyond, blocks)
        found = beyond[0] if beyond else None
    if found is None:
        found = known[0].index
    candidates.had_turn(found)
    return found, known


def _cost(each: Known) -> tuple[float, float]:
    """What a request there has to expect: its latency for each one that is before it."""
    load = each.load
    return (load + 1) * (each.ttft_ns or each.rtt_ns or 1), load


def _load(each: Known) -> Load:
    return Load(math.ceil(each.load), _latency(each) or None)


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
