# SPDX-License-Identifier: Apache-2.0
"""A mock of an inference engine: ``python -m xdp_router.lab.engine ADDRESS PORT [--ttft-ms ..]``.

It speaks HTTP/1.1 as vLLM's server does, and what it says has no sense, but the timing and the
faults that were asked for: see ``engine_behaviour`` for the options, which the header ``x-mock:
key=value,...`` overrides for one request.

    POST /v1/chat/completions, /v1/completions   streams and whole answers
    GET  /sse                                     the same timing as plain server-sent events
    any  /echo                                    the body, as it came
    GET  /ws                                      a WebSocket that sends back what it gets
    GET  /page                                    HTML that reads /sse and talks to /ws in a browser
    GET  /health, /metrics, /v1/models            as vLLM has them
    GET  /mock                                    what was counted, and the latest requests (JSON)
    POST /mock                                    the body (key=value,...) is the behaviour from now
    POST /mock/forget                             counters and latest requests begin anew
    POST /mock/anew                               the cache as well; the body has the stalls from
                                                  now: every-ms=..,for-ms=..,most-ms=..,seed=..

Time is kept in whole milliseconds (libuv), so each token says when it was sent: ``mock_ns``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import cast

import httptools
import uvloop
import xxhash

from . import engine_answer as answer
from . import websocket
from .engine_behaviour import HEADER, KINDS, Behaviour, option
from .engine_load import RECENT, Counts, Load, Record, Stalls, metrics, stalls_of, witness
from .engine_stream import Stream
from .errors import LabError

_BODY_MAX = 64 << 20
_PIPELINED = 64
_BACKLOG = 4096
_TOKENS = {
    "/v1/chat/completions": answer.CHAT,
    "/v1/completions": answer.COMPLETION,
    "/sse": answer.EVENTS,
}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(slots=True)
class Request:
    """What came, whole."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    keep: bool
    upgrade: bool

    def get(self, name: str) -> str | None:
        """A header's value, by its name in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), None)


class Engine:
    """All that the connections of one engine share. ``hold``: a request that is cancelled before
    its first token keeps its place until that would have come, as real engines are slow to stop.
    """

    def __init__(
        self,
        name: str = "engine",
        behaviour: Behaviour | None = None,
        *,
        model: str = "mock",
        load: Load | None = None,
        stalls: Stalls | None = None,
        hold: bool = False,
    ) -> None:
        self.name, self.model, self.hold = name, model, hold
        self.behaviour = behaviour or Behaviour()
        self.load = load or Load(0, 0)
        self.stalls = stalls or Stalls(0, 0, 0)
        self.counts = Counts()
        self.recent: deque[Record] = deque(maxlen=RECENT)
        self.connections: set[Connection] = set()

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Serve there, in the running loop. Raises OSError."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: Connection(self), host, port, backlog=_BACKLOG)

    def begun(self, request: Request) -> Record:
        """Count a request."""
        self.counts.requests += 1
        record = Record(self.counts.requests, request.method, request.path, request.headers)
        record.body_bytes = len(request.body)
        record.body_xxh3 = xxhash.xxh3_64_hexdigest(request.body)
        record.started_ns = time.monotonic_ns()
        self.recent.append(record)
        return record

    def ended(self, record: Record, end: str) -> None:
        """Count a request's end, the first that is told."""
        if record.end:
            return
        record.end, record.ended_ns = end, time.monotonic_ns()
        counts = self.counts
        setattr(counts, end, getattr(counts, end) + 1)
        if end == "aborted":
            counts.tokens_of_aborted += record.tokens
            counts.prefill_of_aborted += record.prefill_bytes
            counts.aborted_before_token += not record.tokens

    def forget(self) -> None:
        """Count from now on."""
        self.counts = Counts()
        self.recent.clear()

    def anew(self, stalls: Stalls) -> None:
        """As if nobody had asked for anything so far; those that are under way go on."""
        self.forget()
        self.load.cache.forget()
        self.stalls = stalls


