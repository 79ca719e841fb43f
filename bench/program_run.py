# SPDX-License-Identifier: Apache-2.0
"""Cost of a bound flow's packet inside the program, by BPF_PROG_TEST_RUN: no driver, no wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from xdp_router.adapters.map_specs import Sizes
from xdp_router.core.model import Forwarding

from .frames import PROTO_TCP
from .plane import Flows, Place, data_plane
from .programs import Runner, pinned
from .rows import Options, Row, Table, median, summary, take_turns
from .traffic import FAMILIES, PROTOCOLS, Traffic, combinations

MAX_FLOWS = 524_288
DROP, REDIRECT = 1, 4
_GOAL_HOT_NS, _GOAL_RANDOM_NS = 47, 80
"""Of the program's own: a run costs 13 to 21 ns by itself, as the machine is."""
_COLUMNS = tuple(f"IPv{family} to {end}" for family in FAMILIES for end in ("backend", "client"))

HOT = "bound-flow path, one hot flow"

Arms = dict[str, Callable[[], float]]


def timed(runner: Runner, repeat: int, verdict: int) -> Callable[[], float]:
    """Nanoseconds a run. Raises RuntimeError if the last one's verdict is another."""

    def measure() -> float:
        got, duration_ns = runner.run(repeat)
        if got != verdict:
            raise RuntimeError(f"the program answered {got}, expected {verdict}")
        return float(duration_ns)

    return measure


def aimed(
    flows: Flows, target: int, runner: Runner, repeat: int, verdict: int
) -> Callable[[], float]:
    """The same for a driver that goes on to ``target``, after some runs to get warm."""
    measure = timed(runner, repeat, verdict)

    def body() -> float:
        flows.aim(target)
        runner.run(1000)
        return measure()

    return body


def own_cost(at: Mapping[str, float], flows: str, way: str, tunnel: bool) -> float:
    """What a driver takes by itself. One that takes an outer header off again does half of what
    it and ``grow`` do together, beside what every driver does."""
    empty = at[f"{flows} {way} driver"]
    return (empty + at[f"{flows} {way} grow"]) / 2 if tunnel else empty


def bound_hot(options: Options) -> Iterator[Row]:
    """One established flow of each method, protocol and family, its entries in the cache."""
    place, traffic = Place(), combinations()
    repeat = options.pick(100_000, 400_000)
    arms: Arms = {}
    with ExitStack() as stack:
        stack.enter_context(pinned(1))
        plane = stack.enter_context(data_plane(Sizes(ipv6=True), place, traffic))
        for each in traffic:
            flows = Flows(plane.maps, place, options.directory, each)
            stack.callback(flows.close)
            flows.fill(1)
            arms |= _arms(flows, plane.entry, repeat)
        empty = flows.programs["empty"]
        arms["empty"] = timed(Runner(empty, bytes(60)), repeat, DROP)
        samples = take_turns(arms, options.pick(5, 15))
    at = {name: median(values) for name, values in samples.items()}
    cost = {
        (each, way): at[f"{each.name} {way} router"]
        - own_cost(at, each.name, way, each.method is Forwarding.IPIP)
        + at["empty"]
        for each in traffic
        for way in each.ways
    }
    table = _by_method(traffic, {key: f"{ns:.0f} ns" for key, ns in cost.items()})
    for family in FAMILIES:
        ns = [ns for (each, _), ns in cost.items() if _is_judged(each) and each.family == family]
        yield Row(
            HOT if family == 4 else f"{HOT}, IPv6",
            f"<= {_GOAL_HOT_NS} ns beside the run itself, by nat with TCP",
            f"{ns[0]:.0f} ns to the backend, {ns[1]:.0f} ns to the client, with the run's own "
            f"{at['empty']:.0f} ns",
            max(ns) - at["empty"] <= _GOAL_HOT_NS,
            f"test run, {repeat:,} runs a call, of a driver that restores the frame and "
            "tail-calls; its own cost is taken off, that of an empty program's run is not; dsr "
            "and ipip have no way back through here",
            {name: summary(values) for name, values in samples.items()} if family == 4 else {},
            table=table if family == 4 else None,
        )


