# SPDX-License-Identifier: Apache-2.0
"""What others say of backends beside what the gateway sees itself: it goes to the board.

Backends are asked for their metrics (``[listener.scrape]``), or somebody pushes. The supervisor
does it, for all workers. Of one input the newest value counts, whoever told it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from xdp_router.adapters.control import CommandError
from xdp_router.adapters.http_client import fetch
from xdp_router.core.config_scrape import scraped_endpoint
from xdp_router.core.config_told import scraped_services
from xdp_router.core.listeners import GatewayConfig, Listener, ListenerBackend
from xdp_router.core.model import Endpoint
from xdp_router.core.score_inputs import PUSH, SCRAPE, ScoreInputs
from xdp_router.core.scrape import Said, ScrapeState
from xdp_router.daemon.pushed import INPUT_NAMES, read_pushed, shown_input
from xdp_router.daemon.scraper import Fetch, Scraper
from xdp_router.daemon.tasks import Tasks

from .arms import ARM_TIMES, Arms
from .board import CACHE, QUEUE, TOLD_TTFT, USAGE, Board
from .cache_check import PREDICTED, PROMPTS, CacheCheck
from .totals import Figures

WANTED: Final = (ARM_TIMES, PROMPTS, PREDICTED)
"""The figures of workers that are looked at here."""
FORMER: Final = "former"
"""Who told what is on the board that was taken over: the gateway before this one heard it."""
_WORDS: Final = {"queue": QUEUE, "usage": USAGE, "cache": CACHE, "ttft_ns": TOLD_TTFT}
_THOUSAND: Final = 1_000
_SHOWN: Final = 10
"""Names that a message lists."""
_NS: Final = 1e9


class Hearsay:
    """Of one gateway. ``clock_ns`` is the board's clock."""

    def __init__(
        self,
        board: Board,
        tasks: Tasks,
        fetch: Fetch = fetch,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._board = board
        self._tasks = tasks
        self._fetch = fetch
        self._clock_ns = clock_ns
        self._inputs = ScoreInputs()
        self._scraper = Scraper(tasks, self._heard, fetch=self._ask)
        self._config = GatewayConfig()
        self._rows: dict[str, int] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._whose: dict[int, str] = {}  # address, by the scraper's id
        self._speaks: dict[str, int] = {}  # whose counters count, by address
        self._at: dict[tuple[int, int], list[int]] = {}  # rows of whom is asked there
        self._in_flight: dict[int, int] = {}  # by row, when it was asked last
        self.arms = Arms(clock_ns())
        self.cache = CacheCheck(clock_ns())

    def begin(self, config: GatewayConfig, rows: Mapping[str, int]) -> None:
        """Ask from now on."""
        self.follow(config, rows)
        self._tasks.keep(self._scraper.run, "scraper")

    def follow(self, config: GatewayConfig, rows: Mapping[str, int]) -> None:
        """Ask for these backends from now on. ``rows``: of the board, by address."""
        for address, row in self._rows.items():
            if rows.get(address) != row:
                self._inputs.forget(row)
        self._rows = dict(rows)
        self._config = config
        pairs = [(one, each) for one in config.listeners for each in one.backends]
        self._ids = {(one.name, each.name): at for at, (one, each) in enumerate(pairs)}
        self._whose = {at: str(each.address) for at, (_, each) in enumerate(pairs)}
        self._speaks = {}
        for one, each in pairs:
            if one.scrape is not None:
                self._speaks.setdefault(str(each.address), self._ids[one.name, each.name])
        self.cache.keep_only(self._speaks)
        services = scraped_services(config.listeners, self._ids)
        self._at = {}
        for service in services:
            for member in service.backends:
                at = scraped_endpoint(service.scrape, member) if service.scrape else None
                if at is not None:
                    row = self._rows[self._whose[member.id]]
                    self._at.setdefault((at.addr, at.port), []).append(row)
        self._scraper.change(services)

    def close(self) -> None:
        """Ask nobody any more."""
        self._scraper.change(())

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to compare, so that ``look`` has a use."""
        return any(one.control_arm or one.scrape is not None for one in self._config.listeners)

    def look(self, figures: Figures) -> None:
        """``WANTED`` of all workers are so now."""
        now_ns = self._clock_ns()
        self.arms.look(figures, now_ns)
        self.cache.look(self._config, figures, now_ns)

    # What is said

    async def _ask(
        self, to: Endpoint, path: str, take: Callable[[bytes], None], timeout_s: float
    ) -> None:
        """Ask one place, and remember what was in flight then."""
        for row in self._at.get((to.addr, to.port), ()):
            self._in_flight[row] = self._board.in_flight(row)
        await self._fetch(to, path, take, timeout_s)

    def _heard(self, said: Sequence[Said]) -> None:
        for each in said:
            address = self._whose.get(each.backend.id)
            row = self._rows.get(address) if address is not None else None
            if address is None or row is None:
                continue
            # A request that came or went while the page was made may be on it or not: it is ours.
            ours = max(self._in_flight.get(row, 0), self._board.in_flight(row))
            self._tell(row, each.values, ours, SCRAPE)
            if "cache" in each.grown and self._speaks.get(address) == each.backend.id:
                self.cache.measured(address, *each.grown["cache"])

    def push(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Take in what is told of ``backend``, a name or an address. Raises CommandError."""
        address, told_by = self._find(args.get("backend"))
        told, values = read_pushed(args, address)
        row = self._rows[address]
        self._tell(row, values, self._board.in_flight(row), PUSH)
        return {
            "backend": told_by[0][1].name,
            "address": address,
            "told": told,
            "holds_s": min(one.told_age_ns for one, _ in told_by) / _NS,
        }

    def _tell(self, row: int, values: Mapping[str, float], ours: int, source: str) -> None:
        now_ns = self._clock_ns()
        self._inputs.tell(row, values, now_ns, source)
        for name, value in values.items():
            if name == "queue":
                value = max(value - ours, 0.0)
            unit = 1 if name == "ttft_ns" else _THOUSAND
            self._board.tell(row, _WORDS[name], round(value * unit), now_ns)

    def _find(self, name: object) -> tuple[str, list[tuple[Listener, ListenerBackend]]]:
        """The address that is meant, and who has it. Raises CommandError."""
        pairs = [(one, each) for one in self._config.listeners for each in one.backends]
        found = {str(each.address) for _, each in pairs if name in (each.name, str(each.address))}
        if len(found) > 1:
            of = ", ".join(
                f"{each.address} of listener {one.name}" for one, each in pairs if each.name == name
            )
            raise CommandError(f"{name!r} may be {of}: name its address")
        for address in found:
            return address, [(one, each) for one, each in pairs if str(each.address) == address]
        names = list(dict.fromkeys(each.name for _, each in pairs))
        more = ", ..." if len(names) > _SHOWN else ""
        raise CommandError(
            f"there is no backend {name!r}; there are: {', '.join(names[:_SHOWN])}{more}"
        )

    # For those who look

    def state(self, listener: Listener, backend: ListenerBackend) -> ScrapeState | None:
        """What has become of asking; None: it is not asked."""
        if listener.scrape is None:
            return None
        return self._scraper.state(self._ids.get((listener.name, backend.name), -1))

    def told(self, address: str) -> dict[str, tuple[float, int, str]]:
        """By input: what was told last of a backend, when, and by whom.

        Of what a former gateway heard the queue is without that one's own requests.
        """
        row, found = self._rows.get(address), {}
        if row is None:
            return {}
        known = self._inputs.told(row)
        for name, word in _WORDS.items():
            told_ns = self._board.common(row, word + 1)
            if name in known:
                found[name] = known[name].value, known[name].told_ns, known[name].source
            elif told_ns:
                value = self._board.common(row, word)
                shown = float(value) if name == "ttft_ns" else value / _THOUSAND
                found[name] = shown, told_ns, FORMER
        return found

    def others(self, listener: Listener, backend: ListenerBackend) -> float | None:
        """Requests there that are not this gateway's; None: nobody has told lately."""
        row = self._rows.get(str(backend.address))
        if row is None:
            return None
        count = self._board.told(row, QUEUE, self._clock_ns() - listener.told_age_ns)
        return None if count is None else count / _THOUSAND

    def view(self, listener: Listener, backend: ListenerBackend) -> dict[str, Any]:
        """Of the list of backends."""
        address, now_ns = str(backend.address), self._clock_ns()
        asked = listener.scrape is not None
        number = self._ids.get((listener.name, backend.name), -1)
        return {
            "told": {
                INPUT_NAMES[name]: {
                    "value": shown_input(name, value),
                    "age_s": round((now_ns - told_ns) / _NS, 3),
                    "source": source,
                    "counts": now_ns - told_ns < listener.told_age_ns,
                }
                for name, (value, told_ns, source) in self.told(address).items()
            },
            "others": self.others(listener, backend),
            "scrape": self._scraper.view(number, now_ns) if asked else None,
            "prefix_cache": self.cache.view(address),
        }
