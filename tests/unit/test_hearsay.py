# SPDX-License-Identifier: Apache-2.0
"""What others say of backends, from a page of metrics or a push to the board."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from xdp_router.adapters.control import CommandError
from xdp_router.adapters.http_client import HttpError
from xdp_router.core.config import parse_config
from xdp_router.core.listeners import GatewayConfig
from xdp_router.core.model import Endpoint
from xdp_router.daemon.gateway.board import CACHE, IN_FLIGHT, QUEUE, TOLD_TTFT, USAGE, Board
from xdp_router.daemon.gateway.hearsay import Hearsay
from xdp_router.daemon.gateway.page_told import told_figures
from xdp_router.daemon.tasks import Tasks

S = 10**9
PATIENCE_MS = 20_000
ONE, TWO = "127.0.0.1:8000", "127.0.0.1:8001"
ROWS = {ONE: 0, TWO: 1}
SCRAPE = '[listener.scrape]\npreset = "vllm"\n'
LABELS = '{model_name="m"}'


def config(scrape: str = "", *more: str) -> GatewayConfig:
    """Listener ``front`` with b1 and b2; ``more``: others, whose b1 has the address of b2."""
    text = f'[[listener]]\nname = "front"\naddress = "127.0.0.1:80"\ntype = "llm"\n{scrape}\n'
    text += f'[[listener.backend]]\nname = "b1"\naddress = "{ONE}"\n'
    text += f'[[listener.backend]]\nname = "b2"\naddress = "{TWO}"\n'
    for number, name in enumerate(more):
        text += f'[[listener]]\nname = "{name}"\naddress = "127.0.0.1:{90 + number}"\n'
        text += 'type = "llm"\n[listener.score]\nage = "3s"\n'
        text += f'[[listener.backend]]\nname = "b1"\naddress = "{TWO}"\n'
    return parse_config(text, "x").gateway


class Place:
    """A board with one worker's slot, a clock, and pages by port."""

    def __init__(self) -> None:
        self.fd = Board.create()
        self.board = Board(self.fd)
        self.worker = Board(self.fd, self.board.claim(self.fd, os.getpid()))
        self.now_ns = 100 * S
        self.tasks = Tasks()
        self.pages: dict[int, str | Exception] = {}
        self.asked = 0
        self.hearsay = Hearsay(self.board, self.tasks, self._fetch, lambda: self.now_ns)

    async def _fetch(
        self, to: Endpoint, path: str, take: Callable[[bytes], None], _timeout_s: float
    ) -> None:
        self.asked += 1
        page = self.pages[to.port]
        if isinstance(page, Exception):
            raise page
        take(page.encode())

    def told(self, row: int, word: int) -> int | None:
        """Of the board, from whenever."""
        return self.board.told(row, word, 0)

    def scrape(self, what: GatewayConfig, reached: Callable[[], bool]) -> None:
        """Ask until it is as wanted."""

        async def main() -> None:
            self.hearsay.begin(what, ROWS)
            for _ in range(PATIENCE_MS):
                if reached():
                    break
                await asyncio.sleep(0.001)
            await self.tasks.cancel()
            assert reached()

        asyncio.run(main())


@pytest.fixture
def place() -> Iterator[Place]:
    """All of it."""
    made = Place()
    yield made
    made.worker.close()
    made.board.close()
    os.close(made.fd)


def page(waiting: int, running: int, usage: float = 0.25, hits: str = "", ttft: str = "") -> str:
    """As vLLM has it."""
    return (
        f"vllm:num_requests_waiting{LABELS} {waiting}\n"
        f"vllm:num_requests_running{LABELS} {running}\n"
        f"vllm:kv_cache_usage_perc{LABELS} {usage}\n{hits}{ttft}"
    )


def test_a_scrape_goes_to_the_board(place: Place) -> None:
    """Requests there that are ours are in flight already: the others are what is told of."""
    place.worker.add_own(0, IN_FLIGHT, 5)
    place.worker.add_own(1, IN_FLIGHT, 9)
    place.pages = {8000: page(4, 8), 8001: page(0, 8, 0.5)}
    place.scrape(config(SCRAPE), lambda: None not in (place.told(0, QUEUE), place.told(1, QUEUE)))
    assert (place.told(0, QUEUE), place.told(1, QUEUE)) == (7_000, 0)
    assert (place.told(0, USAGE), place.told(1, USAGE)) == (250, 500)
    assert place.told(0, CACHE) is None  # nothing was counted
    listener = config(SCRAPE).listeners[0]
    view = place.hearsay.view(listener, listener.backends[0])
    told = {"value": 12.0, "age_s": 0.0, "source": "scrape", "counts": True}
    assert view["told"]["queue"] == told
    assert view["others"] == 7.0
    assert view["scrape"]["ok"] >= 1
    assert view["scrape"]["missing"] == ["ttft", "cache_hit"]
    assert view["prefix_cache"] is None
    place.now_ns += 11 * S
    view = place.hearsay.view(listener, listener.backends[0])
    assert (view["told"]["queue"]["counts"], view["others"]) == (False, None)


def test_what_came_or_went_meanwhile_is_ours(place: Place) -> None:
    """A request that ended between asking and answer was on the page."""
    place.worker.add_own(0, IN_FLIGHT, 6)
    fetch = place.hearsay._fetch

    async def slow(to: Endpoint, *args: Any) -> None:
        await fetch(to, *args)
        if to.port == 8000:
            place.worker.set_own(0, IN_FLIGHT, 0)

    place.hearsay._fetch = slow
    place.pages = dict.fromkeys((8000, 8001), page(0, 6))
    place.scrape(config(SCRAPE), lambda: place.told(0, QUEUE) is not None)
    assert place.told(0, QUEUE) == 0


