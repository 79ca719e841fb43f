# SPDX-License-Identifier: Apache-2.0
"""What keeps clients from services at the gateway, as this kernel has it."""

from __future__ import annotations

from pathlib import Path

from pyroute2 import IPRoute

from tests.support.fresh_netns import in_fresh_netns, make_wire
from xdp_router.adapters import doctor_network
from xdp_router.adapters.gateway_checks import check_gateway
from xdp_router.adapters.host import link_info
from xdp_router.adapters.host_checks import check_service
from xdp_router.core.address import parse_endpoint

SERVICE = parse_endpoint("198.18.100.9:80")
SERVICE6 = parse_endpoint("[2001:db8:100::9]:80")


def write(interface: str, value: int) -> None:
    Path("/proc/sys/net/ipv4/conf", interface, "rp_filter").write_text(str(value))


@in_fresh_netns
def test_findings_and_their_mends() -> None:
    """A loopback that is down; a strict filter, on any of the interfaces, and of IPv4 alone."""
    with IPRoute() as ipr:
        make_wire(ipr, "v0", "198.18.0.1", "198.18.0.2")
        write("all", 0)
        write("v0", 0)
        links = [link_info("v0")]
        assert not list(check_gateway([], links))
        assert not list(check_gateway([SERVICE], links))  # such a route does without it
        (down,) = check_gateway([SERVICE, SERVICE6], links)
        assert (down.code, down.mend) == ("loopback_down", "ip link set lo up")
        ipr.link("set", index=1, state="up")
        assert not list(check_gateway([SERVICE, SERVICE6], links))
        for interface in ("v0", "all"):
            write("v0", 0)
            write(interface, 1)
            (strict,) = check_gateway([SERVICE, SERVICE6], links)
            assert (strict.code, strict.interface) == ("gateway_strict_source", "v0")
            assert not list(check_gateway([SERVICE6], links))
            name, _, value = strict.mend.removeprefix("sysctl -w ").partition("=")
            Path("/proc/sys", name.replace(".", "/")).write_text(value)
            assert not list(check_gateway([SERVICE], links))
        write("v0", 1)
        found = list(doctor_network.check_services([("up", SERVICE)], links, taken_up=["up"]))
        assert [each.code for each in found] == ["gateway_strict_source", "service"]


@in_fresh_netns
def test_who_answers_arp() -> None:
    """The kernel does for what is local by a route, and not for IPv6."""
    with IPRoute() as ipr:
        make_wire(ipr, "v0", "198.18.0.1", "198.18.0.2")
        links = [link_info("v0")]
        beside = parse_endpoint("198.18.0.9:80")
        assert check_service(beside, links)
        assert not check_service(beside, links, taken_up=True)
        make_wire(ipr, "v1", "2001:db8:1::1", "2001:db8:1::2")
        beside = parse_endpoint("[2001:db8:1::9]:80")
        assert check_service(beside, [link_info("v1")], taken_up=True)
