# SPDX-License-Identifier: Apache-2.0
"""One lab, all scenarios, arms in turn."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import haproxy
from bench.forwarding import nftables, round_robin_rules
from bench.router import Router, running
from xdp_router.lab import BackendSpec, Lab, LabSpec

from . import arms as of
from . import wires
from .arms import Arm
from .client import PROGRAM, Connection, connections
from .scenarios import BACKENDS, RATE, SCENARIOS, SLICE_NS, WARM_NS, Scenario, arrivals, turns

_LEAD_NS = 150_000_000
"""Until a slice begins: by then the client runs, and the last slice's held frames are out."""
_WARM_SEED = 1_000_000
SPEC = LabSpec(
    tuple(BackendSpec(f"b{number}", delay_line=True) for number in range(1, BACKENDS + 1)),
    client_addresses=len(of.ARMS),
)


@dataclass(frozen=True, slots=True)
class Slice:
    """One turn of one arm. ``busy``: the machine's CPUs meanwhile, 1 is all of them; ``rtts_us``:
    of races, the round trip that the router saw of the backend that won each connection."""

    scenario: str
    arm: str
    starts_ns: Sequence[int]
    connections: Sequence[Connection]
    busy: float
    rtts_us: Sequence[float] = ()


@dataclass(slots=True)
class Results:
    """What was measured: arms that could not be, with the reason; the router's own counts of each
    scenario."""

    slices: list[Slice] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    router: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """A running lab and router, and the arms that are to be had there."""

    router: Router
    arms: tuple[Arm, ...]
    missing: dict[str, str]

    @property
    def lab(self) -> Lab:
        """The lab."""
        return self.router.lab


@contextmanager
def place(directory: Path) -> Iterator[Place]:
    """Everything that the arms need, in namespaces of its own. ``directory`` is for files."""
    missing = {} if haproxy.installed() else dict.fromkeys(of.BY_HAPROXY, haproxy.MISSING)
    addresses = SPEC.addresses
    config = of.router_config(addresses.backends)
    with running(SPEC, config=config) as router, ExitStack() as undo:
        of.hash_alone(router.maps.services)
        lab = router.lab
        _hurry(lab)
        nftables(lab.router, round_robin_rules(of.NFTABLES_ADDRESS, addresses.backends))
        if not missing:
            haproxy.start(lab, directory, of.HAPROXY_ADDRESSES, undo)
        arms = of.arms_of(addresses.clients, addresses.backends, tuple(missing))
        yield Place(router, arms, missing)


def _hurry(lab: Lab) -> None:
    """Servers that are other machines' do not wait until what is measured leaves them a CPU."""
    for number in range(len(lab.backends)):
        pid = lab.backend_pid(number)
        if pid is not None:
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))


def measure_slice(
    here: Place,
    scenario: Scenario,
    arm: Arm,
    seed: int,
    *,
    length_ns: int = SLICE_NS,
    rate: int = RATE,
    program: Path = PROGRAM,
) -> Slice:
    """One turn of an arm. Stalls and connections begin together, by the same seed."""
    starts_ns = arrivals(seed, rate, length_ns)
    start_ns, wall_ns = time.monotonic_ns() + _LEAD_NS, time.time_ns() + _LEAD_NS
    for number in range(len(scenario.delays_ns)):
        here.lab.set_stall(number, scenario.stall(number, seed), wall_ns)
    before = _ticks()
    done = connections(here.lab.client, arm, starts_ns, start_ns, program)
    busy, every = (now - then for now, then in zip(_ticks(), before, strict=True))
    rtts_us = _winners_us(here.router, arm, done) if arm.name == of.RACE else ()
    return Slice(scenario.name, arm.name, starts_ns, done, busy / max(1, every), rtts_us)


def _winners_us(router: Router, arm: Arm, done: Sequence[Connection]) -> list[float]:
    clients = {f"{arm.source}:{each.port}": each.answer for each in done}
    return [
        candidate["rtt_us"]
        for client, candidates in router.candidates(list(clients)).items()
        for candidate in candidates
        if candidate["backend"] == of.backend_name(arm.name, clients[client])
        and candidate["rtt_us"] is not None
    ]


def prepare(
    here: Place, scenario: Scenario, arms: Sequence[Arm], *, program: Path = PROGRAM
) -> None:
    """Make a scenario's round trips, and let arms meet them before anything counts."""
    for number, delay_ns in enumerate(scenario.delays_ns):
        here.lab.set_delay(number, delay_ns / 1e9)
        wires.lay(here.lab, number, delayed=scenario.delayed(number))
    for arm in arms:
        measure_slice(here, scenario, arm, _WARM_SEED, length_ns=WARM_NS, program=program)


def measure(
    directory: Path,
    rounds: int,
    progress: Callable[[str], None],
    scenarios: Sequence[Scenario] = SCENARIOS,
) -> Results:
    """All of it. ``progress`` is told what is going on."""
    results = Results()
    with place(directory) as here:
        results.missing = here.missing
        by_name = {arm.name: arm for arm in here.arms}
        for scenario in scenarios:
            progress(f"{scenario.name}: {scenario.title}")
            prepare(here, scenario, here.arms)
            before = _counts(here.router)
            for number in range(rounds):
                for name in turns(tuple(by_name), number):
                    results.slices.append(measure_slice(here, scenario, by_name[name], number))
                progress(f"{scenario.name}: round {number + 1} of {rounds}")
            after = _counts(here.router)
            results.router[scenario.name] = {
                name: value - before.get(name, 0)
                for name, value in after.items()
                if value != before.get(name, 0)
            }
    return results


def _counts(router: Router) -> dict[str, int]:
    engine: dict[str, Any] = router.status()["engine"]
    counts = {f"engine {name}": value for name, value in engine.items() if isinstance(value, int)}
    counts.update({f"XDP {name}": value for name, value in router.counters().items()})
    return counts


def cpu_ticks(stat: str) -> tuple[int, int]:
    """From the text of /proc/stat: ticks in which the CPUs did something, and all ticks."""
    ticks = [int(each) for each in stat.split(maxsplit=9)[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # idle, and idle with a disk at work


def _ticks() -> tuple[int, int]:
    return cpu_ticks(Path("/proc/stat").read_text(encoding="utf-8"))
