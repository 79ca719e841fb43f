# SPDX-License-Identifier: Apache-2.0
"""All arms in turn, with the same requests and the same stalls in each round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gateway import cpu
from bench.gateway.answers import Call
from bench.gateway.peers import Proxy
from bench.gateway.place import DIRECT, ENGINES, Arm, Place, behave, calls, first_too, place, tell
from bench.gateway.run import turns

from .arms import proxies

RATE = 50.0
PLACES = 6
_CACHE_BLOCKS = 4_096
ENGINE = ("--queue", str(PLACES), "--cache-blocks", str(_CACHE_BLOCKS), "--hold")
BEHAVIOUR = "ttft-ms=25,prompt-us=12000,gap-ms=6,tokens=64"
"""25 ms and 12 ms for each KiB that is in no cache, up to the first token; 6 ms for the others."""
_WARM_S = 3.0
_DRAIN_S = 1.0
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """``stalled``: numbers of the engines that stall, each ``every_ms`` in the mean."""

    name: str
    title: str
    stalled: tuple[int, ...]
    every_ms: int
    for_ms: int = 200
    most_ms: int = 800

    def stalls(self, engine: int, seed: int) -> str:
        """As the mock engine is told."""
        if engine not in self.stalled:
            return ""
        length = f"for-ms={self.for_ms},most-ms={self.most_ms}"
        return f"every-ms={self.every_ms},{length},seed={seed * ENGINES + engine}"


SCENARIOS = (
    Scenario("one", "one of three engines stalls at random", (1,), 2_500),
    Scenario("any", "each of three engines stalls at random", (0, 1, 2), 7_500),
)


@dataclass(frozen=True, slots=True)
class Slice:
    """One turn of one arm; ``engines``: what each has counted meanwhile."""

    scenario: str
    arm: str
    calls: Sequence[Call]
    seconds: float
    engines: Sequence[Mapping[str, Any]]
    cpu_ns: int = 0


@dataclass(slots=True)
class Results:
    """What was measured, and the arms that could not be, with the reason."""

    slices: list[Slice] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def measure_slice(here: Place, scenario: Scenario, arm: Arm, seed: int, seconds: float) -> Slice:
    """One turn of an arm; engines begin it with empty caches. Raises RuntimeError."""
    for engine in range(ENGINES):
        tell(here, engine, "/mock/anew", scenario.stalls(engine, seed))
    options = ["--rate", str(RATE), "--seconds", str(seconds), "--seed", str(seed)]
    options += ["--nonce", f"{scenario.name} {arm.name}"]
    before_ns, began_s = cpu.used_ns(arm.pid), time.monotonic()
    limit_s = seconds + _LIMIT_S
    done = calls(here, arm, *options, limit_s=limit_s, client="bench.ttft.client")
    used_ns, took_s = cpu.used_ns(arm.pid) - before_ns, time.monotonic() - began_s
    time.sleep(_DRAIN_S)  # what was cancelled keeps its place for a while
    counted = [tell(here, engine, "/mock") for engine in range(ENGINES)]
    return Slice(scenario.name, arm.name, done, took_s, counted, used_ns)


def measure(
    directory: Path,
    rounds: int,
    seconds: float,
    progress: Callable[[str], None],
    scenarios: Sequence[Scenario] = SCENARIOS,
    among: Sequence[Proxy] | None = None,
    *,
    undisturbed: bool = False,
) -> Results:
    """All of it. ``progress`` is told what is going on. ``undisturbed``: proxies go before all
    else that the machine does."""
    results = Results()
    with place(directory, proxies() if among is None else among, ENGINE) as here:
        results.missing = here.missing
        by_name = {arm.name: arm for arm in here.arms if arm.name != DIRECT}
        behave(here, BEHAVIOUR)
        for scenario in scenarios:  # what is learnt by the first requests is learnt now
            for arm in by_name.values():
                measure_slice(here, scenario, arm, 0, min(_WARM_S, seconds))
                if undisturbed:
                    first_too(arm)
        for number in range(rounds):
            began = time.monotonic()
            for scenario in scenarios:
                for name in turns(tuple(by_name), number):
                    one = measure_slice(here, scenario, by_name[name], number + 1, seconds)
                    results.slices.append(one)
            progress(f"round {number + 1} of {rounds} took {time.monotonic() - began:.0f} s")
    return results
