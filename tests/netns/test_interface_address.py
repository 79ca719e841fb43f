# SPDX-License-Identifier: Apache-2.0
"""The address that an interface has, as real interfaces of an own network namespace tell it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns, make_wire
from xdp_router.adapters.interface_address import InterfaceAddresses
from xdp_router.core.address import parse_addr


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
