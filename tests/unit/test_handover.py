# SPDX-License-Identifier: Apache-2.0
"""How a gateway hands its sockets to a successor, and goes on when that fails."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from xdp_router.daemon.gateway import handover
from xdp_router.daemon.gateway.estate import Estate
from xdp_router.daemon.gateway.handover import (
    HandoverError,
    HandoverServer,
    Legacy,
    handover_path,
)
from xdp_router.daemon.gateway.kept import Remembered
from xdp_router.daemon.gateway.totals import Figures


class Former:
    """A running gateway with so many sockets of each name."""

    def __init__(self, control: Path, **counts: int) -> None:
        self.sockets = {
            name: [socket.socket() for _ in range(count)] for name, count in counts.items()
        }
        self.board = os.memfd_create("board")
        os.write(self.board, b"memory")
        self.released = 0
        self.refusal = ""
        self.figures: Figures = {"requests_total": [[["web", "b", "200"], 3]]}
        self.remembered = Remembered(10)
        estate = Estate(lambda: self.figures, self.remembered)
        self.server = HandoverServer(control, self._legacy, self._release, estate)

    async def _legacy(self) -> Legacy:
        if self.refusal:
            raise HandoverError(self.refusal)
        return Legacy(self.board, (1, 2), {"b1": 3}, self.sockets, ["127.0.0.1", 9], 77)

    async def _release(self) -> None:
        self.released += 1

    def close(self) -> None:
        """Gone."""
        self.server.close()
        os.close(self.board)
        for some in self.sockets.values():
            for each in some:
                each.close()


@contextlib.asynccontextmanager
async def former(control: Path, **counts: int) -> AsyncIterator[Former]:
    """That listens."""
    made = Former(control, **counts)
    made.server.start()
    try:
        yield made
    finally:
        made.close()


def run(work: Callable[[Path], Awaitable[None]], folder: Path) -> None:
    """In a loop of its own, which does not hang; with a path for the control socket."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work(folder / "gw.sock")

    asyncio.run(bounded())


def test_all_is_handed_over(tmp_path: Path) -> None:
    """Also more descriptors than one message takes; released once the successor is ready."""

    async def work(control: Path) -> None:
        async with former(control, a=3, b=450) as old:
            succession = await handover.ask(control)
            assert succession is not None
            got = succession.legacy
            assert (got.layout, got.rows, got.metrics, got.pid) == (
                *([1, 2], {"b1": 3}, ["127.0.0.1", 9]),
                77,
            )
            assert os.pread(got.board_fd, 10, 0) == b"memory"
            assert {name: len(some) for name, some in got.sockets.items()} == {"a": 3, "b": 450}
            for name, some in old.sockets.items():
                ours = [os.fstat(each.fileno()).st_ino for each in some]
                assert [os.fstat(each.fileno()).st_ino for each in got.sockets[name]] == ours
            assert not any(os.get_inheritable(each.fileno()) for each in got.sockets["b"])
            assert (old.released, old.server.busy) == (0, True)
            await succession.take()
            assert old.released == 1
            succession.close()
            got.close()

    run(work, tmp_path)


def test_what_is_counted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A successor is told what there was when it took over, again and again what there is, and
    the last of it; then the former one hangs up."""
    monkeypatch.setattr(handover, "SAY_S", 0.01)

    async def work(control: Path) -> None:
        async with former(control, a=1) as old:
            succession = await handover.ask(control)
            assert succession is not None
            many = {"retries_total": [[[f"listener {at}"], at] for at in range(20_000)]}
            old.figures = dict(many)
            heard: list[Mapping[str, Any]] = [await succession.take()]
            assert heard[0] == {"yours": True, "figures": many}
            following = asyncio.create_task(succession.follow(heard.append))
            while len(heard) < 4:  # noqa: ASYNC110 - nobody tells of such a change
                await asyncio.sleep(0.005)
            old.figures = {"requests_total": [[["web", "b", "200"], 9]], "streams": []}
            old.remembered.add(7, [("r", 1.0, "{}")])
            await old.server.finish()
            await following
            assert heard[-2:] == [
                {"figures": {"requests_total": [[["web", "b", "200"], 9]]}},
                {"records": [[7, "r", 1.0, "{}"]]},
            ]
            succession.close()
            succession.legacy.close()

    run(work, tmp_path)


def test_a_successor_that_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of an older version: the former one ends all the same, and without a complaint."""
    monkeypatch.setattr(handover, "SAY_S", 0.001)
    monkeypatch.setattr(handover, "ANSWER_S", 0.2)

    async def work(control: Path) -> None:
        for hangs_up in (True, False):
            async with former(control, a=1) as old:
                succession = await handover.ask(control)
                assert succession is not None
                await succession.take()
                old.figures = {"retries_total": [[[f"listener {at}"], at] for at in range(50_000)]}
                if hangs_up:
                    succession.close()
                with capture_logs() as lines:
                    await asyncio.sleep(0.05)
                    await old.server.finish()
                assert lines == []
                succession.close()
                succession.legacy.close()

    run(work, tmp_path)


