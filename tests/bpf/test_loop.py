# SPDX-License-Identifier: Apache-2.0
"""The event loop between the real program's ring buffer and the engine."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

from tests.support.cast import BACKENDS, T0, first, key
from tests.support.fresh_netns import in_fresh_netns
from tests.support.loop_ends import Noting, Ring, engine_with_backends_up, probe_answer
from tests.support.small_router import SETTINGS, WiredRouter, small_router, wired_router
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.core import abi
from xdp_router.core.commands import LogDecision, SendProbe, WriteBinding
from xdp_router.core.engine import Engine, EngineSettings
from xdp_router.core.events import BackendState, BindingWritten, ProbeSent, XdpDecided
from xdp_router.core.model import NO_BACKEND, Backend, Decision, Mode, Reason
from xdp_router.core.probe_sequence import ProbeHashes, probe_seq
from xdp_router.core.selection import build_table
from xdp_router.daemon.executor import Executor
from xdp_router.daemon.heartbeat import Heartbeat
from xdp_router.daemon.loop import EngineLoop

MS = 1_000_000
B1, B2 = BACKENDS[0], BACKENDS[1]


def engine_of(wired: WiredRouter) -> Engine:
    """An engine whose probes the program recognises."""
    hashes = ProbeHashes(wired.router.state.probe_key)

    def sequence(backend: Backend, port: int, nonce: int) -> int:
        source = wired.router.state.backend_value(backend.id).probe_addr
        endpoint = backend.endpoint
        return probe_seq(hashes.get(endpoint.addr, endpoint.port, port, source), nonce)

    return Engine(wired.router.config.services, EngineSettings(), sequence, build_table)


@asynccontextmanager
async def running(wired: WiredRouter) -> AsyncIterator[EngineLoop]:
    """The loop, with both backends up and the service open."""
    fd = wired.router.plane.maps["first_packet_events"]
    ring = RingBuffer(fd, bpf.map_info(fd).max_entries)
    state = wired.router.state
    beat = Heartbeat(state.beat, SETTINGS.heartbeat_stale_ns).beat
    loop = EngineLoop(engine_of(wired), wired.executor, ring, beat, SETTINGS.heartbeat_interval_ns)
    loop.start()
    for backend in wired.router.backends:
        wired.bring_up(backend)
        loop.handle(BackendState(backend.id, True))
    state.open_services()
    try:
        yield loop
    finally:
        loop.stop()
        ring.close()


async def until(condition: Callable[[], object], timeout_s: float = 3.0) -> None:
    """Let the loop go on until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.002)


def is_to(backend: Backend, frame: bytes) -> bool:
    return frame[30:34] == backend.endpoint.addr.to_bytes(4, "big")


@in_fresh_netns
def test_a_race_from_packet_to_packet() -> None:
    """Held, probed for, answered by the second backend, bound, re-injected: the SYN goes there."""

    async def main(wired: WiredRouter) -> None:
        async with running(wired):
            wired.first_packet_arrives(4001)
            await until(lambda: wired.sender.counters["probe_sent"] == 2)
            probes = [wired.at_backend.recv(2048) for _ in range(2)]
            (to_second,) = [frame for frame in probes if is_to(B2, frame)]
            wired.arrives(wired.synack(to_second), wired.backend)
            await until(lambda: wired.router.decisions)
            frame = wired.at_backend.recv(2048)
            assert is_to(B2, frame)
            assert frame[34:36] == (4001).to_bytes(2, "big")

    with wired_router() as wired:
        asyncio.run(main(wired))
        (made,) = wired.router.decisions
        assert (made.backend, made.mode, made.reason) == (2, Mode.RACE, Reason.RACE_WON)
        rtts = {probe.backend: probe.rtt_ns for probe in made.probes}
        assert rtts[1] == 0
        assert rtts[2] > 0
        assert wired.router.maps.counters.read()["probe_synack"] == 1


@in_fresh_netns
def test_without_an_answer_the_deadline_decides() -> None:
    """One timer is kept for the engine: at the deadline the flow is hashed and goes out."""

    async def main(wired: WiredRouter) -> None:
        async with running(wired):
            wired.first_packet_arrives(4001)
            wired.first_packet_arrives(4002)
            await until(lambda: len(wired.router.decisions) == 2)

    with wired_router() as wired:
        asyncio.run(main(wired))
        for made in wired.router.decisions:
            assert (made.mode, made.reason) == (Mode.HASH, Reason.DEADLINE)
        # The second joined the first's race, and with it its deadline.
        waits = [made.decided_ns - made.seen_ns for made in wired.router.decisions]
        assert 50 * MS <= max(waits) < 1000 * MS
        assert wired.router.maps.counters.read()["reinjected"] == 2


