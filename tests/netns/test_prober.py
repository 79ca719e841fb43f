# SPDX-License-Identifier: Apache-2.0
"""Backends that are asked in the background: what is found of them stands on the board."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from pyroute2 import IPRoute
from structlog.testing import capture_logs

from tests.support.fresh_netns import in_fresh_netns
from xdp_router.core.listeners import (
    GatewayConfig,
    Listener,
    ListenerBackend,
    ListenerKind,
    ProbeWay,
    SocketAddress,
)
from xdp_router.core.model import Mode
from xdp_router.daemon.gateway.board import ILL, RTT, RTT_AT, STATE, UNKNOWN, WELL, Board
from xdp_router.daemon.gateway.prober import Prober, Standing, Target, targets

MS = 10**6
HOST = "127.0.0.1"


def config(way: ProbeWay, *ports: int, mode: Mode = Mode.SNAPSHOT) -> GatewayConfig:
    """One listener with backends at these ports, asked every 5 ms in mode snapshot."""
    backends = tuple(ListenerBackend(str(port), SocketAddress(HOST, port)) for port in ports)
    listener = Listener(
        "web",
        ListenerKind.HTTP,
        SocketAddress(HOST, 80),
        backends,
        mode=mode,
        probe=way,
        probe_interval_ns=5 * MS,
    )
    return GatewayConfig((listener,))


class Server:
    """Answers each request, on connections that it keeps or not; counts both."""

    def __init__(self, answer: bytes, keep: bool = True) -> None:
        self.answer, self.keep = answer, keep
        self.connections = 0
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        try:
            while self.answer:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(self.answer)
                if not self.keep:
                    break
            else:
                await asyncio.sleep(60)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for something."""
    while not condition():  # noqa: ASYNC110 - nobody tells of such a change
        await asyncio.sleep(0.002)


def run(work: Callable[[Board, Prober], Awaitable[None]]) -> None:
    """With a board and a prober of its own, and a loopback interface that is up."""
    with IPRoute() as ipr:
        ipr.link("set", index=1, state="up")

    async def bounded() -> None:
        fd = Board.create()
        board = Board(fd)
        prober = Prober(board)
        async with asyncio.timeout(60):
            await work(board, prober)
            await prober.close()
        board.close()
        os.close(fd)

    asyncio.run(bounded())


def rows(config: GatewayConfig) -> dict[str, int]:
    """A row each."""
    backends = config.listeners[0].backends
    return {str(each.address): number for number, each in enumerate(backends)}


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@in_fresh_netns
def test_connections() -> None:
    """One that listens is well, one that refuses is ill at once and well when it is back."""

    async def work(board: Board, prober: Prober) -> None:
        wanted = config(ProbeWay.CONNECT, 8000, 8001)
        listening = socket.create_server((HOST, 8000), backlog=1000)
        with capture_logs() as lines:
            prober.follow(wanted, rows(wanted))
            await until(lambda: board.common(1, STATE) == ILL)
            await until(lambda: board.common(0, STATE) == WELL)
            assert 0 < board.common(0, RTT) < 10**9
            assert 0 <= time.monotonic_ns() - board.common(0, RTT_AT) < 10**10
            assert board.common(1, RTT_AT) == 0
            back = socket.create_server((HOST, 8001), backlog=1000)
            await until(lambda: board.common(1, STATE) == WELL)
        told = [(each["event"], each["address"]) for each in lines]
        assert told == [("backend_ill", f"{HOST}:8001"), ("backend_well", f"{HOST}:8001")]
        assert lines[0]["reason"] == "connection refused"
        for each in (listening, back):
            each.close()

    run(work)


