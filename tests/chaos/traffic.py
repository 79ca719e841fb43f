# SPDX-License-Identifier: Apache-2.0
"""The clients: ``python -m tests.chaos.traffic SEED STREAMS SHORTS ASKERS PATIENCE_S``.

Streams send random pieces and compare each byte that comes back, connections are made, compared
and closed, askers send datagrams and compare the hashes that are answered. What ends is begun
anew. Each end is a line of JSON on stdout (``judge.Story``), ``{"begun": N}`` says that all that
shall be at once has begun, ``{"ready": ...}`` after SIGTERM, when all is closed, that this is all.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import json
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .cast import SERVICES, SPEC, Service
from .judge import End, Story

_POOL = 1 << 20
_PIECE = (200, 12_000)
_STREAM_PAUSE_S = (0.3, 0.9)
_SHORT_PAUSE_S = (0.8, 2.0)
_ASK_PAUSE_S = (0.2, 0.8)
_ASK_AGAIN_S = 1.0
_STREAM_LIFE_S = (15.0, 90.0)
"""A stream is closed and begun anew after so long."""
_ASK_LIFE_S = (5.0, 30.0)
_AFTER_END_S = 0.2
_WHO = b"WHO\n"
_TOTAL_RETRANS = 100
"""Where ``struct tcp_info`` has it: beside the handshake's nothing was sent yet when it is read."""
_UNREACHABLE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)


class _Ended(Exception):
    """The conversation is over for that reason."""

    def __init__(self, end: End, detail: str = "") -> None:
        super().__init__(detail)
        self.end = end
        self.detail = detail


@dataclass(slots=True)
class _Talk:
    """A connection while it lives."""

    number: int
    kind: str
    service: Service
    started_s: float
    client: str = ""
    host: str = ""
    connected_s: float | None = None
    progressed_s: float = 0.0
    resent: int = 0
    octets: int = 0
    slowest_s: float = 0.0

    def progress(self, octets: int, since_s: float) -> None:
        """Good bytes have come that were waited for."""
        self.progressed_s = time.monotonic()
        self.octets += octets
        self.slowest_s = max(self.slowest_s, self.progressed_s - since_s)


def _end_of(error: BaseException, talk: _Talk) -> _Ended:
    if isinstance(error, _Ended):
        return error
    if isinstance(error, TimeoutError):
        return _Ended(End.SILENT)
    if isinstance(error, asyncio.IncompleteReadError):
        return _Ended(End.EOF)
    if isinstance(error, ConnectionRefusedError):
        return _Ended(End.REFUSED)
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return _Ended(End.UNREACHABLE, error.strerror or "")
    if isinstance(error, OSError) and error.errno == errno.ETIMEDOUT:
        return _Ended(End.SILENT, "the kernel gave up")
    if isinstance(error, OSError):
        return _Ended(End.RESET, str(error))
    raise error