@in_fresh_netns
def test_a_burst_longer_than_one_wakeup_is_taken_whole() -> None:
    """More records than one turn of the loop takes: the rest comes with the next ones."""

    async def main(wired: WiredRouter) -> None:
        async with running(wired) as loop:
            for port in range(5000, 5100):
                wired.first_packet_arrives(port)
            await until(lambda: len(wired.router.decisions) == 100)
            assert loop.records == 100

    with wired_router() as wired:
        asyncio.run(main(wired))
        assert {made.key for made in wired.router.decisions} == {
            key(port) for port in range(5000, 5100)
        }


@in_fresh_netns
def test_the_heart_beats_until_the_loop_stops() -> None:
    """The control map's heartbeat is never older than a few intervals; then it stands still."""
    ages: list[int] = []

    async def main(wired: WiredRouter) -> None:
        control = wired.router.maps.control
        async with running(wired):
            for _ in range(20):
                await asyncio.sleep(0.01)
                ages.append(time.monotonic_ns() - control.read().heartbeat_ns)
        last = control.read().heartbeat_ns
        await asyncio.sleep(0.05)
        assert control.read().heartbeat_ns == last

    with wired_router() as wired:
        asyncio.run(main(wired))
    assert max(ages) < SETTINGS.heartbeat_stale_ns


@in_fresh_netns
def test_tables_that_were_carried_over_are_made_anew_by_themselves() -> None:
    """They name backends as they were before: nothing has to happen for them to be put right."""

    async def main(wired: WiredRouter) -> None:
        fd = wired.router.plane.maps["first_packet_events"]
        ring = RingBuffer(fd, bpf.map_info(fd).max_entries)
        engine = engine_of(wired)
        loop = EngineLoop(engine, wired.executor, ring, lambda _now_ns: None, 10 * MS)
        loop.publish({service.id for service in wired.router.config.services})
        assert engine.tables_waiting == 1
        loop.start()
        try:
            await until(lambda: not engine.tables_waiting)
        finally:
            loop.stop()
            ring.close()

    with wired_router() as wired:
        asyncio.run(main(wired))


@in_fresh_netns
def test_a_fault_about_one_flow_is_that_flows_alone() -> None:
    """The log callback raises for the race's leader: who joined it is decided all the same."""
    made: list[Decision] = []

    def log(decision: Decision) -> None:
        if decision.key.client_port == 4001:
            raise RuntimeError("a bug")
        made.append(decision)

    async def main(wired: WiredRouter) -> None:
        async with running(wired) as loop:
            for port in (4001, 4002):
                wired.arrives(wired.syn(port), wired.client)
            await until(lambda: wired.sender.counters["probe_sent"] == 2)
            (to_first,) = [f for f in (wired.at_backend.recv(2048) for _ in "ab") if is_to(B1, f)]
            wired.arrives(wired.synack(to_first), wired.backend)
            await until(lambda: made)
            assert loop.faults == 1

    with wired_router(log_decision=log) as wired:
        asyncio.run(main(wired))
    assert [each.key.client_port for each in made] == [4002]


class _Records:
    """What a ring buffer would hand over, readable until it has."""

    def __init__(self, *records: bytes) -> None:
        self._read, self._write = os.pipe()
        self._records: list[bytes] = []
        self.fill(*records)

    def fill(self, *records: bytes) -> None:
        os.write(self._write, b"x")
        self._records += records

    def fileno(self) -> int:
        return self._read

    def drain(self, limit: int) -> list[bytes]:
        records, self._records = self._records, []
        if records:
            os.read(self._read, 1)
        assert len(records) <= limit
        return records

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


def test_a_bad_record_is_counted_and_passed_over() -> None:
    """Bytes that are no event do not keep the next record from being taken."""
    good = abi.EventHeader(
        time_ns=9,
        key=key(7),
        service=0,
        backend=NO_BACKEND,
        ifindex=1,
        seq=1,
        frame_len=0,
        type=abi.EventType.XDP_DECIDED,
        detail=Mode.REFUSED,
        reason=Reason.NO_CANDIDATE,
        wscale=0,
        syn_data=0,
        fppl_ns=0,
        synack_us=0,
        seen_ns=9,
    )
    assert isinstance(abi.decode_event(abi.pack_event(good)), XdpDecided)

    class Silent:
        def execute(self, _command: object) -> None:
            return None

    async def main() -> EngineLoop:
        engine = Engine(router.config.services, EngineSettings(), lambda *_: 0, build_table)
        records = _Records(b"short", abi.pack_event(good))
        ring = cast(RingBuffer, records)
        loop = EngineLoop(engine, cast(Executor, Silent()), ring, lambda _now: None, 10 * MS)
        loop.start()
        await until(lambda: loop.records == 2)
        loop.stop()
        loop.stop()
        records.close()
        assert engine.counters["decided_by_xdp"] == 1
        return loop

    with small_router() as router:
        assert asyncio.run(main()).bad_records == 1


