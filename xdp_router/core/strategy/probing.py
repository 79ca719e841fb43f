# SPDX-License-Identifier: Apache-2.0
"""What all modes of one engine share: servers that are probed, what was told of them, chance.

Two backends may be one server, and two modes may probe it: what an answer is matched by, and
what a server has to bear, both go by the endpoint that is probed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol

from ..events import ProbeReply
from ..model import Backend, Endpoint, ProbeAnswer
from ..ports import ProbePorts, ProbeSlot
from ..ratelimit import TokenBucket
from ..score_inputs import ScoreInputs
from .base import ProbeSettings

ProbeKey = tuple[int, int, int, int]
"""What an answer is matched by: the probed address, port and protocol, and the probe port."""

Draw = Callable[[int], int]
"""(n) -> a random number from 0 to n - 1."""

GOOD = (
    ProbeAnswer.SYNACK,
    ProbeAnswer.ECHO,
    ProbeAnswer.STUN,
    ProbeAnswer.DATAGRAM,
    ProbeAnswer.CONNECTED,
    ProbeAnswer.HTTP,
)
COUNTED_AS = {answer: f"probes_{answer.name.lower()}" for answer in ProbeAnswer}
PROBE_COUNTERS = (
    "probes_requested",
    "probes_over_budget",
    "probes_without_port",
    "probes_not_sent",
    "probes_synack",
    "probes_rst",
    "probes_unreachable",
    "probes_echo",
    "probes_stun",
    "probes_datagram",
    "probes_connected",
    "probes_http",
    "probes_unexpected",
    "probes_unanswered",
    "probes_backend_down",
    "probe_answers_late",
    "probe_answers_unmatched",
    "probe_sends_unmatched",
)
"""Of each mode that probes; the engine adds them up."""


def key_of(probed: Endpoint, probe_port: int) -> ProbeKey:
    """The key of a probe."""
    return probed.addr, probed.port, probed.proto, probe_port


def key_of_answer(event: ProbeReply) -> ProbeKey:
    """The key of the probe that an answer may belong to."""
    return event.backend_addr, event.backend_port, event.proto, event.probe_port


class Server:
    """What one endpoint is probed by: source ports, and the budget."""

    __slots__ = ("budget", "ports")

    def __init__(self, settings: ProbeSettings) -> None:
        self.ports = ProbePorts(settings.probe_port_min, settings.probe_port_max)
        self.budget = TokenBucket(settings.probe_rate, settings.probe_burst)


class Servers:
    """All servers that were probed, by the endpoint that is."""

    def __init__(self, settings: ProbeSettings) -> None:
        """Raise ValueError for limits that cannot be used."""
        self._settings = settings
        self._servers: dict[Endpoint, Server] = {}
        Server(settings)  # bad limits are told now

    def find(self, probed: Endpoint) -> Server | None:
        """A server; None: it was never probed."""
        return self._servers.get(probed)

    def take(self, probed: Endpoint, now_ns: int, counters: dict[str, int]) -> ProbeSlot | None:
        """Port and nonce of one more probe; None, and counted, if it may not or cannot be."""
        server = self._servers.get(probed)
        if server is None:
            server = self._servers[probed] = Server(self._settings)
        if not server.budget.take(now_ns):
            counters["probes_over_budget"] += 1
            return None
        slot = server.ports.acquire()
        if slot is None:
            counters["probes_without_port"] += 1
        return slot

    def change(self, settings: ProbeSettings, probed: Container[tuple[int, int, int]]) -> None:
        """Have other limits from now on, and forget servers that are not ``probed`` any more."""
        Server(settings)
        self._settings = settings
        for endpoint, server in list(self._servers.items()):
            server.budget.change(settings.probe_rate, settings.probe_burst)
            at = endpoint.addr, endpoint.port, endpoint.proto
            if at not in probed and not server.ports.outstanding:
                del self._servers[endpoint]

    def release(self, probed: Endpoint, port: int) -> None:
        """Nothing more is expected at this port: it may be used again."""
        self._servers[probed].ports.release(port)


@dataclass(frozen=True, slots=True)
class Load:
    """What XDP knows of a backend: SYN to SYN-ACK of its flows (0: no sample), flows it has."""

    ewma_ns: int = 0
    open: int = 0


_PARTS = 1 << 16

LoadOf = Callable[[int], Load]
"""By backend id."""


def no_load(_backend: int) -> Load:
    """Nothing is known of anybody."""
    return Load()


class ProbeSink(Protocol):
    """Who is told what becomes of probes, by whoever has sent them, and whom that holds back."""

    def asked(self, backend: int, sent_ns: int) -> None:
        """A probe has left, and was not answered yet."""

    def answered(self, backend: int, answer: ProbeAnswer, now_ns: int) -> None:
        """One was answered, well or badly. What nobody answered is not told."""

    @property
    def starting(self) -> AbstractSet[int]:
        """Backends that have just come back, and get their share by and by."""

    def share(self, backend: int, now_ns: int) -> float:
        """Which part of its weight a backend is to have, from 0 to 1."""


class NoSink:
    """Nobody is told, and everybody has all of its weight."""

    starting: AbstractSet[int] = frozenset()

    def asked(self, backend: int, sent_ns: int) -> None:
        """Nothing."""

    def answered(self, backend: int, answer: ProbeAnswer, now_ns: int) -> None:
        """Nothing."""

    def share(self, backend: int, now_ns: int) -> float:
        """All of it."""
        return 1.0


def no_draw(_count: int) -> int:
    """No chance at all: always the first. For whoever brings none."""
    return 0


@dataclass(frozen=True, slots=True)
class Shared:
    """What the strategies of one engine have in common."""

    servers: Servers
    inputs: ScoreInputs = field(default_factory=ScoreInputs)
    draw: Draw = no_draw
    load_of: LoadOf = no_load
    health: ProbeSink = field(default_factory=NoSink)

    def not_held_back(self, backends: list[Backend], now_ns: int) -> list[Backend]:
        """Without those that have just come back and whose turn it is not, by chance: each takes
        part as often as its share says. All of them if nobody were left."""
        starting = self.health.starting
        if not starting or starting.isdisjoint(each.id for each in backends):
            return backends
        share = self.health.share
        left = [
            each
            for each in backends
            if each.id not in starting or self.draw(_PARTS) < share(each.id, now_ns) * _PARTS
        ]
        return left or backends


def some_of(backends: Sequence[Backend], count: int, draw: Draw) -> list[Backend]:
    """So many of the backends at random, each by its weight; all of them if ``count`` is 0."""
    left = list(backends)
    if not count or len(left) <= count:
        return left
    total = sum(each.weight for each in left)
    alike = left[0].weight
    if total == alike * len(left) and all(each.weight == alike for each in left):
        return [left.pop(draw(len(left))) for _ in range(count)]
    chosen = []
    for _ in range(count):
        point = draw(total)
        for at, each in enumerate(left):
            point -= each.weight
            if point < 0:
                total -= each.weight
                chosen.append(left.pop(at))
                break
    return chosen
