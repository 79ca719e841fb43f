# SPDX-License-Identifier: Apache-2.0
"""What a mode has to implement, and the values that it and the engine exchange.

A strategy answers one question, now or later: which backend does this first packet get? It
knows nothing of bindings, of the degrade chain or of kept decisions; those are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..commands import PublishPickTable, SendProbe, SetServiceMode
from ..events import FirstPacket, ProbeReply, ProbeSent
from ..model import Backend, Compared, Mode, ProbeRecord, Reason, Service, Snapshot

Sequencer = Callable[[Backend, int, int], int]
"""(backend, probe port, nonce) -> the probe's sequence number."""


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Limits of probing.

    ``probe_rate`` is probes per second, ``probe_burst`` probes, both per backend endpoint;
    the port range is inclusive, in host order.
    """

    coalesce_window_ns: int = 2_000_000
    tie_window_ns: int = 30_000
    probe_rate: int = 1000
    probe_burst: int = 100
    probe_port_min: int = 61_000
    probe_port_max: int = 61_999


@dataclass(slots=True)
class Evidence:
    """What was learned about the candidates; shared by all flows that were decided by it.

    It may grow after the decision: late answers are still recorded.
    """

    records: list[ProbeRecord] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    """Backend ids in the order in which they answered."""
    refused: set[int] = field(default_factory=set)
    """Backend ids that refused: they are not chosen for these flows by any later step."""
    compared: tuple[Compared, ...] = ()
    """What mode ``inline`` chose from."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The strategy is done with a first packet.

    ``backend`` NO_BACKEND means that it found none. The engine then goes down the degrade
    chain with ``reason``; with ALL_REFUSED it refuses the flow at once.
    """

    first: FirstPacket
    backend: int
    reason: Reason
    mode: Mode = Mode.RACE


Step = SendProbe | PublishPickTable | SetServiceMode | Verdict


@dataclass(slots=True)
class BackendStats:
    """What probing has shown of one backend since the start. Times in ns; 0: not known yet."""

    wins: int = 0
    answers: int = 0
    losses: int = 0
    last_rtt_ns: int = 0


class Strategy(Protocol):
    """One mode, for all services that use it.

    Every admitted first packet gets exactly one Verdict: among the steps that ``admit``
    returns, or among those of a later call, at the latest of ``expire`` at the instant that
    ``deadline`` names.
    """

    @property
    def open_races(self) -> int:
        """How many measurements are running that flows wait for."""

    @property
    def counters(self) -> dict[str, int]:
        """Named totals since the start; the set of names never changes."""

    def stats(self, backend: int) -> BackendStats | None:
        """What is known of a backend; None if it belongs to no service of this mode."""

    def admit(
        self,
        service: Service,
        first: FirstPacket,
        now_ns: int,
        excluded: frozenset[int] = frozenset(),
    ) -> tuple[Evidence, Sequence[Step]]:
        """Take in a first packet. Without a Verdict among the steps it waits for one.

        ``excluded``: backends that it must not get.
        """

    def probe_sent(self, event: ProbeSent, now_ns: int) -> Sequence[Step]:
        """A probe left, or could not be sent."""

    def probe_replies(self, events: Sequence[ProbeReply], now_ns: int) -> Sequence[Step]:
        """What is there of answers, one or several: all are noted before anything is decided."""

    def backend_state(self, service: Service, backend: int, up: bool) -> None:
        """The set of usable backends, which the strategy was given to look at, has changed."""

    def awaits(self, event: ProbeReply) -> bool:
        """Whether an answer may be to a probe of this strategy: others probe that place, too."""

    def snapshot(self, service: int) -> Snapshot | None:
        """What the newest published table was made of, if there are tables."""

    def told(self, service: int) -> None:
        """Something was told of a backend of the service, for its score."""

    def apply(self, services: Iterable[Service], settings: ProbeSettings) -> Sequence[Step]:
        """Have these services and settings from now on.

        Before that, ``backend_state`` has said "down" of every backend that departs or is probed
        otherwise: no answer of one is waited for. Flows of a service that goes to another mode
        get their verdicts all the same, those that nothing comes for at once.
        """

    def deadline(self) -> int | None:
        """The next instant at which ``expire`` has something to do."""

    def expire(self, now_ns: int) -> Sequence[Step]:
        """Do what is due by ``now_ns``."""
