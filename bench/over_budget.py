# SPDX-License-Identifier: Apache-2.0
"""Cost of a first packet inside the XDP program: handed to the daemon, or decided beyond budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.map_specs import Sizes
from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.core import abi

from .frames import PROTO_TCP, PROTO_UDP
from .plane import Flows, Place, data_plane
from .program_run import DROP, MAX_FLOWS, REDIRECT, Arms, aimed, timed
from .programs import Runner, pinned
from .rows import Options, Row, Table, median, summary, take_turns
from .traffic import FAMILIES, NO_BUDGET, SPENT, Budget, Traffic

_RING_BYTES = 32 << 20
_EVENTS = 80_000
"""So many records fit, with room to spare: when the ring is full, XDP decides."""
_GOAL_HOT_NS, _GOAL_BEYOND_NS = 100, 100
_COLUMNS = ("one tuple", "random", "two misses")


@dataclass(frozen=True, slots=True)
class Mode:
    """What becomes of the first packets of a flood. ``goal`` whether there is one to be met."""

    name: str
    proto: int = PROTO_TCP
    budget: Budget = SPENT
    flags: int = 0
    verdict: int = REDIRECT
    goal: bool = False
    entry: str = ""
    again: str = ""

    @property
    def events(self) -> bool:
        """Whether each is an event, for as long as the ring has room."""
        return self.budget is NO_BUDGET


MODES = (
    Mode(
        "SYN, event",
        budget=NO_BUDGET,
        verdict=DROP,
        entry="each an event with its frame, into a ring that is emptied between the calls; "
        "pending_flows full and evicting",
        again="held already",
    ),
    Mode(
        "first datagram, event",
        proto=PROTO_UDP,
        budget=NO_BUDGET,
        verdict=DROP,
        entry="as the SYN",
        again="four are held, the others decided by XDP: what is measured",
    ),
    Mode(
        "over-budget SYN, stateless",
        flags=abi.SERVICE_STATELESS,
        goal=True,
        entry="no entry is made",
        again="no entry is made",
    ),
    Mode(
        "over-budget first datagram",
        proto=PROTO_UDP,
        entry="the table of its decisions full and evicting",
        again="after the first one it finds its binding",
    ),
    Mode(
        "over-budget SYN",
        goal=True,
        entry="flood_flows full and evicting",
        again="after the first one the SYN finds its binding",
    ),
)
"""In this order: once flood_flows is in use, all others look into it, too."""


def first_packets(options: Options) -> Iterator[Row]:
    """Each mode of each family; those with a goal are rows of their own."""
    cells: dict[str, list[str]] = {mode.name: [] for mode in MODES}
    every: dict[str, Any] = {}
    for family in FAMILIES:
        for mode, samples, counters in _measured(options, family):
            name = mode.name + ("" if family == 4 else ", IPv6")
            at = {each: median(values) for each, values in samples.items()}
            values = {
                **{each: summary(values) for each, values in samples.items()},
                "counters": counters,
            }
            every[name] = values
            hot = at["hot router"] - at["hot driver"] + at["empty"]
            router = at["random router"] - at["random driver"]
            twice = at["random misses"] - at["random driver"]
            cells[mode.name] += [f"{ns:.0f} ns" for ns in (hot, router, twice)]
            if mode.goal:
                yield from _judged(mode, name, hot, router, twice, at["empty"], values)
    yield Row(
        "first packets inside the XDP program",
        "reported",
        "see the table",
        None,
        "test run of a driver that draws one of 2^48 sources (or always the same), its cost taken "
        "off; flow_table full. One tuple: with the run's own overhead. "
        + "; ".join(f"{mode.name}: {mode.entry}; one tuple {mode.again}" for mode in MODES),
        every,
        table=Table(
            (
                "first packet",
                *(f"IPv{family} {column}" for family in FAMILIES for column in _COLUMNS),
            ),
            tuple((name, *line) for name, line in cells.items()),
        ),
    )


def _judged(
    mode: Mode,
    name: str,
    hot: float,
    router: float,
    twice: float,
    empty: float,
    values: dict[str, Any],
) -> Iterator[Row]:
    yield Row(
        f"{name}, one hot tuple",
        f"<= {_GOAL_HOT_NS} ns",
        f"{hot:.0f} ns (run overhead {empty:.0f} ns included)",
        hot <= _GOAL_HOT_NS,
        f"test run of a driver that restores the frame, its cost taken off; {mode.again}",
        values,
    )
    yield Row(
        f"{name}, random sources",
        f"<= two random misses + {_GOAL_BEYOND_NS} ns",
        f"{router:.0f} ns against {twice:.0f} + {_GOAL_BEYOND_NS} ns",
        router <= twice + _GOAL_BEYOND_NS,
        "test run of a driver that draws one of 2^48 sources; flow_table full, " + mode.entry,
        {},
    )


def _measured(
    options: Options, family: int
) -> Iterator[tuple[Mode, dict[str, list[float]], dict[str, int]]]:
    """Each mode: samples of each arm, and what the program counted meanwhile."""
    place = Place()
    sizes = Sizes(max_flows=MAX_FLOWS, flood=Sizes().pending, ring_bytes=_RING_BYTES)
    traffic = [
        Traffic(family, proto=mode.proto, number=number, budget=mode.budget, flags=mode.flags)
        for number, mode in enumerate(MODES)
    ]
    with ExitStack() as stack:
        stack.enter_context(pinned(1))
        plane = stack.enter_context(data_plane(sizes, place, traffic))
        maps = Maps(plane.maps)
        ring = RingBuffer(plane.maps["first_packet_events"], _RING_BYTES)
        stack.callback(ring.close)
        for mode, each in zip(MODES, traffic, strict=True):
            flows = Flows(plane.maps, place, options.directory, each)
            stack.callback(flows.close)
            if each.number == 0:
                # Full, and not with what first packets come from: their look-ups miss.
                flows.fill(MAX_FLOWS - 1, first=1)
            before = maps.counters.read()
            samples = _mode(options, flows, plane.entry, mode, ring)
            change = {name: count - before[name] for name, count in maps.counters.read().items()}
            if mode.events and change["ring_full"]:
                raise RuntimeError(f"{change['ring_full']} times the ring was full: no events")
            yield mode, samples, {name: count for name, count in change.items() if count}


def _mode(
    options: Options, flows: Flows, entry: int, mode: Mode, ring: RingBuffer
) -> dict[str, list[float]]:
    flows.configure(1)  # drive_forward: flow 0 alone, which is not in the table
    frame = flows.frame(first=True)
    same = Runner(flows.programs["drive_forward"], frame)
    drawn = Runner(flows.programs["drive_first"], frame)
    empty, misses = flows.programs["empty"], flows.programs["bare_misses"]
    repeat = options.pick(40_000, _EVENTS)
    # One tuple of UDP is held four times; then, and at each later one, it is decided.
    hot = REDIRECT if mode.proto == PROTO_UDP else mode.verdict
    arms: Arms = {
        "hot router": aimed(flows, entry, same, repeat, hot),
        "hot driver": aimed(flows, empty, same, repeat, DROP),
        "empty": timed(Runner(empty, bytes(60)), repeat, DROP),
        "random router": emptied(ring, aimed(flows, entry, drawn, repeat, mode.verdict)),
        "random misses": aimed(flows, misses, drawn, repeat, DROP),
        "random driver": aimed(flows, empty, drawn, repeat, DROP),
    }
    for _ in range(options.pick(1, 4)):  # the tables that it writes to are to be full
        arms["random router"]()
    return take_turns(arms, options.pick(3, 9))


def emptied(ring: RingBuffer, measure: Callable[[], float]) -> Callable[[], float]:
    """Takes what is in the ring out of it first, as the daemon would."""

    def body() -> float:
        ring.drain(_EVENTS << 1)
        return measure()

    return body