class Traffic:
    """All clients of one process."""

    def __init__(
        self,
        seed: int,
        counts: tuple[int, int, int],
        patience_s: float,
        say: Callable[[dict[str, object]], None],
    ) -> None:
        """``counts``: of streams, of those that connect anew, of askers. ``say`` gets the lines."""
        self._chance = random.Random(seed)
        self._pool = self._chance.randbytes(_POOL)
        self._counts = counts
        self._say = say
        self._patience_s = patience_s
        self._stop = asyncio.Event()
        self._number = 0
        self._working: set[tuple[str, int]] = set()

    async def run(self) -> None:
        """Until it is stopped."""
        tcp = [each for each in SERVICES if each.protocol == "tcp"]
        udp = [each for each in SERVICES if each.protocol == "udp"]
        bodies = (
            (self._stream, tcp, _AFTER_END_S),
            (self._short, tcp, _SHORT_PAUSE_S[1]),
            (self._asker, udp, _AFTER_END_S),
        )
        tasks: list[asyncio.Task[None]] = []
        for count, (body, services, spread_s) in zip(self._counts, bodies, strict=True):
            for number in range(count):
                service = services[number % len(services)]
                first_s = self._chance.uniform(0, max(spread_s, 1.0))
                client = self._client(len(tasks), service, body, first_s)
                tasks.append(asyncio.create_task(client))
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
        self._say({"ready": self._number})

    def stop(self) -> None:
        """Let everybody come to their end."""
        self._stop.set()

    async def _client(
        self,
        number: int,
        service: Service,
        body: Callable[[_Talk, int], Awaitable[None]],
        first_s: float,
    ) -> None:
        await self._pause(first_s)
        while not self._stop.is_set():
            self._number += 1
            now_s = time.monotonic()
            kind = body.__name__.removeprefix("_")
            talk = _Talk(self._number, kind, service, now_s, progressed_s=now_s)
            try:
                await body(talk, number)
                ended = _Ended(End.CLOSED)
            except (_Ended, OSError, EOFError, TimeoutError) as error:
                ended = _end_of(error, talk)
            self._say({"story": _as_json(talk, ended)})
            low, high = _SHORT_PAUSE_S if kind == "short" else (_AFTER_END_S, 2 * _AFTER_END_S)
            await self._pause(self._chance.uniform(low, high))

    def _works(self, talk: _Talk, number: int) -> None:
        """This client has had an answer."""
        if len(self._working) < sum(self._counts):
            self._working.add((talk.kind, number))
            if len(self._working) == sum(self._counts):
                self._say({"begun": len(self._working)})

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    def _piece(self, low: int = _PIECE[0], high: int = _PIECE[1]) -> bytes:
        size = self._chance.randint(low, high)
        at = self._chance.randrange(_POOL - size)
        return self._pool[at : at + size]

    # TCP

    async def _open(
        self, talk: _Talk, number: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        family = talk.service.family
        handle = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6)
        try:
            handle.setblocking(False)
            # The port is chosen at connect(), so that one can be had for every service.
            handle.setsockopt(socket.IPPROTO_IP, socket.IP_BIND_ADDRESS_NO_PORT, 1)
            clients = SPEC.addresses_of(family).clients
            handle.bind((clients[number % len(clients)], 0))
            loop = asyncio.get_running_loop()
            try:
                await asyncio.wait_for(
                    loop.sock_connect(handle, talk.service.address), self._patience_s
                )
            finally:
                info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                talk.resent = int.from_bytes(
                    info[_TOTAL_RETRANS : _TOTAL_RETRANS + 4], sys.byteorder
                )
                own = handle.getsockname()
                talk.client = f"{own[0]}:{own[1]}" if family == 4 else f"[{own[0]}]:{own[1]}"
            talk.connected_s = time.monotonic()
            # As without an answer: a connection that is accepted has got on.
            talk.progressed_s = talk.connected_s
            return await asyncio.open_connection(sock=handle)
        except BaseException:
            handle.close()
            raise

    async def _ask_who(
        self, talk: _Talk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        since_s = time.monotonic()
        writer.write(_WHO)
        name = await asyncio.wait_for(reader.readuntil(b"\n"), self._patience_s)
        talk.host = name.decode(errors="replace").strip()
        if talk.host not in talk.service.hosts:
            raise _Ended(End.WRONG, f"{name!r} instead of a name")
        talk.progress(len(name), since_s)

    async def _echo(
        self, talk: _Talk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, piece: bytes
    ) -> None:
        since_s = time.monotonic()
        writer.write(piece)
        got = await asyncio.wait_for(reader.readexactly(len(piece)), self._patience_s)
        if got != piece:
            at = next(i for i, (a, b) in enumerate(zip(got, piece, strict=True)) if a != b)
            raise _Ended(End.WRONG, f"at {at} of {len(piece)}, after {talk.octets}")
        talk.progress(len(piece), since_s)

    async def _short(self, talk: _Talk, number: int) -> None:
        reader, writer = await self._open(talk, number)
        try:
            await self._ask_who(talk, reader, writer)
            self._works(talk, number)
            await self._echo(talk, reader, writer, self._piece(100, 4_000))
            await self._close(talk, reader, writer)
        finally:
            writer.close()

    async def _stream(self, talk: _Talk, number: int) -> None:
        until_s = talk.started_s + self._chance.uniform(*_STREAM_LIFE_S)
        reader, writer = await self._open(talk, number)
        try:
            await self._ask_who(talk, reader, writer)
            self._works(talk, number)
            while not self._stop.is_set() and time.monotonic() < until_s:
                await self._echo(talk, reader, writer, self._piece())
                await self._pause(self._chance.uniform(*_STREAM_PAUSE_S))
            await self._close(talk, reader, writer)
        finally:
            writer.close()

    async def _close(
        self, talk: _Talk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A FIN, and the other side's."""
        writer.write_eof()
        rest = await asyncio.wait_for(reader.read(), self._patience_s)
        if rest:
            raise _Ended(End.WRONG, f"{len(rest)} bytes that nobody has sent")

    # UDP

    async def _asker(self, talk: _Talk, number: int) -> None:
        family = talk.service.family
        loop = asyncio.get_running_loop()
        until_s = talk.started_s + self._chance.uniform(*_ASK_LIFE_S)
        with socket.socket(
            socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM
        ) as handle:
            handle.setblocking(False)
            clients = SPEC.addresses_of(family).clients
            handle.bind((clients[number % len(clients)], 0))
            await loop.sock_connect(handle, talk.service.address)
            own = handle.getsockname()
            talk.client = f"{own[0]}:{own[1]}/udp" if family == 4 else f"[{own[0]}]:{own[1]}/udp"
            asked: set[str] = set()
            while not self._stop.is_set() and time.monotonic() < until_s:
                await self._ask(talk, handle, asked)
                self._works(talk, number)
                await self._pause(self._chance.uniform(*_ASK_PAUSE_S))

    async def _ask(self, talk: _Talk, handle: socket.socket, asked: set[str]) -> None:
        loop = asyncio.get_running_loop()
        question = self._piece(20, 1_200)
        wanted = hashlib.sha256(question).hexdigest()
        asked.add(wanted)
        since_s = time.monotonic()
        await loop.sock_sendall(handle, question)
        again_s = since_s + _ASK_AGAIN_S
        while True:
            now_s = time.monotonic()
            if now_s > since_s + self._patience_s:
                raise _Ended(End.SILENT)
            if now_s >= again_s:
                await loop.sock_sendall(handle, question)
                again_s = now_s + _ASK_AGAIN_S
            try:
                answer = await asyncio.wait_for(
                    loop.sock_recv(handle, 2048), max(again_s - now_s, 0.01)
                )
            except TimeoutError:
                continue
            if self._is_answer(talk, answer, asked, wanted):
                talk.progress(len(question), since_s)
                if talk.connected_s is None:
                    talk.connected_s = time.monotonic()
                return

    def _is_answer(self, talk: _Talk, answer: bytes, asked: set[str], wanted: str) -> bool:
        """Whether it answers this question; another one's may come late, or twice."""
        words = answer.decode(errors="replace").split()
        if len(words) != 3 or words[1] not in asked or words[0] not in talk.service.hosts:
            raise _Ended(End.WRONG, repr(answer[:80]))
        if talk.host and words[0] != talk.host:
            raise _Ended(End.MOVED, f"{words[0]} instead of {talk.host}")
        talk.host = words[0]
        return words[1] == wanted


def _as_json(talk: _Talk, ended: _Ended) -> dict[str, object]:
    story = Story(
        number=talk.number,
        kind=talk.kind,
        service=talk.service.name,
        client=talk.client,
        host=talk.host,
        started_s=talk.started_s,
        connected_s=talk.connected_s,
        progressed_s=talk.progressed_s,
        ended_s=time.monotonic(),
        resent=talk.resent,
        octets=talk.octets,
        slowest_s=talk.slowest_s,
        end=ended.end,
        detail=ended.detail,
    )
    return {**dataclasses.asdict(story), "end": ended.end.name}


def story_of(values: dict[str, object]) -> Story:
    """The story that a line tells."""
    return Story(**{**values, "end": End[str(values["end"])]})  # type: ignore[arg-type]  # as written by _as_json


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


async def _until_terminated(traffic: Traffic) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, traffic.stop)
    await traffic.run()


def main() -> int:
    """See the module's text."""
    seed, streams, shorts, askers = map(int, sys.argv[1:5])
    patience_s = float(sys.argv[5])
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    asyncio.run(_until_terminated(Traffic(seed, (streams, shorts, askers), patience_s, _say)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
