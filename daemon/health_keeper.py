# SPDX-License-Identifier: Apache-2.0
"""What the health of backends needs of the kernel: how their flows fare, who of them is heard
still, and that clients of one that has died are told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import structlog

from xdp_router.adapters.bpf_maps import FlowTables, Maps
from xdp_router.core import abi
from xdp_router.core.commands import EndFlows, FindReplies, HealthCommand, HealthNews, LogHealth
from xdp_router.core.config import RouterConfig
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.events import Event, FlowsEnded, FlowSigns, RepliesFound

from .aging import BATCH, in_batches
from .flow_ends import FlowEnds
from .logs import Sampler

LINES_PER_SECOND = 200
AGAIN_S = 1.0
"""How long it waits before it does once more what could not be done."""
_IDLE_S = 1.0
_NS = 1_000_000_000

_log = structlog.get_logger()


class HealthKeeper:
    """Carries out what the engine wants to know, or to have done, and tells it what came of it.

    ``handle`` gives the engine an event; ``ends`` ends flows.
    """

    def __init__(
        self,
        config: RouterConfig,
        maps: Maps,
        ends: FlowEnds,
        handle: Callable[[Event], None],
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """``is_lost``: whether the maps are a successor's by now."""
        self._maps = maps
        self._tables: Iterable[FlowTables] = maps.by_family.values()
        self._ends = ends
        self._handle = handle
        self._is_lost = is_lost
        self._finds: dict[int, int] = {}  # since when, by backend
        self._dead: dict[int, None] = {}
        self._wanted = asyncio.Event()
        self._sampler = Sampler(LINES_PER_SECOND)
        self._names: dict[int, str] = {}
        self._services: dict[int, str] = {}
        self.change(config)

    @property
    def flows_ended(self) -> int:
        """Flows whose clients were told since the start, those apart that spoke themselves."""
        return self._ends.told

    def change(self, config: RouterConfig) -> None:
        """Have this configuration from now on."""
        intervals = [each.health.interval_ns for each in config.services if each.health is not None]
        self._every_s = min(intervals) / _NS if intervals else None
        # Those that are no more are named still when their last flows end.
        self._services |= {each.id: each.name for each in config.services}
        self._names |= {
            backend.id: backend.name for each in config.services for backend in each.backends
        }

    def obey(self, command: HealthCommand) -> None:
        """Do it, by and by."""
        if isinstance(command, FindReplies):
            self._finds[command.backend] = command.since_ns
            self._wanted.set()
        elif isinstance(command, EndFlows):
            self._dead[command.backend] = None
            self._wanted.set()
        elif isinstance(command, LogHealth):
            self._tell(command)
        else:
            name = self._services.get(command.service, str(command.service))
            if command.begins:
                _log.warning(
                    "health_ignored",
                    service=name,
                    reason="all backends that it could choose are ill",
                    consequence="new flows are tried all the same",
                )
            else:
                _log.info("health_followed", service=name)

    def _tell(self, command: LogHealth) -> None:
        if not self._sampler.take(time.monotonic_ns()):
            return
        line: dict[str, object] = {"backend": self._names.get(command.backend, "")}
        if skipped := self._sampler.skipped():
            line["lines_skipped"] = skipped
        if command.news is HealthNews.ILL:
            _log.warning(
                "backend_ill",
                reason=command.why,
                source=command.source,
                held_s=round(command.held_ns / _NS, 3),
                times=command.times,
                **line,
            )
        elif command.news is HealthNews.DEAD:
            _log.warning(
                "backend_dead",
                reason="probes and flows are silent",
                consequence="clients of its connections are told by a RST",
                **line,
            )
        else:
            _log.info("backend_well", times=command.times, **line)

    async def watch(self) -> None:
        """Tell how flows fare, each interval, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s or _IDLE_S)
            if self._every_s is not None and not self._is_lost():
                await self.look()

    async def look(self) -> None:
        """Tell how flows have fared since the last time."""
        try:
            for batch in self._maps.backend_signs.news():
                if batch:
                    self._handle(FlowSigns(tuple(batch)))
                await asyncio.sleep(0)
        except XdpRouterError as error:
            _log.error("flows_not_looked_at", error=str(error))

    async def work(self) -> None:
        """Find replies, and end flows, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if not await self.step():
                await asyncio.sleep(AGAIN_S)

    async def step(self) -> bool:
        """All that is wanted by now: in one walk of the tables each, whoever it is about.

        False: flows could not be ended; that is still wanted, as is what an error of another kind
        has left undone. The engine waits for each answer, and asks once.
        """
        finds, self._finds = self._finds, {}
        try:
            heard = await self._heard(finds) if finds else set()
            for backend in list(finds):
                del finds[backend]
                self._handle(RepliesFound(backend, backend in heard))
        except BaseException:
            self._put_back(finds, {})
            raise
        dead, self._dead = self._dead, {}
        try:
            if dead:
                await self._ends.tell(dead.keys())
            for backend in list(dead):
                del dead[backend]
                self._handle(FlowsEnded(backend))
        except XdpRouterError:
            self._put_back({}, dead)
            return False
        except BaseException:
            self._put_back({}, dead)
            raise
        return True

    def _put_back(self, finds: dict[int, int], dead: dict[int, None]) -> None:
        self._finds = finds | self._finds  # what was asked since goes before
        self._dead = dead | self._dead
        self._wanted.set()

    async def _heard(self, since_ns: dict[int, int]) -> set[int]:
        """Who of these has said something on a flow since then; all of them if that is not to be
        known: nobody is to be told that he has died by a guess."""
        heard: set[int] = set()
        try:
            for tables in self._tables:
                async for batch in in_batches(tables.flows.batches(BATCH)):
                    if not abi.flow_backends(batch.values, tables.family).isdisjoint(since_ns):
                        heard |= abi.flows_heard(batch.values, since_ns, tables.family)
        except XdpRouterError as error:
            _log.error("replies_not_found", error=str(error))
            return set(since_ns)
        return heard
