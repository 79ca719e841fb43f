# SPDX-License-Identifier: Apache-2.0
"""Findings about routes, addresses and ports, in a namespace of the test's own."""

from __future__ import annotations

import socket
from itertools import islice

from pyroute2 import IPRoute

from tests.support.fresh_netns import (
    in_fresh_netns,
    make_sysctls_read_only,
    make_wire,
    wait_for_ipv6,
)
from xdp_router.adapters import doctor_network
from xdp_router.adapters.doctor_finding import Finding, Severity
from xdp_router.adapters.doctor_target import Named
from xdp_router.adapters.host import link_info
from xdp_router.adapters.sysctl import Sysctls
from xdp_router.core.address import parse_endpoint

SERVICE = ("web", parse_endpoint("198.18.100.1:80"))
SERVICE6 = ("web6", parse_endpoint("[2001:db8:100::1]:80"))
BACKEND = ("b1", parse_endpoint("198.18.1.2:8080"))


def _bad(found: list[Finding]) -> dict[str, Severity]:
    return {each.code: each.severity for each in found if each.severity is not Severity.OK}


@in_fresh_netns
def test_forwarding() -> None:
    """It is off in a new namespace and found; switched on it is in order."""
    with Sysctls() as sysctls:
        sysctls.set("net.ipv4.ip_forward", "0")
        assert _bad(list(doctor_network.check_forwarding())) == {"ip_forward": Severity.WARN}
        sysctls.set("net.ipv4.ip_forward", "1")
        assert _bad(list(doctor_network.check_forwarding())) == {}


@in_fresh_netns
def test_source_ports_of_fullnat() -> None:
    """Looked at as probe ports are, and told by their own names."""
    found = doctor_network.check_nat_ports(20_000, 20_009, attached=True)
    assert _bad(list(found)) == {"nat_ports_not_reserved": Severity.WARN}
    with Sysctls() as sysctls:
        sysctls.reserve_ports(20_000, 20_009)
        assert _bad(list(doctor_network.check_nat_ports(20_000, 20_009, attached=True))) == {}


@in_fresh_netns
def test_ipv6_forwarding() -> None:
    """It is looked at where a service has IPv6, and with its mend it is in order."""
    name = "net.ipv6.conf.all.forwarding"
    with Sysctls() as sysctls:
        sysctls.set("net.ipv4.ip_forward", "1")
        sysctls.set(name, "0")
        assert _bad(list(doctor_network.check_forwarding([SERVICE]))) == {}
        found = list(doctor_network.check_forwarding([SERVICE, SERVICE6]))
        assert _bad(found) == {"ipv6_forwarding": Severity.WARN}
        assert found[0].mend.startswith(f"sysctl -w {name}=1")
        sysctls.set(name, "1")
        assert _bad(list(doctor_network.check_forwarding([SERVICE6]))) == {}


@in_fresh_netns
def test_ipv6_of_the_interfaces() -> None:
    """One without a global address, and one with IPv6 off: only where a service has IPv6."""
    with IPRoute() as netlink:
        wire = make_wire(netlink, "v0", None, None)

        def found(*services: Named) -> dict[str, Severity]:
            return _bad(list(doctor_network.check_ipv6(services, [link_info("v0")])))

        assert found(SERVICE) == {}
        assert found(SERVICE, SERVICE6) == {"no_ipv6_address": Severity.WARN}
        netlink.addr("add", index=wire.near, address="2001:db8:1::1", prefixlen=64)
        wait_for_ipv6(netlink, wire.near)
        assert found(SERVICE6) == {}
        with Sysctls() as sysctls:
            sysctls.set("net.ipv6.conf.v0.disable_ipv6", "1")
            assert found(SERVICE6) == {"ipv6_off": Severity.FAIL}


@in_fresh_netns
def test_ipv6_backends() -> None:
    """Reached by neighbour discovery, also by a link-local gateway, which is named; or not.

    Who has to be a neighbour must not be behind one.
    """
    with IPRoute() as netlink:
        wire = make_wire(netlink, "v0", "2001:db8:1::1", "2001:db8:1::2")
        wire.at_far(lambda far: far.addr("add", index=wire.far, address="fe80::1", prefixlen=64))
        netlink.route("add", dst="2001:db8:7::/64", gateway="fe80::1", oif=wire.near)
    near = ("b1", parse_endpoint("[2001:db8:1::2]:80"))
    far = ("b2", parse_endpoint("[2001:db8:7::7]:80"))
    found = list(doctor_network.check_backends([SERVICE6], [near, far], [link_info("v0")]))
    assert [each.text for each in found] == [
        "[2001:db8:1::2]:80 is reached by v0",
        "[2001:db8:7::7]:80 is reached by v0 via fe80::1",
    ]
    (near_found, far_found) = doctor_network.check_backends(
        [], [near, far], [link_info("v0")], {"b1", "b2"}
    )
    assert near_found.severity is Severity.OK
    assert (far_found.code, far_found.severity) == ("backend_behind_gateway", Severity.FAIL)
    assert "gateway fe80::1" in far_found.text
    gone = ("gone", parse_endpoint("[2001:db8:9::9]:80"))
    (lost,) = doctor_network.check_backends([SERVICE6], [gone], [])
    assert (lost.code, lost.severity) == ("backend_unreachable", Severity.WARN)
    assert lost.mend == "ip route get 2001:db8:9::9; ping 2001:db8:9::9"


