# SPDX-License-Identifier: Apache-2.0
"""The score of each candidate, from 0 (worst) to 1, by what is known of all of them.

    S = rtt*(RTTmin/RTT) + ttft*(TTFTmin/TTFT) + cache*hit_rate + queue*(1 - Queue/Queuemax)
        + usage*(1 - usage_of_its_cache)

The weights of the terms add up to 1. A term that nothing was measured for drops out, for that
candidate, and its other weights are rescaled.

Picks go by the *square* of the score. With the score itself fifteen backends that are 20 ms
away would get a tenth of the connections beside one that is 0.1 ms away, each only 1/200 of
its share; the square gives them a thousandth, and equals still share as equals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .model import ScoreWeights


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of one candidate; None: nothing. Times in ns, hit rate and usage 0 to 1."""

    rtt_ns: int | None = None
    ttft_ns: int | None = None
    cache: float | None = None
    queue: float | None = None
    usage: float | None = None
    sources: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """By name of what is told above, who has told it."""

    @property
    def is_told(self) -> bool:
        """Whether anything but the round trip is known."""
        told = self.ttft_ns, self.cache, self.queue, self.usage
        return any(each is not None for each in told)


@dataclass(frozen=True, slots=True)
class Terms:
    """One candidate's score, and what it was made of; None: a term that dropped out."""

    score: float
    rtt: float | None = None
    ttft: float | None = None
    cache: float | None = None
    queue: float | None = None
    usage: float | None = None


class Comparable(Protocol):
    """Whatever has what a score is made of, as :class:`Measured` has it."""

    @property
    def rtt_ns(self) -> int | None:
        """Round trip."""

    @property
    def ttft_ns(self) -> int | None:
        """Time to the first token."""

    @property
    def cache(self) -> float | None:
        """Hit rate."""

    @property
    def queue(self) -> float | None:
        """Requests there."""

    @property
    def usage(self) -> float | None:
        """Of its cache."""


Row = tuple[float, float | None, float | None, float | None, float | None, float | None]
"""The fields of :class:`Terms`."""


def scores(
    candidates: Sequence[Comparable], weights: ScoreWeights, noise_ns: int = 0
) -> list[Terms]:
    """The score of each. Round trips that differ by no more than ``noise_ns`` are equal.

    A candidate of which nothing is known has 0.
    """
    return [Terms(*row) for row in term_rows(candidates, weights, noise_ns)]


def term_rows(
    candidates: Sequence[Comparable], weights: ScoreWeights, noise_ns: int = 0
) -> list[Row]:
    """The same as :func:`scores`, a few times quicker: for whom decides for each request."""
    least_rtt = _least(each.rtt_ns for each in candidates)
    least_ttft = _least(each.ttft_ns for each in candidates)
    queues = [each.queue for each in candidates]
    most_queue = max((queue for queue in queues if queue is not None), default=0.0)
    out: list[Row] = []
    for each, length in zip(candidates, queues, strict=True):
        rtt = _ratio(least_rtt, each.rtt_ns, noise_ns)
        ttft = _ratio(least_ttft, each.ttft_ns, 0)
        cache, queue, usage = each.cache, None, None
        total = of = 0.0
        if rtt is not None:
            total += rtt * weights.rtt
            of += weights.rtt
        if ttft is not None:
            total += ttft * weights.ttft
            of += weights.ttft
        if cache is not None:
            total += cache * weights.cache
            of += weights.cache
        if length is not None:
            queue = 1.0 - length / most_queue if most_queue else 1.0
            total += queue * weights.queue
            of += weights.queue
        if each.usage is not None:
            usage = 1.0 - each.usage
            total += usage * weights.usage
            of += weights.usage
        out.append((total / of if of else 0.0, rtt, ttft, cache, queue, usage))
    return out


def pick_weights(scored: Sequence[Terms], weights: Sequence[float]) -> list[float]:
    """How often each is to be picked, in proportion. ``weights``: as configured.

    If nobody has a score, the weights alone decide.
    """
    return shares([each.score for each in scored], weights)


def shares(scored: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The same as :func:`pick_weights`, of bare scores."""
    found = [weight * score * score for score, weight in zip(scored, weights, strict=True)]
    return found if any(found) else [float(weight) for weight in weights]


def _least(values: Iterable[int | None]) -> int:
    return min((value for value in values if value is not None), default=0)


def _ratio(least: int, value: int | None, noise: int) -> float | None:
    if value is None:
        return None
    value = max(least, value - noise)
    return least / value if value else 1.0
