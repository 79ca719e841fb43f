# SPDX-License-Identifier: Apache-2.0
"""A client of a listener where TLS ends, from its first byte to the end of its handshake.

It counts as a connection from the moment that it is accepted, and its ClientHello has the time that
a request's head has: whoever sends it byte by byte costs no more than whoever does so with a head.
The hello is kept until it is whole; OpenSSL sees none before, so half of one costs no memory of
its.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final, cast

from uvloop.loop import SSLProtocol  # type: ignore[attr-defined] # its stub does not have it

from xdp_router.gateway.http_forward import error_response
from xdp_router.gateway.tls_hello import HelloError, HelloParser, alert_record

from .client import Client
from .wire import peer_of

if TYPE_CHECKING:
    from .front import Front

HANDSHAKE_S: Final = 10.0
"""How long a client may take for the rest of its handshake: round trips, and a signature."""
_LATER_S: Final = 5.0
_BAD_REQUEST: Final = 400
_NS: Final = 1e9


class Handshake(asyncio.Protocol):
    """One client's. Followed by a :class:`.client.Client`, which gets what is decrypted."""

    __slots__ = (
        "peer_host",
        "idle_since_ns",
        "_front",
        "_context",
        "_transport",
        "_parser",
        "_hello",
        "_timer",
        "_is_over",
    )
    exchange = None
    """It has asked for nothing so far."""
    stalled_ns = 0

    def __init__(self, front: Front, context: ssl.SSLContext) -> None:
        self.peer_host = b""
        self.idle_since_ns = 0
        """Since when it has said nothing; 0: it has."""
        self._front = front
        self._context = context
        self._transport: asyncio.Transport | None = None
        self._parser = HelloParser()
        self._hello = b""
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    # What the event loop does, until the hello is whole

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.idle_since_ns = self._front.world.clock()
        self.peer_host = peer_of(transport)[0].encode()
        if not self._front.admit(self):
            self._is_over = True
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if not self._hello:
            self.idle_since_ns = 0
            self._watch("head", self._front.listener.head_timeout_ns / _NS)
        self._hello += data
        try:
            hello = self._parser.feed(data)
        except HelloError as error:
            self._refuse(error)
            return
        if hello is not None:
            self._shake_hands()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    # What a front does

    def close(self) -> None:
        """Close when everything is written."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # How it goes on

    def _shake_hands(self) -> None:
        """Have the event loop's own TLS do the rest, with what has come so far."""
        assert self._transport is not None
        self._watch("handshake", HANDSHAKE_S)
        loop = self._front.world.loop
        waiter = loop.create_future()
        waiter.add_done_callback(self._ended)
        # Made here, since create_server() makes one before anything is known of the client, and
        # start_tls() would not take what was read already.
        tls = SSLProtocol(
            loop,
            _Done(self),
            self._context,
            waiter,
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_S + _LATER_S,
        )
        self._transport.set_protocol(tls)
        tls.connection_made(self._transport)
        rest, self._hello = memoryview(self._hello), b""
        while rest:
            room = tls.get_buffer(len(rest))
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            tls.buffer_updated(size)
            rest = rest[size:]

    def done(self, transport: asyncio.Transport) -> None:
        """It is; ``transport`` is what is encrypted by it."""
        if self._is_over:
            transport.abort()
            return
        self._is_over = True
        self._stop_timer()
        client = Client(self._front)
        self._front.follow(self, client)
        transport.set_protocol(client)
        client.connection_made(transport)

    def _ended(self, waiter: asyncio.Future[None]) -> None:
        if not waiter.cancelled():
            waiter.exception()  # it is of no use to anybody but must be asked for
        self._end()

    def _end(self) -> None:
        """The connection is lost, or about to be; or it is a client's by now."""
        self._stop_timer()
        if not self._is_over:
            self._is_over = True
            self._front.gone(self)

    def _refuse(self, error: HelloError) -> None:
        assert self._transport is not None
        status = _BAD_REQUEST if error.plain_http else error.alert
        self._front.figures.count("refused", self._front.listener.name, str(status))
        self._transport.write(
            error_response(status, str(error)) if error.plain_http else alert_record(status)
        )
        self._stop_timer()
        self._transport.close()

    def _watch(self, deadline: str, after_s: float) -> None:
        self._stop_timer()
        self._timer = self._front.world.loop.call_later(after_s, self._late, deadline)

    def _late(self, deadline: str) -> None:
        self._timer = None
        self._front.figures.count("deadline_closes", self._front.listener.name, deadline)
        self.reset()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Done(asyncio.Protocol):
    """Told of the end of a handshake; nothing comes after that, for it is replaced then."""

    __slots__ = ("_handshake",)

    def __init__(self, handshake: Handshake) -> None:
        self._handshake = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handshake.done(cast(asyncio.Transport, transport))
