# SPDX-License-Identifier: Apache-2.0
"""The address that an interface has, as real interfaces of an own network namespace tell it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns, make_wire, wait_for_ipv6
from xdp_router.adapters.interface_address import InterfaceAddresses, is_link_local
from xdp_router.core.address import format_addr, parse_addr


@contextlib.contextmanager
def _addresses() -> Iterator[tuple[InterfaceAddresses, IPRoute, int]]:
    """What asks, what changes, and the number of an interface ``eth0``."""
    with IPRoute() as ipr:
        wire = make_wire(ipr, "eth0", None, None)
        addresses = InterfaceAddresses()
        yield addresses, ipr, wire.near
        addresses.close()
        os.close(wire.far_ns)  # with it both ends go


@in_fresh_netns
def test_an_interface_without_address_has_none() -> None:
    """0 for one without, and for one that does not exist."""
    with _addresses() as (addresses, _, _):
        assert addresses.primary("eth0") == 0
        assert addresses.primary("eth9") == 0
        assert addresses.primary("n" * 40) == 0


@in_fresh_netns
def test_the_primary_address_counts() -> None:
    """The first one, until it goes; not a secondary one of the same subnet."""
    with _addresses() as (addresses, ipr, index):
        ipr.addr("add", index=index, address="198.18.0.1", prefixlen=24)
        ipr.addr("add", index=index, address="198.18.0.2", prefixlen=24)
        assert addresses.primary("eth0") == parse_addr("198.18.0.1")
        ipr.addr("delete", index=index, address="198.18.0.1", prefixlen=24)
        ipr.addr("add", index=index, address="198.18.9.9", prefixlen=24)
        assert addresses.primary("eth0") in map(parse_addr, ("198.18.0.2", "198.18.9.9"))


def _ask6(addresses: InterfaceAddresses, index: int) -> str:
    addr = addresses.primary6(index)
    return format_addr(addr) if addr else ""


@in_fresh_netns
def test_an_interface_without_global_ipv6_address() -> None:
    """None: its link-local address is not one, nor is another interface's; nor if it is gone."""
    with _addresses() as (addresses, ipr, index):
        ipr.link("set", index=1, state="up")
        ipr.addr("add", index=1, address="2001:db8:9::1", prefixlen=64)
        wait_for_ipv6(ipr, 1)
        link_local = list(addresses.dump(socket.AF_INET6, index))
        assert len(link_local) == 1
        assert is_link_local(link_local[0].addr)
        assert addresses.primary6(index) == 0
        assert addresses.primary6(99) == 0


@in_fresh_netns
def test_the_global_ipv6_address_that_stays() -> None:
    """A subnet's before a host's, the oldest of equals; not one that is no more to be used."""
    with _addresses() as (addresses, ipr, index):

        def add(address: str, length: int, **more: object) -> None:
            ipr.addr("add", index=index, address=address, prefixlen=length, **more)
            wait_for_ipv6(ipr, index)

        add("2001:db8:100::1", 128)
        assert _ask6(addresses, index) == "2001:db8:100::1"
        add("2001:db8:1::1", 64)
        for number in range(3):
            add(f"2001:db8:100::{number + 2}", 128)
            add(f"2001:db8:{number + 2}::1", 64)
        assert _ask6(addresses, index) == "2001:db8:1::1"
        ipr.addr("delete", index=index, address="2001:db8:1::1", prefixlen=64)
        assert _ask6(addresses, index) == "2001:db8:2::1"
        ipr.addr(
            "replace", index=index, address="2001:db8:2::1", prefixlen=64, preferred=0, valid=60
        )
        assert _ask6(addresses, index) == "2001:db8:3::1"


@in_fresh_netns
def test_a_tentative_address_is_none_yet() -> None:
    """While the kernel asks whether somebody else has it, nothing may come from it."""
    with _addresses() as (addresses, ipr, index):
        Path("/proc/sys/net/ipv6/conf/eth0/accept_dad").write_text("1")
        ipr.addr("add", index=index, address="2001:db8:1::1", prefixlen=64)
        assert addresses.primary6(index) == 0


@in_fresh_netns
def test_thousands_of_addresses() -> None:
    """More than one answer of the kernel holds are all seen, of both families."""
    with _addresses() as (addresses, ipr, index):
        ipr.addr("add", index=index, address="2001:db8:1::1", prefixlen=64)
        for number in range(1, 1500):
            ipr.addr("add", index=index, address=f"2001:db8:100::{number:x}", prefixlen=128)
        ipr.addr("add", index=index, address="198.18.0.1", prefixlen=24)
        wait_for_ipv6(ipr, index)
        assert len(list(addresses.dump(socket.AF_INET6, index))) == 1501
        assert _ask6(addresses, index) == "2001:db8:1::1"
        assert [(each.addr, each.length) for each in addresses.dump(socket.AF_INET)] == [
            (parse_addr("198.18.0.1"), 24)
        ]
