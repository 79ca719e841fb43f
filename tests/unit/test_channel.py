# SPDX-License-Identifier: Apache-2.0
"""What two processes say to each other over a pair of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Mapping
from typing import Any

import pytest
import uvloop

from xdp_router.core.errors import XdpRouterError
from xdp_router.daemon.gateway.channel import Channel, ChannelClosed, Refused


async def pair(ours: Any, theirs: Any) -> tuple[Channel, Channel]:
    """Both ends, with what handles their requests."""
    one, two = socket.socketpair()
    ends = Channel(one, ours), Channel(two, theirs)
    for each in ends:
        await each.open()
    return ends


def run(work: Coroutine[Any, Any, None]) -> None:
    """In a loop of its own, which does not hang."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(bounded())


def nothing(_what: str, _args: Mapping[str, Any]) -> None:
    """Handle it."""


def test_both_ends_ask() -> None:
    """Answers find their questions in any order, from plain functions and from coroutines."""

    async def slow(what: str, args: Mapping[str, Any]) -> Any:
        await asyncio.sleep(0.02 / (1 + args["number"]))
        return [what, args["number"]]

    def plain(what: str, args: Mapping[str, Any]) -> Any:
        return {what: args}

    async def work() -> None:
        one, two = await pair(plain, slow)
        asked = [one.ask("what", 10, number=number) for number in range(5)]
        answers, other = await asyncio.gather(
            asyncio.gather(*asked), two.ask("back", 10, big="x" * 300_000)
        )
        assert answers == [["what", number] for number in range(5)]
        assert len(other["back"]["big"]) == 300_000
        one.close()
        two.close()

    run(work())


def test_what_is_told_is_handled_before_the_end() -> None:
    """A process that ends is heard to its last word."""
    heard: list[tuple[str, int]] = []

    def hear(what: str, args: Mapping[str, Any]) -> None:
        heard.append((what, args["n"]))

    async def work() -> None:
        one, two = await pair(hear, nothing)
        for number in range(3):
            two.tell("last", n=number)
        await two.flush(5)
        two.close()
        await one.ended()
        await asyncio.sleep(0)  # each is handled in a task of its own
        assert heard == [("last", 0), ("last", 1), ("last", 2)]
        one.close()

    run(work())


def test_the_end_of_the_other_one() -> None:
    """Who waits for an answer is told, and who asks afterwards."""

    async def never(_what: str, _args: Mapping[str, Any]) -> None:
        await asyncio.sleep(60)

    async def work() -> None:
        one, two = await pair(nothing, never)
        asked = asyncio.create_task(one.ask("what", 20))
        await asyncio.sleep(0.02)
        two.close()
        with pytest.raises(ChannelClosed):
            await asked
        await one.ended()
        with pytest.raises(ChannelClosed):
            await one.ask("what", 20)
        one.tell("anything")
        one.close()

    run(work())


def test_refusals() -> None:
    """An error of ours is its text, another one is named; silence has a limit. All go on."""

    async def handle(what: str, _args: Mapping[str, Any]) -> Any:
        if what == "ours":
            raise XdpRouterError("not today")
        if what == "fault":
            raise KeyError("x")
        if what == "odd":
            return {1, 2}
        await asyncio.sleep(0 if what == "good" else 60)
        return "good"

    async def work() -> None:
        one, two = await pair(nothing, handle)
        with pytest.raises(Refused, match="^not today$"):
            await one.ask("ours", 10)
        with pytest.raises(Refused, match="internal error in fault: KeyError"):
            await one.ask("fault", 10)
        with pytest.raises(Refused, match="internal error in odd: TypeError"):
            await one.ask("odd", 10)
        with pytest.raises(TimeoutError):
            await one.ask("silence", 0.01)
        assert await one.ask("good", 10) == "good"
        one.close()
        two.close()

    run(work())


def test_nonsense_ends_it() -> None:
    """What is no JSON is not a channel."""

    async def work() -> None:
        ours, theirs = socket.socketpair()
        channel = Channel(ours, nothing)
        await channel.open()
        theirs.sendall(b"hello\n")
        await channel.ended()
        with pytest.raises(ChannelClosed):
            await channel.ask("what", 1)
        channel.close()
        theirs.close()

    run(work())


def test_what_nobody_can_hear_is_not_waited_for() -> None:
    """The other process was killed before it had read all: nothing can leave any more."""

    async def work() -> None:
        ours, theirs = socket.socketpair()
        one = Channel(ours, nothing)
        await one.open()
        one.tell("unread")
        await asyncio.sleep(0.02)
        theirs.close()
        await one.ended()
        await asyncio.sleep(0.02)
        one.tell("last")
        await one.flush(20)
        one.close()

    uvloop.run(work())