def test_a_beat_that_fails_is_not_the_last() -> None:
    """The heartbeat goes on after one that could not be written."""
    beats: list[int] = []

    def beat(now_ns: int) -> None:
        beats.append(now_ns)
        if len(beats) == 2:
            raise OSError("the map says no")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        engine = Engine(router.config.services, EngineSettings(), lambda *_: 0, build_table)
        records = _Records()
        nobody = cast(Executor, type("Silent", (), {"execute": lambda *_: None})())
        loop = EngineLoop(engine, nobody, cast(RingBuffer, records), beat, MS)
        loop.start()
        await until(lambda: len(beats) > 4)
        loop.stop()
        records.close()

    with small_router() as router:
        asyncio.run(main())


def test_a_daemon_that_stood_still_asks_first_whether_it_is_still_at_work() -> None:
    """A successor has the maps: no beat, no record is taken from it, and it stops."""
    beats: list[int] = []
    ours = True

    async def main() -> None:
        nonlocal ours
        engine = Engine(router.config.services, EngineSettings(), lambda *_: 0, build_table)
        records = _Records()
        nobody = cast(Executor, type("Silent", (), {"execute": lambda *_: None})())
        ring = cast(RingBuffer, records)
        loop = EngineLoop(engine, nobody, ring, beats.append, MS, lambda: ours)
        loop.start()
        await until(lambda: len(beats) > 2)
        ours = False
        await until(lambda: len(beats) > 6)  # it is not asked while it beats
        assert not loop.is_lost()
        time.sleep(1.1)  # noqa: ASYNC251 - it is to stand still
        assert loop.is_lost()
        before = len(beats)
        await asyncio.sleep(0.05)
        assert len(beats) == before
        loop.stop()
        records.close()

    with small_router() as router:
        asyncio.run(main())


def test_a_near_answer_is_acted_on_before_the_probes_that_are_left() -> None:
    """The held frame leaves between two probes when the answer is there already."""
    ring = Ring()

    def probed(command: SendProbe) -> None:
        if len(executor.done) == 1:  # by the first backend
            ring.fill(probe_answer(command))

    executor = Noting(probed)
    ends = cast(Executor, executor), cast(RingBuffer, ring)
    loop = EngineLoop(engine_with_backends_up(), *ends, lambda _now: None, MS)
    loop.handle(first(4001, time.monotonic_ns()))
    ring.close()
    done = [type(each).__name__ for each in executor.done]
    assert done == ["SendProbe", "WriteBinding", "Reinject", "LogDecision", "SendProbe"]


def test_answers_that_are_there_together_are_one_event() -> None:
    """A tie is one only if the second answer is known when the first one is looked at."""
    asked: list[SendProbe] = []
    bound: list[object] = []

    class Backlog(_Records):
        """Nothing between the probes."""

        backlog = 0

    class Sender:
        def execute(self, command: object) -> object:
            if isinstance(command, SendProbe):
                asked.append(command)
                return ProbeSent(command.backend, command.probe_port, command.seq, T0)
            if isinstance(command, LogDecision):
                bound.extend(probe.tied for probe in command.decision.probes)
            if isinstance(command, WriteBinding):
                return BindingWritten(command.first.key)
            return None

    async def main() -> None:
        records = Backlog()
        ring = cast(RingBuffer, records)
        engine = engine_with_backends_up()
        loop = EngineLoop(engine, cast(Executor, Sender()), ring, lambda _now: None, 10 * MS)
        loop.handle(first(4001, time.monotonic_ns()))
        answers = [probe_answer(command, T0 + MS) for command in asked]
        other = abi.pack_event(replace(abi.unpack_event_header(answers[0]), type=9))
        records.fill(answers[0], other, answers[1])
        loop.start()
        await until(lambda: loop.records == 3)
        loop.stop()
        records.close()
        assert loop.bad_records == 1

    asyncio.run(main())
    assert bound == [True, True]
