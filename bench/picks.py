# SPDX-License-Identifier: Apache-2.0
"""Cost of a first packet that XDP decides by itself, in modes snapshot and inline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.map_specs import Sizes
from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.core import abi
from xdp_router.core.model import Mode

from .frames import PROTO_TCP
from .over_budget import emptied
from .plane import FAR_NS, Flows, Place, data_plane
from .program_run import DROP, MAX_FLOWS, REDIRECT, Arms, aimed
from .programs import Runner, pinned
from .rows import Options, Row, Table, median, summary, take_turns
from .traffic import FAMILIES, NO_BUDGET, PROTOCOLS, SPENT, Budget, Traffic

_RING_BYTES = 32 << 20
_EVENTS = 80_000
"""So many records fit, with room to spare."""
_GOAL_NS = 500
_MORE = 16
"""Numbers of further backends begin there: two of each service beside its own."""
_SMALL = Sizes(max_flows=512, pending=512, flood=512)
_FULL = Sizes(max_flows=MAX_FLOWS, flood=Sizes().pending)
_COLUMNS = ("told", "beyond the budget")


@dataclass(frozen=True, slots=True)
class _Tables:
    """``entries`` of the table of flows are taken."""

    name: str
    sizes: Sizes
    entries: int
    emptied: bool = False
    """Those of decisions, between the calls: none of them evicts."""


_TABLES = (
    _Tables("tables with room", Sizes(), 1, emptied=True),
    _Tables("small tables", _SMALL, 1),
    _Tables("full tables", _FULL, MAX_FLOWS - 1),
)


def decided_at_once(options: Options) -> Iterator[Row]:
    """Each mode, protocol and family; told to the daemon, and beyond the budget of that."""
    for tables in _TABLES:
        cells: dict[str, list[str]] = {}
        every: dict[str, Any] = {}
        for family in FAMILIES:
            for each, samples in _measured(options, family, tables):
                name = f"{each.mode.name.lower()}, {each.protocol}"
                own = median(samples["router"]) - median(samples["driver"])
                how = _COLUMNS[each.budget is SPENT]
                every[f"{name}, IPv{family}, {how}"] = {
                    "own_ns": own,
                    **{arm: summary(values) for arm, values in samples.items()},
                }
                cells.setdefault(name, []).append(f"{own:.0f} ns")
                if each.proto == PROTO_TCP and each.budget is NO_BUDGET and family == 4:
                    yield Row(
                        f"SYN decided by {each.mode.name.lower()}, {tables.name}",
                        f"<= {_GOAL_NS} ns",
                        f"{own:.0f} ns",
                        own <= _GOAL_NS,
                        "test run of a driver that draws one of 2^48 sources, its cost taken off; "
                        "three backends; each is an event, into a ring that is emptied between "
                        "the calls",
                        {},
                    )
        yield Row(
            f"first packets decided at once, {tables.name}",
            "reported",
            "see the table",
            None,
            "as the rows above; each makes two entries in an LRU table that evicts",
            every,
            table=Table(
                (
                    "first packet",
                    *(f"IPv{family} {how}" for family in FAMILIES for how in _COLUMNS),
                ),
                tuple((name, *line) for name, line in cells.items()),
            ),
        )


def _services(family: int) -> list[Traffic]:
    """Those that are told first: once flood_flows is in use, all others look into it, too."""
    kinds: list[tuple[Budget, Mode, int]] = [
        (budget, mode, proto)
        for budget in (NO_BUDGET, SPENT)
        for mode in (Mode.SNAPSHOT, Mode.INLINE)
        for proto in PROTOCOLS.values()
    ]
    return [
        Traffic(family, proto=proto, number=number, budget=budget, mode=mode)
        for number, (budget, mode, proto) in enumerate(kinds)
    ]


def _measured(
    options: Options, family: int, tables: _Tables
) -> Iterator[tuple[Traffic, dict[str, list[float]]]]:
    place, services = Place(), _services(family)
    sizes = replace(tables.sizes, ring_bytes=_RING_BYTES)
    with ExitStack() as stack:
        stack.enter_context(pinned(1))
        plane = stack.enter_context(data_plane(sizes, place, services))
        maps = Maps(plane.maps)
        ring = RingBuffer(plane.maps["first_packet_events"], _RING_BYTES)
        stack.callback(ring.close)
        for each in services:
            _three_backends(maps, each.number)
            flows = Flows(plane.maps, place, options.directory, each)
            stack.callback(flows.close)
            if each.number == 0 and tables.entries > 1:
                flows.fill(tables.entries, first=1)
            before = maps.counters.read()
            samples = _mode(options, flows, plane.entry, ring, maps if tables.emptied else None)
            after = maps.counters.read()
            decided = f"decided_{each.mode.name.lower()}"
            if after["event_lost"] > before["event_lost"] or after[decided] == before[decided]:
                raise RuntimeError(f"{each.name}: not what was to be measured")
            yield each, samples


def _three_backends(maps: Maps, number: int) -> None:
    """The service has two more, as near as its own, and a table that names all three."""
    own = maps.backends.read(number)
    assert own is not None
    numbers = [number, _MORE + 2 * number, _MORE + 2 * number + 1]
    now_ns = time.monotonic_ns()
    for step, each in enumerate(numbers):
        maps.backends.write(each, replace(own, addr=own.addr + step))
        # never old: none of them is to be tried instead of the better one
        maps.backend_loads.write(each, abi.LoadValue(ewma_ns=200_000 + step, last_ns=FAR_NS))
    slots = [numbers[slot % 3] for slot in range(abi.HASH_SLOTS)]
    for half in (0, 1):
        maps.hash_tables.write(number, half, slots)
    maps.pick_tables.publish(number, slots[: abi.PICK_SLOTS], now_ns)


def _mode(
    options: Options, flows: Flows, entry: int, ring: RingBuffer, maps: Maps | None
) -> dict[str, list[float]]:
    flows.configure(1)
    drawn = Runner(flows.programs["drive_first"], flows.frame(first=True))
    repeat = options.pick(40_000, _EVENTS)
    decide = emptied(ring, aimed(flows, entry, drawn, repeat, REDIRECT))

    def with_room() -> float:
        if maps is not None:
            _make_room(maps, flows.traffic)
        return decide()

    arms: Arms = {
        "router": with_room,
        "driver": aimed(flows, flows.programs["empty"], drawn, repeat, DROP),
    }
    for _ in range(options.pick(1, 4)):  # the tables that it writes to are to be full
        arms["router"]()
    return take_turns(arms, options.pick(3, 9))


def _make_room(maps: Maps, traffic: Traffic) -> None:
    for table in maps.flows_of(traffic.service.addr).both:
        for batch in table.batches(4_096):
            for key, _ in batch:
                table.delete(key)