def test_counters_of_a_prefix_cache(place: Place) -> None:
    """By how much they have grown, once for each answer."""
    what = config(SCRAPE, "other")
    names = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"

    def pages(hits: int, queries: int) -> None:
        counters = f"{names[0]}{LABELS} {hits}\n{names[1]}{LABELS} {queries}\n"
        place.pages = dict.fromkeys((8000, 8001), page(0, 0, hits=counters))

    pages(1000, 2000)

    def grown() -> bool:
        if place.asked >= 2 and "2000" in str(place.pages[8000]):
            pages(1030, 2100)
        return place.told(0, CACHE) is not None and place.told(1, CACHE) is not None

    place.scrape(what, grown)
    assert (place.told(0, CACHE), place.told(1, CACHE)) == (300, 300)
    assert place.hearsay.cache.counted == {ONE: (30, 100), TWO: (30, 100)}
    place.hearsay.look({"prompt_bytes_total": [[["front", "b1"], 10]]})
    listener = what.listeners[0]
    view = place.hearsay.view(listener, listener.backends[0])
    assert view["prefix_cache"] == {"predicted": 0.0, "measured": 0.3}


def test_a_failure_is_told_once(place: Place) -> None:
    """And counted; what it said before stays, with its age."""
    place.pages = {8000: HttpError("status 404 instead of 200"), 8001: page(0, 0)}
    what = config(SCRAPE)
    listener = what.listeners[0]

    def failed() -> int:
        state = place.hearsay.state(listener, listener.backends[0])
        return 0 if state is None else state.failed

    with capture_logs() as lines:
        place.scrape(what, lambda: failed() >= 2)
    assert [each["event"] for each in lines] == ["scrape_failed"]
    assert lines[0]["reason"] == "status 404 instead of 200"
    view = place.hearsay.view(listener, listener.backends[0])
    assert view["scrape"]["error"] == "status 404 instead of 200"
    assert view["told"] == {}
    figures = told_figures(what, place.hearsay)
    assert (("front", "b1", "failed"), failed()) in figures["scrapes_total"]
    assert (("front", "b1", "ok"), 0) in figures["scrapes_total"]


def test_a_push(place: Place) -> None:
    """By name or address; the newest value counts, for as long as the strictest listener says."""
    place.hearsay.follow(config("", "other"), ROWS)
    place.worker.add_own(1, IN_FLIGHT, 1)
    told = place.hearsay.push({"backend": "b2", "queue": 3, "ttft_ms": 40, "cache_hit": 0.5})
    assert told == {
        "backend": "b2",
        "address": TWO,
        "told": {"ttft_ms": 40.0, "cache_hit": 0.5, "queue": 3.0},
        "holds_s": 3.0,
    }
    assert (place.told(1, QUEUE), place.told(1, TOLD_TTFT)) == (2_000, 40_000_000)
    assert place.told(1, USAGE) is None
    place.now_ns += S
    place.hearsay.push({"backend": TWO, "cache_usage": 1})
    (front, _) = config("", "other").listeners
    view = place.hearsay.view(front, front.backends[1])
    ages = {name: each["age_s"] for name, each in view["told"].items()}
    assert ages == {"queue": 1.0, "cache_usage": 0.0, "cache_hit": 1.0, "ttft_ms": 1.0}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("b1", f"'b1' may be {ONE} of listener front, {TWO} of listener other: name its address"),
        ("b9", "there is no backend 'b9'; there are: b1, b2$"),
        (None, "there is no backend None"),
        (7, "there is no backend 7"),
    ],
)
def test_a_push_of_nobody(place: Place, name: object, words: str) -> None:
    """Who is there is said; what could be two is not guessed."""
    place.hearsay.follow(config("", "other"), ROWS)
    with pytest.raises(CommandError, match=words):
        place.hearsay.push({"backend": name, "queue": 1})


def test_another_backend_in_its_row(place: Place) -> None:
    """It has nothing of what was told of the former one."""
    place.hearsay.follow(config(), ROWS)
    place.hearsay.push({"backend": "b1", "queue": 3})
    place.board.clear_row(0)
    place.hearsay.follow(config(), {TWO: 0, ONE: 1})
    assert place.hearsay.told(TWO) == {}
    assert place.hearsay.told(ONE) == {}


def test_what_a_former_gateway_heard(place: Place) -> None:
    """It counts, and is shown, as long as it is not too old."""
    place.hearsay.follow(config(), ROWS)
    place.hearsay.push({"backend": "b1", "queue": 3, "cache_usage": 0.5})
    successor = Hearsay(place.board, place.tasks, clock_ns=lambda: place.now_ns + S)
    successor.follow(config(), ROWS)
    (listener,) = config().listeners
    told = successor.view(listener, listener.backends[0])["told"]
    assert told["queue"] == {"value": 3.0, "age_s": 1.0, "source": "former", "counts": True}
    assert told["cache_usage"]["value"] == 0.5


def test_who_is_closed_asks_nobody(place: Place) -> None:
    """A successor does."""
    place.pages = dict.fromkeys((8000, 8001), page(0, 0))
    place.hearsay.close()

    async def main() -> None:
        place.hearsay.begin(config(SCRAPE), ROWS)
        place.hearsay.close()
        await asyncio.sleep(0.5)
        await place.tasks.cancel()

    asyncio.run(main())
    assert not place.asked