@in_fresh_netns
@pytest.mark.parametrize(
    ("answer", "good"),
    [
        (OK, True),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\n", True),
        (b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", False),
        (b"SSH-2.0-OpenSSH\r\n\r\n", False),
    ],
)
def test_answers_to_head(answer: bytes, good: bool) -> None:
    """Statuses below 500 are well, and what knows no HEAD; three bad ones are ill."""

    async def work(board: Board, prober: Prober) -> None:
        server = Server(answer)
        listening = await asyncio.start_server(server.serve, HOST, 8000)
        wanted = config(ProbeWay.HEAD, 8000)
        prober.follow(wanted, rows(wanted))
        await until(lambda: board.common(0, STATE) != UNKNOWN)
        assert board.common(0, STATE) == (WELL if good else ILL)
        assert server.requests[0].startswith(b"HEAD /health HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n")
        assert bool(board.common(0, RTT)) == good
        listening.close()

    run(work)


@in_fresh_netns
def test_kept_connections() -> None:
    """One is used again and again; a backend that closes each is as well as another one."""

    async def work(board: Board, prober: Prober) -> None:
        page = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        keeps, closes = Server(page), Server(page, keep=False)
        one = await asyncio.start_server(keeps.serve, HOST, 8000)
        two = await asyncio.start_server(closes.serve, HOST, 8001)
        wanted = config(ProbeWay.GET, 8000, 8001)
        prober.follow(wanted, rows(wanted))
        await until(lambda: len(keeps.requests) > 5 and len(closes.requests) > 5)
        assert keeps.connections == 1
        assert closes.connections >= len(closes.requests) > 5
        assert board.common(0, STATE) == board.common(1, STATE) == WELL
        one.close()
        two.close()

    run(work)


@in_fresh_netns
def test_silence() -> None:
    """A backend that stalls is slow from then on, by what it owes, and ill after a while."""

    async def work(board: Board, prober: Prober) -> None:
        server = Server(OK)
        listening = await asyncio.start_server(server.serve, HOST, 8000)
        wanted = config(ProbeWay.HEAD, 8000)
        prober.follow(wanted, rows(wanted))
        await until(lambda: board.common(0, STATE) == WELL)
        server.answer = b""
        await until(lambda: board.common(0, RTT) > 50 * MS)
        seen = []

        def ill() -> bool:
            seen.append(board.common(0, RTT))
            return board.common(0, STATE) == ILL

        await until(ill)
        assert seen == sorted(seen)  # a new question is no reason to think better of it
        server.answer = OK
        await until(lambda: board.common(0, STATE) == WELL)
        await until(lambda: board.common(0, RTT) < 50 * MS)
        listening.close()

    run(work)


@in_fresh_netns
def test_another_configuration() -> None:
    """Who is not in it is not asked any more; who stays keeps what is known."""

    async def work(board: Board, prober: Prober) -> None:
        servers = [Server(OK), Server(OK)]
        listening = [
            await asyncio.start_server(each.serve, HOST, 8000 + number)
            for number, each in enumerate(servers)
        ]
        both = config(ProbeWay.HEAD, 8000, 8001)
        prober.follow(both, rows(both))
        await until(lambda: all(each.requests for each in servers))
        await until(lambda: board.common(1, STATE) == WELL)
        only = config(ProbeWay.HEAD, 8001)
        prober.follow(only, rows(both))
        await asyncio.sleep(0)
        before = len(servers[0].requests)
        asked = len(servers[1].requests)
        await until(lambda: len(servers[1].requests) > asked + 5)
        assert len(servers[0].requests) <= before + 1  # one may have been under way
        assert servers[1].connections == 1
        for each in listening:
            each.close()

    run(work)


def test_who_is_asked_what_and_how_often() -> None:
    """Each way once, as often as the most eager listener says; seldom but in mode snapshot."""
    (fast,) = config(ProbeWay.HEAD, 8000).listeners
    slower = replace(fast, name="two", probe_interval_ns=20 * MS)
    race = replace(fast, name="race", mode=Mode.RACE, probe=ProbeWay.CONNECT)
    address = SocketAddress(HOST, 8000)
    assert targets(GatewayConfig((slower, fast, race))) == {
        Target(address, ProbeWay.HEAD, "/health"): 5 * MS,
        Target(address, ProbeWay.CONNECT): 1_000 * MS,
    }


def test_standing() -> None:
    """Well after two good answers, ill after three bad ones or a refusal."""
    standing = Standing()
    states = []
    for good in (True, False, True, True, False, False, True, False, False, False, True, True):
        standing.good() if good else standing.bad()
        states.append(standing.state)
    assert states == [UNKNOWN] * 3 + [WELL] * 6 + [ILL] * 2 + [WELL]
    standing.bad(refused=True)
    assert standing.state == ILL
