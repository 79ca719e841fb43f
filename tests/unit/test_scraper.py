# SPDX-License-Identifier: Apache-2.0
"""The scraper in the loop: it holds nobody up, and whatever fails is counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from xdp_router.core.config import parse_config
from xdp_router.core.model import Backend, Endpoint
from xdp_router.core.scrape import ScrapeState
from xdp_router.daemon.scraper import Fetch, Scraper, of_router
from xdp_router.daemon.tasks import Tasks
from xdp_router.measure.metrics_page import PARSED_LINES

PATIENCE_MS = 20_000

Take = Callable[[bytes], None]


class Place:
    """As much of a router as a scraper sees, with ``count`` backends that have metrics."""

    def __init__(self, count: int = 1) -> None:
        text = '[[service]]\naddress = "198.18.100.1:80"\nmode = "snapshot"\n'
        text += '[service.scrape]\nqueue = "depth"\n'
        for number in range(count):
            text += f'[[service.backend]]\naddress = "198.18.1.{number + 1}:8080"\n'
        self.config = parse_config(text, "x")
        self.tasks = Tasks()
        self.told: list[Mapping[str, float]] = []
        self.engine = SimpleNamespace(
            backends=SimpleNamespace(is_reached=lambda _: True),
            roster=SimpleNamespace(tell=self._tell),
        )
        self.loop = SimpleNamespace(obey=lambda _: None)

    def _tell(self, _: Backend, values: Mapping[str, float], *__: Any) -> None:
        self.told.append(values)

    def scraper(self, fetch: Fetch) -> Scraper:
        return of_router(cast(Any, self), fetch)


async def until(place: Place, scraper: Scraper, reached: Callable[[], bool]) -> None:
    """Scrape for so long."""
    place.tasks.spawn(scraper.run(), "scraper")
    for _ in range(PATIENCE_MS):
        if reached():
            break
        await asyncio.sleep(0.001)
    await place.tasks.cancel()
    assert reached()


def test_pages_that_come_at_once_are_read_one_after_the_other() -> None:
    """In one turn of the loop a few lines of one of them: others have their turn between."""
    count, pieces = 20, 4
    text = "".join(f'depth{{queue="{number}"}} 2\n' for number in range(pieces * PARSED_LINES))
    place = Place(count)
    asked: list[Endpoint] = []
    turns: list[int] = []

    async def count_turns() -> None:
        while len(place.told) < count:
            turns.append(len(place.told))
            await asyncio.sleep(0)

    async def main() -> None:
        all_asked = asyncio.Event()

        async def fetch(to: Endpoint, _: str, take: Take, __: float) -> None:
            asked.append(to)
            if len(asked) == count:
                place.tasks.spawn(count_turns(), "turns")
                all_asked.set()
            await all_asked.wait()
            take(text.encode())

        await until(place, place.scraper(fetch), lambda: len(place.told) >= count)

    asyncio.run(main())
    assert place.told == [{"queue": 2 * pieces * PARSED_LINES}] * count
    assert len(turns) >= count * pieces
    assert max(Counter(turns).values()) < 3 * pieces


def test_whatever_fails_is_a_scrape_that_failed() -> None:
    """A bug, too: told once, counted each time, and the place is asked again."""
    place = Place()

    async def fetch(_: Endpoint, __: str, take: Take, ___: float) -> None:
        take(b"depth 1\n")
        raise RuntimeError("a bug")

    async def main() -> ScrapeState:
        scraper = place.scraper(fetch)
        state = scraper.state(0)
        assert state is not None
        await until(place, scraper, lambda: state.failed >= 2)
        return state

    with capture_logs() as lines:
        state = asyncio.run(main())
    assert (state.ok, state.error) == (0, "a fault of the router's own: RuntimeError('a bug')")
    assert [(line["event"], line["error"]) for line in lines] == [
        ("task_failed", "RuntimeError('a bug')")
    ]
    assert place.told == []
