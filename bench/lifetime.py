# SPDX-License-Identifier: Apache-2.0
"""What is not per packet: loading and attaching, memory, the sweep that ages flows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Generator, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from xdp_router import ebpf
from xdp_router.adapters import xdp_link
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane, Loader
from xdp_router.adapters.loader_bcc import BccLoader
from xdp_router.adapters.loader_object import ObjectLoader
from xdp_router.adapters.map_specs import Sizes
from xdp_router.core.config import Settings
from xdp_router.core.events import FlowClosed
from xdp_router.daemon.aging import Ager
from xdp_router.lab import LabSpec

from .first_packet import DAEMON_CPU, THREE, SynLoad
from .plane import Flows, Place, data_plane
from .programs import pinned
from .router import running
from .rows import Options, Row, Table, median, percentile, summary, take_turns
from .wire import Wire, wire

_STEP_MS = 5.0
_FLOWS = 500_000
_CONFIGURED = {"IPv4 alone": Sizes(), "IPv4 and IPv6": Sizes(ipv6=True)}
_MAPS = ("maps there", "with maps")
_LOAD_GOALS_MS = {
    "object, IPv4 alone, maps there": 50,
    "object, IPv4 alone, with maps": 150,
    "bcc, IPv4 alone, maps there": 650,
    "bcc, IPv4 alone, with maps": 750,
}


def _loader(name: str) -> Loader:
    if name == "bcc":
        return BccLoader(ebpf.source_files(), ebpf.MAIN_SOURCE, ebpf.BCC_INCLUDE)
    return ObjectLoader(ebpf.object_bytes(4), ebpf.object_bytes(6))


def loading(options: Options) -> Iterator[Row]:
    """From files to a program on an interface, with and without a service of IPv6."""
    lines: list[tuple[str, ...]] = []
    every: dict[str, list[float]] = {}
    with wire(options.directory) as place, ExitStack() as undo:
        there: dict[str, DataPlane] = {}
        for families, sizes in _CONFIGURED.items():
            there[families] = DataPlane.create(_loader("object"), sizes, None)
            undo.callback(there[families].close)
        for loader, rounds in (("object", options.pick(3, 9)), ("bcc", options.pick(1, 2))):
            arms = {}
            for families, sizes in _CONFIGURED.items():
                by = f"{loader}, {families}"
                former = there[families]
                arms[f"{by}, maps there"] = partial(_load_only, place, loader, sizes, former)
                arms[f"{by}, with maps"] = partial(_load_all, place, loader, sizes)
            samples = take_turns(arms, rounds)
            every |= samples
            for families in _CONFIGURED:
                cells = [samples[f"{loader}, {families}, {maps}"] for maps in _MAPS]
                lines.append(
                    (f"{loader}, {families}", *(f"{median(each):.0f} ms" for each in cells))
                )
    for name, goal_ms in _LOAD_GOALS_MS.items():
        ms = median(every[name])
        yield Row(
            f"program load + attach: {name}",
            f"<= {goal_ms} ms",
            f"{ms:.0f} ms (first {every[name][0]:.0f} ms)",
            ms <= goal_ms,
            "open, load with verification, attach one veth natively; default table sizes; in a "
            "process that has Python's modules loaded (bcc's own: in the first sample)",
            summary(every[name]),
        )
    yield Row(
        "program load + attach, by families",
        "reported",
        "see the table",
        None,
        "as above; IPv6 is loaded, and its tables are made, only if some service is of it",
        {name: summary(samples) for name, samples in every.items()},
        table=Table(("loader, services", *_MAPS), tuple(lines)),
    )


def _load_only(place: Wire, loader: str, sizes: Sizes, former: DataPlane) -> float:
    """Maps are there, as after a restart that adopts them."""
    start_ns = time.perf_counter_ns()
    plane = DataPlane.succeed(_loader(loader), former, sizes)
    try:
        return _attached_since(place, plane.entry, start_ns)
    finally:
        plane.close()


def _load_all(place: Wire, loader: str, sizes: Sizes) -> float:
    start_ns = time.perf_counter_ns()
    plane = DataPlane.create(_loader(loader), sizes, None)
    try:
        return _attached_since(place, plane.entry, start_ns)
    finally:
        plane.close()


def _attached_since(place: Wire, prog_fd: int, start_ns: int) -> float:
    index, native = place.place.client_ifindex, xdp_link.AttachMode.NATIVE

    def body() -> float:
        link = xdp_link.attach(prog_fd, "client0", index, native)
        elapsed_ms = (time.perf_counter_ns() - start_ns) / 1e6
        link.detach()
        link.close()
        return elapsed_ms

    return place.router.run(body)


def memory(options: Options) -> Iterator[Row]:
    """The daemon's own memory while the kernel holds half a million flows."""
    decisions = options.pick(2_000, 12_000)
    with running(LabSpec(THREE), "", cpu=DAEMON_CPU) as router, ExitStack() as undo:
        start = router.rss_bytes()
        load = SynLoad(router, options, "count_syns")
        undo.callback(load.close)
        load.send(4_000, decisions)
        flows = Flows(router.plane.maps, Place(), options.directory)
        undo.callback(flows.close)
        flows.fill(_FLOWS)
        deadline_s = time.monotonic() + 60
        peak = 0
        while router.status()["flows"] < _FLOWS and time.monotonic() < deadline_s:
            time.sleep(0.25)
            peak = max(peak, router.rss_bytes())
        swept = router.status()["flows"]
        rss = router.rss_bytes()
    mb = max(rss, peak) / 1e6
    yield Row(
        "daemon memory, object loader, 500,000 flows in the kernel",
        "<= 80 MB RSS",
        f"{mb:.1f} MB (at the start {start / 1e6:.1f} MB)",
        mb <= 80 and swept >= _FLOWS,
        f"VmRSS, largest during and after a sweep over {2 * swept:,} entries, after "
        f"{decisions:,} decisions (10,000 are kept)",
        {"rss_bytes": rss, "peak_bytes": peak, "start_bytes": start},
    )


