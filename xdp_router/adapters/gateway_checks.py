# SPDX-License-Identifier: Apache-2.0
"""What on this host would keep clients from services that its gateway takes up."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from xdp_router.core.address import is_ipv6
from xdp_router.core.model import Endpoint

from .host import LinkInfo, Rtnl
from .host_checks import HostWarning
from .kernel_forwarding import read_facts
from .local_routes import LOOPBACK
from .sysctl import of_interface

_STRICT = 1


def check_gateway(
    services: Collection[Endpoint], attached: Collection[LinkInfo]
) -> Iterator[HostWarning]:
    """Findings about services that are taken up here. Raises HostError, SysctlError."""
    ipv6 = [each for each in services if is_ipv6(each.addr)]
    if ipv6:
        with Rtnl() as rtnl:
            up = rtnl.link(LOOPBACK).up
        if not up:
            yield HostWarning(
                "loopback_down",
                LOOPBACK,
                f'{LOOPBACK} is down: services of IPv6 with handler = "gateway" cannot be taken up '
                "(the route to their addresses leads there)",
                f"ip link set {LOOPBACK} up",
            )
    if len(ipv6) == len(services):
        return  # IPv6 has no such filter
    for link in attached:
        if read_facts(link.name, link.ifindex).rp_filter == _STRICT:
            yield HostWarning(
                "gateway_strict_source",
                link.name,
                f"rp_filter is strict on {link.name}: of clients of services with handler = "
                '"gateway" the kernel drops those to whom the way back leads by another interface '
                "(services with backends do not come to it)",
                f"sysctl -w {of_interface(link.name, 'rp_filter')}=2",
            )
