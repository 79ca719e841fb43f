# SPDX-License-Identifier: Apache-2.0
"""What to do: the output of :class:`xdp_router.core.engine.Engine`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .events import Datagram, FirstPacket
from .model import Decision, Mode, Reason


@dataclass(frozen=True, slots=True)
class SendProbe:
    """Probe a backend once, as its ``probe`` says; answer with a ProbeSent event."""

    backend: int
    probe_port: int
    seq: int


@dataclass(frozen=True, slots=True)
class WriteBinding:
    """Insert REPLY, then FORWARD, both NOEXIST, for a held flow.

    ``backend`` NO_BACKEND (mode REFUSED) inserts FORWARD alone, flagged refused.
    ``take_over``: a reply tuple whose flow is over may be had.
    Answer with BindingWritten, BindingTaken, ReplyTupleTaken or BindingFailed.
    """

    first: FirstPacket
    backend: int
    mode: Mode
    reason: Reason
    latency_ns: int
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class Reinject:
    """Run the held frame through the XDP program again and send what comes out."""

    first: FirstPacket | Datagram


@dataclass(frozen=True, slots=True)
class LogDecision:
    """A flow's decision is final; one log line, one kept record."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class LogEstablished:
    """The handshake of a decided flow is verified: its record says when."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class PublishHashTable:
    """The set of usable backends changed: write this service's slots, then switch."""

    service: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PublishPickTable:
    """Write this service's pick table, then switch. ``made_ns``: of its newest measurement."""

    service: int
    slots: tuple[int, ...]
    made_ns: int


@dataclass(frozen=True, slots=True)
class SetServiceMode:
    """First packets of the service are decided in this mode from now on."""

    service: int
    mode: Mode


@dataclass(frozen=True, slots=True)
class SetBackendUp:
    """Write the backend's up flag."""

    backend: int
    up: bool


@dataclass(frozen=True, slots=True)
class SetBackendDraining:
    """Write the flag of a backend that gets no new flows."""

    backend: int
    draining: bool


@dataclass(frozen=True, slots=True)
class SetBackendDead:
    """Write the flag of a backend that has died, whose packets are answered by RSTs."""

    backend: int
    dead: bool


@dataclass(frozen=True, slots=True)
class SetBackendShare:
    """Write how often, out of 256, a backend may be picked in mode ``inline``; 0: always."""

    backend: int
    share: int


@dataclass(frozen=True, slots=True)
class FindReplies:
    """Look for flows of a backend that it has said something on since then; answer with a
    RepliesFound event."""

    backend: int
    since_ns: int


@dataclass(frozen=True, slots=True)
class EndFlows:
    """Tell the clients of a dead backend's flows; answer with a FlowsEnded event."""

    backend: int


class HealthNews(enum.Enum):
    """What has become of a backend."""

    ILL = "ill"
    WELL = "well"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class LogHealth:
    """A backend's health has changed. ``why``, ``source``: of one that is ill; ``held_ns``: how
    long it is held down at least, because it has fallen so many ``times``."""

    backend: int
    news: HealthNews
    why: str = ""
    source: str = ""
    held_ns: int = 0
    times: int = 0


@dataclass(frozen=True, slots=True)
class LogFailOpen:
    """All backends of a service that could be chosen are ill, so their health is not looked at;
    or that is over."""

    service: int
    begins: bool


HealthCommand = FindReplies | EndFlows | LogHealth | LogFailOpen
"""What is neither done at once nor written into a map."""

Command = (
    SendProbe
    | WriteBinding
    | Reinject
    | LogDecision
    | LogEstablished
    | PublishHashTable
    | PublishPickTable
    | SetServiceMode
    | SetBackendUp
    | SetBackendDraining
    | SetBackendDead
    | SetBackendShare
    | HealthCommand
)
