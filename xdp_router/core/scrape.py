# SPDX-License-Identifier: Apache-2.0
"""Which metrics are asked for, where and when, and what they say of backends.

    for request in scrapes.due(now_ns): ...            ask; each is answered by one of
    scrapes.answered(request, samples, now_ns)         values for the backends' scores
    scrapes.failed(request, why, now_ns)               none; the older ones age

One place is asked once, however many services have a backend there. What counts from a server's
start (counters, histograms) is compared with the time before, by series: a series that is new
says nothing yet, and one that has gone back is of a server that has begun anew.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .config_scrape import INTERVAL_LEAST_NS, format_sum, scraped_endpoint
from .model import Backend, Endpoint, Mode, Reading, Scrape, Series, Service

OPEN_MAX = 64
"""Requests at a time."""
JITTER = 8
"""An interval is longer by up to an eighth of it: many begin at once, and part."""
_NS = 1e9
_MOST = {"queue": 1e9, "ttft_ns": 3600 * _NS, "cache": 1.0, "usage": 1.0}
"""What each input can be, as with values that are pushed."""

Sample = tuple[Mapping[str, str], float]
Samples = Mapping[str, Sequence[Sample]]
"""By name: labels and value of each."""

_Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Request:
    """One place to be asked, for samples of these names."""

    endpoint: Endpoint
    path: str
    names: frozenset[str]
    timeout_ns: int
    begun_ns: int


@dataclass(frozen=True, slots=True)
class Said:
    """What one backend is told of by its own metrics.

    ``grown``: by how much both sides of a share have grown since the last time, by input, whether
    or not that makes a value.
    """

    backend: Backend
    values: Mapping[str, float]
    grown: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(slots=True)
class ScrapeState:
    """What has become of asking one place."""

    ok: int = 0
    failed: int = 0
    error: str = ""
    """Why the newest scrape failed; empty: it did not, or there was none yet."""
    answered_ns: int = 0
    took_ns: int = 0
    """Of the newest that did not fail; 0: there is none."""
    missing: tuple[str, ...] = ()
    """Inputs whose metrics were not there then."""


@dataclass(slots=True)
class _Source:
    """One place. ``whose``: backends that are there, with what is to be read for each."""

    endpoint: Endpoint
    path: str
    number: int
    whose: list[tuple[Backend, Scrape]] = field(default_factory=list)
    names: frozenset[str] = frozenset()
    interval_ns: int = 0
    timeout_ns: int = 0
    due_ns: int = 0
    busy: Request | None = None
    before: dict[_Key, float] = field(default_factory=dict)
    state: ScrapeState = field(default_factory=ScrapeState)


_Place = tuple[int, int, str]


class Scrapes:
    """All places that are asked. ``draw`` gives a random number below its argument."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw
        self._sources: dict[_Place, _Source] = {}
        self._of_backend: dict[int, _Source] = {}
        self._due: list[tuple[int, int, _Source]] = []
        self._numbers = 0
        self._open = 0

    def change(self, services: Iterable[Service], now_ns: int) -> None:
        """Ask for these services from now on; what is known of a place that stays is kept."""
        before = self._sources
        self._sources, self._of_backend = {}, {}
        for service in services:
            # XDP goes by what it sees itself: nobody would look at what is said.
            if service.scrape is None or service.mode is Mode.INLINE:
                continue
            for backend in service.backends:
                self._enter(before, backend, service.scrape)
        for place, source in self._sources.items():
            names = frozenset(
                series.name for _, scrape in source.whose for series in _series(scrape)
            )
            source.interval_ns = min(scrape.interval_ns for _, scrape in source.whose)
            source.timeout_ns = max(scrape.timeout_ns for _, scrape in source.whose)
            if place not in before:
                # Not all at once, nor late: values are waited for.
                source.due_ns = now_ns + self._draw(source.interval_ns // 4 + 1)
            else:
                # What is new is not to wait for as long as the old interval says.
                wait_ns = source.interval_ns if names <= source.names else INTERVAL_LEAST_NS
                source.due_ns = min(source.due_ns, now_ns + self._later(wait_ns))
            source.names = names
            if source.busy is not None and not names <= source.busy.names:
                source.busy = None  # its answer would be taken for one without what is new
        self._due = [(each.due_ns, each.number, each) for each in self._sources.values()]
        heapq.heapify(self._due)

    def _enter(self, before: Mapping[_Place, _Source], backend: Backend, scrape: Scrape) -> None:
        endpoint = scraped_endpoint(scrape, backend)
        if endpoint is None:
            return
        place = endpoint.addr, endpoint.port, scrape.path
        source = self._sources.get(place)
        if source is None:
            source = before.get(place)
            if source is None:
                self._numbers += 1
                source = _Source(endpoint, scrape.path, self._numbers)
            source.whose = []
            self._sources[place] = source
        source.whose.append((backend, scrape))
        self._of_backend[backend.id] = source

    def _later(self, interval_ns: int) -> int:
        return interval_ns + self._draw(interval_ns // JITTER + 1)

    def deadline(self) -> int | None:
        """When somebody is to be asked next; None: not before a request has been answered."""
        return self._due[0][0] if self._due and self._open < OPEN_MAX else None

    def due(self, now_ns: int, reached: Callable[[int], bool] = lambda _: True) -> list[Request]:
        """Whom to ask now. ``reached``: whether there is a way to a backend, else it waits."""
        out = []
        while (at_ns := self.deadline()) is not None and at_ns <= now_ns:
            source = self._due[0][2]
            source.due_ns = now_ns + self._later(source.interval_ns)
            heapq.heapreplace(self._due, (source.due_ns, source.number, source))
            # Still to be answered; or asked in vain, which would only be logged.
            if source.busy or not any(reached(backend.id) for backend, _ in source.whose):
                continue
            source.busy = Request(
                source.endpoint, source.path, source.names, source.timeout_ns, now_ns
            )
            self._open += 1
            out.append(source.busy)
        return out

    def _source_of(self, request: Request) -> _Source | None:
        """Whose request it is; None: nobody asks any more."""
        source = self._sources.get((request.endpoint.addr, request.endpoint.port, request.path))
        return source if source is not None and source.busy is request else None

    def _ended(self, request: Request) -> _Source | None:
        """Of a request that has not ended yet."""
        self._open -= 1
        source = self._source_of(request)
        if source is not None:
            source.busy = None
        return source

    def answered(
        self, request: Request, samples: Samples, now_ns: int
    ) -> tuple[list[Said], bool, str]:
        """What the answer says; whether that is well again; or why it is none (then as if it had
        failed). If this itself fails, the request is still open."""
        source = self._source_of(request)
        if source is None:
            self._ended(request)
            return [], False, ""
        said, missing, why = self._judge(source, samples)
        self._ended(request)
        if why:
            return [], self._note_failure(source, why), why
        state = source.state
        healed = bool(state.error)
        state.ok += 1
        state.error = ""
        state.answered_ns, state.took_ns = now_ns, max(now_ns - request.begun_ns, 1)
        state.missing = missing
        return said, healed, ""

    def _judge(self, source: _Source, samples: Samples) -> tuple[list[Said], tuple[str, ...], str]:
        """What each backend is told of; inputs that are missing; why it is no answer."""
        rises = self._rises(source, samples)
        said: list[Said] = []
        missing: dict[str, None] = {}
        there = False
        for backend, scrape in source.whose:
            values = {}
            grown = {}
            for name, readings in scrape.inputs:
                found = next((each for each in readings if _is_there(each, samples)), None)
                if found is None:
                    missing[name] = None
                    continue
                there = True
                value = _value(name, found, samples, rises)
                if value is not None:
                    values[name] = value
                if found.over:
                    grown[name] = (
                        _grown(found.of, samples, rises),
                        _grown(found.over, samples, rises),
                    )
            if values:
                said.append(Said(backend, values, grown))
        if there:
            return said, tuple(missing), ""
        wanted = sorted({format_sum(each.of) for _, scrape in source.whose
                         for _, readings in scrape.inputs for each in readings})  # fmt: skip
        more = f" and {len(wanted) - 4} more" if len(wanted) > 4 else ""
        some = any(_matching(series, samples) for _, scrape in source.whose
                   for series in _series(scrape))  # fmt: skip
        which = "only a part is there of" if some else "none of the metrics is there"
        return [], (), f"{which}: {', '.join(wanted[:4])}{more}"

    def failed(self, request: Request, why: str) -> bool:
        """There was no answer. Returns whether that is news."""
        source = self._ended(request)
        return source is not None and self._note_failure(source, why)

    def _note_failure(self, source: _Source, why: str) -> bool:
        news = not source.state.error
        source.state.failed += 1
        source.state.error = why
        return news

    def _rises(self, source: _Source, samples: Samples) -> dict[_Key, float]:
        """By how much each series has grown that was there before."""
        rises: dict[_Key, float] = {}
        now: dict[_Key, float] = {}
        for name, rows in samples.items():
            for labels, value in rows:
                if not math.isfinite(value):
                    continue  # no place to begin from
                key = name, tuple(sorted(labels.items()))
                now[key] = value
                before = source.before.get(key)
                if before is not None:
                    rises[key] = value - before if value >= before else value
        source.before = now
        return rises

    def of(self, backend: int) -> tuple[Endpoint, str, ScrapeState] | None:
        """Where a backend's metrics are, and what has become of asking; None: it is not asked."""
        source = self._of_backend.get(backend)
        return None if source is None else (source.endpoint, source.path, source.state)


def _series(scrape: Scrape) -> Iterator[Series]:
    for _, readings in scrape.inputs:
        for reading in readings:
            yield from reading.of
            yield from reading.over


def _matching(series: Series, samples: Samples) -> list[Sample]:
    wanted = series.labels
    return [
        (labels, value)
        for labels, value in samples.get(series.name, ())
        if math.isfinite(value) and all(labels.get(name) == text for name, text in wanted)
    ]


def _is_there(reading: Reading, samples: Samples) -> bool:
    """Whether of a share both parts are, and of a sum all names: half of a queue is no short one.

    Not all series of each name: a label's value may come and go. A counter that is not there has
    counted nothing.
    """
    if reading.over:
        parts = (reading.of, reading.over)
        return all(any(_matching(series, samples) for series in part) for part in parts)
    found = {series.name for series in reading.of if _matching(series, samples)}
    return found == {series.name for series in reading.of}


def _value(
    name: str, reading: Reading, samples: Samples, rises: Mapping[_Key, float]
) -> float | None:
    """An input's value; None: nothing new was counted, or it is none that it could have."""
    if reading.over:
        grown = _grown(reading.over, samples, rises)
        if grown <= 0:
            return None
        value = _grown(reading.of, samples, rises) / grown
        if name == "cache":
            value = min(value, 1.0)  # the two are not read at one instant
    else:
        values = [value for series in reading.of for _, value in _matching(series, samples)]
        # Engines behind one address each have a queue of their own, and shares of their own.
        value = sum(values) if name == "queue" else sum(values) / len(values)
    if name == "ttft_ns":
        value *= _NS
    return value if 0 <= value <= _MOST[name] else None  # nor NaN, of what is beyond all numbers


def _grown(part: Sequence[Series], samples: Samples, rises: Mapping[_Key, float]) -> float:
    return sum(
        rises.get((series.name, tuple(sorted(labels.items()))), 0.0)
        for series in part
        for labels, _ in _matching(series, samples)
    )
