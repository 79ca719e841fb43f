# SPDX-License-Identifier: Apache-2.0
"""What the mock engine has to do at a time: places, a queue, a cache of prefixes, stalls; and what
it has counted, as a witness for tests."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import xxhash

from .errors import LabError

_BLOCK = 256
RECENT = 200
"""Requests that are told of one by one."""


@dataclass(slots=True)
class Record:
    """One request. Times by CLOCK_MONOTONIC, 0: not yet. ``prefill_bytes``: of its prompt, what was
    in no cache when it got its place. ``end``: ``completed``, ``aborted`` (the
    client went away before the answer's end), ``crashed`` (as the mock was told to)."""

    number: int
    method: str
    path: str
    headers: list[tuple[str, str]] = field(default_factory=list)
    body_bytes: int = 0
    body_xxh3: str = ""
    started_ns: int = 0
    served_ns: int = 0
    first_ns: int = 0
    ended_ns: int = 0
    tokens: int = 0
    cached: float = 0.0
    prefill_bytes: int = 0
    end: str = ""


@dataclass(slots=True)
class Counts:
    """Since the engine began, or was told to forget."""

    requests: int = 0
    completed: int = 0
    aborted: int = 0
    aborted_before_token: int = 0
    crashed: int = 0
    refused: int = 0
    tokens: int = 0
    tokens_of_aborted: int = 0
    prefill_bytes: int = 0
    prefill_of_aborted: int = 0
    busy_ns: int = 0
    """Of all places together, those that are free again."""
    connections: int = 0
    paused: int = 0
    stalls: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


class PrefixCache:
    """Which blocks of prompts the engine has seen: chained hashes, the least used go first."""

    def __init__(self, blocks: int) -> None:
        self._limit = blocks
        self._known: OrderedDict[int, None] = OrderedDict()

    def take(self, prompt: bytes) -> tuple[int, int]:
        """Blocks of a prompt, and how many of them were known; from now on all are."""
        if not self._limit:
            return 0, 0
        seed, hits, blocks, unbroken = 0, 0, len(prompt) // _BLOCK, True
        for at in range(0, blocks * _BLOCK, _BLOCK):
            seed = xxhash.xxh3_64_intdigest(prompt[at : at + _BLOCK], seed)
            unbroken = unbroken and seed in self._known
            hits += unbroken
            self._known[seed] = None
            self._known.move_to_end(seed)
        while len(self._known) > self._limit:
            self._known.popitem(last=False)
        return blocks, hits

    def forget(self) -> None:
        """All of it."""
        self._known.clear()


class Load:
    """Places for requests, the first come first. ``places`` 0: no limit."""

    def __init__(self, places: int, cache_blocks: int) -> None:
        self._places = places
        self.cache = PrefixCache(cache_blocks)
        self.running = 0
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def waiting(self) -> int:
        """Requests without a place."""
        return len(self._waiting)

    def enter(self, begin: Callable[[], None]) -> None:
        """``begin`` is called as soon as there is a place, which may be at once."""
        if self._places and self.running >= self._places:
            self._waiting.append(begin)
            return
        self.running += 1
        begin()

    def leave(self, begin: Callable[[], None]) -> bool:
        """Who waited waits no more: True; False: it had a place, and keeps it until ``free``."""
        try:
            self._waiting.remove(begin)
        except ValueError:
            return False
        return True

    def free(self) -> None:
        """A place is free."""
        self.running -= 1
        if self._waiting and (not self._places or self.running < self._places):
            self.running += 1
            self._waiting.popleft()()


class Stalls:
    """Times at which an engine does nothing for a while: garbage collection, a neighbour, swap.
    They come at random, ``every_ns`` apart in the mean; 0: never. Each lasts ``length_ns``, or at
    random up to ``most_ns``."""

    def __init__(self, every_ns: int, length_ns: int, seed: int, most_ns: int = 0) -> None:
        self._every_ns, self._least_ns = every_ns, length_ns
        self._most_ns = max(length_ns, most_ns)
        self._random = random.Random(seed)
        self._next_ns = self._length_ns = 0
        self.count = 0

    def until_ns(self, now_ns: int) -> int:
        """When the stall of now is over; 0: there is none."""
        if not self._every_ns:
            return 0
        if not self._next_ns:
            self._plan(now_ns)
        while self._next_ns + self._length_ns <= now_ns:  # nobody was there to notice
            self._plan(self._next_ns + self._length_ns)
        if now_ns < self._next_ns:
            return 0
        self.count += 1
        return self._next_ns + self._length_ns

    def _plan(self, from_ns: int) -> None:
        self._next_ns = from_ns + max(1, round(self._random.expovariate(1 / self._every_ns)))
        self._length_ns = round(self._random.uniform(self._least_ns, self._most_ns))


def stalls_of(text: str) -> Stalls:
    """``every-ms=..,for-ms=..,most-ms=..,seed=..``, each 0 where it is left out.

    Raises LabError, with the key, for anything else.
    """
    values = dict.fromkeys(("every-ms", "for-ms", "most-ms", "seed"), 0.0)
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = part.partition("=")
        if key not in values:
            raise LabError(f"{key!r} is nothing of a stall: {', '.join(values)}")
        try:
            values[key] = float(value)
        except ValueError:
            raise LabError(f"{part}: expected a number") from None
        if not 0 <= values[key] < 1e9:  # neither is NaN
            raise LabError(f"{part}: expected 0 or more")
    every, least, most, seed = values.values()
    return Stalls(round(every * 1e6), round(least * 1e6), int(seed), round(most * 1e6))


def metrics(load: Load, counts: Counts, model: str) -> bytes:
    """What vLLM calls these things (its /metrics), in the text format of Prometheus."""
    usage = load.running / 100 if load.running < 100 else 1.0
    rows = (
        ("num_requests_running", "gauge", load.running),
        ("num_requests_waiting", "gauge", load.waiting),
        ("gpu_cache_usage_perc", "gauge", usage),
        ("kv_cache_usage_perc", "gauge", usage),
        ("prefix_cache_queries_total", "counter", counts.prefix_queries),
        ("prefix_cache_hits_total", "counter", counts.prefix_hits),
        ("generation_tokens_total", "counter", counts.tokens),
    )
    lines = []
    for name, kind, value in rows:
        lines.append(f"# TYPE vllm:{name.removesuffix('_total')} {kind}")
        lines.append(f'vllm:{name}{{model_name="{model}"}} {value}')
    return ("\n".join(lines) + "\n").encode()


def witness(name: str, load: Load, counts: Counts, open_: int, recent: deque[Record]) -> object:
    """All that was counted, as /mock has it."""
    now = {"name": name, "open": open_, "running": load.running, "waiting": load.waiting}
    last = recent[-1].headers if recent else []
    return {**now, **asdict(counts), "last_headers": last, "recent": [*map(asdict, recent)]}
