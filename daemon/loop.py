# SPDX-License-Identifier: Apache-2.0
"""The event loop's side of the engine: ring buffer, timers, heartbeat.

Nothing in here holds the loop longer than 5 ms: work comes in bounded batches.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import structlog

from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.core.abi import decode_event
from xdp_router.core.abi_events import is_probe_reply
from xdp_router.core.commands import Command
from xdp_router.core.engine import Engine
from xdp_router.core.errors import AbiError
from xdp_router.core.events import Event, ProbeReplies, ProbeReply, ProbeSent
from xdp_router.measure.histogram import Buckets

from .executor import Executor
from .heartbeat import GONE_NS

RECORDS_PER_WAKEUP = 64
"""About 3 ms of work at most; the rest comes with the next turn of the loop."""

RECORDS_BETWEEN_PROBES = 4
"""More are a flood's, and must not keep the probes of this first packet back."""

LATE_BOUNDS_NS = tuple(round(each * 1e6) for each in (0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000))

_NS_PER_S = 1e9
_log = structlog.get_logger()


class EngineLoop:
    """Feeds the engine and keeps one timer for it."""

    def __init__(
        self,
        engine: Engine,
        executor: Executor,
        ring: RingBuffer,
        beat: Callable[[int], None],
        heartbeat_interval_ns: int,
        is_ours: Callable[[], bool] = lambda: True,
    ) -> None:
        """``is_ours``: after having stood still, whether nobody has taken the maps over."""
        self._engine = engine
        self._executor = executor
        self._ring = ring
        self._beat = beat
        self._is_ours = is_ours
        self._beat_ns = 0
        self._due_ns = 0
        self.late_max_ns = 0
        """Most that a heartbeat came late: for so long something, or the machine, held the loop."""
        self.lateness = Buckets(LATE_BOUNDS_NS)
        """How late all of them came."""
        self._interval_s = heartbeat_interval_ns / _NS_PER_S
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._heartbeat: asyncio.TimerHandle | None = None
        self._passed: list[bytes] = []  # taken from the ring on the search for answers
        self._rest: asyncio.Handle | None = None
        self.records = 0
        self.bad_records = 0
        self.faults = 0

    def publish(self, carried: Collection[int] = ()) -> None:
        """Bring the maps to the engine's first state, whatever it takes: before ``start``.

        ``carried``: services whose consistent-hash tables are there, and may be used.
        """
        for command in self._engine.start(carried):
            self.run((command,))

    def start(self) -> None:
        """Begin, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._tick()
        self._loop.add_reader(self._ring.fileno(), self._readable)
        self._arm()  # tables may wait already

    def change(self, heartbeat_interval_ns: int) -> None:
        """Another interval, from the next beat on."""
        self._interval_s = heartbeat_interval_ns / _NS_PER_S

    def ready(self) -> None:
        """What was late until now was the start."""
        self._due_ns = self.late_max_ns = 0
        self.lateness = Buckets(LATE_BOUNDS_NS)

    def stop(self) -> None:
        """Stop. XDP finds the heartbeat stale and decides by itself from then on."""
        if self._loop is None:
            return
        self._loop.remove_reader(self._ring.fileno())
        for handle in (self._timer, self._heartbeat, self._rest):
            if handle is not None:
                handle.cancel()
        self._passed = []
        self._loop = None

    def is_lost(self) -> bool:
        """Whether a successor has the maps by now. Asks nobody while the heart beats."""
        return bool(self._beat_ns) and self._is_lost(time.monotonic_ns())

    def _is_lost(self, now_ns: int) -> bool:
        """Whether a successor is at work: not a beat, not a record may be taken from it."""
        if now_ns - self._beat_ns < GONE_NS or self._is_ours():
            return False
        self.stop()
        return True

    def _drain(self, limit: int) -> list[bytes]:
        # Each time: it may have been stopped anywhere.
        lost = self._beat_ns and self._is_lost(time.monotonic_ns())
        return [] if lost else self._ring.drain(limit)

    def handle(self, event: Event) -> None:
        """Give the engine an event and do what it says."""
        self.run(self._commands(event))
        self._arm()

    def obey(self, commands: Iterable[Command]) -> None:
        """Do what the engine has said to somebody else."""
        self.run(commands)
        self._arm()

    def _failed(self, about: str, error: Exception) -> None:
        """A fault about one flow must not cost the others their held packets."""
        self.faults += 1
        _log.error("fault", about=about, error=repr(error))

    def run(self, commands: Iterable[Command]) -> None:
        """Execute commands, and those that follow from their answers, in order.

        Each microsecond before a held frame leaves is a client's. So the ring is looked at
        between two probes: a near backend may have answered, and what follows from that comes
        before the probes that are left. What else is found there keeps its turn: a flow's second
        datagram may be among the records that were taken before. That a probe was sent is told
        when there is time.
        """
        queue = deque(commands)
        sent: list[Event] = []
        execute = self._executor.execute
        while queue or sent:
            if not queue:
                queue.extend(self._commands(sent.pop(0)))
                continue
            command = queue.popleft()
            try:
                answer = execute(command)
            except Exception as error:
                self._failed(type(command).__name__, error)
                continue
            if isinstance(answer, ProbeSent):
                sent.append(answer)
                if queue and self._ring.backlog and len(self._passed) < RECORDS_PER_WAKEUP:
                    self._look_between(queue, sent)
            elif answer is not None:
                # At once: the held frame leaves before the probes that are left.
                queue.extendleft(reversed(self._commands(answer)))

    def _look_between(self, queue: deque[Command], sent: list[Event]) -> None:
        """Put what follows from the answers that are there before the rest of ``queue``."""
        urgent: list[Command] = []
        while sent:  # first, so that the answer's round trip is known
            urgent.extend(self._commands(sent.pop(0)))
        answers: list[bytes] = []
        for record in self._drain(RECORDS_BETWEEN_PROBES):
            (answers if is_probe_reply(record) else self._passed).append(record)
        for event in self._events(answers):
            urgent.extend(self._commands(event))
        queue.extendleft(reversed(urgent))

    def _commands(self, event: Event) -> Sequence[Command]:
        """What the engine says about an event; nothing when it fails."""
        try:
            return self._engine.handle(event, time.monotonic_ns())
        except Exception as error:
            self._failed(type(event).__name__, error)
            return ()

    def _readable(self) -> None:
        left = RECORDS_PER_WAKEUP
        # Again until it is empty: a near backend's answer is there before the last probe has
        # left, and a turn of the event loop costs more than the decision.
        while left > 0 and (records := self._next(left)):
            left -= len(records)
            for event in self._events(records):
                self.run(self._commands(event))
        self._arm()

    def _next(self, limit: int) -> list[bytes]:
        """Records whose turn it is: those that were passed over are older than the ring's."""
        if not self._passed:
            return self._drain(limit)
        passed, self._passed = self._passed[:limit], self._passed[limit:]
        return [] if self.is_lost() else passed

    def _take_rest(self) -> None:
        self._rest = None
        self._readable()

    def _events(self, records: Sequence[bytes]) -> Iterator[Event]:
        """What records say. Answers to probes that are there together are one event."""
        answers = [record for record in records if is_probe_reply(record)]
        if len(answers) > 1:
            records = [record for record in records if not is_probe_reply(record)]
            decoded = map(self._decoded, answers)
            yield ProbeReplies(tuple(each for each in decoded if isinstance(each, ProbeReply)))
        for record in records:
            event = self._decoded(record)
            if event is not None:
                yield event

    def _decoded(self, record: bytes) -> Event | None:
        self.records += 1
        try:
            return decode_event(record)
        except AbiError as error:
            self.bad_records += 1
            _log.error("bad_record", error=str(error))
            return None

    def _arm(self) -> None:
        """Keep one timer, for the engine's next deadline. One that is early costs nothing.

        Records that were passed over are not in the ring any more: nothing else calls for them.
        """
        if self._passed and self._rest is None and self._loop is not None:
            self._rest = self._loop.call_soon(self._take_rest)
        deadline_ns = self._engine.deadline()
        if deadline_ns is None or self._loop is None:
            return
        if self._timer is not None:
            if self._timer_ns <= deadline_ns:
                return
            self._timer.cancel()
        self._timer_ns = deadline_ns
        self._timer = self._loop.call_at(deadline_ns / _NS_PER_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ns = time.monotonic_ns()
        try:
            commands = self._engine.expire(now_ns)
        except Exception as error:
            self._failed("expire", error)
            return  # not at once again: the next event arms the timer
        self.run(commands)
        self._arm()

    def _tick(self) -> None:
        assert self._loop is not None
        now_ns = time.monotonic_ns()
        if self._beat_ns and self._is_lost(now_ns):
            return
        if self._due_ns:
            self.late_max_ns = max(self.late_max_ns, now_ns - self._due_ns)
            self.lateness.add(now_ns - self._due_ns)
        self._due_ns = now_ns + int(self._interval_s * _NS_PER_S)
        # First the next beat: one that fails must not be the last.
        self._heartbeat = self._loop.call_later(self._interval_s, self._tick)
        self._beat_ns = now_ns
        self._beat(now_ns)
