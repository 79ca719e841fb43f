# SPDX-License-Identifier: Apache-2.0
"""The load: ``python -m bench.gateway.client TARGET... --rate R --seconds S``, a line of JSON for
each request (``answers.Call``).

An open loop: a request begins when it is due (at random, by a seed), whatever has become of those
before it, and its times count from then. What it costs while it runs is a system call and an
entry in a list for each piece that comes: what is in the pieces is judged at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import uvloop

from .answers import Call, Piece, judge
from .timer import Timer

Address = tuple[str, int]
Schedule = Sequence[tuple[int, bytes]]
"""When each request is due, in ns from the begin of what counts, and its bytes; in order."""
_LAST = b"\r\n0\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"
_WARM_GAP_NS = 20_000_000
_LEAD_NS = 20_000_000


@dataclass(slots=True)
class Plan:
    """``keep``: connections serve many requests. ``warm``: requests before those that count;
    ``timeout_s``: for each one."""

    targets: Sequence[Address]
    rate: float = 50.0
    seconds: float = 2.0
    seed: int = 1
    keep: bool = True
    stream: bool = True
    mock: str = ""
    prompt_bytes: int = 200
    warm: int = 10
    timeout_s: float = 30.0
    source: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def request(self) -> bytes:
        """The bytes of each request."""
        body = json.dumps(
            {
                "model": "mock",
                "stream": self.stream,
                "messages": [{"role": "user", "content": "word " * (self.prompt_bytes // 5)}],
            }
        ).encode()
        lines = ["POST /v1/chat/completions HTTP/1.1", "Host: engines.test"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.mock:
            lines.append(f"x-mock: {self.mock}")
        if not self.keep:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode() + body

    def dues_ns(self) -> list[int]:
        """When requests are due, from the begin of what counts: as many for every seed."""
        source = random.Random(self.seed)
        count = max(1, round(self.rate * self.seconds))
        return sorted(round(source.uniform(0, self.seconds) * 1e9) for _ in range(count))


class Peer(asyncio.Protocol):
    """One connection, with at most one request at a time."""

    __slots__ = (
        "_load",
        "_target",
        "transport",
        "pieces",
        "_request",
        "_left",
        "_due_ns",
        "_sent_ns",
    )  # fmt: skip - one line each would say less

    def __init__(self, load: Load, target: int) -> None:
        self._load, self._target = load, target
        self._request = b""
        self.transport: asyncio.Transport | None = None
        self.pieces: list[Piece] | None = None
        self._left: int | None = None
        self._due_ns = self._sent_ns = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.pieces is not None:
            self._send()
        else:  # it was given up meanwhile
            self.transport.abort()

    def begin(self, due_ns: int, request: bytes) -> None:
        """A request on a connection that is idle, or is yet to be made."""
        self._request = request
        self.pieces, self._due_ns, self._sent_ns, self._left = [], due_ns, -1, None
        if self.transport is not None:
            self._send()

    def _send(self) -> None:
        assert self.transport is not None
        self._sent_ns = time.monotonic_ns()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        pieces = self.pieces
        if pieces is None:
            return
        pieces.append((time.monotonic_ns(), data))
        if self._left is None:
            self._read_head(pieces)
        elif self._left < 0:
            tail = data if len(data) > 6 else b"".join(each for _, each in pieces[-8:])
            if tail.endswith(_LAST):
                self._end("")
        else:
            self._left -= len(data)
            if self._left <= 0:
                self._end("")

    def _read_head(self, pieces: list[Piece]) -> None:
        """Find out how the body ends: ``_left`` bytes, or below 0 with the last chunk."""
        text = b"".join(data for _, data in pieces)
        at = text.find(b"\r\n\r\n")
        if at < 0:
            return
        head = text[: at + 2].lower()
        found = head.find(_LENGTH)
        if found >= 0:
            found += len(_LENGTH)
            self._left = int(head[found : head.index(b"\r", found)]) - (len(text) - at - 4)
            if self._left <= 0:
                self._end("")
            return
        self._left = -1
        if text.endswith(_LAST):
            self._end("")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.pieces is not None:
            self._end("reset" if exc else "closed too early")
        self._load.lost(self, self._target)

    def fail(self, error: str) -> None:
        """It came to nothing."""
        if self.pieces is not None:
            self._end(error)
        if self.transport is not None:
            self.transport.abort()

    def _end(self, error: str) -> None:
        pieces, self.pieces = self.pieces or [], None
        self._load.ended(self, self._target, pieces, self._due_ns, self._sent_ns, error)


class Load:
    """All connections, and what has come of all requests. ``schedule``: when each is due and what
    it is, if they are not those of the plan."""

    def __init__(self, plan: Plan, schedule: Schedule | None = None) -> None:
        self.plan, self._request = plan, plan.request()
        self._schedule = schedule
        self._loop = asyncio.get_running_loop()
        self._idle: list[deque[Peer]] = [deque() for _ in plan.targets]
        self._busy: dict[Peer, int] = {}
        self._done: list[tuple[int, int, list[Piece], str]] = []
        self._turn = 0
        self._dues: deque[tuple[int, bytes]] = deque()
        self._begin_ns = 0
        self._timer = Timer()
        self._over = self._loop.create_future()

    async def run(self) -> list[Call]:
        """From the first request to the last one's end, or its time's."""
        plan = self.plan
        now_ns = time.monotonic_ns() + _LEAD_NS
        warm = [now_ns + number * _WARM_GAP_NS for number in range(plan.warm)]
        self._begin_ns = now_ns + (plan.warm + 5) * _WARM_GAP_NS
        schedule = self._schedule
        if schedule is None:
            schedule = [(due_ns, self._request) for due_ns in plan.dues_ns()]
        self._dues.extend((at_ns, self._request) for at_ns in warm)
        self._dues.extend((self._begin_ns + due_ns, request) for due_ns, request in schedule)
        self._loop.add_reader(self._timer.fd, self._due)
        watch = self._loop.create_task(self._watch(), name="watch")
        self._timer.arm(self._dues[0][0])
        try:
            await self._over
        finally:
            watch.cancel()
            self._loop.remove_reader(self._timer.fd)
            self._timer.close()
        for idle in self._idle:
            for peer in idle:
                if peer.transport is not None:
                    peer.transport.abort()
        return [
            judge(Call(error=error, late_ns=max(-1, sent_ns - due_ns)), pieces, due_ns)
            for due_ns, sent_ns, pieces, error in sorted(self._done, key=lambda each: each[0])
            if due_ns >= self._begin_ns
        ]

    def _due(self) -> None:
        self._timer.taken()
        now_ns = time.monotonic_ns()
        while self._dues and self._dues[0][0] <= now_ns:
            self._start(*self._dues.popleft())
        if self._dues:
            self._timer.arm(self._dues[0][0])

    def _start(self, due_ns: int, request: bytes) -> None:
        target = self._turn
        self._turn = (target + 1) % len(self._idle)
        if self._idle[target]:
            peer = self._idle[target].pop()
        else:
            peer = Peer(self, target)
            self._loop.create_task(self._connect(peer, self.plan.targets[target]))
        self._busy[peer] = due_ns
        peer.begin(due_ns, request)

    async def _connect(self, peer: Peer, address: Address) -> None:
        source = (self.plan.source, 0) if self.plan.source else None
        try:
            await self._loop.create_connection(lambda: peer, *address, local_addr=source)
        except OSError as error:
            peer.fail(f"connect: {error.strerror or error}")

    async def _watch(self) -> None:
        limit_ns = round(self.plan.timeout_s * 1e9)
        while True:
            await asyncio.sleep(min(0.5, self.plan.timeout_s / 4))
            before_ns = time.monotonic_ns() - limit_ns
            for peer in [each for each, due_ns in self._busy.items() if due_ns < before_ns]:
                peer.fail("timeout")

    def ended(
        self, peer: Peer, target: int, pieces: list[Piece], due_ns: int, sent_ns: int, error: str
    ) -> None:
        """A request is over."""
        self._busy.pop(peer, None)
        self._done.append((due_ns, sent_ns, pieces, error))
        if not error and self.plan.keep:
            self._idle[target].append(peer)
        elif not error and peer.transport is not None:
            peer.transport.close()
        if not self._dues and not self._busy and not self._over.done():
            self._over.set_result(None)

    def lost(self, peer: Peer, target: int) -> None:
        """A connection is gone."""
        if peer in self._idle[target]:
            self._idle[target].remove(peer)


def run(plan: Plan, schedule: Schedule | None = None) -> list[Call]:
    """All of it, in a loop of its own."""

    async def there() -> list[Call]:
        return await Load(plan, schedule).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(there())


def address(text: str) -> Address:
    """Of HOST:PORT. Raises ValueError."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 when all could be said, whatever has come of the requests."""
    parser = argparse.ArgumentParser(prog="bench.gateway.client", description=__doc__)
    parser.add_argument("targets", nargs="+", type=address, metavar="HOST:PORT")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--new", action="store_true", help="a connection for each request")
    parser.add_argument("--whole", action="store_true", help="answers that are no streams")
    parser.add_argument("--mock", default="", help="for the mock engine: key=value,...")
    parser.add_argument("--prompt-bytes", type=int, default=200)
    parser.add_argument("--warm", type=int, default=10, help="requests before those that count")
    parser.add_argument("--timeout", type=float, default=30.0, help="for each, in seconds")
    parser.add_argument("--source", help="address to come from")
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE")
    options = parser.parse_args(argv)
    plan = Plan(
        options.targets,
        rate=options.rate,
        seconds=options.seconds,
        seed=options.seed,
        keep=not options.new,
        stream=not options.whole,
        mock=options.mock,
        prompt_bytes=options.prompt_bytes,
        warm=options.warm,
        timeout_s=options.timeout,
        source=options.source,
        headers={
            name: value.strip() for name, _, value in (h.partition(":") for h in options.header)
        },
    )
    gc.disable()  # all is kept until the end anyway
    for call in run(plan):
        print(call.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
