# SPDX-License-Identifier: Apache-2.0
"""QUIC with a backend: sizes on the wire, several streams, and a client that moves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, get_args

import pytest

from tests.support.clients import random_bytes
from tests.support.netns import LabFactory
from tests.support.quic_client import QuicClient, ask_by_quic, quic_connection
from tests.support.tap import Tap
from tests.support.wide_lab import wide_spec
from xdp_router.lab.spec import Family

pytest_plugins = ("tests.support.netns",)

FAMILIES = get_args(Family)
HEADERS = {4: 14 + 20 + 8, 6: 14 + 40 + 8}
LONG_HEADER, INITIAL = 0xC0, 0x00


def initials(frames: list[bytes], family: Family, client: bytes) -> list[bytes]:
    """UDP payloads from the client that begin with an Initial."""
    at = HEADERS[family]
    protocol = 23 if family == 4 else 20
    found = [
        frame[at:]
        for frame in frames
        if frame[6:12] == client and len(frame) > at and frame[protocol] == socket.IPPROTO_UDP
    ]
    return [packet for packet in found if packet[0] & 0xF0 == LONG_HEADER | INITIAL]


@pytest.mark.parametrize("post_quantum", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_hello_has_the_size_of_today(
    make_lab: LabFactory, family: Family, post_quantum: bool
) -> None:
    """A hello of post-quantum size leaves in two Initials before any answer, another in one."""
    lab = make_lab(wide_spec(kind="quic"))
    target = lab.addresses_of(family).backends[0]
    lab.pause_backend(0)  # no answer: all that comes at once is the hello
    with contextlib.closing(lab.router.run(lambda: Tap("client0"))) as tap:
        with pytest.raises(TimeoutError):
            ask_by_quic(lab.client, target, b"x", post_quantum=post_quantum, timeout=0.1)
        client = bytes.fromhex("025852000002")
        found = initials(tap.received(), family, client)
    assert len(found) == 1 + post_quantum
    # Version and connection ID; the first byte is protected.
    assert {packet[1:14] for packet in found} == {found[0][1:14]}
    assert all(len(packet) >= 1200 for packet in found)


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_are_answered_each_for_itself(make_lab: LabFactory, family: Family) -> None:
    """Streams of one connection, at once: each gets the line for its own bytes."""
    lab = make_lab(wide_spec(kind="quic"))
    target = lab.addresses_of(family).backends[0]

    async def talk() -> list[str]:
        async with quic_connection(target) as client:
            return await asyncio.gather(*(client.ask(random_bytes(9_000 * n)) for n in range(5)))

    assert lab.client.run(lambda: asyncio.run(asyncio.wait_for(talk(), 10))) == ["b1"] * 5


@pytest.mark.parametrize("family", FAMILIES)
def test_connection_outlives_a_new_client_port(make_lab: LabFactory, family: Family) -> None:
    """A client that goes on from another port keeps its connection, as after NAT rebinding."""
    lab = make_lab(wide_spec(kind="quic"))
    target = lab.addresses_of(family).backends[0]

    async def talk() -> list[str]:
        async with quic_connection(target) as client:
            names = [await client.ask(b"before")]
            await rebind(client, family)
            return [*names, await client.ask(random_bytes(5_000))]

    assert lab.client.run(lambda: asyncio.run(asyncio.wait_for(talk(), 10))) == ["b1"] * 2


async def rebind(client: QuicClient, family: Family) -> None:
    """Let a client send and receive from another port from now on."""

    class Forward(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            client.datagram_received(data, addr)

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        Forward, local_addr=("0.0.0.0" if family == 4 else "::", 0)
    )
    client.move(transport)
