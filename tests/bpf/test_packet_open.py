# SPDX-License-Identifier: Apache-2.0
"""Open flows are counted once, whichever CPU sees a flow's end, and whichever that it goes on."""

from __future__ import annotations

import ctypes as ct
import os
import threading
from collections.abc import Callable

from tests.bpf.corpus.flows import established, flow_keys, read_flow
from tests.bpf.corpus.world import B1, CLIENT_ISN, SERVER_ISN, World, from_backend, to_service
from tests.support.frames import ACK, PSH, RST, Segment
from tests.support.program import _XdpMd
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.core import abi

pytest_plugins = ("tests.support.worlds",)

ROUNDS = 3_000


def _runner(world: World, frame: bytes, at: str) -> Callable[[int], None]:
    """Runs the frame with the number that follows on by so much; a buffer of its own."""
    data = ct.create_string_buffer(frame, len(frame))
    md = _XdpMd(data_end=len(frame), ingress=world.ingress(at))
    prepared = bpf.TestRun(world.program.plane.entry, data, md)
    seq_at = (34 if world.family == 4 else 54) + 4
    first = int.from_bytes(frame[seq_at : seq_at + 4], "big")

    def run(by: int) -> None:
        ct.memmove(ct.addressof(data) + seq_at, (first + by).to_bytes(4, "big"), 4)
        assert prepared.run() == 0

    return run


def test_two_cpus_count_each_end_of_a_flow_once(world: World) -> None:
    """The backend's RST on one, the client's next byte on another, again and again."""
    world.reset()
    world.touch()
    world.maps.backend_loads.write(B1.id, abi.LoadValue(opened=1))
    established()(world)
    more = Segment(flags=PSH | ACK, seq=CLIENT_ISN + 1, ack=SERVER_ISN + 1, payload=b"x")
    over = Segment(flags=RST | ACK, seq=SERVER_ISN + 1, ack=CLIENT_ISN + 1)
    goes_on = _runner(world, world.native(to_service(more)), "client")
    ends = _runner(world, world.native(from_backend(over)), "backend")
    faults: list[BaseException] = []
    together = threading.Barrier(2)

    def again(cpu: int, run: Callable[[int], None], step: int) -> None:
        try:
            os.sched_setaffinity(0, {cpu})
            together.wait(10)
            for turn in range(ROUNDS):
                run(turn * step)
        except BaseException as fault:
            faults.append(fault)

    last = (os.cpu_count() or 1) - 1
    threads = [
        threading.Thread(target=again, args=(0, ends, 0)),
        threading.Thread(target=again, args=(last, goes_on, 1)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    load, entry = world.maps.backend_loads.read(B1.id), read_flow(world, flow_keys()[0])
    assert entry is not None
    assert load.opened - load.closed == entry.open
    assert load.closed > 1, "nothing happened at once"