class Connection(asyncio.Protocol):
    """One client. Requests that come before the last answer's end wait."""

    transport: asyncio.Transport

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.paused = False
        self._method = ""
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[Request] = deque()
        self._stream: Stream | None = None
        self._socket: websocket.Echo | None = None
        self._record: Record | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop has transports of its own, which are no subclasses.
        self.transport = cast(asyncio.Transport, transport)
        self.engine.counts.connections += 1
        self.engine.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.connections.discard(self)
        if self._stream is not None:
            self._stream.gone()
        if self._record is not None:
            self.engine.ended(self._record, "completed" if self._socket else "aborted")

    def pause_writing(self) -> None:
        self.paused = True
        self.engine.counts.paused += 1

    def resume_writing(self) -> None:
        self.paused = False
        if self._stream is not None:
            self._stream.resume()

    def data_received(self, data: bytes) -> None:
        if self._socket is not None:
            self._talk(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._talk(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._simple(400, answer.error_body(400, str(error)), keep=False)

    # What the parser calls

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        for name, value in self._headers:
            lower = name.lower()
            if lower == "expect" and value.lower() == "100-continue" and self._stream is None:
                self.transport.write(_CONTINUE)
            elif lower == HEADER and "read-after-ms" in value:
                self._read_later(value)

    def _read_later(self, value: str) -> None:
        try:
            delay_ms = self.engine.behaviour.changed(value).read_after_ms
        except LabError:
            return  # said when the request is whole
        self.transport.pause_reading()
        asyncio.get_running_loop().call_later(delay_ms / 1000, self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= _BODY_MAX:
            self._body.append(data)

    def on_message_complete(self) -> None:
        request = Request(
            self._parser.get_method().decode(),
            self._target.decode("latin-1"),
            self._headers,
            b"".join(self._body),
            self._parser.should_keep_alive(),
            self._parser.should_upgrade(),
        )
        if self._stream is None and not self._requests:
            self._take(request)
        elif len(self._requests) < _PIPELINED:
            self._requests.append(request)
        else:
            self.transport.abort()

    # Answers

    def _take(self, request: Request) -> None:
        engine, path = self.engine, request.path.partition("?")[0]
        self._method = request.method
        if self._size > _BODY_MAX:
            self._simple(413, answer.error_body(413, "the body is too long"), keep=False)
        elif path == "/health":
            self._simple(200, b"", keep=request.keep)
        elif path == "/metrics":
            body = metrics(engine.load, engine.counts, engine.model)
            self._simple(200, body, keep=request.keep, kind="text/plain; version=0.0.4")
        elif path == "/v1/models":
            model = {"id": engine.model, "object": "model", "created": 0, "owned_by": "mock"}
            body = json.dumps({"object": "list", "data": [model]}).encode()
            self._simple(200, body, keep=request.keep)
        elif path == "/page":
            self._simple(200, answer.PAGE, keep=request.keep, kind="text/html; charset=utf-8")
        elif path.startswith("/mock"):
            self._ask(request, path)
        else:
            self._work(request, path)

    def _ask(self, request: Request, path: str) -> None:
        engine = self.engine
        try:
            if request.method == "POST" and path == "/mock":
                engine.behaviour = Behaviour().changed(request.body.decode("latin-1"))
            elif path == "/mock/forget":
                engine.forget()
            elif request.method == "POST" and path == "/mock/anew":
                engine.anew(stalls_of(request.body.decode("latin-1")))
        except LabError as error:
            self._simple(400, answer.error_body(400, str(error)), keep=request.keep)
            return
        engine.counts.stalls = engine.stalls.count
        open_ = len(engine.connections) - 1  # but this one
        said = witness(engine.name, engine.load, engine.counts, open_, engine.recent)
        self._simple(200, json.dumps(said).encode(), keep=request.keep)

    def _work(self, request: Request, path: str) -> None:
        engine = self.engine
        record = engine.begun(request)
        try:
            wanted = request.get(HEADER)
            how = engine.behaviour.changed(wanted) if wanted else engine.behaviour
        except LabError as error:
            self._refuse(record, request, 400, str(error))
            return
        if path == "/ws":
            self._upgrade(request, record)
        elif path == "/echo":
            kind = request.get("content-type") or "application/octet-stream"
            self._simple(200, request.body, keep=request.keep, kind=kind)
            engine.ended(record, "completed")
        elif path not in _TOKENS:
            self._refuse(record, request, 404, f"there is no {path}")
        elif request.method != ("GET" if path == "/sse" else "POST"):
            self._refuse(record, request, 405, f"{path} is not for {request.method}")
        else:
            try:
                wish = answer.wish(_TOKENS[path], request.body)
            except answer.NotAsked as error:
                self._refuse(record, request, error.status, str(error))
                return
            self._record = record
            self._stream = Stream(self, record, wish, how, keep=request.keep)
            self._stream.start(request.body)

    def _refuse(self, record: Record, request: Request, status: int, text: str) -> None:
        self._simple(status, answer.error_body(status, text), keep=request.keep)
        self.engine.ended(record, "refused")

    def _upgrade(self, request: Request, record: Record) -> None:
        key = request.get("sec-websocket-key")
        if not request.upgrade or key is None:
            self._refuse(record, request, 426, "this is a WebSocket")
            return
        lines = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Accept": websocket.accept(key.encode()).decode(),
        }
        self.transport.write(answer.head(101, lines, keep=True))
        self._socket, self._record = websocket.Echo(), record

    def _talk(self, data: bytes) -> None:
        if self._socket is None:  # an upgrade that was refused
            return
        self.transport.write(self._socket.feed(data))
        if self._socket.closed:
            self.transport.close()

    def _simple(
        self, status: int, body: bytes, *, keep: bool, kind: str = "application/json"
    ) -> None:
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "X-Engine": self.engine.name,
        }
        self.transport.write(
            answer.head(status, headers, keep=keep) + (b"" if self._method == "HEAD" else body)
        )
        if not keep:
            self.transport.close()

    def done(self, *, keep: bool) -> None:
        """The stream has ended: the next request, if there is one."""
        self._stream = self._record = None
        if not keep:
            self.transport.close()
        while self._requests and self._stream is None and not self.transport.is_closing():
            self._take(self._requests.popleft())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="xdp_router.lab.engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("address", help="to listen on")
    parser.add_argument("port", type=int, help="to listen on; 0: a free one, which is printed")
    parser.add_argument("--name", default="engine")
    parser.add_argument("--model", default="mock")
    parser.add_argument("--queue", type=int, default=0, help="requests at a time; others wait")
    parser.add_argument("--cache-blocks", type=int, default=0, help="prompt blocks of 256 bytes")
    parser.add_argument("--hold", action="store_true", help="a cancelled prefill keeps its place")
    parser.add_argument("--stall-every-ms", type=float, default=0, help="in the mean, at random")
    parser.add_argument("--stall-for-ms", type=float, default=0, help="each stall of the engine")
    parser.add_argument("--stall-most-ms", type=float, default=0, help="or at random up to so long")
    parser.add_argument("--seed", type=int, default=1, help="of the stalls")
    parser.add_argument("--ready-fd", type=int, help="gets the port and a newline, then is closed")
    for name, kind in KINDS.items():
        flag = f"--{option(name)}"
        if kind is bool:
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=kind)
    return parser


async def _serve(engine: Engine, options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await engine.listen(options.address, options.port)
    port = server.sockets[0].getsockname()[1]
    if options.ready_fd is None:
        print(port, flush=True)
    else:
        os.write(options.ready_fd, b"%d\n" % port)
        os.close(options.ready_fd)
    await stop.wait()
    server.close()


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM."""
    parser = _parser()
    options = parser.parse_args(argv)
    given = {name: getattr(options, name) for name in KINDS}
    try:
        text = ",".join(f"{option(name)}={value}" for name, value in given.items() if value)
        behaviour = Behaviour().changed(text)
    except LabError as error:
        parser.error(str(error))
    stalls = Stalls(
        round(options.stall_every_ms * 1e6),
        round(options.stall_for_ms * 1e6),
        options.seed,
        round(options.stall_most_ms * 1e6),
    )
    engine = Engine(
        options.name,
        behaviour,
        model=options.model,
        load=Load(options.queue, options.cache_blocks),
        stalls=stalls,
        hold=options.hold,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(engine, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
