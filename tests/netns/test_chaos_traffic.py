# SPDX-License-Identifier: Apache-2.0
"""The clients of the chaos run against servers that lie, die and hang: each is found out."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pyroute2 import IPRoute

from tests.chaos.cast import BY_NAME, SPEC
from tests.chaos.flooder import datagrams
from tests.chaos.judge import End, Story
from tests.chaos.traffic import Traffic, story_of
from tests.support.fresh_netns import in_fresh_netns

PATIENCE_S = 1.0
WEB, ASK = BY_NAME["web4"].address, BY_NAME["ask4"].address
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def all_addresses() -> None:
    """Clients and services are this namespace's own."""
    with IPRoute() as netlink:
        (index,) = netlink.link_lookup(ifname="lo")
        netlink.link("set", index=index, state="up")
        for address in {*SPEC.addresses.clients, WEB[0]}:
            netlink.addr("add", index=index, address=address, prefixlen=32)


def stories(
    counts: tuple[int, int, int],
    serve: Callable[[], Awaitable[Any]],
    until_s: float | None = None,
) -> list[Story]:
    """What is told until the first connection has ended, or until so many seconds have passed."""
    told: list[Story] = []

    async def body() -> None:
        server = await serve()

        def say(line: dict[str, object]) -> None:
            if "story" in line:
                told.append(story_of(line["story"]))  # type: ignore[arg-type]  # an object
                traffic.stop()

        traffic = Traffic(1, counts, PATIENCE_S, say)
        if until_s is not None:
            asyncio.get_running_loop().call_later(until_s, traffic.stop)
        await asyncio.wait_for(traffic.run(), 60)
        if server is not None:
            server.close()

    asyncio.run(body())
    return told


def tcp(talk: Talk) -> Callable[[], Awaitable[Any]]:
    """A server that says its name, and then does as it likes."""

    async def named(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(b"b1\n")
        await talk(reader, writer)
        writer.close()

    return lambda: asyncio.start_server(named, *WEB)


async def honest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


async def lying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data[:-1] + bytes([data[-1] ^ 1]))


async def talkative(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await honest(reader, writer)
    writer.write(b"more")


async def leaving(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read(10)


async def aborting(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(0.2)
    writer.transport.abort()


async def hanging(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(PATIENCE_S + 1)


@pytest.mark.parametrize(
    ("talk", "ends"),
    [
        (honest, {End.CLOSED}),
        (lying, {End.WRONG}),
        (talkative, {End.WRONG}),
        (leaving, {End.EOF, End.RESET}),
        (aborting, {End.RESET, End.EOF}),
        (hanging, {End.SILENT}),
    ],
)
@in_fresh_netns
def test_a_connection_s_end_is_told(talk: Talk, ends: set[End]) -> None:
    """As it was, with who answered."""
    all_addresses()
    told = stories((0, 1, 0), tcp(talk))
    assert {each.end for each in told} <= ends
    assert {(each.host, each.service, each.kind) for each in told} == {("b1", "web4", "short")}
    assert (told[0].octets > 3) == (talk in (honest, talkative))
    assert all(each.connected_s is not None and each.resent == 0 for each in told)


@in_fresh_netns
def test_nobody_is_there() -> None:
    """Connections are refused, and nobody's name is known."""
    all_addresses()

    async def nobody() -> None:
        return None

    told = stories((1, 0, 0), nobody)
    assert {(each.end, each.host, each.connected_s) for each in told} == {(End.REFUSED, "", None)}
    assert {each.end for each in stories((0, 0, 1), nobody)} == {End.REFUSED}


class Asked(asyncio.DatagramProtocol):
    """Answers by the hash of what it is asked, as the names say in turn."""

    def __init__(self, names: list[str], wrong: bool) -> None:
        self._names, self._wrong = names, wrong

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        name = self._names.pop(0) if len(self._names) > 1 else self._names[0]
        digest = hashlib.sha256(data + b"?" * self._wrong).hexdigest()
        for _ in range(2):  # whoever asks twice may be answered twice
            self._transport.sendto(f"{name} {digest} {len(data)}\n".encode(), addr)


@pytest.mark.parametrize(
    ("names", "wrong", "end"),
    [
        (["u1"], False, End.CLOSED),
        (["u1"], True, End.WRONG),
        (["b1"], False, End.WRONG),
        (["u1", "u2"], False, End.MOVED),
    ],
)
@in_fresh_netns
def test_an_answer_is_compared(names: list[str], wrong: bool, end: End) -> None:
    """Its hash, and that the same host gives it as before."""
    all_addresses()

    async def serve() -> asyncio.DatagramTransport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: Asked(names, wrong), local_addr=ASK, family=socket.AF_INET
        )
        return transport

    told = stories((0, 0, 1), serve, 3.0 if end is End.CLOSED else None)
    assert {each.end for each in told} == {end}


def test_datagrams_of_a_flood_are_of_many_flows() -> None:
    """Each of its own, with a header that is right."""
    made = list(datagrams(bytes(12), ASK, 300))
    assert len({frame[26:36] for frame in made}) == 300
    for frame in made:
        words = [int.from_bytes(frame[at : at + 2]) for at in range(14, 34, 2)]
        total = sum(words)
        assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
