# SPDX-License-Identifier: Apache-2.0
"""A gateway shows its listening sockets to the router, over a real unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.descriptors import open_descriptors
from xdp_router.daemon.gateway import sharing as sharing_module
from xdp_router.daemon.gateway.sharing import SharingError, SocketSharing, seen, sharing_path

WAIT_S = 20.0


@contextlib.contextmanager
def listening(*names: str) -> Iterator[dict[str, socket.socket]]:
    """A socket for each name."""
    with contextlib.ExitStack() as undo:
        found = {}
        for name in names:
            sock = found[name] = undo.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            sock.listen()
        yield found


@contextlib.asynccontextmanager
async def sharing(control: Path, offered: dict[str, socket.socket]) -> AsyncIterator[SocketSharing]:
    shared = SocketSharing(control, lambda: offered)
    shared.start()
    try:
        yield shared
    finally:
        shared.close()
        await asyncio.sleep(0)


async def following(shown: AsyncIterator[dict[str, socket.socket]]) -> dict[str, int]:
    """The next ones, by the ports that they listen on."""
    async with asyncio.timeout(WAIT_S):
        sockets = await anext(shown)
    ports = {}
    for name, sock in sockets.items():
        ports[name] = sock.getsockname()[1]
        sock.close()
    return ports


def ports(sockets: dict[str, socket.socket]) -> dict[str, int]:
    return {name: sock.getsockname()[1] for name, sock in sockets.items()}


def test_all_are_shown_and_what_becomes_of_them(tmp_path: Path) -> None:
    """At once, after each change, and the end of it."""
    control = tmp_path / "gw.sock"

    async def run() -> None:
        with listening("a", "b") as both, listening("c") as other:
            offered = dict(both)
            async with sharing(control, offered) as shared:
                path = sharing_path(control)
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                async with contextlib.aclosing(seen(control)) as first:
                    assert await following(first) == ports(both)
                    async with contextlib.aclosing(seen(control)) as second:
                        assert await following(second) == ports(both)
                        del offered["a"]
                        offered |= other
                        shared.tell()
                        expected = ports({"b": both["b"], **other})
                        assert await following(first) == await following(second) == expected
                    offered.clear()
                    shared.tell()
                    assert await following(first) == {}
                    shared.close()
                    shared.close()
                    with pytest.raises(StopAsyncIteration):
                        await following(first)
                assert not path.exists()

    asyncio.run(run())


def test_more_than_one_message_has_room_for(tmp_path: Path) -> None:
    """They come as one."""
    control = tmp_path / "gw.sock"

    async def run() -> None:
        with listening("x") as one:
            # One socket many times: descriptors are what counts.
            offered = {f"listener-{number}": one["x"] for number in range(450)}
            async with sharing(control, offered), contextlib.aclosing(seen(control)) as shown:
                found = await following(shown)
                assert found == dict.fromkeys(offered, one["x"].getsockname()[1])

    before = len(open_descriptors())
    asyncio.run(run())
    assert len(open_descriptors()) == before


def test_nobody_there(tmp_path: Path) -> None:
    """The error names the path."""

    async def run(control: Path) -> None:
        with pytest.raises(SharingError, match=str(sharing_path(control))):
            await anext(seen(control))

    asyncio.run(run(tmp_path / "gw.sock"))
    asyncio.run(run(tmp_path / "nowhere" / "gw.sock"))


def test_a_successor_has_the_path(tmp_path: Path) -> None:
    """It takes it over, and keeps it when the former one lets go. Long paths are no matter."""
    control = tmp_path / ("d" * 100) / "gw.sock"
    control.parent.mkdir()

    async def run() -> None:
        with listening("a") as former, listening("a") as new:
            async with sharing(control, former) as first:
                async with sharing(control, new):
                    first.close()
                    async with contextlib.aclosing(seen(control)) as shown:
                        assert await following(shown) == ports(new)

    asyncio.run(run())


def test_it_cannot_be_shown(tmp_path: Path) -> None:
    """That is no reason not to serve."""

    async def run() -> None:
        with listening("a") as sockets:
            async with sharing(tmp_path / "nowhere" / "gw.sock", sockets) as shared:
                shared.tell()

    asyncio.run(run())


@pytest.mark.parametrize(
    "message",
    [
        b"nonsense",
        b"[]",
        b"{}",
        json.dumps({"listeners": ["a", "b"], "more": False}).encode(),
        json.dumps({"listeners": [], "more": False}).encode(),
        json.dumps({"listeners": 7, "more": False}).encode(),
    ],
)
def test_what_is_not_understood(tmp_path: Path, message: bytes) -> None:
    """Whoever is there: an error, and no descriptor is kept."""
    control = tmp_path / "gw.sock"

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server, listening("a") as one:
            server.bind(str(sharing_path(control)))
            server.listen()
            server.setblocking(False)
            shown = seen(control)
            asked = asyncio.create_task(anext(shown))
            peer, _ = await loop.sock_accept(server)
            with peer:
                socket.send_fds(peer, [message], [one["a"].fileno()])
                with pytest.raises(SharingError, match="not understood"):
                    await asked

    before = len(open_descriptors())
    asyncio.run(run())
    assert len(open_descriptors()) == before


def test_what_is_no_socket(tmp_path: Path) -> None:
    """A file in the place of one."""
    control = tmp_path / "gw.sock"

    async def run() -> None:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
            (tmp_path / "file").open("w") as file,
        ):
            server.bind(str(sharing_path(control)))
            server.listen()
            server.setblocking(False)
            asked = asyncio.create_task(anext(seen(control)))
            peer, _ = await asyncio.get_running_loop().sock_accept(server)
            with peer:
                socket.send_fds(peer, [b"{}"], [file.fileno()])
                with pytest.raises(SharingError, match="no socket"):
                    await asked

    asyncio.run(run())


def test_a_moment_without_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes then is not shown them at once, but is shown them."""
    monkeypatch.setattr(sharing_module, "_ACCEPT_AGAIN_S", 0.01)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, [OSError(errno.EMFILE, "Too many open files")]

        async def short_of_them(sock: socket.socket) -> tuple[socket.socket, object]:
            if failures:
                raise failures.pop()
            return await accept(sock)

        monkeypatch.setattr(loop, "sock_accept", short_of_them)
        with listening("web") as offered:
            async with sharing(tmp_path / "gw.sock", offered):
                shown = seen(tmp_path / "gw.sock")
                assert await following(shown) == ports(offered)
                await shown.aclose()
        assert not failures

    asyncio.run(work())
