# SPDX-License-Identifier: Apache-2.0
"""What shall happen when: random trouble, at most as much at a time as the promises bear.

Nothing here reads a clock. The same seed and length make the same schedule.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable
from dataclasses import dataclass

from .cast import BACKENDS, HOSTS, MODES, SERVICES, host_of


class Kind(enum.Enum):
    """What may happen; the value is its name in reports."""

    KILL = "backend killed"
    STALL = "backend stalled"
    HOST_FLAP = "backend's link down"
    ROUTER_FLAP = "router's link to a backend down"
    CLIENT_FLAP = "clients' link down"
    DAEMON_KILL = "daemon killed"
    RESTART = "daemon restarted"
    WEIGHTS = "weights reloaded"
    REMOVE = "backend removed"
    DRAIN = "backend drained"
    MODE = "mode changed"
    SYN_FLOOD = "flood of SYNs"
    UDP_FLOOD = "flood of datagrams"


OF_HOST = frozenset({Kind.KILL, Kind.STALL, Kind.HOST_FLAP, Kind.ROUTER_FLAP})
OF_BACKEND = frozenset({Kind.REMOVE, Kind.DRAIN})
OF_LINK = frozenset({Kind.HOST_FLAP, Kind.ROUTER_FLAP, Kind.CLIENT_FLAP})
OF_DAEMON = frozenset({Kind.DAEMON_KILL, Kind.RESTART})
CONTROL = OF_DAEMON | OF_BACKEND | {Kind.WEIGHTS, Kind.MODE}
"""What is told to the daemon, or done to it: one after the other."""
FLOODS = frozenset({Kind.SYN_FLOOD, Kind.UDP_FLOOD})

LENGTH_S = {
    Kind.KILL: (0.5, 3.0),
    Kind.STALL: (0.3, 3.0),
    Kind.HOST_FLAP: (0.2, 1.5),
    Kind.ROUTER_FLAP: (0.2, 1.5),
    Kind.CLIENT_FLAP: (0.2, 1.2),
    Kind.DAEMON_KILL: (0.0, 2.0),
    Kind.RESTART: (0.0, 1.0),
    Kind.WEIGHTS: (0.0, 0.0),
    Kind.REMOVE: (1.0, 5.0),
    Kind.DRAIN: (1.0, 5.0),
    Kind.MODE: (0.0, 0.0),
    Kind.SYN_FLOOD: (0.5, 2.0),
    Kind.UDP_FLOOD: (0.5, 2.0),
}
"""From the beginning of a trouble to the beginning of its end."""

# How many of each a deck has: what breaks most is tried most.
_DECK = {
    **dict.fromkeys(Kind, 1),
    Kind.KILL: 2,
    Kind.STALL: 2,
    Kind.DAEMON_KILL: 2,
}
MIN_WELL = {"tcp": 2, "udp": 1}
"""Backends of each service, by protocol, that are in no trouble at any time."""
DAEMON_S = 2.0
"""A daemon's start and end take about so long; two of them do not come closer."""
REST_OF_LINKS = 2.0
"""After a link was down for a while, all links are up for so many times that while, and a second:
TCP has come back by then, and does not add up what it waits."""
CALM_S = 3.0
"""At the beginning and at the end nothing happens."""
GAP_S = 1.2
"""Between two troubles on the average; shorter where a run is too short for a deck."""
_STEP_S = 0.25
_ROUNDED_S = 0.01
"""Instants are told in hundredths: what has ended by less than that may be told to go on."""
SUITE_S, SUITE_SEED = 20.0, 14
"""The run that is one of the suite's tests: so short, and yet with trouble of every kind."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """``at_s`` after the start of the run, for ``for_s``. ``target``: a host, a backend, a service,
    or nobody; ``detail``: what a change is to."""

    number: int
    kind: Kind
    at_s: float
    for_s: float
    target: str = ""
    detail: str = ""

    def __str__(self) -> str:
        said = " ".join(filter(None, (self.kind.value, self.target, self.detail)))
        return f"#{self.number} {said}"


class Guard:
    """What is in trouble at the moment, and what may be added to it."""

    def __init__(self) -> None:
        self._going: list[Trouble] = []
        self._links_rest_until_s = 0.0

    def may_begin(self, trouble: Trouble, now_s: float) -> bool:
        """Whether the promises still hold with this one, too."""
        kind = trouble.kind
        kinds = {each.kind for each in self._going}
        if kind in OF_LINK and (kinds & OF_LINK or now_s < self._links_rest_until_s):
            return False
        if kind in FLOODS and kinds & FLOODS:
            return False
        if Kind.CLIENT_FLAP in (kind, *kinds) and ({kind} | kinds) & FLOODS:
            return False  # the flood comes by that link
        if kind in OF_DAEMON and kinds & OF_DAEMON:
            return False
        if kind in OF_HOST:
            host = trouble.target
            if any(each.kind in OF_HOST and each.target == host for each in self._going):
                return False
        if kind in OF_BACKEND and any(
            each.kind in OF_BACKEND and each.target == trouble.target for each in self._going
        ):
            return False
        return all(
            len(well) >= MIN_WELL[BY_SERVICE[service]]
            for service, well in _well((*self._going, trouble)).items()
        )

    def begin(self, trouble: Trouble) -> None:
        """It has begun."""
        self._going.append(trouble)

    def end(self, trouble: Trouble, lasted_s: float, now_s: float) -> None:
        """It is over."""
        self._going.remove(trouble)
        if trouble.kind in OF_LINK:
            self._links_rest_until_s = now_s + REST_OF_LINKS * lasted_s + 1.0

    @property
    def going(self) -> tuple[Trouble, ...]:
        """What is in trouble."""
        return tuple(self._going)


BY_SERVICE = {service.name: service.protocol for service in SERVICES}


def _well(troubles: Iterable[Trouble]) -> dict[str, set[str]]:
    """By service, its hosts without any of these troubles."""
    well = {service.name: set(service.hosts) for service in SERVICES}
    for each in troubles:
        for service, hosts in well.items():
            if each.kind in OF_HOST:
                hosts.discard(each.target)
            elif each.kind in OF_BACKEND and each.target.startswith(f"{service}-"):
                hosts.discard(host_of(each.target))
    return well


def make_schedule(seed: int, length_s: float) -> tuple[Trouble, ...]:
    """All trouble of a run of so many seconds, by the time at which it begins."""
    chance = random.Random(seed)
    guard, made, ends = Guard(), list[Trouble](), list[tuple[float, Trouble]]()
    deck: list[Kind] = []
    gap_s = min(GAP_S, max(length_s - 2 * CALM_S, 0.0) / (sum(_DECK.values()) + 4))
    now_s, daemon_free_s = CALM_S, 0.0
    while now_s < length_s - CALM_S:
        for end_s, over in sorted(ends, key=lambda each: each[0]):
            if end_s <= now_s - _ROUNDED_S:
                guard.end(over, over.for_s, end_s)
        ends = [each for each in ends if each[0] > now_s - _ROUNDED_S]
        if not deck:
            deck = [kind for kind, count in _DECK.items() for _ in range(count)]
            chance.shuffle(deck)
        for place, kind in enumerate(deck):
            trouble = _draw(chance, len(made) + 1, kind, now_s)
            if now_s + trouble.for_s > length_s - CALM_S:
                continue
            if kind in CONTROL and now_s < daemon_free_s:
                continue
            if not guard.may_begin(trouble, now_s):
                continue
            del deck[place]
            made.append(trouble)
            guard.begin(trouble)
            took_s = trouble.for_s + DAEMON_S if kind in OF_DAEMON else trouble.for_s
            ends.append((now_s + trouble.for_s, trouble))
            if kind in OF_DAEMON:
                daemon_free_s = now_s + took_s
            now_s += chance.uniform(0.2, 1.8) * gap_s
            break
        else:
            now_s += _STEP_S
    return tuple(made)


def _draw(chance: random.Random, number: int, kind: Kind, now_s: float) -> Trouble:
    target = detail = ""
    if kind in OF_HOST:
        target = chance.choice(HOSTS)
    elif kind in OF_BACKEND:
        target = chance.choice(BACKENDS)
    elif kind is Kind.MODE:
        target = chance.choice(SERVICES).name
        detail = chance.choice(MODES)
    elif kind is Kind.WEIGHTS:
        target = chance.choice(BACKENDS)
        detail = str(chance.randint(1, 5))
    for_s = round(chance.uniform(*LENGTH_S[kind]), 2)
    return Trouble(number, kind, round(now_s, 2), for_s, target, detail)


@dataclass(frozen=True, slots=True)
class Act:
    """The beginning of a trouble, or its end."""

    at_s: float
    trouble: Trouble
    begins: bool


def acts_of(troubles: Iterable[Trouble], *, control: bool) -> list[Act]:
    """What is to be done, in order, of what concerns the daemon or of all else.

    Nobody can be told anything while there is no daemon: that comes after its start.
    """
    mine = [each for each in troubles if (each.kind in CONTROL) == control]
    acts = [Act(each.at_s, each, True) for each in mine]
    acts += [Act(each.at_s + each.for_s, each, False) for each in mine]
    gone = [(each.at_s, each.at_s + each.for_s, each) for each in mine if each.kind in OF_DAEMON]

    def place(act: Act) -> tuple[float, bool, int, bool]:
        at_s, waits = act.at_s, False
        for first_s, last_s, daemon in gone:
            if act.trouble is not daemon and first_s <= at_s <= last_s:
                at_s, waits = last_s, True
        return at_s, waits, act.trouble.number, not act.begins

    return sorted(acts, key=place)
