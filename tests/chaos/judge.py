# SPDX-License-Identifier: Apache-2.0
"""Which connections may have ended, or waited, because of which trouble. Pure.

What is promised: wrong bytes never; an end by the other side only if the connection's own server
was killed; silence only while its server is stopped or a link on its way is down; a new
connection is accepted by its first SYN, or one sent again, unless its way or a flood is in trouble.
A drained or removed backend keeps its connections and gets no new ones; what is done to the daemon
is noticed by nobody.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .cast import BY_NAME, backend_name
from .schedule import FLOODS, OF_BACKEND, OF_DAEMON, OF_HOST, OF_LINK, Kind, Trouble


class End(enum.Enum):
    """How a connection ended, as its client saw it."""

    CLOSED = "closed by its client"
    REFUSED = "refused"
    RESET = "reset"
    EOF = "ended by the other side"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    WRONG = "other bytes than were sent"
    MOVED = "answered by another host"


@dataclass(frozen=True, slots=True)
class Story:
    """What a client tells of one connection (of UDP: of one pair of ports).

    Times are CLOCK_MONOTONIC in seconds. ``host`` is who said to answer, "" if nobody did;
    ``progressed_s``: when its last good bytes came; ``resent``: SYNs beyond the first one;
    ``slowest_s``: the longest wait for an answer.
    """

    number: int
    kind: str
    service: str
    client: str
    host: str
    started_s: float
    connected_s: float | None
    progressed_s: float
    ended_s: float
    resent: int
    octets: int
    slowest_s: float
    end: End
    detail: str = ""


@dataclass(slots=True)
class Done:
    """A trouble that was made: begun from ``began_s`` to ``settled_s``, ended from ``ending_s`` to
    ``ended_s``. None: not yet."""

    trouble: Trouble
    began_s: float
    settled_s: float | None = None
    ending_s: float | None = None
    ended_s: float | None = None

    def touches(self, first_s: float, last_s: float, after_s: float = 0.0) -> bool:
        """Whether it went on at some time from ``first_s`` to ``last_s``, or ``after_s`` before."""
        over_s = self.ended_s
        return self.began_s <= last_s and (over_s is None or over_s + after_s >= first_s)

    @property
    def lasted_s(self) -> float | None:
        """How long it really went on; None: it does yet."""
        return None if self.ended_s is None else self.ended_s - self.began_s


@dataclass(frozen=True, slots=True)
class Rules:
    """Numbers of the promises.

    ``patience_s``: how long a client waits for an answer. ``resent`` SYNs beyond the first are
    enough, ``resent_flood`` in a flood, whose packets fill the wires. ``grace_s``: after a trouble
    its traces may still be seen. ``dead_after_s``: a host that is stopped, or whose link is down,
    for longer may be found dead, and then its connections are ended; None: it never is.
    """

    patience_s: float = 20.0
    resent: int = 1
    resent_flood: int = 3
    grace_s: float = 1.0
    settle_s: float = 0.5
    overrun_s: float = 5.0
    dead_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a connection's life was lawful; ``reason`` in a few words."""

    lawful: bool
    reason: str


