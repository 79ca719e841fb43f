# SPDX-License-Identifier: Apache-2.0
"""What the gateway is to do: its listeners, as the configuration says. Plain values.

Durations are in nanoseconds, 0 means "none" where a limit may be left out. Indices of backends
are those of ``Listener.backends``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .model import Endpoint, Mode, ScoreWeights, Scrape

_MS = 1_000_000
_S = 1_000_000_000
_EVEN_SCORE = ScoreWeights()
SYN_AGAIN_NS = _S
"""When the kernel sends a SYN, or its answer, again that was lost (RFC 6298, 2.1)."""
CONNECT_TIMEOUT_NS = SYN_AGAIN_NS + 500 * _MS
"""One lost packet is no failed attempt: there is half a second left for the second one."""


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """A TCP address of this host's sockets, or one that they connect to: loopback is one, too."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ListenerKind(enum.Enum):
    """What the first bytes of a connection are."""

    TLS = "tls"
    HTTP = "http"
    LLM = "llm"


DEFAULT_SCORES = {
    ListenerKind.TLS: _EVEN_SCORE,
    ListenerKind.HTTP: _EVEN_SCORE,
    # The way there is nothing beside what an engine does.
    # Whoever was quickest a moment ago is not when everybody has gone there: the queue comes first.
    ListenerKind.LLM: ScoreWeights(rtt=0.05, ttft=0.3, cache=0.2, queue=0.45),
}
"""Weights of a listener that does not say any."""


class Policy(enum.Enum):
    """How candidates are put in order."""

    SCORE = "score"
    HCL = "hcl"


class ProbeWay(enum.Enum):
    """What a backend is asked in the background (mode ``snapshot``)."""

    CONNECT = "connect"
    HEAD = "head"
    GET = "get"


@dataclass(frozen=True, slots=True)
class ListenerBackend:
    """One real server. ``models``: those that it has; none: every one. ``scrape``: where its
    metrics are, if not where the listener says."""

    name: str
    address: SocketAddress
    weight: int = 1
    models: tuple[str, ...] = ()
    scrape: Endpoint | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """Which requests go to which backends; every condition that is there must hold.

    ``names`` are SNI names or hosts, lower case, ``*.`` in front of one stands for one label or
    more. ``headers``: lower-case name and exact value.
    """

    name: str
    backends: tuple[int, ...]
    names: tuple[str, ...] = ()
    path: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may use: requests a second with a burst, streams at a time; 0: no limit.

    ``priority`` names a class of ``Listener.priorities``; empty: the request says.
    """

    name: str
    rate: int = 0
    burst: int = 0
    streams: int = 0
    priority: str = ""


@dataclass(frozen=True, slots=True)
class RaceSettings:
    """How first tokens are raced.

    ``hedge_ns``: when the second leg starts, 0 with the first; None: by the ``hedge_quantile`` of
    recent first-token times. ``extra_legs``: how many legs beyond the first a backend gets a
    second.
    """

    candidates: int = 2
    hedge_ns: int | None = None
    hedge_quantile: float = 0.93
    extra_legs: int = 20
    retries: int = 2


@dataclass(frozen=True, slots=True)
class Certificate:
    """Where TLS ends: paths of the chain and of its key, PEM."""

    chain: str
    key: str


@dataclass(frozen=True, slots=True)
class Listener:
    """One address that the gateway listens on. ``told_age_ns``: how long holds what others say of
    its backends."""

    name: str
    kind: ListenerKind
    address: SocketAddress
    backends: tuple[ListenerBackend, ...]
    mode: Mode = Mode.RACE
    policy: Policy = Policy.SCORE
    score: ScoreWeights = _EVEN_SCORE
    routes: tuple[Route, ...] = ()
    tenants: tuple[TenantLimits, ...] = ()
    other_tenants: TenantLimits = TenantLimits("")
    priorities: tuple[tuple[str, float], ...] = ()
    race: RaceSettings = RaceSettings()
    probe: ProbeWay = ProbeWay.CONNECT
    probe_path: str = "/health"
    probe_interval_ns: int = 20 * _MS
    snapshot_age_ns: int = 200 * _MS
    certificate: Certificate | None = None
    head_timeout_ns: int = 200 * _MS
    body_timeout_ns: int = 30 * _S
    connect_timeout_ns: int = CONNECT_TIMEOUT_NS
    first_byte_timeout_ns: int = 60 * _S
    stream_timeout_ns: int = 300 * _S
    idle_timeout_ns: int = 60 * _S
    max_head: int = 16 << 10
    max_body: int = 0
    max_connections: int = 10_000
    max_per_source: int = 1_000
    cache_blocks: int = 65_536
    control_arm: int = 0
    scrape: Scrape | None = None
    told_age_ns: int = 10 * _S


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """All of the gateway: the ``[gateway]`` table and each ``[[listener]]``."""

    listeners: tuple[Listener, ...] = ()
    workers: int = 1
    drain_timeout_ns: int = 60 * _S
    decisions_kept: int = 10_000
    access_log: bool = True
    metrics: tuple[str, int] | None = None


NO_GATEWAY = GatewayConfig()
