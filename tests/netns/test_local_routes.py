# SPDX-License-Identifier: Apache-2.0
"""Addresses that are local by a route alone, in this kernel."""

from __future__ import annotations

import socket

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns, make_wire
from xdp_router.adapters.host import HostError
from xdp_router.adapters.local_routes import (
    PROTOCOL,
    LocalRoutes,
    format_addresses,
    parse_addresses,
)
from xdp_router.core.address import parse_addr

ADDRS = ("198.18.100.9", "2001:db8:100::9")


@pytest.mark.parametrize("text", ADDRS)
@in_fresh_netns
def test_added_and_removed(text: str) -> None:
    """A server can be bound there, and clients come to it, with the address on no interface."""
    addr = parse_addr(text)
    with IPRoute() as ipr, LocalRoutes() as routes:
        ipr.link("set", index=1, state="up")
        assert not routes.is_local(addr)
        assert routes.add(addr)
        assert not routes.add(addr)
        assert routes.is_local(addr)
        assert addr not in routes.on_interfaces()
        assert parse_addr("127.0.0.1") in routes.on_interfaces()
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        (found,) = [each for each in ipr.get_routes(family=family) if each["proto"] == PROTOCOL]
        assert found.get_attr("RTA_DST") == text
        with socket.socket(family) as server:
            server.bind(("::" if ":" in text else "0.0.0.0", 0))
            server.listen()
            socket.create_connection((text, server.getsockname()[1]), 5).close()
        assert routes.remove(addr)
        assert not routes.remove(addr)
        assert not routes.is_local(addr)


@in_fresh_netns
def test_somebody_elses_stays() -> None:
    """Neither the route of an interface's address nor an operator's own is ours to remove."""
    with IPRoute() as ipr, LocalRoutes() as routes:
        ipr.link("set", index=1, state="up")
        make_wire(ipr, "v0", "198.18.0.1", "198.18.0.2")
        ipr.route("add", dst="198.18.9.9/32", oif=1, table=255, type="local", scope=254)
        for text in ("198.18.0.1", "198.18.9.9"):
            assert routes.is_local(parse_addr(text))
            assert not routes.remove(parse_addr(text))
            assert routes.is_local(parse_addr(text))
        assert parse_addr("198.18.0.1") in routes.on_interfaces()
        assert parse_addr("198.18.9.9") not in routes.on_interfaces()


@in_fresh_netns
def test_without_loopback() -> None:
    """Of IPv6 the kernel wants it up: the error names what to do."""
    with LocalRoutes() as routes:
        assert routes.add(parse_addr(ADDRS[0]))
        with pytest.raises(HostError, match="ip link set lo up"):
            routes.add(parse_addr(ADDRS[1]))


def test_notes() -> None:
    """What is written is read again, whatever the order."""
    addrs = set(map(parse_addr, ADDRS))
    assert parse_addresses(format_addresses(addrs)) == addrs
    assert parse_addresses("") == set()
    with pytest.raises(ValueError, match="nonsense"):
        parse_addresses("nonsense")
