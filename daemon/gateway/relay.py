# SPDX-License-Identifier: Apache-2.0
"""A connection of a ``tls`` listener: its ClientHello decides, and then bytes pass as they come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from xdp_router.core.model import Mode
from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.tls_hello import ClientHello, HelloError, HelloParser, alert_record

from .board import IN_FLIGHT
from .record import LegRecord, Record, of_connection
from .tunnel import HALF_CLOSED, HALF_LATE, Ends
from .wire import Wire, peer_of, reset

if TYPE_CHECKING:
    from .front import Front

_UNRECOGNIZED_NAME = 112
_INTERNAL_ERROR = 80
_NS = 1e9


class Relay(asyncio.Protocol):
    """The client's side. It is its own exchange: one decision, one stream."""

    __slots__ = (
        "peer",
        "peer_host",
        "accepted_ns",
        "idle_since_ns",
        "stalled_ns",
        "record",
        "backend",
        "_front",
        "_loop",
        "_clock",
        "_transport",
        "_wire",
        "_parser",
        "_hello",
        "_timer",
        "_left",
        "_legs",
        "_is_ending",
        "ends",
    )

    def __init__(self, front: Front) -> None:
        self.peer = ""
        self.peer_host = b""
        self.accepted_ns = self.idle_since_ns = self.stalled_ns = 0
        self.record: Record = of_connection(front.world, front.listener.name, "", 0)
        self.backend: _Backend | None = None
        self._front = front
        self._loop = front.world.loop
        self._clock = front.world.clock
        self._transport: asyncio.Transport | None = None
        self._wire: Wire | None = None
        self._parser = HelloParser()
        self._hello = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._left = 0
        self._legs: list[_Backend] = []
        self._is_ending = False
        self.ends = Ends()

    @property
    def exchange(self) -> Relay | None:
        """What is under way: itself, from the decision on."""
        return self if self.record.decided_ns and not self.record.ended_ns else None

    # What the event loop does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.accepted_ns = self.idle_since_ns = self._clock()
        host, self.peer = peer_of(transport)
        self.peer_host = host.encode()
        self.record.client, self.record.accepted_ns = self.peer, self.accepted_ns
        self._wire = Wire(self._transport)
        if not self._front.admit(self):
            self._is_ending = True
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.record.bytes_in += len(data)
        if self.backend is not None:
            if self.ends.newest_ns:
                self.ends.newest_ns = self._clock()
            self.backend.write(data)
            return
        if self._is_ending:
            return
        self._hello += data
        if self.record.decided_ns:
            # Between hello and connection: little comes, and what comes waits.
            if len(self._hello) > (64 << 10) and self._transport is not None:
                self._transport.pause_reading()
            return
        if not self.record.first_byte_ns:
            self.record.first_byte_ns = self._clock()
            self.idle_since_ns = 0
            after_s = self._front.listener.head_timeout_ns / _NS
            self._timer = self._loop.call_later(after_s, self._late)
        try:
            hello = self._parser.feed(data)
            if hello is not None:
                self._stop_timer()
                self._decide(hello)
        except HelloError as error:
            self._refuse(error.alert, str(error))
        except MessageError as error:
            self._refuse(_UNRECOGNIZED_NAME, error.reason)

    def eof_received(self) -> bool:
        if not self.record.decided_ns or self._is_ending:
            return False
        # uvloop says it once more when reading is resumed behind it.
        if not self.ends.client:
            self.ends.client, self.ends.newest_ns = True, self._clock()
            if self.backend is not None:
                self.backend.write_eof()
            self._close_if_over()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._is_ending = True
        self._stop_timer()
        self._front.gone(self)
        if self.backend is not None:
            if exc is None:
                self.backend.close()
            else:
                self.backend.reset()
        self._end("the client is gone" if exc is None else "the client reset the connection")

    def pause_writing(self) -> None:
        self.stalled_ns = self._clock()
        if self.backend is not None:
            self.backend.pause()

    def resume_writing(self) -> None:
        self.stalled_ns = 0
        if self.backend is not None:
            self.backend.resume()

    # What the front does

    def close(self) -> None:
        """Close when everything is written."""
        self._is_ending = True
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close at once, by RST."""
        self._is_ending = True
        reset(self._transport)

    def silent(self, before_ns: int) -> None:
        """A connection of unknown contents may be silent for as long as it likes, unless one side
        has said all."""
        if self.backend is not None and self.ends.is_late(before_ns):
            self.backend.reset()
            self._front.late(self, HALF_CLOSED)
            self._end(HALF_LATE)

    def view(self) -> dict[str, Any]:
        """One row of the list of streams."""
        age_s = round((self._clock() - self.record.accepted_ns) / _NS, 3)
        return {**self.record.summary(), "age_s": age_s}

    # The decision

    def _decide(self, hello: ClientHello) -> None:
        front, record = self._front, self.record
        name = hello.server_name or ""
        record.host, record.head_ns = name, self._clock()
        record.route, found = front.routes.find(name, "", {}, None)
        order = record.order = front.chooser.order(found, front.sight, (), 1.0, front.world.draws())
        race, now_ns = front.listener.race, self._clock()
        raced = front.listener.mode is Mode.RACE and not order.control
        record.mode = "control" if order.control else front.mode
        record.decided_ns = now_ns
        most, width = min(len(order), race.candidates) if raced else 1, 1
        while width < most and front.may_have_leg(order[width], now_ns):
            width += 1
        self._left = min(len(order), width + race.retries)
        for _ in range(width):
            self._ask()

    def _ask(self) -> None:
        """Connect to the next candidate, if there is one."""
        order, asked = self.record.order, len(self.record.legs)
        if order is None or asked >= self._left:
            return
        index = order[asked]
        front = self._front
        told = LegRecord(front.listener.backends[index].name, self._clock())
        self.record.legs.append(told)
        leg = _Backend(self, index, told)
        self._legs.append(leg)
        front.figures.count("legs", front.listener.name, told.backend)
        leg.task = self._loop.create_task(leg.connect(front.listener.connect_timeout_ns / _NS))

    def connected(self, leg: _Backend) -> None:
        """The first one gets the connection."""
        if self.backend is not None or self._is_ending or self._transport is None:
            leg.give_up("another one was first")
            return
        front, record, now_ns = self._front, self.record, self._clock()
        self.backend = leg
        record.backend, record.answer_ns = leg.told.backend, now_ns
        record.reason = "first choice" if len(self._legs) == 1 else "connected first"
        leg.told.ready_ns, leg.told.outcome = now_ns, "won"
        for other in self._legs:
            if other is not leg:
                other.give_up("another one was first")
        row = front.row(leg.index)
        front.world.board.add_own(row, IN_FLIGHT, 1)
        took_ns = now_ns - leg.told.started_ns
        front.note_first_byte(leg.index, record, took_ns, now_ns)
        leg.write(bytes(self._hello))
        self._hello.clear()
        if self.ends.client:
            leg.write_eof()
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def failed(self, leg: _Backend, reason: str) -> None:
        """A candidate cannot be connected to."""
        self._legs.remove(leg)
        leg.told.ended_ns, leg.told.outcome = self._clock(), reason
        self._front.not_connected(leg.index, reason)
        self._front.figures.count("failed_legs", self._front.listener.name, leg.told.backend)
        if self.backend is not None or self._is_ending:
            return
        if len(self.record.legs) < self._left:
            self.record.retries += 1
            self._ask()
        elif not self._legs:
            self._refuse(_INTERNAL_ERROR, f"no backend can be connected to: {reason}")

    def received(self, data: bytes) -> None:
        """Bytes of the backend's."""
        if self.ends.newest_ns:
            self.ends.newest_ns = self._clock()
        self.record.bytes_out += len(data)
        if self._wire is not None and self._transport is not None:
            self._wire.write(data)

    def backend_eof(self) -> None:
        """The backend has nothing more to say; the client may have."""
        if self.ends.backend:
            return
        self.ends.backend, self.ends.newest_ns = True, self._clock()
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        self._close_if_over()

    def _close_if_over(self) -> None:
        """Both have said all."""
        if self.ends.is_over and self.backend is not None:
            self.backend.close()
            self.close()
            self._end("complete")

    def backend_lost(self, error: Exception | None) -> None:
        """Its connection is closed: so is the client's, in the same way. Who has said all, and is
        gone when there is more for it to hear, has not broken off."""
        if self.ends.backend:
            error = None
        if error is None:
            self.close()
        else:
            self.reset()
        self._end("complete" if error is None else "the backend reset the connection")

    def client_writable(self, writable: bool) -> None:
        """Whether the backend takes more."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if writable:
                transport.resume_reading()
            else:
                transport.pause_reading()

    def _refuse(self, alert: int, reason: str) -> None:
        self._stop_timer()
        self._front.figures.count("refused", self._front.listener.name, str(alert))
        # The alert, not the words: these have bytes of the client's, and reasons are counted.
        self.record.reason = f"refused by alert {alert}"
        if self._transport is not None and not self._is_ending:
            self._transport.write(alert_record(alert))
        self.close()
        self._end(reason)

    def _late(self) -> None:
        self._timer = None
        self._front.figures.count("deadline_closes", self._front.listener.name, "head")
        self.close()
        self._end("the ClientHello was not whole in time")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, why: str) -> None:
        record = self.record
        if record.ended_ns or not record.first_byte_ns:
            return
        record.ended_ns, record.end = self._clock(), why
        for leg in list(self._legs):
            if leg is not self.backend:
                leg.give_up(why)
        if self.backend is not None:
            row = self._front.row(self.backend.index)
            self._front.world.board.add_own(row, IN_FLIGHT, -1)
            self.backend.told.ended_ns = record.ended_ns
        self._front.ended(record)


class _Backend(asyncio.Protocol):
    """One candidate's side."""

    __slots__ = ("index", "told", "task", "_relay", "_transport", "_wire")

    def __init__(self, relay: Relay, index: int, told: LegRecord) -> None:
        self.index = index
        self.told = told
        self.task: asyncio.Task[None] | None = None
        self._relay: Relay | None = relay
        self._transport: asyncio.Transport | None = None
        self._wire: Wire | None = None

    async def connect(self, timeout_s: float) -> None:
        """Until it is connected, or cannot be."""
        assert self._relay is not None
        address = self._relay._front.listener.backends[self.index].address
        reason = ""
        try:
            async with asyncio.timeout(timeout_s):
                await self._relay._loop.create_connection(lambda: self, address.host, address.port)
        except TimeoutError:
            reason = f"no connection within {timeout_s * 1000:g} ms"
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
        relay = self._relay
        if reason and relay is not None:
            self._relay = None
            relay.failed(self, reason)

    def give_up(self, reason: str) -> None:
        """It has lost, or nobody is there any more."""
        self.told.ended_ns = self.told.ended_ns or (
            self._relay._clock() if self._relay is not None else 0
        )
        self.told.outcome = self.told.outcome or reason
        self._relay = None
        if self._transport is not None:
            self._transport.abort()
        elif self.task is not None:
            self.task.cancel()

    def write(self, data: bytes) -> None:
        """Bytes of the client's."""
        if self._wire is not None and self._transport is not None:
            self._wire.write(data)

    def write_eof(self) -> None:
        """The client has nothing more to say."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def pause(self) -> None:
        """Read nothing until ``resume``."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close when everything is written."""
        self._relay = None
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close at once, by RST."""
        self._relay = None
        reset(self._transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._relay is None:
            self._transport.abort()
            return
        self._wire = Wire(self._transport, is_ours=True)
        self._relay.connected(self)

    def data_received(self, data: bytes) -> None:
        if self._relay is not None:
            self._relay.received(data)

    def eof_received(self) -> bool:
        if self._relay is not None:
            self._relay.backend_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        relay, self._relay = self._relay, None
        if relay is not None and relay.backend is self:
            relay.backend_lost(exc)

    def pause_writing(self) -> None:
        if self._relay is not None:
            self._relay.client_writable(False)

    def resume_writing(self) -> None:
        if self._relay is not None:
            self._relay.client_writable(True)
