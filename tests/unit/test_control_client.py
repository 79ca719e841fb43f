# SPDX-License-Identifier: Apache-2.0
"""Streams over the control socket, and a client that has little time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.netns import wait_for
from xdp_router.adapters import control
from xdp_router.adapters.control import CommandError, ControlError, ControlServer, Handler
from xdp_router.adapters.control_client import ControlClient

_Result = TypeVar("_Result")


class Ticks:
    """A stream, and whether it was given up."""

    def __init__(self, size: int = 0, count: int = 3) -> None:
        self.size = size
        self.count = count
        self.closed = 0

    async def ticks(self, pause_s: float) -> AsyncIterator[list[dict[str, Any]]]:
        try:
            for number in range(self.count):
                yield [{"tick": number, "more": "x" * self.size}]
                await asyncio.sleep(pause_s)
            await asyncio.sleep(30)
        finally:
            self.closed += 1

    def handler(self, args: Mapping[str, Any]) -> AsyncIterator[list[dict[str, Any]]]:
        if "bad" in args:
            raise CommandError("bad: expected nothing of the kind")
        return self.ticks(0.0)


def with_server(
    path: Path, ticks: Ticks, conversation: Callable[[], _Result], **more: Handler
) -> _Result:
    """Run blocking client code in a thread while the server runs in the loop."""

    async def main() -> _Result:
        server = ControlServer(path, {"ticks": ticks.handler, "echo": dict, **more})
        await server.start()
        try:
            return await asyncio.to_thread(conversation)
        finally:
            await server.close()

    return asyncio.run(main())


def test_a_stream_goes_on_until_the_client_goes(tmp_path: Path) -> None:
    """Each element as it comes; then the server gives it up at once."""
    path, ticks = tmp_path / "s", Ticks()

    def read() -> list[int]:
        with ControlClient(path) as client:
            stream = client.stream("ticks")
            found = [next(stream)["tick"] for _ in range(3)]
        wait_for(lambda: ticks.closed, 5, "the stream is given up")
        return found

    assert with_server(path, ticks, read) == [0, 1, 2]


def test_a_refusal_is_told_before_the_first_element(tmp_path: Path) -> None:
    """As of any command; and what is no stream is not taken for one."""
    path = tmp_path / "s"

    def read() -> None:
        with pytest.raises(CommandError, match="nothing of the kind"):
            ControlClient(path).stream("ticks", bad=1)
        with pytest.raises(ControlError, match="was not answered by a stream"):
            ControlClient(path).stream("echo")

    with_server(path, Ticks(), read)


def test_a_daemon_that_ends_is_told(tmp_path: Path) -> None:
    """Not a stream that ends quietly, as if nothing more happened."""
    path = tmp_path / "s"

    async def main() -> None:
        server = ControlServer(path, {"ticks": Ticks().handler})
        await server.start()
        stream = await asyncio.to_thread(ControlClient(path).stream, "ticks")
        await asyncio.to_thread(lambda: [next(stream) for _ in range(3)])
        await server.close()
        with pytest.raises(ControlError, match="has ended the stream"):
            await asyncio.to_thread(lambda: list(stream))

    asyncio.run(main())


def test_a_reader_that_does_not_read_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while; others are answered meanwhile."""
    monkeypatch.setattr(control, "_SLOW_CLIENT_S", 0.3)
    path, ticks = tmp_path / "s", Ticks(size=1 << 20, count=100)

    def read() -> bool:
        with socket.socket(socket.AF_UNIX) as lazy:
            lazy.connect(str(path))
            lazy.sendall(b'{"command":"ticks"}\n')
            assert ControlClient(path).call("echo", a=1) == {"a": 1}
            wait_for(lambda: ticks.closed, 10, "it is cut off")
        return True

    assert with_server(path, ticks, read)


def test_rows_that_take_long_come_fewer_at_a_time(tmp_path: Path) -> None:
    """So that the loop has its turn after a millisecond or so."""
    path, turns = tmp_path / "s", []

    def rows(_args: Mapping[str, Any]) -> Any:
        def slowly() -> Any:
            for number in range(20):
                time.sleep(0.002)
                yield number

        asyncio.get_running_loop().call_soon(count)
        return slowly()

    def count() -> None:
        turns.append(True)
        asyncio.get_running_loop().call_soon(count)

    found = with_server(path, Ticks(), lambda: ControlClient(path).call("rows"), rows=rows)
    assert found == list(range(20))
    assert len(turns) >= 15


def test_a_client_with_little_time_gives_up_in_all(tmp_path: Path) -> None:
    """A daemon that says something now and then does not keep it waiting."""
    path = tmp_path / "s"

    async def trickle(_args: Mapping[str, Any]) -> str:
        await asyncio.sleep(5)
        return ""

    def ask() -> float:
        began = time.monotonic()
        with pytest.raises(ControlError, match="did not answer"):
            ControlClient(path, 0.1, in_all=True).call("trickle")
        return time.monotonic() - began

    assert with_server(path, Ticks(), ask, trickle=trickle) < 4
