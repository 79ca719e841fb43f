# SPDX-License-Identifier: Apache-2.0
"""Cost of one packet inside the XDP program, by BPF_PROG_TEST_RUN: no driver, no wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.map_specs import Sizes

from .frames import ACK, SYN, tcp_frame
from .plane import (
    CLIENT_BASE,
    CLIENT_PORT_MIN,
    SERVICE,
    Flows,
    Place,
    data_plane,
)
from .programs import Runner, pinned
from .rows import Options, Row, median, summary, take_turns

MAX_FLOWS = 524_288
_NEVER_NS = 1 << 50
_DROP, _REDIRECT = 1, 4
_DRIVERS = ("forward", "reply")

_CLIENT = (CLIENT_BASE, CLIENT_PORT_MIN)
_SERVICE = (SERVICE.addr, SERVICE.port)


def _timed(runner: Runner, repeat: int, verdict: int) -> Callable[[], float]:
    def measure() -> float:
        got, duration_ns = runner.run(repeat)
        if got != verdict:
            raise RuntimeError(f"the program answered {got}, expected {verdict}")
        return float(duration_ns)

    return measure


def bound_hot(options: Options) -> Iterator[Row]:
    """One established flow, its entries in the cache."""
    place = Place()
    with pinned(1), data_plane(Sizes(), place) as plane:
        flows = Flows(plane.maps, place, options.directory)
        flows.fill(1)
        samples = take_turns(_arms(options, flows, plane.entry), options.pick(7, 20))
        flows.close()
    at = {name: median(values) for name, values in samples.items()}
    cost = {
        driver: at[f"{driver} router"] - at[f"{driver} driver"] + at["empty"] for driver in _DRIVERS
    }
    yield Row(
        "bound-flow path, one hot flow",
        "<= 60 ns",
        f"{cost['forward']:.0f} ns to the backend, {cost['reply']:.0f} ns to the client "
        f"(run overhead {at['empty']:.0f} ns included)",
        max(cost.values()) <= 60,
        f"test run, {_repeat(options):,} runs a call, of a driver that restores the frame and "
        "tail-calls; its own cost is taken off, that of an empty program's run is not",
        {name: summary(values) for name, values in samples.items()},
    )


def _repeat(options: Options) -> int:
    return options.pick(200_000, 1_000_000)


def _arms(options: Options, flows: Flows, entry: int) -> dict[str, Callable[[], float]]:
    """Both directions through the router, a bare lookup, and nothing; and a run by itself."""
    frame = tcp_frame(flows.place.client_side, flows.place.client, _CLIENT, _SERVICE, ACK, ack=1)
    repeat = _repeat(options)
    empty = flows.programs["empty"]
    targets = {
        "router": (entry, _REDIRECT),
        "bare": (flows.programs["bare_lookup"], _DROP),
        "driver": (empty, _DROP),
    }
    arms = {}
    for driver in _DRIVERS:
        runner = Runner(flows.programs[f"drive_{driver}"], frame)
        for name, (target, verdict) in targets.items():
            arms[f"{driver} {name}"] = _aimed(flows, target, runner, repeat, verdict)
    arms["empty"] = _timed(Runner(empty, frame), repeat, _DROP)
    return arms


def bound_random(options: Options) -> Iterator[Row]:
    """Flows at random, the table full."""
    place = Place()
    with pinned(1), data_plane(Sizes(max_flows=MAX_FLOWS), place) as plane:
        flows = Flows(plane.maps, place, options.directory)
        flows.fill(MAX_FLOWS)
        samples = take_turns(_arms(options, flows, plane.entry), options.pick(5, 12))
        flows.close()
    extra, texts = {}, []
    for driver in _DRIVERS:
        router, bare = samples[f"{driver} router"], samples[f"{driver} bare"]
        driver_ns = median(samples[f"{driver} driver"])
        extra[driver] = median([a - b for a, b in zip(router, bare, strict=True)])
        texts.append(
            f"{driver} +{extra[driver]:.0f} ns ({median(router) - driver_ns:.0f} against "
            f"{median(bare) - driver_ns:.0f})"
        )
    yield Row(
        "bound-flow path, 512k flows at random",
        "<= lookup + atomic + 80 ns",
        "; ".join(texts),
        max(extra.values()) <= 80,
        "test run of a driver that draws a flow, writes its tuple into the frame and tail-calls; "
        "the driver's own cost is taken off; table full (1,048,576 entries)",
        {name: summary(values) for name, values in samples.items()},
    )


def _aimed(
    flows: Flows, target: int, runner: Runner, repeat: int, verdict: int
) -> Callable[[], float]:
    timed = _timed(runner, repeat, verdict)

    def measure() -> float:
        flows.aim(target)
        runner.run(1000)
        return timed()

    return measure


def syn_over_budget(options: Options) -> Iterator[Row]:
    """SYNs that raise no event, because the budget is spent: XDP decides by itself."""
    place = Place()
    sizes = Sizes(max_flows=MAX_FLOWS)
    with (
        pinned(1),
        data_plane(sizes, place, event_interval_ns=_NEVER_NS, event_burst_ns=1) as plane,
    ):
        flows = Flows(plane.maps, place, options.directory)
        # Full, and not with what the SYNs come from: their look-ups miss.
        flows.fill(MAX_FLOWS - 1, first=1)
        frame = tcp_frame(place.client_side, place.client, _CLIENT, _SERVICE, SYN, seq=1)
        flows.configure(1)  # drive_forward: flow 0 alone, which is not in the table
        same = Runner(flows.programs["drive_forward"], frame)
        syn = Runner(flows.programs["drive_syn"], frame)
        empty, misses = flows.programs["empty"], flows.programs["bare_misses"]
        repeat = options.pick(100_000, 400_000)
        arms = {
            "hot router": _aimed(flows, plane.entry, same, repeat, _REDIRECT),
            "hot driver": _aimed(flows, empty, same, repeat, _DROP),
            "empty": _timed(Runner(empty, bytes(60)), repeat, _DROP),
            "random router": _aimed(flows, plane.entry, syn, repeat, _REDIRECT),
            "random misses": _aimed(flows, misses, syn, repeat, _DROP),
            "random driver": _aimed(flows, empty, syn, repeat, _DROP),
        }
        samples = take_turns(arms, options.pick(5, 15))
        counters = {
            name: count for name, count in Maps(plane.maps).counters.read().items() if count
        }
        flows.close()
    at = {name: median(values) for name, values in samples.items()}
    values = {name: summary(each) for name, each in samples.items()}
    hot = at["hot router"] - at["hot driver"] + at["empty"]
    yield Row(
        "over-budget SYN, one hot tuple",
        "<= 100 ns",
        f"{hot:.0f} ns (run overhead {at['empty']:.0f} ns included)",
        hot <= 100,
        "test run of a driver that restores the frame, its cost taken off; after the first one "
        "the SYN finds its binding",
        {**values, "counters": counters},
    )
    router = at["random router"] - at["random driver"]
    twice = at["random misses"] - at["random driver"]
    yield Row(
        "over-budget SYN, random sources",
        "<= two random misses + 100 ns",
        f"{router:.0f} ns against {twice:.0f} + 100 ns",
        router <= twice + 100,
        "test run of a driver that draws one of 2^48 sources; flow_table full, pending_flows "
        "full and evicting",
        {**values, "counters": counters},
    )
