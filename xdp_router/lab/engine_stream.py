# SPDX-License-Identifier: Apache-2.0
"""One answer of the mock engine on its way: what is sent when, and what goes wrong."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from typing import TYPE_CHECKING

from . import engine_answer as answer
from .engine_answer import Voice, Wish
from .engine_behaviour import Behaviour
from .engine_load import Record

if TYPE_CHECKING:
    from .engine import Connection

_MS = 1_000_000
_AT_ONCE = 256
"""Tokens in one go where there is no gap: others have their turn, too."""
_WRITE = 1 << 16
"""Bytes that are written at once."""
_RESET = struct.pack("ii", 1, 0)


class Stream:
    """From a request for tokens to the end of its answer, or of its client."""

    def __init__(
        self, connection: Connection, record: Record, wish: Wish, how: Behaviour, *, keep: bool
    ) -> None:
        self._connection, self._engine = connection, connection.engine
        self._record, self._wish, self._how = record, wish, how
        self._keep = keep and not how.close and not (how.to_end and wish.stream)
        self._tokens = how.tokens
        if wish.max_tokens is not None:
            self._tokens = min(how.tokens, wish.max_tokens)
        self._voice = Voice(self._engine.name, record.number, wish, how)
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._out: list[bytes] = []
        self._size = 0
        self._pieces: deque[bytes] = deque()
        self._placed = self._over = self._head_sent = self._stalled = False
        self._due_ns = self._first_ns = 0
        self._prompt = b""

    def start(self, prompt: bytes) -> None:
        """Take a place, or wait for one."""
        how, self._prompt = self._how, prompt
        if self._wish.stream and how.status == 200 and not how.bad_head:
            if how.early_headers or how.role_first or how.comment_first or how.error_first:
                self._say_first()
            if how.ping_ms:
                self._ping_later()
        if not self._over:
            self._engine.load.enter(self._begin)

    def gone(self) -> None:
        """The client has gone away."""
        if not self._record.end:
            self._finish("aborted")

    def resume(self) -> None:
        """The client takes more."""
        idle = self._due_ns and self._timer is None and not self._pieces
        if idle and not self._over and not (self._stalled and not self._how.stall_ms):
            self._step()

    # What is sent before tokens

    def _say_first(self) -> None:
        how = self._how
        self._head()
        if how.comment_first:
            self._send(answer.PING)
        if how.role_first:
            self._send(self._voice.role())
        if how.error_first:
            self._send(self._voice.error() + answer.DONE)
            self._complete()
        self._flush()

    def _ping_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._ping = loop.call_later(self._how.ping_ms / 1000, self._say_ping)

    def _say_ping(self) -> None:
        if self._over or self._record.tokens:
            return
        self._head()
        self._send(answer.PING)
        self._flush()
        self._ping_later()

    # Tokens

    def _begin(self) -> None:
        self._placed = True
        self._prefill()
        self._record.served_ns = now_ns = time.monotonic_ns()
        self._due_ns = now_ns + self._first_ns
        if not self._wish.stream:
            self._due_ns += self._how.gap_ns * max(0, self._tokens - 1)
        self._wait()

    def _prefill(self) -> None:
        """What the prompt costs, as far as it is in no cache; from here on it is in this one."""
        counts, record, prompt = self._engine.counts, self._record, self._prompt
        self._prompt = b""
        blocks, hits = self._engine.load.cache.take(prompt)
        counts.prefix_queries += blocks
        counts.prefix_hits += hits
        record.cached = hits / blocks if blocks else 0.0
        record.prefill_bytes = round(len(prompt) * (1 - record.cached))
        counts.prefill_bytes += record.prefill_bytes
        self._first_ns = self._how.first_ns(record.prefill_bytes)

    def _wait(self) -> None:
        now_ns = time.monotonic_ns()
        if self._due_ns <= now_ns:
            self._step()
            return
        self._sleep(self._due_ns - now_ns)

    def _sleep(self, ns: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(ns / 1e9, self._step)

    def _step(self) -> None:
        self._timer = None
        if self._over:
            return
        until_ns = self._engine.stalls.until_ns(time.monotonic_ns())
        if until_ns:
            self._sleep(max(_MS, until_ns - time.monotonic_ns()))
        elif self._how.bad_head:
            self._connection.transport.write(b"HTP/1.1 2xx\r\nnonsense\r\n\r\n")
            self._crash(reset=False)
        elif self._how.status != 200:
            self._fail()
        elif self._wish.stream:
            self._say_tokens()
        else:
            self._say_whole()

    def _say_tokens(self) -> None:
        how, record, counts = self._how, self._record, self._engine.counts
        for _ in range(_AT_ONCE):
            now_ns = time.monotonic_ns()
            if record.tokens == how.last:
                self._crash(reset=how.crash_after >= 0)
                return
            if record.tokens == how.stall_after and not self._stalled:
                self._stalled = True
                self._flush()
                if how.stall_ms:
                    self._sleep(round(how.stall_ms * _MS))
                return
            self._head()
            if record.tokens >= self._tokens:
                self._send(self._voice.end(record.tokens))
                self._complete()
                return
            self._send(self._voice.token(record.tokens, now_ns))
            if not record.tokens:
                record.first_ns = now_ns
            record.tokens += 1
            counts.tokens += 1
            last = record.tokens >= self._tokens
            self._due_ns = max(now_ns, self._due_ns + (0 if last else how.gap_ns))
            if self._due_ns > now_ns or self._size > _WRITE:
                self._flush()
            if self._connection.paused or self._pieces:
                return  # until the client takes more
            if self._due_ns > now_ns:
                self._sleep(self._due_ns - now_ns)
                return
        self._flush()
        self._timer = asyncio.get_running_loop().call_later(0.001, self._step)

    def _say_whole(self) -> None:
        if self._how.last >= 0:
            self._crash(reset=self._how.crash_after >= 0)
            return
        if self._how.stall_after >= 0:
            return
        self._record.first_ns = time.monotonic_ns()
        self._record.tokens = self._tokens
        self._engine.counts.tokens += self._tokens
        status = 500 if self._how.error_first else 200
        body = (
            answer.error_body(status, "the mock was told to fail")
            if self._how.error_first
            else self._voice.whole(self._tokens)
        )
        self._answer(status, {}, body)

    def _fail(self) -> None:
        how = self._how
        headers = {"Retry-After": how.retry_after} if how.retry_after else {}
        self._answer(how.status, headers, answer.error_body(how.status, "as the mock was told"))

    def _answer(self, status: int, more: dict[str, str], body: bytes) -> None:
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "X-Engine": self._engine.name,
            **more,
        }
        self._raw(answer.head(status, headers, keep=self._keep))
        self._raw(body)
        self._complete(last=b"")

    # Ends

    def _complete(self, last: bytes | None = None) -> None:
        if last is None:
            last = b"" if self._how.to_end else answer.LAST_CHUNK
        self._raw(last)
        self._flush()
        if self._pieces:
            self._over = True  # all is said; ``_pump`` comes here again
            return
        self._finish("completed")
        self._connection.done(keep=self._keep)

    def _crash(self, *, reset: bool) -> None:
        transport = self._connection.transport
        self._flush()
        self._finish("crashed")
        if not reset:
            transport.close()
            return
        handle = transport.get_extra_info("socket")
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()

    def _finish(self, end: str) -> None:
        waited = not self._record.end and self._engine.load.leave(self._begin)
        self._over = True
        for timer in (self._timer, self._ping):
            if timer is not None:
                timer.cancel()
        self._timer = self._ping = None
        self._pieces.clear()
        self._engine.ended(self._record, end)
        if waited or not self._placed:
            return
        self._placed = False
        now_ns, held_ns = time.monotonic_ns(), 0
        if end == "aborted" and self._engine.hold and not self._record.tokens:
            until_ns = self._record.served_ns + self._first_ns
            held_ns = max(until_ns, self._engine.stalls.until_ns(now_ns)) - now_ns
        self._engine.counts.busy_ns += now_ns - self._record.served_ns + max(0, held_ns)
        if held_ns > 0:
            asyncio.get_running_loop().call_later(held_ns / 1e9, self._engine.load.free)
        else:
            self._engine.load.free()

    # Bytes

    def _head(self) -> None:
        if self._head_sent:
            return
        self._head_sent = True
        headers = {
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Engine": self._engine.name,
        }
        if not self._how.to_end:
            headers["Transfer-Encoding"] = "chunked"
        self._raw(answer.head(200, headers, keep=self._keep))

    def _send(self, data: bytes) -> None:
        self._raw(data if self._how.to_end else answer.chunk(data))

    def _raw(self, data: bytes) -> None:
        self._out.append(data)
        self._size += len(data)

    def _flush(self) -> None:
        """In one piece what one moment has to say, unless it is to be cut up."""
        data = b"".join(self._out)
        self._out.clear()
        self._size = 0
        if not data:
            return
        if not self._how.split:
            self._connection.transport.write(data)
            return
        idle = not self._pieces
        self._pieces.extend(data[at : at + 1] for at in range(len(data)))
        if idle:
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """One byte in a turn of the loop."""
        if self._record.end or not self._pieces:
            return
        self._connection.transport.write(self._pieces.popleft())
        if self._pieces:
            asyncio.get_running_loop().call_soon(self._pump)
        elif self._over:
            self._finish("completed")
            self._connection.done(keep=self._keep)
        else:
            self.resume()
