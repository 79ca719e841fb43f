# SPDX-License-Identifier: Apache-2.0
"""What the model of UDP flows is made of: its terms, its limits, and the entries of its tables."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

LEAVES_S, MOVES_S, FULL_S, DEADLINE_S, PENDING_IDLE_S, UDP_IDLE_S, REST_S = (
    0.01,
    1,
    1,
    31,
    67,
    139,
    60,
)
NEVER_S = float("-inf")
"""What has not been since anybody knows is so far ahead."""

PAUSES_S = (0.1, 0.7, 2, 40, 80, 150)
"""Steps of time; ``UdpModel.pass_time`` keeps their sums away from every limit."""

HELD_MAX = 4
TOO_LONG = 1520
"""A frame is longer than an event may be."""

ANY = -1
"""A port of ours that is not known yet."""

EVERY_TRY, A_RUN = 16, 4
"""Ports of fullnat that are looked at before a backend counts as having none; at once."""


class Method(enum.Enum):
    """How packets reach a backend."""

    NAT = "nat"
    FULLNAT = "fullnat"
    DSR = "dsr"
    IPIP = "ipip"

    @property
    def one_sided(self) -> bool:
        """Whether replies do not come back through the router."""
        return self in (Method.DSR, Method.IPIP)


class Why(enum.IntEnum):
    """Why XDP decided by itself; DAEMON: it did not. As ``core.model.Reason`` has them."""

    DAEMON = 1
    DEADLINE = 3
    BUDGET = 7
    NO_HEARTBEAT = 8
    FRAME_TOO_LONG = 9
    TABLE_FULL = 14
    DATAGRAMS = 19


BY_HASH = (Why.BUDGET, Why.TABLE_FULL)
"""Those that do not go to the fallback."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a datagram becomes, what is counted, and the events that it leaves.

    ``what``: "backend", "client", "drop", "pass", "unreachable", "ttl". Of one to a backend: which
    one, and by which port: the client's number, or one of ours (fullnat). ``ANY``: one that nobody
    had; ``UdpModel.chosen`` is to be told.
    """

    what: str
    counters: Counter[str]
    events: tuple[str, ...] = ()
    backend: str = ""
    port: int = 0
    home: bool = True
    """To a client: by the way that he first came by."""


@dataclass(slots=True)
class Seen:
    """Datagrams that the daemon holds."""

    held: int = 1
    age: float = 0


@dataclass(slots=True)
class Forward:
    """A decision; ``backend`` "": refused."""

    backend: str
    port: int
    why: Why = Why.DAEMON
    idle: float = 0
    packets: int = 0
    proven: bool = False


@dataclass(slots=True)
class Reply:
    """Whose the backend's answers are. ``rests``: nobody's, its port of ours is kept back."""

    client: int
    idle: float = 0
    packets: int = 0
    proven: bool = False
    home: bool = True
    rests: bool = False


@dataclass(slots=True)
class Bound:
    """An established flow: each direction's silence and packets."""

    backend: str
    port: int
    home: bool
    idle: float
    packets: int
    back_idle: float = 0
    back_packets: int = 0


Place = tuple[str, int]
"""Backend, and the port by which it knows a flow: the client's own number, or one of ours. What no
reply comes by (one-sided) has none of a backend: ""."""


@dataclass(slots=True)
class Entries:
    """What a table has of decided flows: that of the pending ones, or the flood's."""

    forward: dict[int, Forward] = field(default_factory=dict)
    reply: dict[Place, Reply] = field(default_factory=dict)

    def halves(self) -> list[Forward | Reply]:
        """Each entry."""
        return [*self.forward.values(), *self.reply.values()]


@dataclass(slots=True)
class Packet:
    """A datagram on its way, and what has come of it so far."""

    who: int
    length: int
    home: bool
    held: bool
    ttl: int
    counted: Counter[str]
    events: list[str] = field(default_factory=list)

    def dropped(self, counter: str, *events: str) -> Outcome:
        self.counted[counter] += 1
        return Outcome("drop", self.counted, (*self.events, *events))

    def expired(self) -> Outcome:
        self.counted["ttl_exceeded"] += 1
        self.counted["icmp_time_exceeded"] += 1
        return Outcome("ttl", self.counted, tuple(self.events))

    def sent(self, backend: str, port: int) -> Outcome:
        if self.ttl <= 1:
            return self.expired()
        return Outcome("backend", self.counted, tuple(self.events), backend, port)