@in_fresh_netns
def test_firewall_is_looked_at() -> None:
    """A namespace without rules has no finding about them."""
    assert list(doctor_network.check_firewall()) == []


@in_fresh_netns
def test_ports() -> None:
    """A listener and a lost reservation are found; an open range before attaching is not."""
    assert _bad(list(doctor_network.check_ports(61_000, 61_009, attached=False))) == {}
    lost = _bad(list(doctor_network.check_ports(61_000, 61_009, attached=True)))
    assert lost == {"probe_ports_not_reserved": Severity.WARN}
    with Sysctls() as sysctls:
        sysctls.reserve_ports(61_000, 61_009)
        assert _bad(list(doctor_network.check_ports(61_000, 61_009, attached=True))) == {}
        with socket.create_server(("127.0.0.1", 61_005)):
            found = _bad(list(doctor_network.check_ports(61_000, 61_009, attached=True)))
            assert found == {"probe_port_in_use": Severity.WARN}
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(("::", 61_006))
            (used,) = islice(doctor_network.check_nat_ports(61_006, 61_009, attached=True), 1)
            assert used.code == "nat_port_in_use"
            assert "on UDP port 61006, inside" in used.text


@in_fresh_netns
def test_ports_that_cannot_be_reserved() -> None:
    """Where /proc/sys is read-only attach would refuse, unless somebody has reserved them."""
    with Sysctls() as sysctls:
        sysctls.reserve_ports(61_000, 61_004)
        make_sysctls_read_only()
        assert _bad(list(doctor_network.check_ports(61_000, 61_004, attached=False))) == {}
        (found,) = doctor_network.check_ports(61_000, 61_009, attached=False)
        assert (found.code, found.severity) == ("probe_ports_read_only", Severity.FAIL)
        assert "sysctl -w net.ipv4.ip_local_reserved_ports=61005-61009" in found.mend
        sysctls.leave_ports(sysctls.reserved)


@in_fresh_netns
def test_backends() -> None:
    """Reached, behind an interface that is not attached, and of this host itself."""
    with IPRoute() as netlink:
        netlink.link("set", index=1, state="up")
        make_wire(netlink, "v0", "198.18.1.1", "198.18.1.2")
        make_wire(netlink, "w0", "198.18.2.1", "198.18.2.2")
    v0, w0 = link_info("v0"), link_info("w0")
    assert _bad(list(doctor_network.check_backends([SERVICE], [BACKEND], [v0]))) == {}
    assert _bad(list(doctor_network.check_backends([SERVICE], [BACKEND], []))) == {}
    (away,) = doctor_network.check_backends([SERVICE], [BACKEND], [w0])
    assert (away.code, away.severity) == ("backend_not_attached", Severity.FAIL)
    assert away.mend == "add v0 to the attach command"
    own = ("me", parse_endpoint("198.18.1.1:80"))
    assert _bad(list(doctor_network.check_backends([SERVICE], [own], [v0]))) == {
        "backend_local": Severity.FAIL
    }
    nowhere = ("gone", parse_endpoint("198.19.0.1:80"))
    assert _bad(list(doctor_network.check_backends([SERVICE], [nowhere], [v0]))) == {
        "backend_unreachable": Severity.WARN
    }


@in_fresh_netns
def test_clients_beside_backends() -> None:
    """A service in its backends' own subnet: clients there are answered past the router."""
    beside = ("web", parse_endpoint("198.18.1.9:80"))
    with IPRoute() as netlink:
        make_wire(netlink, "v0", "198.18.1.1", "198.18.1.2")
    v0 = link_info("v0")
    assert _bad(list(doctor_network.check_backends([beside], [BACKEND], [v0]))) == {
        "clients_in_backend_subnet": Severity.WARN
    }
    assert _bad(list(doctor_network.check_services([beside], [v0]))) == {
        "service_not_answered_for": Severity.WARN
    }
    assert _bad(list(doctor_network.check_services([SERVICE], [v0]))) == {}
