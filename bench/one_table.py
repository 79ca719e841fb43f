# SPDX-License-Identifier: Apache-2.0
"""What a table of flows for both address families would cost IPv4, and what IPv6 beside it does."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.adapters.map_specs import Sizes

from . import programs
from .plane import XDP_PASS, Flows, Place, data_plane
from .program_run import DROP, MAX_FLOWS, REDIRECT, Arms, timed
from .programs import Runner, pinned
from .rows import Options, Row, Table, interval, median, summary, take_turns
from .traffic import NAT, Traffic

LAYOUTS = {"128": "16/128, IPv4's", "152": "40/152, IPv6's", "176": "40/176"}
"""By the programs' names: bytes of key and value."""
KEYS = (1, 1_000, 100_000, MAX_FLOWS)
_ENTRIES = 2 * MAX_FLOWS
_CONFIG = struct.Struct("=QII")
_NOISE_NS = 2.0
_NOISE = 0.03


def one_table(options: Options) -> Iterator[Row]:
    """A look-up and an atomic in tables of several layouts, each as full as flow_table can be."""
    repeat = options.pick(100_000, 300_000)
    tables = {f"table_{size}": _ENTRIES for size in LAYOUTS}
    costs: dict[str, dict[int, float]] = {size: {} for size in LAYOUTS}
    every: dict[str, dict[str, Any]] = {}
    with pinned(1), ExitStack() as stack:
        loaded = programs.load("layouts", options.directory, entries=tables)
        stack.callback(loaded.close)
        config = BpfMap(loaded.maps["layouts_config"])
        for size in LAYOUTS:
            _configure(config, _ENTRIES)
            verdict, _ = Runner(loaded.programs[f"fill_{size}"], bytes(64)).run(_ENTRIES)
            if verdict != XDP_PASS:
                raise RuntimeError(f"the table with values of {size} bytes was not filled")
        for keys in KEYS:
            _configure(config, keys)
            arms: Arms = {}
            for size in LAYOUTS:
                for what in ("look", "draw"):
                    runner = Runner(loaded.programs[f"{what}_{size}"], bytes(64))
                    arms[f"{what} {size}"] = _warm(runner, timed(runner, repeat, DROP))
            samples = take_turns(arms, options.pick(3, 9))
            every |= {f"{name}, {keys:,} keys": summary(each) for name, each in samples.items()}
            for size in LAYOUTS:
                costs[size][keys] = median(samples[f"look {size}"]) - median(
                    samples[f"draw {size}"]
                )
    first, second, _ = costs.values()
    yield Row(
        "one look-up and atomic: a table of IPv4 against one for both families",
        "reported",
        ", ".join(f"{keys:,} keys +{second[keys] - first[keys]:.0f} ns" for keys in KEYS),
        None,
        f"test run, keys at random out of so many, in tables with {_ENTRIES:,} entries; what draws "
        "the key and makes it is taken off, and with it the run's own overhead",
        every,
        table=Table(
            ("bytes of key/value", *(f"{keys:,}" for keys in KEYS)),
            tuple(
                (LAYOUTS[size], *(f"{cost[keys]:.0f} ns" for keys in KEYS))
                for size, cost in costs.items()
            ),
        ),
    )


def _configure(config: BpfMap, keys: int) -> None:
    config.write(bytes(programs.U32), _CONFIG.pack(time.monotonic_ns() | 1, keys, 0))


def _warm(runner: Runner, measure: Callable[[], float]) -> Callable[[], float]:
    def body() -> float:
        runner.run(1000)
        return measure()

    return body


_PLANES: Mapping[str, tuple[Traffic, ...]] = {
    "IPv4 alone": (NAT,),
    "with IPv6": (NAT, Traffic(6, number=1)),
    "IPv4 alone, once more": (NAT,),
}


def beside_ipv6(options: Options) -> Iterator[Row]:
    """IPv4's packets with and without a service of IPv6 in the configuration."""
    place, repeat = Place(), options.pick(100_000, 300_000)
    arms: Arms = {}
    with pinned(1), ExitStack() as stack:
        for name, traffic in _PLANES.items():
            sizes = Sizes(max_flows=MAX_FLOWS)
            plane = stack.enter_context(data_plane(sizes, place, traffic))
            for each in reversed(traffic):  # IPv4's last: its entries are no nearer than without
                flows = Flows(plane.maps, place, options.directory, each)
                stack.callback(flows.close)
                flows.fill(MAX_FLOWS)
            for kind, count in (("hot", 1), ("random", MAX_FLOWS)):
                for way in NAT.ways:
                    runner = Runner(flows.programs[f"drive_{way}"], flows.frame())
                    arms[f"{kind} {way}, {name}"] = partial(
                        _drive, flows, plane.entry, count, runner, timed(runner, repeat, REDIRECT)
                    )
        samples = take_turns(arms, options.pick(5, 15))
    equal, most_ns, lines = True, 0.0, []
    for kind in ("hot", "random"):
        for way in NAT.ways:
            alone, beside, again = (samples[f"{kind} {way}, {name}"] for name in _PLANES)
            more, noise = (
                [b - a for a, b in zip(alone, other, strict=True)] for other in (beside, again)
            )
            equal = equal and is_noise(more, noise, median(alone))
            most_ns = max(most_ns, median(more))
            lines.append(
                (
                    f"{kind}, {way}",
                    f"{median(alone):.0f} ns",
                    *("{:+.1f} ns ({:+.1f} to {:+.1f})".format(median(each), *interval(each))
                      for each in (more, noise)),
                )
            )  # fmt: skip
    yield Row(
        "IPv4 with and without IPv6 in the configuration",
        "no difference beyond noise",
        f"{'equal' if equal else 'not equal'}: at most {most_ns:+.1f} ns",
        equal,
        "test run as in bound-hot and bound-random, its driver included, of three data planes in "
        "turn: without IPv6, with its program and a full table of its flows, and once more "
        "without, which tells the noise; medians of the rounds' differences with their 95 % "
        f"intervals; both tables full ({_ENTRIES:,} entries each)",
        {name: summary(each) for name, each in samples.items()},
        table=Table(("packets", *_DIFFERENCES), tuple(lines)),
    )


_DIFFERENCES = ("IPv4 alone", "with IPv6", "without, once more")


def is_noise(more: list[float], noise: list[float], base_ns: float) -> bool:
    """Whether a difference is not above zero for sure, or no larger than what the same once more
    differs by, or than what is worth telling: 2 ns, or 3 %."""
    allowed = max(abs(median(noise)), _NOISE_NS, _NOISE * base_ns)
    return interval(more)[0] <= 0 or median(more) <= allowed


def _drive(
    flows: Flows, entry: int, count: int, runner: Runner, measure: Callable[[], float]
) -> float:
    flows.configure(count)
    flows.aim(entry)
    runner.run(1000)
    return measure()
