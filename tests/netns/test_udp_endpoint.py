# SPDX-License-Identifier: Apache-2.0
"""A UDP server with several addresses answers from the one that was asked."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, get_args

import pytest

from tests.support.fresh_netns import in_fresh_netns
from tests.support.netns import LabFactory
from tests.support.receipts import ask_by_udp
from tests.support.wide_lab import wide_spec
from xdp_router.lab import links
from xdp_router.lab.spec import Family
from xdp_router.lab.udp_endpoint import UdpEndpoint

pytest_plugins = ("tests.support.netns",)

OTHERS = {4: "198.19.200.1", 6: "2001:db8:200::1"}
PORT = 5300


@pytest.mark.parametrize("family", get_args(Family))
def test_answer_comes_from_where_it_was_asked(make_lab: LabFactory, family: Family) -> None:
    """A connected client, which hears only whom it asked, is answered by every address."""
    lab = make_lab(wide_spec())
    own, port = lab.addresses_of(family).backends[0]
    other = OTHERS[family]
    links.add_to_loopback(lab.backends[0], [other])
    dst = f"{other}/{128 if family == 6 else 32}"
    links.with_netlink(lab.router, lambda net: net.route("add", dst=dst, gateway=own))
    for address in (own, other):
        assert ask_by_udp(lab.client, (address, port), b"which?") == "b1"


class Shouter(asyncio.DatagramProtocol):
    """Answers in capitals."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.DatagramTransport)
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.transport.sendto(data.upper(), addr)


@in_fresh_netns
def test_endpoint_lets_go_of_its_port() -> None:
    """Two on one port are refused; after close the port is free, and sending does no harm."""

    async def scenario() -> None:
        first = UdpEndpoint(Shouter(), PORT)
        with pytest.raises(OSError, match="in use"):
            UdpEndpoint(Shouter(), PORT)
        assert not first.is_closing()
        first.close()
        assert first.is_closing()
        UdpEndpoint(Shouter(), PORT).abort()

    asyncio.run(scenario())


@in_fresh_netns
def test_unreachable_peer_harms_nobody() -> None:
    """An answer that can't be sent is lost, and the endpoint goes on."""

    async def scenario() -> None:
        endpoint = UdpEndpoint(Shouter(), PORT)
        local = socket.inet_aton("127.0.0.1")
        endpoint.sendto(b"x", ("198.18.7.7", 9, local))
        endpoint.sendto(bytes(70_000), ("127.0.0.1", 9, local))
        assert not endpoint.is_closing()
        endpoint.close()

    asyncio.run(scenario())
