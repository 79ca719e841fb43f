# SPDX-License-Identifier: Apache-2.0
"""A chaos run on one screen, and, where something was unlawful, what happened about it. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .judge import Done, Judge, Rules, Story, Verdict, tally

_FAULTS = 20
_TOLD = 5
_NEAR_S = 3.0
"""Unlawful connections that are told in full."""


@dataclass(slots=True)
class Outcome:
    """All that a run has shown. ``faults`` are what was found beside connections; ``skipped`` are
    troubles for which there was no room when their time came."""

    seed: int
    length_s: float
    started_s: float
    rules: Rules
    troubles: list[Done] = field(default_factory=list)
    skipped: int = 0
    stories: list[Story] = field(default_factory=list)
    explained: dict[int, dict[str, Any]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    counted: list[tuple[float, str, int]] = field(default_factory=list)
    """What the data plane counted that should be rare: when it was seen, by name, how many."""
    figures: dict[str, str] = field(default_factory=dict)

    def verdicts(self) -> list[tuple[Story, Verdict]]:
        """Each connection's."""
        judge = Judge(self.rules, self.troubles)
        return [(story, judge.judge(story)) for story in self.stories]

    @property
    def unlawful(self) -> list[tuple[Story, Verdict]]:
        """Connections that have lost what was promised."""
        return [(story, verdict) for story, verdict in self.verdicts() if not verdict.lawful]


def text(outcome: Outcome) -> str:
    """The report."""
    return "\n".join(_lines(outcome)) + "\n"


def _lines(outcome: Outcome) -> Iterator[str]:
    yield f"chaos: {outcome.length_s:.0f} s, seed {outcome.seed} (CHAOS_SEED={outcome.seed})"
    kinds = Counter(each.trouble.kind.value for each in outcome.troubles)
    yield f"troubles {len(outcome.troubles)}, left out {outcome.skipped}:"
    yield from _columns({name: str(count) for name, count in sorted(kinds.items())})
    verdicts = outcome.verdicts()
    count = Counter(story.kind for story, _ in verdicts)
    octets = sum(story.octets for story, _ in verdicts)
    kept = ", ".join(f"{number} of kind {kind}" for kind, number in sorted(count.items()))
    yield f"connections {len(verdicts)} ({kept}), {octets:,} bytes compared:"
    lawful = tally(verdict for _, verdict in verdicts if verdict.lawful)
    yield from _columns({name: str(number) for name, number in lawful.items()})
    waits = sorted(story.slowest_s for story, _ in verdicts) or [0.0]
    yield (
        f"longest wait for an answer {waits[-1]:.1f} s, of 99 % of connections "
        f"{waits[len(waits) * 99 // 100]:.2f} s"
    )
    judge = Judge(outcome.rules, outcome.troubles)
    late = Counter(judge.late_by(story) for story, _ in verdicts if story.resent)
    causes = ", ".join(f"{number} beside {cause}" for cause, number in sorted(late.items()))
    yield f"SYNs sent again by {late.total()} connections{f': {causes}' * bool(causes)}"
    yield from _columns(outcome.figures)
    rare = Counter[str]()
    for _, name, more in outcome.counted:
        rare[name] += more
    yield from _columns({f"counted as {name}": str(more) for name, more in rare.items()})
    unlawful = [(story, verdict) for story, verdict in verdicts if not verdict.lawful]
    yield f"unlawful: {len(unlawful)} connections, {len(outcome.faults)} other faults"
    for name, number in tally(verdict for _, verdict in unlawful).items():
        yield f"  {number} {name}"
    for fault in outcome.faults[:_FAULTS]:
        yield f"  {fault}"
    for story, verdict in unlawful[:_TOLD]:
        yield from _story(outcome, story, verdict)


def _columns(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield f"  {value:>8}  {name}"


def _story(outcome: Outcome, story: Story, verdict: Verdict) -> Iterator[str]:
    at = outcome.started_s
    yield f"connection {story.number} ({story.kind}, {story.service}): {verdict.reason}"
    yield (
        f"  {story.client} -> {story.host or 'nobody knows'}: began {story.started_s - at:.2f} s, "
        f"{_moment('accepted', story.connected_s, at)}, "
        f"got on last {story.progressed_s - at:.2f} s, "
        f"ended {story.ended_s - at:.2f} s: {story.end.value} {story.detail}"
    )
    yield (
        f"  {story.octets:,} bytes, {story.resent} SYNs sent again, "
        f"slowest answer {story.slowest_s:.2f} s"
    )
    yield "  about that time:"
    for each in Judge(outcome.rules, outcome.troubles).around(story):
        yield f"    {_when(each, at)}  {each.trouble}"
    for seen_s, name, more in outcome.counted:
        if -_NEAR_S <= seen_s - story.ended_s <= _NEAR_S:
            yield f"    {seen_s - at:7.2f}            {name} +{more}"
    known = outcome.explained.get(story.number)
    if known is not None:
        yield f"  what the router says: {json.dumps(known)}"


def _moment(what: str, moment_s: float | None, at_s: float) -> str:
    return f"never {what}" if moment_s is None else f"{what} {moment_s - at_s:.2f} s"


def _when(done: Done, at_s: float) -> str:
    times: Sequence[float | None] = (done.began_s, done.ended_s)
    return " - ".join("       " if each is None else f"{each - at_s:7.2f}" for each in times)
