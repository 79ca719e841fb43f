# SPDX-License-Identifier: Apache-2.0
"""Writes that go out at once, on real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from tests.support.engines import loopback_up
from tests.support.fresh_netns import in_fresh_netns
from xdp_router.daemon.gateway.wire import WRITE_HIGH, Wire


def with_wire(
    test: Callable[[Wire, socket.socket], Awaitable[None]], loop: Callable[[], object]
) -> None:
    """A wire over one end of a connection in a namespace of the test's own."""
    loopback_up()

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname())
            far, _ = listener.accept()
        far.settimeout(5)
        near.setblocking(False)
        here = asyncio.get_running_loop()
        transport, _ = await here.create_connection(asyncio.Protocol, sock=near)
        with far:
            await test(Wire(transport), far)
            transport.abort()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type] # either loop
        runner.run(run())


@in_fresh_netns
@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_it_is_out_when_write_returns(loop: Callable[[], object]) -> None:
    """Not at the end of the event loop's turn."""

    async def test(wire: Wire, far: socket.socket) -> None:
        far.setblocking(False)
        wire.write(b"token")
        assert far.recv(100) == b"token"

    with_wire(test, loop)


@in_fresh_netns
@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_what_the_socket_does_not_take_follows_in_order(loop: Callable[[], object]) -> None:
    """Whatever was written before and after it was full."""
    pieces = [bytes([number]) * size for number, size in enumerate((9, 1 << 24, 3, 70_000, 1), 1)]

    async def test(wire: Wire, far: socket.socket) -> None:
        far.setblocking(False)
        for each in pieces:
            wire.write(each)
        assert wire.transport.get_write_buffer_size() > WRITE_HIGH
        found = bytearray()
        here = asyncio.get_running_loop()
        while len(found) < sum(map(len, pieces)):
            async with asyncio.timeout(5):
                found += await here.sock_recv(far, 1 << 20)
        assert found == b"".join(pieces)

    with_wire(test, loop)


@in_fresh_netns
@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_nothing_is_written_to_one_that_closes(loop: Callable[[], object]) -> None:
    """Its descriptor may be somebody else's by then."""

    async def test(wire: Wire, far: socket.socket) -> None:
        wire.transport.abort()
        wire.write(b"late")
        await asyncio.sleep(0.01)
        assert far.recv(100) == b""
        wire.write(b"later")

    with_wire(test, loop)