def test_nobody_is_there(tmp_path: Path) -> None:
    """No gateway, or a socket that a killed one has left."""

    async def work(control: Path) -> None:
        assert await handover.ask(control) is None
        assert await handover.ask(control / "no" / "folder") is None
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(str(handover_path(control)))
        dead.close()
        assert await handover.ask(control) is None
        async with former(control):  # takes its place
            mode = handover_path(control).stat().st_mode
            assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
            succession = await handover.ask(control)
            assert succession is not None
            succession.close()
            succession.legacy.close()
        assert not handover_path(control).exists()

    run(work, tmp_path)


def test_a_successor_that_fails(tmp_path: Path) -> None:
    """The former one goes on, says so, and hands over to the next one. One at a time."""

    async def work(control: Path) -> None:
        async with former(control, a=1) as old:
            first = await handover.ask(control)
            assert first is not None
            with pytest.raises(HandoverError, match="another successor is about to take over"):
                await handover.ask(control)
            with capture_logs() as lines:
                first.close()
                while old.server.busy:  # noqa: ASYNC110 - nobody tells of such a change
                    await asyncio.sleep(0.005)
            (line,) = [each for each in lines if each["event"] == "handover_failed"]
            assert (line["reason"], line["consequence"]) == ("it hung up", "it goes on")
            assert old.released == 0
            old.refusal = "it is draining: try again in a moment"
            with pytest.raises(HandoverError, match="does not hand over: it is draining"):
                await handover.ask(control)
            old.refusal = ""
            second = await handover.ask(control)
            assert second is not None
            await second.take()
            assert old.released == 1
            for each in (first, second):
                each.legacy.close()
            second.close()

    run(work, tmp_path)


def test_a_former_one_that_fails(tmp_path: Path) -> None:
    """It hangs up, or ends, before it has handed over: the successor is told."""

    async def work(control: Path) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(handover_path(control)))
        listener.listen()
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        for said, words in (
            (b"", "it hung up"),
            (b"hello\n", "is not JSON"),
            (b"[1]\n", "is no object"),
            (b'{"pid": 1}\n', "is not understood"),
        ):
            asked = asyncio.create_task(handover.ask(control))
            peer, _ = await loop.sock_accept(listener)
            assert json.loads(await loop.sock_recv(peer, 1000))["want"] == "handover"
            await loop.sock_sendall(peer, said)
            peer.close()
            with pytest.raises(HandoverError, match=words):
                await asked
        listener.close()

    run(work, tmp_path)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b'{"want": "handover", "version": 99}\n', b"speaks another version"),
        (b'{"want": "everything"}\n', b"speaks another version"),
        (b"hello\n", b""),
        (b"x" * 100_000, b""),
    ],
)
def test_who_asks_for_something_else(tmp_path: Path, said: bytes, answer: bytes) -> None:
    """Gets nothing, and the gateway is ready for the next one."""

    async def work(control: Path) -> None:
        async with former(control, a=1) as old:
            loop = asyncio.get_running_loop()
            with socket.socket(socket.AF_UNIX) as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, str(handover_path(control)))
                await loop.sock_sendall(sock, said)
                sock.shutdown(socket.SHUT_WR)
                data = b""
                with contextlib.suppress(ConnectionError):
                    while more := await loop.sock_recv(sock, 1000):
                        data += more
            assert answer in data
            assert b"sockets" not in data
            succession = await handover.ask(control)
            assert succession is not None
            succession.close()
            succession.legacy.close()
            assert old.released == 0

    run(work, tmp_path)


def test_a_place_where_it_cannot_listen(tmp_path: Path) -> None:
    """It is named."""

    async def work(control: Path) -> None:
        server = HandoverServer(control / "none", None, None, None)  # type: ignore[arg-type] # never called
        with pytest.raises(HandoverError, match=r"none\.handover: No such file"):
            server.start()
        server.close()

    run(work, tmp_path)


def test_a_moment_without_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes then is not taken at once, but is taken."""
    monkeypatch.setattr(handover, "ACCEPT_AGAIN_S", 0.01)

    async def work(control: Path) -> None:
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, [OSError(errno.EMFILE, "Too many open files")]

        async def short_of_them(sock: socket.socket) -> tuple[socket.socket, object]:
            if failures:
                raise failures.pop()
            return await accept(sock)

        monkeypatch.setattr(loop, "sock_accept", short_of_them)
        with capture_logs() as lines:
            async with former(control, a=1):
                succession = await handover.ask(control)
        assert [each["reason"] for each in lines[:1]] == ["Too many open files"]
        assert succession is not None
        succession.close()
        succession.legacy.close()

    run(work, tmp_path)
