# SPDX-License-Identifier: Apache-2.0
"""Frames on real wires: native and generic XDP deliver what a test run says, where it says."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from tests.bpf.corpus.recipe import generated
from tests.bpf.corpus.recipe6 import generated6
from tests.bpf.corpus.states import STATES, State
from tests.bpf.corpus.world import World
from tests.support.frames import summary
from tests.support.program import DROP, PASS, TX, VERDICTS, Outcome
from tests.support.tap import Tap, wait_readable
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.lab import xdp_stub

pytest_plugins = ("tests.support.worlds",)

COUNT = {4: 1_200, 6: 700}
MODES = {"native": bpf.XDP_FLAGS_DRV_MODE, "generic": bpf.XDP_FLAGS_SKB_MODE}
WIRE_MAX = 1514
SHORTEST = 14
VLAN_TAGS, TAGGED_MIN = (b"\x81\x00", b"\x88\xa8"), 20
"""The kernel takes an outer tag off with the type behind it, and drops what ends before that."""
PATIENCE_S = 2.0
"""A frame that is there is there within microseconds; only a failure waits."""


@contextlib.contextmanager
def _attached(world: World, mode: str) -> Iterator[dict[str, Tap]]:
    """The program on both of our ends, and taps on all four.

    In native mode the far ends get a program, too: without one veth takes no redirected frames.
    """
    wires = world.wires
    names = {
        "client": wires.client,
        "client_peer": wires.client_peer,
        "backend": wires.backend,
        "backend_peer": wires.backend_peer,
    }
    with contextlib.ExitStack() as stack, IPRoute() as ipr:
        taps = {}
        for name, index in names.items():
            program = world.program.plane.entry
            if name.endswith("_peer"):
                program = xdp_stub.load_constant(xdp_stub.XDP_PASS)
                stack.callback(os.close, program)
            if mode == "native" or not name.endswith("_peer"):
                stack.callback(os.close, bpf.link_create(program, index, MODES[mode]))
            link = ipr.link("get", index=index)[0].get_attr("IFLA_IFNAME")
            # Its neighbour discovery would be counted.
            Path(f"/proc/sys/net/ipv6/conf/{link}/disable_ipv6").write_text("1")
            taps[name] = Tap(link)
            stack.callback(taps[name].close)
        yield taps


def _place(state: State, expected: Outcome, redirected_to: str) -> str | None:
    """Where the frame of a test run is seen; None: nowhere."""
    verdict, frame = expected.verdict, expected.frame
    if verdict == DROP:
        return None
    if verdict == PASS:
        untagged = frame[12:14] not in VLAN_TAGS or len(frame) >= TAGGED_MIN
        return state.at if untagged else None
    return f"{state.at}_peer" if verdict == TX else f"{redirected_to}_peer"


def _arrivals(taps: dict[str, Tap]) -> list[tuple[str, bytes]]:
    """What came in, but for what the kernel itself says on the wires."""
    own = {tap.address for tap in taps.values()}
    return [
        (name, frame)
        for name, tap in taps.items()
        for frame in tap.received()
        if frame[6:12] not in own
    ]


def _send(
    world: World, taps: dict[str, Tap], state: State, frame: bytes, seen_somewhere: bool
) -> tuple[list[tuple[str, bytes]], dict[str, int]]:
    """Send a frame to us; what arrives where, and what is counted."""
    before = world.maps.counters.read()
    taps[f"{state.at}_peer"].send(frame)
    arrived: list[tuple[str, bytes]] = []
    counted: dict[str, int] = {}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if seen_somewhere:
            wait_readable(taps.values(), PATIENCE_S)
        arrived += _arrivals(taps)
        # Read only: the ring may have been filled on purpose.
        after = world.maps.counters.read()
        counted = {name: by for name in after if (by := after[name] - before[name])}
        if arrived if seen_somewhere else counted:
            break
    return arrived + _arrivals(taps), counted


def _direction(state: State) -> str:
    return "backend" if state.at == "client" else "client"


def _wire_frame(world: World, state: State, rng: random.Random) -> bytes:
    make = generated if world.family == 4 else generated6
    while True:
        frame = make(state, rng)
        if SHORTEST <= len(frame) <= WIRE_MAX:
            return frame


@pytest.mark.parametrize("mode", MODES)
def test_generated_frames_on_a_wire(
    mode: str, worlds: dict[str, World], rng: random.Random
) -> None:
    """The receiver gets byte for byte what the test run gave, once, and nobody else gets it."""
    world = worlds["object"]
    places: set[str | None] = set()
    with _attached(world, mode) as taps:
        for number in range(COUNT[world.family]):
            state = STATES[number % len(STATES)]
            frame = _wire_frame(world, state, rng)
            world.program.changes()  # of the wire, before this frame
            state.prepare(world)
            expected = world.run_native(frame, state.at)
            place = _place(state, expected, _direction(state))
            wanted = [] if place is None else [(place, expected.frame)]
            state.prepare(world)
            arrived, counted = _send(world, taps, state, frame, place is not None)
            if (arrived, counted) != (wanted, expected.counters):
                pytest.fail("\n".join([
                    f"frame {number}, {state.name}, {mode}: {frame.hex()}", summary(frame),
                    f"a test run says {VERDICTS[expected.verdict]}, {expected.counters}", *(
                        f"{what} at {where}: {each.hex()}" for what, frames in
                        (("arrived", arrived), ("wanted", wanted)) for where, each in frames
                    ), f"counted {counted}",
                ]))  # fmt: skip
            places.add(place)
    world.program.changes()  # what the wires still said is not the next test's
    assert places == {None, "client", "backend", "client_peer", "backend_peer"}
