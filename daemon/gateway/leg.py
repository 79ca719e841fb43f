# SPDX-License-Identifier: Apache-2.0
"""One connection to a backend. It carries one request at a time, and waits in between.

What comes is cut into heads and bodies here and handed to whoever uses the connection at that
moment; nothing is decided.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from xdp_router.core.listeners import SocketAddress
from xdp_router.gateway.errors import MessageError
from xdp_router.gateway.http_body import BodyReader
from xdp_router.gateway.http_head import Framing, HeadLimits, HeadReader, ResponseHead
from xdp_router.gateway.known_answers import KnownAnswers

from .wire import Wire, reset

HEAD_LIMITS = HeadLimits(head_bytes=64 << 10)
_BAD_GATEWAY = 502


class LegUser(Protocol):
    """Whose request a leg carries."""

    def leg_ready(self, leg: Leg) -> None:
        """The connection is there."""

    def leg_head(self, leg: Leg, head: ResponseHead, first: bytes) -> None:
        """An answer's head is whole; 1xx come first, if any. ``first``: of its body, what has come
        with it; a reader of both is woken once, and has the first token as soon as the head."""

    def leg_body(self, leg: Leg, data: bytes) -> None:
        """Bytes of the answer's body as they came, with the framing of chunks."""

    def leg_done(self, leg: Leg) -> None:
        """The answer is whole; the connection may be used by others from here on."""

    def leg_said_all(self, leg: Leg) -> None:
        """Of a tunnel the backend's half is at its end; its other half may not be."""

    def leg_lost(self, leg: Leg, reason: str, clean: bool) -> None:
        """The connection is gone before that. ``clean``: it may be tried again elsewhere, since
        nothing of an answer has come."""

    def leg_writable(self, leg: Leg, writable: bool) -> None:
        """Whether the backend takes more of the request."""


class Leg(asyncio.Protocol):
    """``user``: whose it is; None: it waits in the pool."""

    __slots__ = (
        "address",
        "row",
        "transport",
        "_wire",
        "user",
        "reused",
        "number",
        "idle_since_ns",
        "on_idle_end",
        "body",
        "head",
        "tunnel",
        "is_full",
        "is_reusable",
        "is_unreadable",
        "_buffer",
        "_reader",
        "_method",
        "_upgrade",
        "_paused",
        "_answered",
    )

    def __init__(
        self,
        address: SocketAddress,
        row: int,
        user: LegUser,
        number: int,
        answers: KnownAnswers | None = None,
    ) -> None:
        self.address = address
        self.row = row
        self.transport: asyncio.Transport | None = None
        self._wire: Wire | None = None
        self.user: LegUser | None = user
        self.number = number
        """Of the leg in its user's request."""
        self.reused = False
        self.idle_since_ns = 0
        self.body: BodyReader | None = None
        self.head: ResponseHead | None = None
        self.tunnel = False
        self.is_full = False
        """Whether what was written waits, and nothing more should come."""
        self.is_unreadable = False
        """Whether it has ended by an answer that is none."""
        self._buffer = bytearray()
        self.is_reusable = False
        """Whether the backend keeps the connection behind this answer, whose end is clear."""
        self._reader = HeadReader(HEAD_LIMITS, answers=answers)
        self._method = b"GET"
        self._upgrade = False
        self._paused = False
        self._answered = False

    # What its user does

    def send(self, request: bytes, method: bytes, *, upgrade: bool) -> None:
        """Begin a request: its head, and what there is of its body."""
        assert self.transport is not None
        self._method, self._upgrade = method, upgrade
        self.body = self.head = None
        self._answered = False
        self.write(request)

    def write(self, data: bytes) -> None:
        """More of the request's body, or of a tunnel."""
        if self._wire is not None and self.transport is not None:
            self._wire.write(data)

    def write_eof(self) -> None:
        """Nothing more comes of a tunnel's other side."""
        if self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()

    def pause(self) -> None:
        """Read nothing until ``resume``: what was read has not gone on."""
        if not self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused and self.transport is not None:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def close(self) -> None:
        """Close when everything is written; the user hears nothing more."""
        self.user = None
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once; the user hears nothing more."""
        self.user = None
        if self.transport is not None:
            self.transport.abort()

    def reset(self) -> None:
        """The same by RST: what came is not the whole."""
        self.user = None
        reset(self.transport)

    def take_over(self, user: LegUser, number: int) -> None:
        """It has waited, and carries ``user``'s request from here on."""
        self.user, self.number, self.reused = user, number, True

    # What the event loop does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.user is None:  # it was given up while it was made
            self.transport.abort()
            return
        self._wire = Wire(self.transport, is_ours=True)
        self.user.leg_ready(self)

    def data_received(self, data: bytes) -> None:
        user = self.user
        if user is None:
            # Nobody has asked for anything: whatever this is, the next request is not its cause.
            if self.transport is not None:
                self.transport.abort()
            return
        if self.tunnel:
            user.leg_body(self, data)
            return
        self._answered = True
        try:
            if self.body is None:
                self._buffer += data
                self._heads(user)
            else:
                self._content(user, data)
        except MessageError as error:
            self.is_unreadable = True
            self._give_up(error.reason)

    def _heads(self, user: LegUser) -> None:
        while self.body is None:
            head = self._reader.response(self._buffer, self._method, upgrade=self._upgrade)
            if head is None:
                return
            if head.status >= 200 or head.status == 101:
                self.head = head
                self.body = BodyReader(head.framing, head.length, status=_BAD_GATEWAY)
                self.tunnel = head.framing is Framing.TUNNEL
                self.is_reusable = head.keep_alive
                user.leg_head(self, head, self._taken(self.body))
            else:
                user.leg_head(self, head, b"")
            if self.user is not user:
                return
        if self.body.done:
            user.leg_done(self)

    def _taken(self, body: BodyReader) -> bytes:
        """What is there of a body whose head has just come."""
        data = bytes(self._buffer)
        self._buffer.clear()
        end = body.feed(data)
        if body.done and end < len(data):
            self.is_reusable = False  # as in _content
        return data if end == len(data) else data[:end]

    def _content(self, user: LegUser, data: bytes) -> None:
        body = self.body
        assert body is not None
        end = body.feed(data)
        if end:
            user.leg_body(self, data if end == len(data) else data[:end])
        if not body.done or self.user is not user:
            return
        if end < len(data):
            # More than was asked for: no request after this one could trust the connection.
            self.is_reusable = False
        user.leg_done(self)

    def eof_received(self) -> bool:
        user, body = self.user, self.body
        if user is None:
            return False
        if self.tunnel:
            user.leg_said_all(self)
            return True
        if body is not None and not body.done and body.end_of_stream():
            user.leg_done(self)
        else:
            self._give_up("it closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.user is not None:
            self._give_up("it closed the connection" if exc is None else _words_of(exc))

    def pause_writing(self) -> None:
        self.is_full = True
        if self.user is not None:
            self.user.leg_writable(self, False)

    def resume_writing(self) -> None:
        self.is_full = False
        if self.user is not None:
            self.user.leg_writable(self, True)

    def _give_up(self, reason: str) -> None:
        user, self.user = self.user, None
        if self.transport is not None:
            self.transport.abort()
        if user is not None:
            user.leg_lost(self, reason, not self._answered)


def _words_of(error: BaseException) -> str:
    if isinstance(error, ConnectionResetError):
        return "it reset the connection"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
