# SPDX-License-Identifier: Apache-2.0
"""Asks backends for their metrics, and tells their scores what these say."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from xdp_router.adapters.http_client import HttpError, fetch
from xdp_router.core.address import format_endpoint
from xdp_router.core.config_scrape import KEYS
from xdp_router.core.model import Endpoint, Service
from xdp_router.core.score_inputs import SCRAPE
from xdp_router.core.scrape import Request, Said, Samples, Scrapes, ScrapeState
from xdp_router.measure.metrics_page import MetricsPage, PageError

from .tasks import Tasks

if TYPE_CHECKING:
    from .app import Router

_NS = 1e9
_KEY_OF = {name: key for key, name in KEYS.items()}
_log = structlog.get_logger()

Fetch = Callable[[Endpoint, str, Callable[[bytes], None], float], Awaitable[None]]


class Scraper:
    """Asks from ``run`` on, by ``fetch``, in ``tasks``.

    ``take`` gets what was said. ``reached``: whether there is a way to a backend, by its id.
    """

    def __init__(
        self,
        tasks: Tasks,
        take: Callable[[Sequence[Said]], object],
        reached: Callable[[int], bool] = lambda _: True,
        fetch: Fetch = fetch,
    ) -> None:
        self._tasks = tasks
        self._take = take
        self._reached = reached
        self._fetch = fetch
        self._reading = asyncio.Lock()
        self._scrapes = Scrapes(random.Random().randrange)
        self._wake = asyncio.Event()

    def change(self, services: Iterable[Service]) -> None:
        """Ask for the backends of these from now on."""
        self._scrapes.change(services, time.monotonic_ns())
        self._wake.set()

    async def run(self) -> None:
        """Ask whoever is due, until cancelled."""
        while True:
            self._wake.clear()
            now_ns = time.monotonic_ns()
            for request in self._scrapes.due(now_ns, self._reached):
                self._tasks.spawn(self._ask(request), "scrape")
            at_ns = self._scrapes.deadline()
            wait_s = None if at_ns is None else max(at_ns - time.monotonic_ns(), 0) / _NS
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _ask(self, request: Request) -> None:
        page = MetricsPage(request.names)
        try:
            await self._fetch(request.endpoint, request.path, page.feed, request.timeout_ns / _NS)
            samples = await self._read(page)
            answer = self._scrapes.answered(request, samples, time.monotonic_ns())
        except (HttpError, PageError) as error:
            if self._scrapes.failed(request, str(error)):
                _tell_failure(request, str(error))
        except Exception as error:  # a bug: told once as all failures, and the place is asked again
            if self._scrapes.failed(request, f"a fault of the router's own: {error!r}"):
                raise
        except BaseException:
            self._scrapes.failed(request, "the router gave it up")
            raise
        else:
            self._tell(request, *answer)
        finally:
            self._wake.set()

    async def _read(self, page: MetricsPage) -> Samples:
        """A piece of one page in one turn of the loop: all of them may have come at once."""
        async with self._reading:
            more = True
            while more:
                more = page.parse()
                await asyncio.sleep(0)
        return page.samples

    def _tell(self, request: Request, said: Sequence[Said], news: bool, why: str) -> None:
        if news:
            if why:
                _tell_failure(request, why)
            else:
                _log.info("scrape_works_again", url=_url(request))
        if said:
            self._take(said)

    # For those who look

    def state(self, backend: int) -> ScrapeState | None:
        """What has become of asking for a backend's metrics; None: nobody asks."""
        found = self._scrapes.of(backend)
        return None if found is None else found[2]

    def view(self, backend: int, now_ns: int) -> dict[str, Any] | None:
        """Of the list of backends; None: its metrics are not asked for."""
        found = self._scrapes.of(backend)
        if found is None:
            return None
        endpoint, path, state = found
        age_ns = now_ns - state.answered_ns
        return {
            "url": f"http://{format_endpoint(endpoint)}{path}",
            "ok": state.ok,
            "failed": state.failed,
            "error": state.error,
            "age_s": round(age_ns / _NS, 3) if state.answered_ns else None,
            "took_ms": round(state.took_ns / 1e6, 3) if state.took_ns else None,
            "missing": [_KEY_OF[name] for name in state.missing],
        }


def of_router(router: Router, fetch: Fetch = fetch) -> Scraper:
    """That of a router, whose scores get to know what was said."""

    def take(said: Sequence[Said]) -> None:
        for each in said:
            router.engine.roster.tell(each.backend, each.values, time.monotonic_ns(), SCRAPE)
        router.loop.obey(())  # it may want to be woken sooner now

    scraper = Scraper(router.tasks, take, router.engine.backends.is_reached, fetch)
    scraper.change(router.config.services)
    return scraper


def _url(request: Request) -> str:
    return f"http://{format_endpoint(request.endpoint)}{request.path}"


def _tell_failure(request: Request, why: str) -> None:
    _log.warning(
        "scrape_failed",
        url=_url(request),
        reason=why,
        consequence="what it said last is forgotten when it is older than score.age",
    )