@dataclass(slots=True)
class Judge:
    """Judges stories by the troubles so far."""

    rules: Rules
    troubles: list[Done] = field(default_factory=list)

    def judge(self, story: Story) -> Verdict:
        """Whether all that befell a connection is allowed."""
        verdict = self._end(story)
        if not verdict.lawful:
            return verdict
        misled = self._misled(story)
        if misled is not None:
            return misled
        return self._accepted(story) or verdict

    # How it ended

    def _end(self, story: Story) -> Verdict:
        if story.end is End.CLOSED:
            return Verdict(True, "kept")
        if story.end is End.WRONG:
            return Verdict(False, "other bytes than were sent")
        links = self._links(story, story.progressed_s, story.ended_s)
        if story.end is End.UNREACHABLE:
            lawful = story.connected_s is None and bool(links)
            return Verdict(lawful, f"unreachable{': a link was down' * lawful}")
        if self._at_hosts(story, (Kind.KILL,)):
            return Verdict(True, f"{story.end.value}: its server was killed")
        dead_after_s = self.rules.dead_after_s
        if dead_after_s is not None and any(
            each.lasted_s is None or each.lasted_s >= dead_after_s
            for each in self._at_hosts(story, tuple(OF_HOST))
        ):
            return Verdict(True, f"{story.end.value}: its host may have been found dead")
        if story.end is End.SILENT:
            late = [
                each
                for each in (*links, *self._at_hosts(story, (Kind.STALL,)))
                if each.lasted_s is None
                or each.lasted_s > each.trouble.for_s + self.rules.overrun_s
            ]
            if late:
                return Verdict(True, "silent: the trouble lasted longer than it should have")
        return Verdict(False, f"{story.end.value} without a cause")

    def _at_hosts(self, story: Story, kinds: Sequence[Kind]) -> list[Done]:
        """Troubles of the connection's own host (of those that it may have had, if none has said
        its name) since it last got on."""
        hosts = (story.host,) if story.host else BY_NAME[story.service].hosts
        return [
            each
            for each in self.troubles
            if each.trouble.kind in kinds
            and each.trouble.target in hosts
            and each.touches(story.progressed_s, story.ended_s, self.rules.grace_s)
        ]

    def _links(self, story: Story, first_s: float, last_s: float) -> list[Done]:
        """Links on its way that were down."""
        hosts = (story.host,) if story.host else BY_NAME[story.service].hosts
        return [
            each
            for each in self.troubles
            if each.trouble.kind in OF_LINK
            and (each.trouble.kind is Kind.CLIENT_FLAP or each.trouble.target in hosts)
            and each.touches(first_s, last_s, self.rules.grace_s)
        ]

    # How it began

    def _misled(self, story: Story) -> Verdict | None:
        if not story.host or story.connected_s is None:
            return None
        name = backend_name(story.service, story.host)
        for each in self.troubles:
            if each.trouble.kind not in OF_BACKEND or each.trouble.target != name:
                continue
            if each.settled_s is None or each.settled_s + self.rules.settle_s > story.started_s:
                continue
            if each.ending_s is None or each.ending_s >= story.connected_s:
                return Verdict(False, f"new on a backend that was {_participle(each.trouble)}")
        return None

    def _accepted(self, story: Story) -> Verdict | None:
        if story.resent <= self.rules.resent:
            return None
        until_s = story.ended_s if story.connected_s is None else story.connected_s
        if self._links(story, story.started_s, until_s):
            return Verdict(True, "kept: accepted late, a link was down")
        if story.connected_s is None:
            return None  # how it ended says it
        flood = any(
            each.trouble.kind in FLOODS
            and each.touches(story.started_s, until_s, self.rules.grace_s)
            for each in self.troubles
        )
        if flood and story.resent <= self.rules.resent_flood:
            return Verdict(True, "kept: accepted late, in a flood")
        return Verdict(False, f"accepted only after {story.resent + 1} SYNs without a cause")

    # For whoever has to find out

    def late_by(self, story: Story) -> str:
        """What a SYN that was sent again had met, in a word: the likeliest first."""
        until_s = story.ended_s if story.connected_s is None else story.connected_s
        if self._links(story, story.started_s, until_s):
            return "links"
        for kinds, word in ((OF_DAEMON, "the daemon"), (FLOODS, "floods")):
            if any(
                each.trouble.kind in kinds
                and each.touches(story.started_s, until_s, self.rules.grace_s)
                for each in self.troubles
            ):
                return word
        return "nothing"

    def around(self, story: Story, margin_s: float = 3.0) -> Iterator[Done]:
        """What went on about the time when it got on no more."""
        first_s = min(story.progressed_s, story.ended_s) - margin_s
        return (e for e in self.troubles if e.touches(first_s, story.ended_s + margin_s))


def _participle(trouble: Trouble) -> str:
    return "drained" if trouble.kind is Kind.DRAIN else "removed"


def tally(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many there are of each reason, the most first."""
    found: dict[str, int] = {}
    for each in verdicts:
        found[each.reason] = found.get(each.reason, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))
