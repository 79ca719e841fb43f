# SPDX-License-Identifier: Apache-2.0
"""A client's connection to a listener that speaks HTTP/1.1: requests in turn, each an exchange."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from xdp_router.core.listeners import ListenerKind
from xdp_router.gateway.errors import MessageError, SpeaksHttp2
from xdp_router.gateway.http_forward import error_response, http2_refusal
from xdp_router.gateway.http_head import HeadReader
from xdp_router.gateway.tenants import Refused

from .exchange import Exchange
from .record import Record, of_request, of_unread
from .wire import Wire, peer_of, reset

if TYPE_CHECKING:
    from .front import Front

BODY_LEAST = 16 << 10
"""Bytes of a body that come within ``body_timeout``, or it is late."""
AHEAD_MOST = 1 << 20
"""Bytes of later requests beyond ``max_head``, which reading stops at."""
_LAST_WORDS_S = 0.05
_LINGER_S = 1.0
"""How long what a client still sends is read and dropped, so that it gets our last words."""
_NS = 1e9


class Client(asyncio.Protocol):
    """One connection. ``peer_host``: its address, as text. ``first_byte_ns``: of the request that
    is read; 0: nothing of one has come."""

    __slots__ = (
        "peer",
        "peer_host",
        "is_tls",
        "exchange",
        "accepted_ns",
        "idle_since_ns",
        "stalled_ns",
        "_front",
        "_loop",
        "_clock",
        "_transport",
        "_wire",
        "_reader",
        "_buffer",
        "first_byte_ns",
        "_timer",
        "_paused",
        "_is_ending",
        "_lingers",
        "_said_all",
        "_body_seen",
    )

    def __init__(self, front: Front) -> None:
        self.peer = ""
        self.peer_host = b""
        self.is_tls = front.listener.certificate is not None
        self.exchange: Exchange | None = None
        self.accepted_ns = 0
        self.idle_since_ns = 0
        """Since when nothing was asked; 0: something is."""
        self.stalled_ns = 0
        """Since when it takes nothing of what waits for it; 0: it does."""
        self._front = front
        self._loop = front.world.loop
        self._clock = front.world.clock
        self._transport: asyncio.Transport | None = None
        self._wire: Wire | None = None
        self._reader = HeadReader(front.head_limits, front.heads)
        self._buffer = bytearray()
        self.first_byte_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._is_ending = False
        self._lingers = False
        self._said_all = False
        self._body_seen = 0

    # What the event loop does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.accepted_ns = self.idle_since_ns = self._clock()
        host, self.peer = peer_of(transport)
        self.peer_host = host.encode()
        self._wire = Wire(self._transport, is_tls=self.is_tls)
        if not self._front.admit(self):
            self._is_ending = True
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if self._is_ending:
            return
        if exchange is not None:
            if exchange.tunnel is not None:
                exchange.record.bytes_in += len(data)
                exchange.tunnel.take(data)
            elif exchange.wants_body:
                self._body(exchange, data, 0)
            else:
                self._ahead(data)
            return
        if self.stalled_ns:
            self._ahead(data)
            return
        if not self.first_byte_ns:
            self.first_byte_ns = self._clock()
            self.idle_since_ns = 0
        self._buffer += data
        self._next()

    def eof_received(self) -> bool:
        exchange = self.exchange
        if exchange is not None and exchange.tunnel is not None:
            self._said_all = True
            exchange.client_said_all()
            return not self.is_tls
        if exchange is not None:
            # As nginx has it: whoever has closed its side does not wait for an answer.
            exchange.abandon("the client is gone")
            self.exchange = None
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None and not self._is_ending:
            self.eof_received()  # a TLS client that has gone without a word
        self._transport = None
        self._is_ending = True
        self._stop_timer()
        self._front.gone(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.abandon("the client is gone", by_reset=exc is not None)

    def pause_writing(self) -> None:
        self.stalled_ns = self._clock()
        if self.exchange is not None:
            self.exchange.client_writable(False)

    def resume_writing(self) -> None:
        self.stalled_ns = 0
        if self.exchange is not None:
            self.exchange.client_writable(True)
        elif not self._is_ending:
            self._go_on()

    # What an exchange does

    def write(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._wire is not None and self._transport is not None:
            self._wire.write(data)

    def write_eof(self) -> None:
        """Nothing more comes of a tunnel's other side."""
        if not self.is_tls and self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def pause(self) -> None:
        """Read nothing until ``resume``."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on, unless there are more requests already than are kept."""
        if len(self._buffer) > self._front.listener.max_head:
            return
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def answered(self, keep: bool) -> None:
        """The answer is whole. ``keep``: the client knows that another may follow."""
        self.exchange = None
        if not keep or self._is_ending:
            self._end()
        elif self.stalled_ns:
            self.pause()  # who takes no answers gets no more of them to take
        else:
            self._go_on()

    def _go_on(self) -> None:
        """To the next request."""
        self.resume()
        self.first_byte_ns = self._clock() if self._buffer else 0
        self.idle_since_ns = 0 if self._buffer else self._clock()
        if self._buffer:
            # In a turn of its own: a client that sends many at once is not served in one.
            self._loop.call_soon(self._next)

    def refuse(self, status: int, text: str, retry_after_s: int | None = None) -> None:
        """Answer in the backend's stead; the connection ends with it."""
        exchange, self.exchange = self.exchange, None
        front = self._front
        self._count_refused(status)
        if exchange is None:
            record = self._unread(status, text)
        else:
            record = exchange.record
            if exchange.is_answering:
                exchange.abandon(text)
                self.reset()
                return
            record.status = status
            exchange.abandon(text)
        if not self._is_ending:
            self.write(
                error_response(
                    status,
                    text,
                    json=front.listener.kind is ListenerKind.LLM,
                    retry_after_s=retry_after_s,
                    extra=((b"X-Request-ID", record.id.encode()),),
                    to_head=record.method == "HEAD",
                )
            )
            self._end()

    def _unread(self, status: int, text: str) -> Record:
        """Of what is refused before there is an exchange."""
        front, begun = self._front, bytes(self._buffer)
        record = of_unread(front.world, front.listener.name, self, begun, status, text)
        front.ended(record)
        return record

    def _count_refused(self, status: int) -> None:
        self._front.figures.count("refused", self._front.listener.name, str(status))

    def begin_tunnel(self) -> None:
        """From here on both sides speak another protocol."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self.resume()  # it was so much that nothing more was read, maybe
        if rest and self.exchange is not None and self.exchange.tunnel is not None:
            # At once: what is read next comes behind it.
            self.exchange.record.bytes_in += len(rest)
            self.exchange.tunnel.take(rest)

    def close(self) -> None:
        """Close when everything is written."""
        self._is_ending = True
        self.idle_since_ns = 0
        if self._transport is not None:
            if self._transport.get_write_buffer_size() and not self.stalled_ns:
                self.stalled_ns = self._clock()  # the sweep looks for who never takes it
            self._transport.close()

    def reset(self) -> None:
        """Close so that nobody takes what came for the whole: by RST, behind what was written."""
        self._is_ending = True
        reset(self._transport, is_tls=self.is_tls)

    def reset_soon(self) -> None:
        """The same after a moment: a RST takes away what its receiver has not read yet."""
        self._is_ending = True
        self._stop_timer()
        self._timer = self._loop.call_later(_LAST_WORDS_S, self.reset)

    # Requests

    def _next(self) -> None:
        """Take the next head off the buffer, if it is whole."""
        if self._is_ending or self.exchange is not None:
            return
        try:
            head = self._reader.request(self._buffer)
        except SpeaksHttp2 as error:
            self._count_refused(error.status)
            self._unread(error.status, error.reason)
            self.write(http2_refusal(error.reason))
            self._end()
            return
        except MessageError as error:
            self.refuse(error.status, error.reason)
            return
        if head is None:
            if not self._buffer:  # an empty line, which is no beginning of a head
                self._stop_timer()
                self.first_byte_ns, self.idle_since_ns = 0, self._clock()
            elif self._timer is None:
                after_s = self._front.listener.head_timeout_ns / _NS
                self._timer = self._loop.call_later(after_s, self._head_is_late)
            return
        self._stop_timer()
        front = self._front
        record = of_request(front.world, front.listener.name, self, head)
        self.first_byte_ns = self.idle_since_ns = 0
        try:
            exchange = self.exchange = Exchange(self, front, head, record)
            rest = bytes(self._buffer)
            self._buffer.clear()
            if self._paused:
                self.resume()  # there was more than is kept: the rest of a body may not be there
            exchange.begin()
        except MessageError as error:
            self._refuse(error)
            return
        # Legs answer in a later turn of the loop, so nothing is answered yet.
        if exchange.wants_body:
            self._body_seen = 0
            self._watch_body()
            if rest:
                self._body(exchange, rest, 0)
        elif rest:
            self._ahead(rest)

    def _body(self, exchange: Exchange, data: bytes, start: int) -> None:
        end = len(data)
        try:
            end = exchange.feed(data, start)
        except MessageError as error:
            self._refuse(error)
            return
        if not exchange.wants_body:
            self._stop_timer()
        if end < len(data) and not self._is_ending:
            self._ahead(data[end:])

    def _refuse(self, error: MessageError) -> None:
        after_s = error.after_s if isinstance(error, Refused) else None
        self.refuse(error.status, error.reason, after_s)

    def _ahead(self, data: bytes) -> None:
        """Of the next request, before this one is answered: kept, within bounds."""
        self._buffer += data
        most = self._front.listener.max_head
        if len(self._buffer) > most + AHEAD_MOST:
            self.reset()  # reading was resumed again and again for the sake of an answer
        elif len(self._buffer) > most:
            self.pause()

    def _head_is_late(self) -> None:
        self._timer = None
        self._front.figures.count("deadline_closes", self._front.listener.name, "head")
        self.refuse(408, "the request's head was not whole in time")

    def _body_is_late(self) -> None:
        self._timer = None
        exchange = self.exchange
        if exchange is not None:
            came = exchange.record.bytes_in - self._body_seen
            # It comes; or nobody takes it, which is not the client's fault.
            if came >= BODY_LEAST or self._paused:
                self._body_seen += came
                self._watch_body()
                return
        self._front.figures.count("deadline_closes", self._front.listener.name, "body")
        self.refuse(408, "the request's body was not whole in time")

    def _watch_body(self) -> None:
        after_s = self._front.listener.body_timeout_ns / _NS
        self._timer = self._loop.call_later(after_s, self._body_is_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        """Close, so that the client gets what was written even if it still sends something."""
        self._is_ending = True
        self._stop_timer()
        transport = self._transport
        if transport is None:
            return
        self._buffer.clear()
        if self.is_tls or self._said_all or not transport.can_write_eof():
            self.close()
            return
        self.resume()
        transport.write_eof()
        self._linger()

    def _linger(self) -> None:
        transport = self._transport
        if transport is not None:
            if transport.get_write_buffer_size():
                # It reads slowly; if it does not at all, the sweep looks for those.
                self.stalled_ns = self.stalled_ns or self._clock()
            elif self._lingers:
                transport.abort()
                return
            else:
                self._lingers = True
            self._timer = self._loop.call_later(_LINGER_S, self._linger)
