# SPDX-License-Identifier: Apache-2.0
"""The address that an interface has, as real interfaces of an own network namespace tell it."""

from __future__ import annotations

import os

from pyroute2 import IPRoute

from tests.support.fresh_netns import Wire, in_fresh_netns, make_wire
from xdp_router.adapters.interface_address import InterfaceAddresses
from xdp_router.core.address import parse_addr


def _wire(ipr: IPRoute) -> Wire:
    wire = make_wire(ipr, "eth0", None, None)
    os.close(wire.far_ns)
    return wire


@in_fresh_netns
def test_an_interface_without_address_has_none() -> None:
    """0 for one without, and for one that does not exist."""
    with IPRoute() as ipr:
        _wire(ipr)
        addresses = InterfaceAddresses()
        assert addresses.primary("eth0") == 0
        assert addresses.primary("eth9") == 0
        assert addresses.primary("n" * 40) == 0
        addresses.close()


@in_fresh_netns
def test_the_primary_address_counts() -> None:
    """The first one, until it goes; not a secondary one of the same subnet."""
    with IPRoute() as ipr:
        _wire(ipr)
        index = ipr.link_lookup(ifname="eth0")[0]
        addresses = InterfaceAddresses()
        ipr.addr("add", index=index, address="198.18.0.1", prefixlen=24)
        ipr.addr("add", index=index, address="198.18.0.2", prefixlen=24)
        assert addresses.primary("eth0") == parse_addr("198.18.0.1")
        ipr.addr("delete", index=index, address="198.18.0.1", prefixlen=24)
        ipr.addr("add", index=index, address="198.18.9.9", prefixlen=24)
        assert addresses.primary("eth0") in map(parse_addr, ("198.18.0.2", "198.18.9.9"))
        addresses.close()