def _is_judged(traffic: Traffic) -> bool:
    return traffic.method is Forwarding.NAT and traffic.proto == PROTO_TCP


def _by_method(traffic: Sequence[Traffic], cells: Mapping[tuple[Traffic, str], str]) -> Table:
    """A line a method and protocol, a column a family and direction."""
    lines: dict[str, dict[str, str]] = {}
    for each in traffic:
        line = lines.setdefault(f"{each.method.name.lower()}, {each.protocol}", {})
        for way, end in (("forward", "backend"), ("reply", "client")):
            line[f"IPv{each.family} to {end}"] = cells.get((each, way), "-")
    return Table(
        ("method", *_COLUMNS),
        tuple((name, *(line.get(column, "-") for column in _COLUMNS))
              for name, line in lines.items()),
    )  # fmt: skip


def _arms(flows: Flows, entry: int, repeat: int, *, bare: bool = False) -> Arms:
    """Each way through the router, and its driver by itself; with ``bare`` a lookup, too."""
    empty = flows.programs["empty"]
    targets = {"router": (entry, REDIRECT), "driver": (empty, DROP)}
    if bare:
        targets["bare"] = (flows.programs["bare_lookup"], DROP)
    if flows.traffic.method is Forwarding.IPIP:
        targets["grow"] = (flows.programs["grow"], DROP)
    arms: Arms = {}
    for way in flows.traffic.ways:
        runner = Runner(flows.programs[f"drive_{way}"], flows.frame())
        for name, (target, verdict) in targets.items():
            arms[f"{flows.traffic.name} {way} {name}"] = aimed(
                flows, target, runner, repeat, verdict
            )
    return arms


def bound_random(options: Options) -> Iterator[Row]:
    """Flows at random, the table full: each method with TCP, and UDP by nat, of each family."""
    cells, worst = {}, 0.0
    every: dict[str, Any] = {}
    wanted = [
        each
        for each in combinations()
        if each.proto == PROTOCOLS["tcp"] or each.method is Forwarding.NAT
    ]
    texts = []
    for each, samples in _random(options, wanted):
        at = {name: median(values) for name, values in samples.items()}
        every |= {name: summary(values) for name, values in samples.items()}
        for way in each.ways:
            of = f"{each.name} {way}"
            own = own_cost(at, each.name, way, each.method is Forwarding.IPIP)
            bare_ns = at[f"{of} bare"] - at[f"{of} driver"]
            router_ns = at[f"{of} router"] - own
            cells[each, way] = f"{router_ns - bare_ns:+.0f} ({router_ns:.0f}) ns"
            if _is_judged(each):
                worst = max(worst, router_ns - bare_ns)
                texts.append(
                    f"IPv{each.family} {way} {router_ns - bare_ns:+.0f} ns "
                    f"({router_ns:.0f} against {bare_ns:.0f})"
                )
    yield Row(
        "bound-flow path, 512k flows at random",
        f"<= lookup + atomic + {_GOAL_RANDOM_NS} ns by nat with TCP",
        "; ".join(texts),
        worst <= _GOAL_RANDOM_NS,
        "test run of a driver that draws a flow, writes its tuple into the frame and tail-calls; "
        "the driver's own cost is taken off; table full (1,048,576 entries; dsr and ipip have one "
        "a flow, and fill half of it). Beyond a bare lookup and atomic, and all of it",
        every,
        table=_by_method(wanted, cells),
    )


def _random(
    options: Options, traffic: Sequence[Traffic]
) -> Iterator[tuple[Traffic, dict[str, list[float]]]]:
    """One after the other has the table of its family for itself."""
    place = Place()
    with pinned(1), data_plane(Sizes(max_flows=MAX_FLOWS), place, traffic) as plane:
        for each in traffic:
            flows = Flows(plane.maps, place, options.directory, each)
            flows.fill(MAX_FLOWS)
            arms = _arms(flows, plane.entry, options.pick(50_000, 200_000), bare=True)
            yield each, take_turns(arms, options.pick(3, 7))
            flows.remove(MAX_FLOWS)
            flows.close()
