# SPDX-License-Identifier: Apache-2.0
"""QUIC through the router, by aioquic, with a hello of post-quantum size: two Initials."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import random_bytes
from tests.support.quic_client import QuicClient, ask_by_quic, begun_connection, quic_connection
from tests.support.receipts import OWN_PORTS
from tests.support.wide_lab import WideLab, routed_wide_lab

pytest_plugins = ("tests.support.netns",)

BACKENDS = ("b1", "b2", "b3")


@pytest.fixture(scope="module", params=["native", "generic"])
def wide(request: pytest.FixtureRequest, private_mounts: Path) -> Iterator[WideLab]:
    """Three QUIC servers behind a router in one mode, as far from it one as the other."""
    options = ("--xdp-mode", request.param)
    with routed_wide_lab(
        private_mounts,
        backends=3,
        kind="quic",
        service='quic = true\nprobe = "icmp"',
        attach=options,
    ) as made:
        yield made


def test_connections_of_two_initials_and_streams_after_them(wide: WideLab) -> None:
    """Both datagrams of the hello are held and leave in order: no handshake waits for a timer."""
    names = set()
    with wide.router.counted() as counted:
        for length in range(0, 40_000, 2_000):
            names.add(ask_by_quic(wide.client, wide.service, random_bytes(length)))
        assert counted("datagram_first") == 20
        assert counted("datagrams_over") == 0
        assert counted("deadline_passed") == 0
    assert names <= set(BACKENDS)


def test_a_port_that_changes_during_the_handshake_keeps_the_backend(wide: WideLab) -> None:
    """The same hello from another port goes where its connection ID is known, by no new decision.

    Nine rounds: were the second port decided anew, it would meet the first one's backend in a
    third of them.
    """
    for _ in range(9):
        with wide.router.counted() as counted:
            first, second = wide.client.run(lambda: asyncio.run(moved(wide, counted)))
        flows = {row["client"].rpartition(":")[2]: row for row in wide.router.json("flows")}
        assert flows[str(first)]["backend"] == flows[str(second)]["backend"]
        assert flows[str(first)]["decision"]["mode"] == "race"
        assert flows[str(second)]["decision"]["mode"] == "sticky"
        assert flows[str(second)]["decision"]["reason"] == "connection_id"


async def moved(wide: WideLab, counted: Callable[[str], int]) -> tuple[int, int]:
    """A connection whose client moves before any answer has come; its ports before and after."""
    for backend in BACKENDS:
        wide.lab.pause_backend(backend)
    async with begun_connection(wide.service) as client:
        await _until(lambda: counted("datagram_first"))
        await asyncio.sleep(0.05)  # the whole hello has passed
        former = client.port
        second = await rebind(client)
        await _until(lambda: counted("connection_id_known"))  # the hello is said from there
        for backend in BACKENDS:
            wide.lab.resume_backend(backend)
        await asyncio.wait_for(client.wait_connected(), 10)
        assert await asyncio.wait_for(client.ask(random_bytes(5_000)), 10) in BACKENDS
    return former, second


async def _until(happened: Callable[[], int]) -> None:
    for _ in range(500):
        if happened():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("5 seconds, and nothing")


async def rebind(client: QuicClient) -> int:
    """Let a client send and hear from another port from now on; which one."""

    class Forward(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            client.datagram_received(data, addr)

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        Forward, local_addr=("0.0.0.0", next(OWN_PORTS))
    )
    client.leave(transport)
    return int(transport.get_extra_info("sockname")[1])


def test_a_finished_handshake_says_nothing_of_the_next(wide: WideLab) -> None:
    """Each connection has an ID of its own: a second one is decided for itself."""

    async def talk() -> list[str]:
        async with quic_connection(wide.service) as one, quic_connection(wide.service) as other:
            return [await one.ask(b"one"), await other.ask(b"other")]

    with wide.router.counted() as counted:
        assert len(wide.client.run(lambda: asyncio.run(asyncio.wait_for(talk(), 10)))) == 2
        assert counted("connection_id_known") == 0
