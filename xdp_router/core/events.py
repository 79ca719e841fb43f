# SPDX-License-Identifier: Apache-2.0
"""What happened: the input of :class:`xdp_router.core.engine.Engine`."""

from __future__ import annotations

from dataclasses import dataclass

from .model import Compared, FlowKey, Mode, ProbeAnswer, Reason, Signs


@dataclass(frozen=True, slots=True)
class FirstPacket:
    """XDP holds the first packet of a flow and waits for a decision."""

    key: FlowKey
    service: int
    ifindex: int
    seen_ns: int
    isn: int
    syn_data: int
    wscale: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class Datagram:
    """XDP holds one more datagram of a flow whose first packet is held, or has just left."""

    key: FlowKey
    service: int
    ifindex: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """An answer to a probe, time-stamped by XDP.

    ``backend_port`` and ``probe_port`` are, with ICMP, 0 and the echo identifier. ``seq`` is
    verified; a datagram has none, but ``payload``, its first bytes, for others to judge.
    """

    backend_addr: int
    backend_port: int
    probe_port: int
    seq: int
    answer: ProbeAnswer
    received_ns: int
    proto: int = 6
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class ProbeReplies:
    """Answers that were there at one moment, in the order in which they came."""

    answers: tuple[ProbeReply, ...]


@dataclass(frozen=True, slots=True)
class ProbeSent:
    """The executor sent (or failed to send: ``sent_ns`` 0) the probe of a SendProbe command."""

    backend: int
    probe_port: int
    seq: int
    sent_ns: int


@dataclass(frozen=True, slots=True)
class BindingWritten:
    """The binding of a WriteBinding command is in the kernel; this side decided."""

    key: FlowKey


@dataclass(frozen=True, slots=True)
class BindingTaken:
    """Somebody decided first: ``backend`` (maybe NO_BACKEND: refused), by ``mode``/``reason``."""

    key: FlowKey
    backend: int
    mode: Mode
    reason: Reason


@dataclass(frozen=True, slots=True)
class ReplyTupleTaken:
    """The backend's reply tuple belongs to another flow: try the next candidate."""

    key: FlowKey
    backend: int


@dataclass(frozen=True, slots=True)
class BindingFailed:
    """The kernel refused the binding for another reason (``error`` says which)."""

    key: FlowKey
    error: str


@dataclass(frozen=True, slots=True)
class FlowEstablished:
    """XDP verified the handshake and moved the flow to ``flow_table``."""

    key: FlowKey
    backend: int
    established_ns: int
    synack_us: int
    fppl_ns: int


@dataclass(frozen=True, slots=True)
class XdpDecided:
    """XDP walked the degrade chain by itself.

    ``decided_ns`` is ``seen_ns`` unless the first packet was held before.
    """

    key: FlowKey
    service: int
    backend: int
    mode: Mode
    reason: Reason
    seen_ns: int
    decided_ns: int
    compared: tuple[Compared, ...] = ()
    """Of mode ``inline``: what decided."""


@dataclass(frozen=True, slots=True)
class FlowClosed:
    """The flow's entries were aged out; the last figures from its entry."""

    key: FlowKey
    first_data_us: int
    closed_ns: int


@dataclass(frozen=True, slots=True)
class BackendState:
    """A backend became usable (``up``) or not: route, neighbour.

    ``lost``: it is not, because its next hop answers no more.
    """

    backend: int
    up: bool
    lost: bool = False


@dataclass(frozen=True, slots=True)
class BackendDrain:
    """A backend is to get no new flows (``draining``), or some again; those it has go on."""

    backend: int
    draining: bool


@dataclass(frozen=True, slots=True)
class BackendPath:
    """A backend is reached by ``ifindex``, and answers hosts of ``subnets`` directly.

    ``subnets`` holds (network, mask), host order: those of that interface that it, or the
    gateway on the way to it, is in.
    """

    backend: int
    ifindex: int
    subnets: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FlowSigns:
    """What XDP has seen of backends' flows since the last one: (backend id, what has come)."""

    news: tuple[tuple[int, Signs], ...]


@dataclass(frozen=True, slots=True)
class RepliesFound:
    """The answer to FindReplies: whether anything was ``heard``."""

    backend: int
    heard: bool


@dataclass(frozen=True, slots=True)
class FlowsEnded:
    """The answer to EndFlows: all clients were told."""

    backend: int


Event = (
    FirstPacket
    | Datagram
    | ProbeReply
    | ProbeReplies
    | ProbeSent
    | BindingWritten
    | BindingTaken
    | ReplyTupleTaken
    | BindingFailed
    | FlowEstablished
    | XdpDecided
    | FlowClosed
    | BackendState
    | BackendDrain
    | BackendPath
    | FlowSigns
    | RepliesFound
    | FlowsEnded
)