def ageing(options: Options) -> Iterator[Row]:
    """How long one step of the sweep holds the daemon's loop."""
    place = Place()
    with pinned(1), data_plane(Sizes(), place) as plane:
        maps = Maps(plane.maps)
        settings = Settings()
        removed = 0

        def count(_closed: FlowClosed) -> None:
            nonlocal removed
            removed += 1

        ager = Ager(maps.flow_table, maps.pending_flows, settings, count)
        empty = _steps(ager, options.pick(3, 10))
        flows = Flows(plane.maps, place, options.directory)
        flows.fill(_FLOWS)
        full = _steps(ager, options.pick(1, 3))
        entries = ager.entries
        # All of them over at once: the worst that a sweep can meet.
        over = Settings(flow_idle_ns=1)
        massive = Ager(maps.flow_table, maps.pending_flows, over, count)
        mass = _steps(massive, 1, options.pick(500, 3000))
        flows.close()
    cases: dict[str, tuple[list[float], str]] = {
        "nothing in it": (empty, "the kernel walks every bucket in one call"),
        "1,000,000 entries": (full, f"{entries:,} entries seen"),
        "1,000,000 entries, all over": (
            mass,
            f"{removed:,} flows removed, without the engine's part",
        ),
    }
    for name, (steps, note) in cases.items():
        worst = max(steps)
        yield Row(
            f"ageing step, flow_table with {name}",
            f"<= {_STEP_MS:.0f} ms",
            f"p50 {median(steps):.2f} ms, p99 {percentile(steps, 0.99):.2f} ms, longest "
            f"{worst:.2f} ms",
            worst <= _STEP_MS,
            f"each step of the sweep by itself, {len(steps):,} steps; {note}",
            summary(steps),
        )


class _Timed:
    """Awaits a coroutine and takes the time of each of its steps: from one pause to the next."""

    def __init__(self, work: Coroutine[Any, Any, None], took_ms: list[float], steps: int) -> None:
        self._work = work
        self._took_ms = took_ms
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._work.__await__()
        for _ in range(self._steps):
            start_ns = time.perf_counter_ns()
            try:
                waits_for = next(inner)
            except StopIteration:
                return
            finally:
                self._took_ms.append((time.perf_counter_ns() - start_ns) / 1e6)
            yield waits_for
        self._work.close()


def _steps(ager: Ager, sweeps: int, most: int = 1 << 30) -> list[float]:
    """Milliseconds of each step of so many sweeps, at most ``most`` of each."""
    took_ms: list[float] = []

    async def body() -> None:
        for _ in range(sweeps):
            await _Timed(ager.sweep(), took_ms, most)

    asyncio.run(body())
    return took_ms
