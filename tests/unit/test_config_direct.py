# SPDX-License-Identifier: Apache-2.0
"""``dsr`` and ``ipip`` in a configuration: what is taken, and what an operator is told."""

from __future__ import annotations

import pytest

from xdp_router.core.address import parse_addr
from xdp_router.core.config import parse_config
from xdp_router.core.config_direct import speaks_ipv6, with_implied_port
from xdp_router.core.errors import ConfigError
from xdp_router.core.model import Endpoint, Forwarding, Service


def text(method: str, backend: str, extra: str = "", service: str = "198.18.100.1:80") -> str:
    """A file with one service and one backend; ``extra`` is line 4."""
    return (
        f'[[service]]\naddress = "{service}"\nforwarding = "{method}"\n{extra}\n'
        f'[[service.backend]]\naddress = "{backend}"\n'
    )


def read(*args: str, **more: str) -> Service:
    return parse_config(text(*args, **more), "router.toml").services[0]


def problem(*args: str, **more: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(*args, **more)
    (line,) = str(caught.value).splitlines()
    return line


@pytest.mark.parametrize("method", ["dsr", "ipip"])
@pytest.mark.parametrize("address", ["198.18.1.2", "198.18.1.2:80"])
def test_the_port_is_the_services(method: str, address: str) -> None:
    """A backend needs none, and may repeat it; it knows its service's method."""
    (backend,) = read(method, address).backends
    assert backend.endpoint == Endpoint(parse_addr("198.18.1.2"), 80)
    assert backend.forwarding is Forwarding[method.upper()]
    assert backend.name == "198.18.1.2:80"


@pytest.mark.parametrize("address", ["2001:db8::2", "[2001:db8::2]", "[2001:db8::2]:443"])
def test_an_ipv6_backend_needs_no_port_either(address: str) -> None:
    """With or without brackets."""
    (backend,) = read("dsr", address, service="[2001:db8::1]:443").backends
    assert backend.endpoint == Endpoint(parse_addr("2001:db8::2"), 443)


def test_a_tunnel_has_the_family_of_its_backend() -> None:
    """Whatever that of the service."""
    assert read("ipip", "2001:db8::2").backends[0].endpoint.addr == parse_addr("2001:db8::2")
    assert read("ipip", "198.18.1.2", service="[2001:db8::1]:80").backends[0].endpoint.port == 80


def test_nat_needs_a_port() -> None:
    """Where packets are rewritten, an address alone does not say what to."""
    backend, service = Endpoint(2, 0), Endpoint(1, 80)
    assert with_implied_port(backend, Forwarding.NAT, service) == backend
    assert with_implied_port(backend, Forwarding.DSR, service) == Endpoint(2, 80)
    assert "found 198.18.1.2, without a port, expected an address" in problem("nat", "198.18.1.2")


@pytest.mark.parametrize(
    ("network", "lowest", "bits"),
    [
        ("198.18.200.0/24", "198.18.200.0", 8),
        ("198.18.200.7/32", "198.18.200.7", 0),
        ("198.18.200.7", "198.18.200.7", 0),
        ("10.16.0.0/12", "10.16.0.0", 20),
    ],
)
def test_a_tunnels_source(network: str, lowest: str, bits: int) -> None:
    """The prefix's lowest address, and how many bits are behind it."""
    service = read("ipip", "198.18.1.2", f'tunnel_source = "{network}"')
    assert (service.tunnel_source, service.tunnel_bits) == (parse_addr(lowest), bits)


def test_a_flows_hash_fills_32_bits_of_a_source() -> None:
    """A longer IPv6 prefix varies in its last bits."""
    service = read("ipip", "2001:db8::2", 'tunnel_source = "2001:db8:c8::/64"')
    assert (service.tunnel_source, service.tunnel_bits) == (parse_addr("2001:db8:c8::"), 32)


@pytest.mark.parametrize(
    ("network", "whose"),
    [
        ("198.18.1.0/24", "198.18.1.2, the address of backend '198.18.1.2:80'"),
        ("198.18.100.1/32", "198.18.100.1, the address of service '198.18.100.1:80/tcp'"),
    ],
)
def test_a_tunnels_source_is_nobody_elses(network: str, whose: str) -> None:
    """A backend drops what comes from its own address, and answers a service's in vain."""
    found = problem("ipip", "198.18.1.2", f'tunnel_source = "{network}"')
    assert f"4: service.tunnel_source: found a prefix with {whose}, expected addresses" in found
    assert problem("ipip", "2001:db8::2", 'tunnel_source = "2001:db8::/64"')


def test_by_default_the_source_is_ours() -> None:
    """Nothing is written for it."""
    assert (read("ipip", "198.18.1.2").tunnel_source, read("dsr", "198.18.1.2").tunnel_bits) == (
        0,
        0,
    )


WRONG = [
    (("dsr", "198.18.1.2:8080"), "6: service.backend.address: found 198.18.1.2:8080, expected "
     "'198.18.1.2', or port 80 as the service has: forwarding 'dsr' leaves the port as it is"),
    (("ipip", "[2001:db8::2]:81"), "6: service.backend.address: found [2001:db8::2]:81, expected "
     "'2001:db8::2', or port 80 as the service has: forwarding 'ipip' leaves the port as it is"),
    (("dsr", "2001:db8::2"), "6: service.backend.address: found [2001:db8::2]:80, no IPv4 address, "
     "expected an IPv4 address as the service's (198.18.100.1:80): forwarding 'dsr' sends to its "
     "neighbour on the link"),
    (("dsr", "198.18.1.2", 'tunnel_source = "198.18.200.0/24"'), "4: service.tunnel_source: found "
     "'198.18.200.0/24', expected none: forwarding 'dsr' has no outer header"),
    (("ipip", "198.18.1.2", 'tunnel_source = "198.18.200.1/24"'), "4: service.tunnel_source: found "
     "'198.18.200.1/24', expected a prefix, as \"198.18.200.0/24\" or \"2001:db8:c8::/64\": "
     "'198.18.200.1/24' has bits set behind its length, expected 198.18.200.0/24"),
    (("ipip", "198.18.1.2", 'tunnel_source = ""'), "4: service.tunnel_source: found '', expected a "
     "prefix, as \"198.18.200.0/24\" or \"2001:db8:c8::/64\": '' is not an IP address, expected "
     "one as 198.18.1.2 or 2001:db8::2"),
    (("ipip", "198.18.1.2", 'tunnel_source = "0.0.0.0/0"'), "4: service.tunnel_source: found "
     "'0.0.0.0/0', every address, expected addresses that are this router's alone"),
    (("ipip", "198.18.1.2", 'tunnel_source = "127.0.0.0/8"'), "4: service.tunnel_source: found "
     "'127.0.0.0/8', a loopback address, expected addresses that are this router's alone"),
    (("ipip", "198.18.1.2", 'tunnel_source = "2001:db8:c8::/64"'), "4: service.tunnel_source: "
     "found '2001:db8:c8::/64', expected an IPv4 prefix, as the address of backend "
     "'198.18.1.2:80' is (198.18.1.2): the outer header is of the backend's family"),
    (("dsr", "198.18.100.1"), "6: service.backend.address: found 198.18.100.1:80, the address of "
     "service '198.18.100.1:80/tcp', expected the address of a real server (packets would go "
     "round in a loop)"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "expected"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_what_cannot_be(file: tuple[str, ...], expected: str) -> None:
    """The message names the key, what is there, and what would do."""
    assert problem(*file) == f"router.toml:{expected}"


def test_ipv6_is_spoken_to_a_service_or_in_a_tunnel() -> None:
    """Or to a backend that only flows have."""
    four, six = read("ipip", "198.18.1.2"), read("ipip", "2001:db8::2")
    assert not speaks_ipv6([four], ())
    assert speaks_ipv6([four, six], ())
    assert speaks_ipv6([four], six.backends)
    assert speaks_ipv6([read("dsr", "2001:db8::2", service="[2001:db8::1]:80")], ())


@pytest.mark.parametrize("method", ["nat", "dsr", "ipip"])
def test_a_bad_service_is_one_problem(method: str) -> None:
    """What its backends would need is not known, and not told."""
    assert "2: service.address: " in problem(method, "198.18.1.2", service="junk")
