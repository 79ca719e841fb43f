# SPDX-License-Identifier: Apache-2.0
"""One listener in one worker: its connections, and what all of them share."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import os
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

from xdp_router.core.listeners import GatewayConfig, Listener, ListenerKind
from xdp_router.core.ratelimit import TokenBucket
from xdp_router.gateway.candidates import LOOKED_AT
from xdp_router.gateway.chooser import Chooser
from xdp_router.gateway.hedge_delay import HedgeDelay
from xdp_router.gateway.http_head import HeadLimits, RequestHead
from xdp_router.gateway.prefix_cache import BLOCK_BYTES, PrefixCache
from xdp_router.gateway.race_commands import RaceSettings
from xdp_router.gateway.routes import Routes
from xdp_router.gateway.tenants import Tenants
from xdp_router.measure.histogram import Histogram

from . import totals
from .arms import ARM_TIMES
from .asked import Asked
from .board import HELD_UNTIL, Board
from .client import Client
from .decision import Decision, race_settings
from .figures import Figures
from .leg import Leg, LegUser
from .pool import IDLE_NS, RECENT_NS, Pool
from .record import LegRecord, Record
from .relay import Relay
from .sight import FRESH_NS, LiveSight

RETIRED_QUIET_NS = 1_000_000_000
RETIRE_AGAIN_S = 0.25
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
    """``listener`` in this worker."""

    def __init__(self, listener: Listener, world: World) -> None:
        self.listener = listener
        self.world = world
        self.figures = Figures()
        self.routes = Routes(listener)
        self.chooser = Chooser(listener)
        self.tenants = Tenants(listener, world.config.workers)
        self.head_limits = HeadLimits(head_bytes=listener.max_head)
        self.cache = (
            PrefixCache(listener.cache_blocks, find_holders=len(listener.backends) > LOOKED_AT)
            if listener.kind is ListenerKind.LLM and listener.cache_blocks
            else None
        )
        self.retired = False
        self.connections: set[Any] = set()
        self._arms: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._hedges = HedgeDelay(listener.race.hedge_quantile)
        self._rows = [world.rows[str(each.address)] for each in listener.backends]
        self.sight = LiveSight(listener, world.board, self._rows, world.clock, self.cache)
        now_ns = world.clock()
        rate = max(1, listener.race.extra_legs // world.config.workers)
        self._extra = [TokenBucket(rate, rate, now_ns) for _ in listener.backends]
        self._sources: Counter[bytes] = Counter()
        self._wanted = _TENANT_HEADERS | self.routes.wants_headers
        self._settings: dict[tuple[bool, bool, bool, int], RaceSettings] = {}
        self._kept: deque[Record] = deque(maxlen=world.config.decisions_kept or 1)
        self._by_id: dict[str, Record] = {}

    def connection(self) -> asyncio.Protocol:
        """A protocol for one that was accepted."""
        return Relay(self) if self.listener.kind is ListenerKind.TLS else Client(self)

    # Connections

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for it; it is counted from here on."""
        source = source_of(connection.peer_host)
        self.figures.count("connections", self.listener.name)
        full = len(self.connections) >= self._share(self.listener.max_connections)
        if full or self._sources[source] >= self.listener.max_per_source:
            why = "all" if full else "source"
            self.figures.count("connections_refused", self.listener.name, why)
            return False
        self._sources[source] += 1
        self.connections.add(connection)
        return True

    def gone(self, connection: Connection) -> None:
        """It is closed."""
        if connection in self.connections:
            self.connections.discard(connection)
            source = source_of(connection.peer_host)
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
                self.figures.count("deadline_closes", listener.name, "slow reader")
                each.reset()
            elif each.idle_since_ns and each.idle_since_ns < idle_ns:
                self.figures.count("deadline_closes", listener.name, "idle")
                each.close()
            elif exchange is not None:
                exchange.silent(stalled_ns)

    def _share(self, limit: int) -> int:
        return max(1, -(-limit // self.world.config.workers))

    # Whom to ask

    def headers_of(self, head: RequestHead) -> dict[str, str]:
        """Those that decide something, by name; the first of each."""
        wanted = self._wanted
        found: dict[str, str] = {}
        for name, value in head.headers:
            if name in wanted:
                found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        return found

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
        """It is to be left alone."""
        until_ns = min(until_ns, self.world.clock() + HELD_MOST_NS)
        self.world.board.set_own(self._rows[backend], HELD_UNTIL, until_ns)

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
            there = self.cache.hit(backend, decision.blocks) * len(decision.blocks)
            self.figures.count("prompt_bytes", *labels, by=decision.prompt_bytes)
            self.figures.count("predicted_bytes", *labels, by=round(there) * BLOCK_BYTES)

    def note_first_byte(self, backend: int, record: Record, took_ns: int, now_ns: int) -> None:
        """How long a winner took to its first token, or to its head."""
        name = self.listener.backends[backend].name
        since_ns = now_ns - (record.first_byte_ns or record.accepted_ns)
        self.figures.time("ttfb", since_ns, self.listener.name, name)
        if not self._is_told_by(record):
            return
        self.world.asked.took(self._rows[backend], took_ns, now_ns)
        if self.listener.kind is ListenerKind.LLM:
            self.figures.time("ttft", since_ns, self.listener.name, name, record.model)
        if self.listener.control_arm:
            self.figures.time("arm_first", since_ns, self.listener.name, record.mode)
            self._arms[record.mode].add(since_ns)
        # What the first leg took, or would have taken at least.
        self._hedges.note(_series(record), now_ns - record.legs[0].started_ns, record.uncached)

    def _is_told_by(self, record: Record) -> bool:
        """Whether how long it takes is a time by which backends are compared.

        Of an engine that is a token's alone: a list of models comes at once from a busy one, too,
        and so does an error.
        """
        return self.listener.kind is not ListenerKind.LLM or (
            record.is_inference and record.status < HTTPStatus.MULTIPLE_CHOICES
        )

    def note_lost(self, backend: int, record: Record, leg: LegRecord) -> None:
        """A leg was given up that had no first byte by then: it takes that long, or longer.

        Who never wins would count as one of whom nothing is known, and be asked first.
        """
        if not self._is_told_by(record):
            return
        now_ns = self.world.clock()
        lasted_ns = now_ns - leg.started_ns
        self.world.asked.lost(self._rows[backend], lasted_ns, now_ns, FRESH_NS)

    def note_gap(self, record: Record, gap_ns: int) -> None:
        """Between two pieces of an answer."""
        self.figures.time("token_gap", gap_ns, self.listener.name, record.backend, record.model)

    def record(self, client: Client, head: RequestHead, first_byte_ns: int) -> Record:
        """Of a request that begins."""
        given = head.get(b"x-request-id")
        name = ""
        if given is not None and len(given) <= 128 and given.isascii():
            name = given.decode()
        record = Record(
            name or self.world.new_id(),
            self.listener.name,
            client.peer,
            client.accepted_ns,
            self.world.wall(),
            first_byte_ns=first_byte_ns,
            head_ns=self.world.clock(),
        )
        record.method = head.method.decode("latin-1")
        record.path = head.path.decode("latin-1")
        record.host = head.server_name
        return record

    def connection_record(self, peer: str, accepted_ns: int) -> Record:
        """Of a connection that is one decision."""
        name = self.listener.name
        return Record(self.world.new_id(), name, peer, accepted_ns, self.world.wall())

    def ended(self, record: Record) -> None:
        """A request is over."""
        if record.order is not None:
            record.order.settle()
        if len(self._kept) == self._kept.maxlen:
            oldest = self._kept[0]
            if self._by_id.get(oldest.id) is oldest:
                del self._by_id[oldest.id]
        self._kept.append(record)
        self._by_id[record.id] = record
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
        return [each.summary() for each in itertools.islice(reversed(self._kept), limit)]

    def explain(self, request: str) -> dict[str, Any] | None:
        """One request; None: it is not known here."""
        found = self._by_id.get(request)
        if found is None:
            for each in self.connections:
                if each.exchange is not None and each.exchange.record.id == request:
                    found = each.exchange.record
        return None if found is None else found.explained(self.listener.backends)

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
