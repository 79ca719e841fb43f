# SPDX-License-Identifier: Apache-2.0
"""Two ways to send a held first packet on: a test run and AF_PACKET, or a live frame."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.map_specs import Sizes
from xdp_router.adapters.probe_socket import ProbeSocket
from xdp_router.adapters.reinject import XDP_REDIRECT, Reinjector
from xdp_router.core import abi
from xdp_router.core.events import FirstPacket
from xdp_router.core.model import Backend, FlowKey, Mode, Reason

from . import programs
from .frames import SYN, tcp_frame
from .plane import MARK, data_plane
from .rows import Options, Row, median, percentile, summary, take_turns
from .traffic import CLIENT_BASE, CLIENT_PORT_MIN, NAT
from .wire import Wire, wire


def reinjection(options: Options) -> Iterator[Row]:
    """A held SYN whose binding is written, sent on again and again."""
    frames = options.pick(1_000, 5_000)
    with wire(options.directory) as place, data_plane(Sizes(max_flows=1000), place.place) as plane:
        for interface in ("client0", "be1"):
            place.attach(place.router, interface, plane.entry)
        first = _bound(place, Maps(plane.maps))
        runner = Reinjector(plane.entry, MARK)
        sender = ProbeSocket()
        cost: dict[str, list[float]] = {}
        arrived: dict[str, list[float]] = {}

        def by_test_run() -> None:
            verdict, egress, frame = runner.run(first.frame, first.ifindex)
            if verdict != XDP_REDIRECT:
                raise RuntimeError(f"the program answered {verdict}, expected {XDP_REDIRECT}")
            sender.send_frame(egress, frame)

        def by_live_frame() -> None:
            runner.run_live(first.frame, first.ifindex)

        def timed(name: str, send: Callable[[], None]) -> Callable[[], float]:
            return lambda: _burst(place, name, send, frames, cost, arrived)

        samples = take_turns(
            {
                "test run": timed("test run", by_test_run),
                "live frame": timed("live frame", by_live_frame),
            },
            options.pick(3, 9),
        )
        sender.close()
    at = {name: median(values) for name, values in samples.items()}
    lost = {name: 100 * (1 - min(values)) for name, values in arrived.items()}
    yield Row(
        "re-injection: test run + AF_PACKET against a live frame",
        "the cheaper one is used",
        "; ".join(
            f"{name} {at[name]:.1f} us (p99 {percentile(cost[name], 0.99):.1f} us, lost "
            f"{lost[name]:.1f} %)"
            for name in at
        ),
        at["test run"] <= at["live frame"],
        "one frame at a time through the router's program on veth in native mode, Python's part "
        "included, up to the receiver's XDP program, which runs in the same call",
        {
            **{name: summary(values) for name, values in cost.items()},
            "arrived": {name: min(values) for name, values in arrived.items()},
        },
    )


def _bound(place: Wire, maps: Maps) -> FirstPacket:
    """A first packet whose decision is in the kernel."""
    service = NAT.service
    key = FlowKey(CLIENT_BASE, CLIENT_PORT_MIN, service.addr, service.port)
    ends = place.place
    source, destination = (key.client_addr, key.client_port), (service.addr, service.port)
    frame = tcp_frame(ends.client_side, ends.client, source, destination, SYN, seq=7)
    first = FirstPacket(key, 0, ends.client_ifindex, time.monotonic_ns(), 7, 0, 7, frame)
    backend = Backend(0, "b1", NAT.backend, 0)
    for key_bytes, value in (
        abi.pack_reply_pending(first, backend, Mode.RACE, Reason.RACE_WON),
        abi.pack_forward_pending(first, backend, Mode.RACE, Reason.RACE_WON, 1000),
    ):
        if maps.pending_flows.insert_noexist(key_bytes, value):
            raise RuntimeError("pending_flows did not take the binding")
    return first


def _burst(
    place: Wire,
    name: str,
    send: Callable[[], None],
    frames: int,
    cost: dict[str, list[float]],
    arrived: dict[str, list[float]],
) -> float:
    """Median microseconds a frame; single ones go to ``cost``, the share that came through too."""
    took: list[float] = []

    def body() -> None:
        with programs.pinned(1):
            for _ in range(frames):
                start_ns = time.perf_counter_ns()
                send()
                took.append((time.perf_counter_ns() - start_ns) / 1e3)

    before = place.receiver.count()
    place.router.run(body)
    time.sleep(0.02)
    cost.setdefault(name, []).extend(took)
    arrived.setdefault(name, []).append((place.receiver.count() - before) / frames)
    return median(took)
