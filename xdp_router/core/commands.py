# SPDX-License-Identifier: Apache-2.0
"""What to do: the output of :class:`xdp_router.core.engine.Engine`."""

from __future__ import annotations

from dataclasses import dataclass

from .events import FirstPacket
from .model import Decision, Mode, Reason


@dataclass(frozen=True, slots=True)
class SendProbe:
    """Send one SYN to a backend; answer with a ProbeSent event."""

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

    first: FirstPacket


@dataclass(frozen=True, slots=True)
class LogDecision:
    """A flow's decision is final; one log line, one kept record."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class PublishHashTable:
    """The set of usable backends changed: write this service's slots, then switch."""

    service: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetBackendUp:
    """Write the backend's up flag."""

    backend: int
    up: bool


Command = SendProbe | WriteBinding | Reinject | LogDecision | PublishHashTable | SetBackendUp
