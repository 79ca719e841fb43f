# SPDX-License-Identifier: Apache-2.0
"""Records in their order, whatever the event loop takes from the ring on the search for answers."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import cast

import pytest

from tests.support.cast import key, probe
from tests.support.loop_ends import Noting, Ring, engine_with_backends_up, probe_answer, record
from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.core import abi
from xdp_router.core.abi import decode_event
from xdp_router.core.commands import Command, Reinject, SendProbe
from xdp_router.core.engine import Engine
from xdp_router.core.events import Event, FirstPacket
from xdp_router.core.held import UDP
from xdp_router.daemon.executor import Executor
from xdp_router.daemon.loop import RECORDS_BETWEEN_PROBES, RECORDS_PER_WAKEUP, EngineLoop

FLOW = dataclasses.replace(key(4001), proto=UDP)


def first(port: int = 4001, frame: bytes = b"0") -> bytes:
    """The record of a flow's first datagram."""
    flow, now_ns = dataclasses.replace(FLOW, client_port=port), time.monotonic_ns()
    return record(abi.EventType.FIRST_PACKET, frame, key=flow, time_ns=now_ns, seen_ns=now_ns)


def later(frame: bytes) -> bytes:
    """Of one that is held behind it."""
    return record(abi.EventType.DATAGRAM, frame, key=FLOW)


def loop_over(ring: Ring, executor: Noting, engine: Engine | None = None) -> EngineLoop:
    """A loop with everything well at both ends."""
    ends = cast(Executor, executor), cast(RingBuffer, ring)
    return EngineLoop(
        engine or engine_with_backends_up(), *ends, lambda _now_ns: None, 1_000_000_000
    )


def run(
    loop: EngineLoop, ring: Ring, executor: Noting, count: int, begin: Event | None = None
) -> None:
    """Let the loop go on until so many frames have left."""

    async def main() -> None:
        loop.start()
        if begin is not None:
            loop.handle(begin)
        for _ in range(2_000):
            if len(executor.reinjected) >= count:
                break
            await asyncio.sleep(0.001)
        loop.stop()

    asyncio.run(main())
    ring.close()


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_datagrams_of_a_flow_keep_their_order(taken: int) -> None:
    """Some are taken from the ring with the first one, some while probes leave, with the answer."""
    ring, frames = Ring(), [b"1", b"2", b"3"]
    ring.fill(first(), *map(later, frames[:taken]))

    def probed(command: SendProbe) -> None:
        if len(executor.done) == 1:
            ring.fill(*map(later, frames[taken:]), probe_answer(command))

    executor = Noting(probed)
    run(loop_over(ring, executor), ring, executor, 4)
    assert executor.reinjected == [b"0", *frames]
    kinds = [type(each).__name__ for each in executor.done[:3]]
    assert kinds == ["SendProbe", "WriteBinding", "Reinject"]


def test_what_was_passed_over_is_not_forgotten() -> None:
    """It is in the ring no more, and nothing else may come: as when a timer sent the probe."""
    ring = Ring()

    def probed(command: SendProbe) -> None:
        if len(executor.done) == 1:
            ring.fill(later(b"1"), probe_answer(command))

    executor = Noting(probed)
    begin = decode_event(first())
    run(loop_over(ring, executor), ring, executor, 2, begin)
    assert executor.reinjected == [b"0", b"1"]


class Asking:
    """An engine that has three backends asked for each first packet, and lets it go then."""

    def handle(self, event: Event, _now_ns: int) -> list[Command]:
        """What to do."""
        return [*map(probe, (1, 2, 3)), Reinject(event)] if isinstance(event, FirstPacket) else []

    def deadline(self) -> None:
        """There is none."""


def test_a_flood_ends_the_search_for_answers() -> None:
    """No more is taken ahead than one turn of the loop can do, and in the end all of it is done."""
    ring, count = Ring(), 10 * RECORDS_PER_WAKEUP
    frames = [b"%d" % number for number in range(count)]
    executor, ahead = Noting(lambda _command: ahead.append(ring.taken - loop.records)), [0]
    loop = loop_over(ring, executor, cast(Engine, Asking()))
    ring.fill(*(first(5000 + number, frame) for number, frame in enumerate(frames)))
    run(loop, ring, executor, count)
    assert executor.reinjected == frames
    assert RECORDS_PER_WAKEUP < max(ahead) <= 2 * RECORDS_PER_WAKEUP + RECORDS_BETWEEN_PROBES
