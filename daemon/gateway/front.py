# SPDX-License-Identifier: Apache-2.0
"""One listener in one worker: its connections, and what all of them share."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import os
import random
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

from xdp_router.core.listeners import GatewayConfig, Listener, ListenerKind
from xdp_router.core.ratelimit import TokenBucket
from xdp_router.gateway.candidates import LOOKED_AT
from xdp_router.gateway.chooser import Chooser
from xdp_router.gateway.hedge_delay import HedgeDelay
from xdp_router.gateway.http_head import HeadLimits
from xdp_router.gateway.known_heads import KnownHeads
from xdp_router.gateway.prefix_cache import BLOCK_BYTES, PrefixCache
from xdp_router.gateway.race_commands import RaceSettings
from xdp_router.gateway.routes import Routes
from xdp_router.gateway.tenants import Tenants
from xdp_router.gateway.traits import read_traits
from xdp_router.measure.histogram import Histogram

from . import totals
from .arms import ARM_TIMES
from .asked import Asked
from .board import HELD_UNTIL, Board
from .client import Client
from .decision import Decision, race_settings
from .figures import Figures
from .handshake import Handshake
from .kept import Kept
from .leg import Leg, LegUser
from .pool import IDLE_NS, RECENT_NS, REFUSED, Pool
from .record import LegRecord, Record
from .relay import Relay
from .sight import FRESH_NS, LiveSight

RETIRED_QUIET_NS = 1_000_000_000
RETIRE_AGAIN_S = 0.25
UNREACHABLE_NS = 1_000_000_000
"""How long a backend is left alone that could not be connected to."""
HELD_MOST_NS = 60_000_000_000
SETTINGS_KEPT = 64
_TENANT_HEADERS = frozenset((b"x-tenant-id", b"x-tenant-priority", b"x-model-name"))
_NS = 1e9


@dataclass(slots=True)
class World:
    """What all listeners of one worker share. ``rows``: of the board, by address as text."""

    board: Board
    rows: Mapping[str, int]
    config: GatewayConfig
    loop: asyncio.AbstractEventLoop
    access: Callable[[str], object]
    clock: Callable[[], int] = time.monotonic_ns
    wall: Callable[[], float] = time.time
    pool: Pool = field(init=False)
    asked: Asked = field(init=False)
    _ids: Iterator[int] = field(default_factory=itertools.count)
    _prefix: str = field(init=False)

    def __post_init__(self) -> None:
        self.pool = Pool(self.loop, self.clock)
        self.asked = Asked(self.board)
        drawn = os.urandom(9).hex()
        self._prefix = f"{drawn[:8]}-{drawn[8:12]}-4{drawn[12:15]}-8{drawn[15:]}"

    def new_id(self) -> str:
        """Of a request; no other in any worker at any time.

        In the form of a random UUID (RFC 9562, 5.4): there are backends that refuse others.
        """
        return f"{self._prefix}-{next(self._ids):012x}"

    @staticmethod
    def draws() -> tuple[float, float, float]:
        """Random numbers, from 0 to below 1."""
        return random.random(), random.random(), random.random()


class Connection(Protocol):
    """What a front knows of a connection, whatever it speaks."""

    peer_host: bytes
    idle_since_ns: int
    stalled_ns: int

    def close(self) -> None:
        """Close when everything is written."""

    def reset(self) -> None:
        """Close at once, by RST."""


class Front:
    """``listener`` in this worker. ``context``: TLS ends here."""

    def __init__(
        self, listener: Listener, world: World, context: ssl.SSLContext | None = None
    ) -> None:
        self.listener = listener
        self._context = context
        self.world = world
        self.mode = listener.mode.name.lower()
        self.figures = Figures()
        self.routes = Routes(listener)
        self.chooser = Chooser(listener)
        self.tenants = Tenants(listener, world.config.workers)
        self.cache = (
            PrefixCache(listener.cache_blocks, find_holders=len(listener.backends) > LOOKED_AT)
            if listener.kind is ListenerKind.LLM and listener.cache_blocks
            else None
        )
        self.retired = False
        self.connections: dict[Any, bytes] = {}
        """And of each who it is, for the limits of a source."""
        self._arms: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._hedges = HedgeDelay(listener.race.hedge_quantile)
        self._rows = [world.rows[str(each.address)] for each in listener.backends]
        self.sight = LiveSight(listener, world.board, self._rows, world.clock, self.cache)
        now_ns = world.clock()
        rate = max(1, listener.race.extra_legs // world.config.workers)
        self._extra = [TokenBucket(rate, rate, now_ns) for _ in listener.backends]
        self._sources: Counter[bytes] = Counter()
        wanted = _TENANT_HEADERS | self.routes.wants_headers
        proto = b"http" if listener.certificate is None else b"https"
        self.head_limits = HeadLimits(head_bytes=listener.max_head)
        self.heads = KnownHeads(
            self.head_limits,
            partial(read_traits, wanted=wanted, proto=proto),
            of_any_length=b"content-length" not in wanted,
        )
        self._settings: dict[tuple[bool, bool, bool, int], RaceSettings] = {}
        self.kept = Kept(world.config.decisions_kept)

    def connection(self) -> asyncio.Protocol:
        """A protocol for one that was accepted."""
        if self._context is not None:
            return Handshake(self, self._context)
        return Relay(self) if self.listener.kind is ListenerKind.TLS else Client(self)

    # Connections

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for it; it is counted from here on."""
        if connection in self.connections:
            return True  # as of its handshake
        source = source_of(connection.peer_host)
        self.figures.count("connections", self.listener.name)
        full = len(self.connections) >= self._share(self.listener.max_connections)
        if full or self._sources[source] >= self.listener.max_per_source:
            why = "all" if full else "source"
            self.figures.count("connections_refused", self.listener.name, why)
            return False
        self._sources[source] += 1
        self.connections[connection] = source
        return True

    def follow(self, former: Connection, connection: Connection) -> None:
        """It has the place of the former one, which is not gone but done."""
        self.connections[connection] = self.connections.pop(former)

    def gone(self, connection: Connection) -> None:
        """It is closed."""
        source = self.connections.pop(connection, None)
        if source is not None:
            self._sources[source] -= 1
            if not self._sources[source]:
                del self._sources[source]

    def retire(self) -> None:
        """Connections end: with their next answers, which say so, or when they are quiet.

        Not those that asked a moment ago: their next request may be on its way, and would be met
        by RST.
        """
        self.retired = True
        quiet_ns = self.world.clock() - RETIRED_QUIET_NS
        for each in list(self.connections):
            if each.idle_since_ns and each.idle_since_ns <= quiet_ns:
                each.close()
        if self.connections:
            self.world.loop.call_later(RETIRE_AGAIN_S, self.retire)

    @property
    def open(self) -> int:
        """Connections."""
        return len(self.connections)

    def sweep(self) -> None:
        """Close what has been idle, or stood still, for too long. About once a second."""
        now_ns, listener = self.world.clock(), self.listener
        idle_ns = now_ns - listener.idle_timeout_ns
        stalled_ns = now_ns - listener.stream_timeout_ns
        for each in list(self.connections):
            exchange = each.exchange
            if each.stalled_ns and each.stalled_ns < stalled_ns:
                self.late(each, "slow reader")
            elif each.idle_since_ns and each.idle_since_ns < idle_ns:
                self.figures.count("deadline_closes", listener.name, "idle")
                each.close()
            elif exchange is not None:
                exchange.silent(stalled_ns)

    def late(self, connection: Connection, deadline: str) -> None:
        """It is ended by a deadline, so that nobody takes what came for the whole."""
        self.figures.count("deadline_closes", self.listener.name, deadline)
        connection.reset()

    def _share(self, limit: int) -> int:
        return max(1, -(-limit // self.world.config.workers))

    # Whom to ask

    def row(self, backend: int) -> int:
        """Of the board."""
        return self._rows[backend]

    def leg(
        self, backend: int, user: LegUser, number: int, *, fresh: bool, replayable: bool
    ) -> Leg:
        """A connection to it. ``replayable``: the request may be sent once more if a connection
        that was kept turns out to be closed; ``fresh``: none that was kept."""
        waited_ns = 0 if fresh else IDLE_NS if replayable else RECENT_NS
        return self.world.pool.leg(
            self.listener.backends[backend].address,
            self._rows[backend],
            user,
            number,
            self.listener.connect_timeout_ns / _NS,
            waited_ns=waited_ns,
        )

    def may_have_leg(self, backend: int, now_ns: int) -> bool:
        """Whether it may get one beside another; if so, that is counted."""
        return self.listener.race.extra_legs > 0 and self._extra[backend].take(now_ns)

    def hedge_ns(self, record: Record) -> int:
        """How long a first token is waited for before a second backend is asked."""
        fixed = self.listener.race.hedge_ns
        if fixed is not None:
            return fixed
        return self._hedges.delay_ns(_series(record), record.uncached)

    def race_settings(
        self, raced: bool, inference: bool, replayable: bool, hedge_ns: int
    ) -> RaceSettings:
        """How a request is asked for; made once for all that are alike."""
        key = raced, inference, replayable, hedge_ns
        found = self._settings.get(key)
        if found is None:
            if len(self._settings) >= SETTINGS_KEPT:
                self._settings.clear()
            found = self._settings[key] = race_settings(
                self.listener,
                raced=raced,
                inference=inference,
                replayable=replayable,
                hedge_ns=hedge_ns,
            )
        return found

    def hold_off(self, backend: int, until_ns: int) -> None:
        """It is to be left alone; a hold that lasts longer stays."""
        board, row = self.world.board, self._rows[backend]
        until_ns = min(until_ns, self.world.clock() + HELD_MOST_NS)
        if until_ns > board.own(row, HELD_UNTIL):
            board.set_own(row, HELD_UNTIL, until_ns)

    def not_connected(self, backend: int, reason: str) -> None:
        """It is left alone for a while; where nobody listens, the engine has lost its cache."""
        self.hold_off(backend, self.world.clock() + UNREACHABLE_NS)
        if self.cache is not None and reason == REFUSED:
            self.cache.forget(backend)

    # What came of it

    def note_prompt(self, backend: int, blocks: tuple[int, ...]) -> None:
        """It has a prompt in its cache."""
        if self.cache is not None:
            self.cache.credit(backend, blocks)

    def note_leg(self, backend: int, decision: Decision) -> None:
        """It is asked; how much of the prompt it is thought to have is kept for comparison."""
        labels = self.listener.name, self.listener.backends[backend].name
        self.figures.count("legs", *labels)
        if self.cache is not None and decision.prompt_bytes:
            share = decision.order.cached_by(backend)
            if share is None:
                share = self.cache.hit(backend, decision.blocks)
            there = share * len(decision.blocks)
            self.figures.count("prompt_bytes", *labels, by=decision.prompt_bytes)
            self.figures.count("predicted_bytes", *labels, by=round(there) * BLOCK_BYTES)

    def note_first_byte(self, backend: int, record: Record, took_ns: int, now_ns: int) -> None:
        """How long a winner took to its first token, or to its head."""
        name = self.listener.backends[backend].name
        since_ns = now_ns - (record.first_byte_ns or record.accepted_ns)
        self.figures.time("ttfb", since_ns, self.listener.name, name)
        if not self._is_told_by(record):
            return
        if self._is_first(record):
            self.world.asked.took(self._rows[backend], took_ns, now_ns)
            if self.listener.kind is ListenerKind.LLM:
                self.figures.time("ttft", since_ns, self.listener.name, name, record.model)
        if self.listener.control_arm:
            self.figures.time("arm_first", since_ns, self.listener.name, record.mode)
            self._arms[record.mode].add(since_ns)
        # What the first leg took, or would have taken at least.
        self._hedges.note(_series(record), now_ns - record.legs[0].started_ns, record.uncached)

    def _is_told_by(self, record: Record) -> bool:
        """Whether how long it takes says something of a backend.

        Of an engine only tokens do: a list of models comes at once from a busy one, too, and so
        does an error.
        """
        return self.listener.kind is not ListenerKind.LLM or (
            record.is_inference and record.status < HTTPStatus.MULTIPLE_CHOICES
        )

    def _is_first(self, record: Record) -> bool:
        """Whether that is the time to a first byte or token: an answer in one piece takes as long
        as all of its tokens, by which backends are not compared."""
        return record.streams or self.listener.kind is not ListenerKind.LLM

    def note_lost(self, backend: int, record: Record, leg: LegRecord) -> None:
        """A leg was given up that had no first byte by then: it takes that long, or longer.

        Who never wins would count as one of whom nothing is known, and be asked first.
        """
        if not self._is_told_by(record) or not self._is_first(record):
            return
        now_ns = self.world.clock()
        lasted_ns = now_ns - leg.started_ns
        self.world.asked.lost(self._rows[backend], lasted_ns, now_ns, FRESH_NS)

    def note_gap(self, record: Record, gap_ns: int) -> None:
        """Between two pieces of an answer."""
        self.figures.time("token_gap", gap_ns, self.listener.name, record.backend, record.model)

    def ended(self, record: Record) -> None:
        """A request is over."""
        if record.order is not None:
            record.order.settle()
        self.kept.add(record)
        self.figures.count("requests", self.listener.name, record.backend, str(record.status))
        if record.retries:
            self.figures.count("retries", self.listener.name, by=record.retries)
        if record.tokens:
            labels = self.listener.name, record.backend, record.model
            self.figures.count("tokens", *labels, by=record.tokens)
        if record.reason:
            self.figures.count("decisions", self.listener.name, record.mode, record.reason)
        if self.world.config.access_log:
            self.world.access(record.line())

    # For those who look

    def streams(self) -> list[dict[str, Any]]:
        """What is under way."""
        found = [each.exchange for each in self.connections if each.exchange is not None]
        return [each.view() for each in found]

    def decisions(self, limit: int) -> list[dict[str, Any]]:
        """The newest that are over, newest first."""
        return [each.summary() for each in itertools.islice(self.kept.newest(), limit)]

    def explain(self, request: str) -> dict[str, Any] | None:
        """One request; None: it is not known here."""
        found = self.kept.find(request)
        if found is None:
            for each in self.connections:
                if each.exchange is not None and each.exchange.record.id == request:
                    found = each.exchange.record
        return None if found is None else self.explained(found)

    def explained(self, record: Record) -> dict[str, Any]:
        """Everything of one of this listener."""
        return record.explained(self.listener.backends)

    def plain(self) -> totals.Figures:
        """What was counted, and what is open now."""
        busy = sum(each.exchange is not None for each in self.connections)
        name = [self.listener.name]
        return {
            **self.figures.plain(),
            "connections": [[name, len(self.connections)]],
            "streams": [[name, busy]],
            ARM_TIMES: [
                [[*name, arm], totals.spread_of(times)] for arm, times in self._arms.items()
            ],
        }


def _series(record: Record) -> str:
    """What times are alike: a whole answer takes far longer than a first token does."""
    return record.model if record.streams else f"{record.model}\n"


def source_of(host: bytes) -> bytes:
    """Who a client is for the limits of a source: its address, of IPv6 the /64."""
    if b":" not in host:
        return host
    return ipaddress.IPv6Address(host.decode().partition("%")[0]).packed[:8]
