# SPDX-License-Identifier: Apache-2.0
"""All arms in turn, in slices of a few seconds, so that a slow moment of the machine meets all."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import cpu
from .answers import Call
from .peers import PROXIES, Proxy
from .place import Arm, Place, behave, calls, first_too, place

_LEAD_S = 3.0
"""A client's start and its warm-up, at most, where all goes well."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What clients do, by the options of ``client``, and ``engines``, by ``engine_behaviour``: no
    header says it, for not every proxy passes one that it doesn't know. ``workers``: of each
    proxy."""

    name: str
    title: str
    rate: float
    engines: str = ""
    options: tuple[str, ...] = ()
    workers: int = 1

    def has(self, arm: Arm) -> bool:
        """Whether an arm is one of it."""
        return arm.workers in (0, self.workers)


_STREAM = "tokens=8,gap-ms=5"
SCENARIOS = (
    Scenario("sse", "streams of 8 tokens 5 ms apart, connections kept", 100.0, _STREAM),
    Scenario("new", "the same, a connection for each request", 100.0, _STREAM, ("--new",)),
    Scenario("whole", "answers that are no streams, connections kept", 200.0, "", ("--whole",)),
    Scenario("workers", "as sse, two workers of each proxy", 300.0, _STREAM, workers=2),
)


@dataclass(frozen=True, slots=True)
class Slice:
    """One turn of one arm. ``cpu_ns``: of all its processes meanwhile, and ``served``: of how many
    requests (those of the warm-up, too)."""

    scenario: str
    arm: str
    calls: Sequence[Call]
    cpu_ns: int = 0
    served: int = 0


@dataclass(slots=True)
class Results:
    """What was measured, and the arms that could not be, with the reason."""

    slices: list[Slice] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def turns(names: Sequence[str], number: int) -> list[str]:
    """The order of a round: each one once, another one first each time, every second backwards."""
    at = number % len(names)
    order = [*names[at:], *names[:at]]
    return order[::-1] if number % 2 else order


WARM = 10


def measure_slice(here: Place, scenario: Scenario, arm: Arm, seed: int, seconds: float) -> Slice:
    """One turn of an arm. Raises RuntimeError if the client failed."""
    rate = min(scenario.rate, arm.rate or scenario.rate)
    options = ["--rate", str(rate), "--seconds", str(seconds), "--seed", str(seed)]
    options += ["--warm", str(WARM), *scenario.options]
    before_ns = cpu.used_ns(arm.pid) if arm.pid else 0
    done = calls(here, arm, *options, limit_s=seconds + _LEAD_S)
    used_ns = cpu.used_ns(arm.pid) - before_ns if arm.pid else 0
    return Slice(scenario.name, arm.name, done, used_ns, len(done) + WARM)


def measure(
    directory: Path,
    rounds: int,
    seconds: float,
    progress: Callable[[str], None],
    scenarios: Sequence[Scenario] = SCENARIOS,
    proxies: Sequence[Proxy] = PROXIES,
    *,
    undisturbed: bool = False,
) -> Results:
    """All of it. ``progress`` is told what is going on. ``undisturbed``: see ``first_too``."""
    results = Results()
    wanted = {each.workers for each in scenarios}
    with place(directory, [each for each in proxies if each.workers in wanted]) as here:
        results.missing = here.missing
        by_name = {arm.name: arm for arm in here.arms}
        for scenario in scenarios:
            behave(here, scenario.engines)
            # Whatever is made at the first request is made now.
            for arm in filter(scenario.has, here.arms):
                measure_slice(here, scenario, arm, 0, 0.5)
                if undisturbed:
                    first_too(arm)
        for number in range(rounds):
            began = time.monotonic()
            for scenario in scenarios:
                behave(here, scenario.engines)
                names = [arm.name for arm in here.arms if scenario.has(arm)]
                for name in turns(names, number):
                    one = measure_slice(here, scenario, by_name[name], number + 1, seconds)
                    results.slices.append(one)
            progress(f"round {number + 1} of {rounds} took {time.monotonic() - began:.0f} s")
    return results
