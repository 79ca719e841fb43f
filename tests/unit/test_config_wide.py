# SPDX-License-Identifier: Apache-2.0
"""Services of many ports, affinity, limits and source rules, as an operator writes them."""

from __future__ import annotations

import pytest

from xdp_router.core.config import RouterConfig, parse_config
from xdp_router.core.config_wide import left_out, ranges_of, shared_endpoints
from xdp_router.core.errors import ConfigError
from xdp_router.core.model import Backend, Endpoint, SourcePrefix

ADDR, ADDR6 = 0xC6126401, 0x20010DB8 << 96 | 1
SERVER = 0xC6120102


def service(
    address: str, *keys: str, backend: str = "198.18.1.2:80", name: str = "web", more: str = ""
) -> str:
    """One service with one backend."""
    lines = ["[[service]]", f'name = "{name}"', f'address = "{address}"', *keys]
    lines += ["[[service.backend]]", f'name = "{name}1"', f'address = "{backend}"', more]
    return "\n".join(lines) + "\n"


def parse(*services: str) -> RouterConfig:
    """The configuration of these services."""
    return parse_config("".join(services), "router.toml")


@pytest.mark.parametrize(
    ("address", "backend", "expected"),
    [
        ("198.18.100.1:8000-8100", "198.18.1.2:80", Endpoint(ADDR, 8000, 6, True, 8100)),
        ("198.18.100.1:8000-8000", "198.18.1.2:80", Endpoint(ADDR, 8000, 6)),
        ("198.18.100.1", "198.18.1.2:80", Endpoint(ADDR, 0, 6, True, 65535)),
        ("[2001:db8::1]:1-65535", "[2001:db8::2]:80", Endpoint(ADDR6, 1, 6, True, 65535)),
        ("2001:db8::1", "[2001:db8::2]:80", Endpoint(ADDR6, 0, 6, True, 65535)),
        ("[2001:db8::1]", "[2001:db8::2]:80", Endpoint(ADDR6, 0, 6, True, 65535)),
    ],
)
def test_ports_of_a_service(address: str, backend: str, expected: Endpoint) -> None:
    """One port, a range of them, or all of an address."""
    (found,) = parse(service(address, backend=backend)).services
    assert found.endpoint == expected
    assert found.endpoint.last == expected.last


def test_what_is_read() -> None:
    """Every key comes out as it is meant."""
    (found,) = parse(
        service(
            "198.18.100.1",
            'except_ports = [22, "8000-8100"]',
            'affinity = "source"',
            'affinity_time = "30s"',
            "max_connections = 7",
            'allow = ["198.18.0.0/16", "198.18.9.9"]',
            'deny = ["198.18.3.0/24"]',
        )
    ).services
    assert found.except_ports == ((22, 22), (8000, 8100))
    assert found.affinity_ns == 30_000_000_000
    assert found.max_connections == 7
    assert found.allowed_only
    assert found.sources == (
        SourcePrefix(0xC6120000, 16, False),
        SourcePrefix(0xC6120909, 32, False),
        SourcePrefix(0xC6120300, 24, True),
    )
    assert left_out(found) == [Endpoint(ADDR, 22), Endpoint(ADDR, 8000, 6, True, 8100)]


def test_without_them() -> None:
    """Everybody may have as many flows as there are, each on its own."""
    (found,) = parse(service("198.18.100.1:80")).services
    assert (found.affinity_ns, found.max_connections, found.sources) == (0, 0, ())
    assert not found.allowed_only
    (found,) = parse(service("198.18.100.1:80", 'affinity = "source"')).services
    assert found.affinity_ns == 600_000_000_000


def test_a_backend_may_take_the_ports_that_are_asked_for() -> None:
    """Then it says by which port, or how else, it is probed."""
    text = service("198.18.100.1:8000-8001", backend="198.18.1.2", more='probe = "tcp:22"')
    (found,) = parse(text).services
    assert found.backends[0].endpoint == Endpoint(SERVER, 0)


def test_ranges_are_narrow_first() -> None:
    """Whatever their order in the file; those that are left out among them."""
    config = parse(
        service("198.18.100.1", 'except_ports = ["1-1023"]', name="all"),
        service("198.18.100.1:8000-8100", name="narrow"),
    )
    assert ranges_of(config.services) == {(ADDR, 6): [(8000, 8100), (1, 1023), (0, 65535)]}


def test_whose_reply_tuples_may_be_two_flows() -> None:
    """A backend of two services, or that a range is brought to, or beside one of all ports."""
    config = parse(
        service("198.18.100.1:80", name="one"),
        service("198.18.100.2:8000-8100", name="range", backend="198.18.1.3:80"),
        service("198.18.100.3:81", name="alone", backend="198.18.1.4:81"),
        service("198.18.100.4:82-83", name="own", backend="198.18.1.2", more='probe = "icmp"'),
    )
    shared = shared_endpoints(config.services, ())
    assert shared == {
        Endpoint(SERVER, 80), Endpoint(SERVER, 0), Endpoint(SERVER + 1, 80)
    }  # fmt: skip
    left = Backend(9, "left", Endpoint(SERVER + 2, 81), 7)
    assert Endpoint(SERVER + 2, 81) in shared_endpoints(config.services, [left])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (service("2001:db8::1:443"), "[2001:db8::1]:443 is an address with a port"),
        (service("198.18.100.1:8100-8000"), "found ports '8100-8000'"),
        (service("198.18.100.1:80", backend="198.18.1.2"), "without a port"),
        (service("198.18.100.1:1-9", backend="198.18.1.2"), 'probe = "tcp:PORT" or "icmp"'),
        (service("198.18.100.1:80", "except_ports = [22]"), "at a service of one port"),
        (service("198.18.100.1:80-90", "except_ports = [91]"), "within the service's"),
        (
            service("198.18.100.1:80-90", 'except_ports = ["85-90", "80-84"]'),
            "found all ports of 198.18.100.1:80-90",
        ),
        (
            service("198.18.100.1", 'except_ports = ["1-65535"]'),
            "expected ports of which some are left to the service",
        ),
        (
            service("198.18.100.1:80", 'affinity_time = "30s"'),
            'found it alone, expected affinity = "source" beside it',
        ),
        (service("198.18.100.1", f"except_ports = {list(range(1, 66))}"), "expected at most 64"),
        (service("198.18.100.1", "except_ports = [true]"), "found the boolean true"),
        (service("198.18.100.1", "except_ports = []"), "found an empty array"),
        (service("198.18.100.1:80", 'allow = ["198.18.0.1/16"]'), "bits set behind its length"),
        (service("198.18.100.1:80", 'deny = ["2001:db8::/32"]'), "no IPv4 prefix"),
        (
            service("198.18.100.1:80", 'deny = ["198.18.0.0/16", "198.18.0.0/16"]'),
            "each prefix once",
        ),
        (
            service("198.18.100.1:80", 'allow = ["198.18.0.0/16"]', 'deny = ["198.18.0.0/16"]'),
            "198.18.0.0/16, which is allowed as well",
        ),
        (service("198.18.100.1:80", "allow = []"), "found an empty array"),
        (
            service("198.18.100.1:8000-8100") + service("198.18.100.1:8000-8200", name="other"),
            "the address of service 'web' as well",
        ),
        (
            service("198.18.100.1:22") + service("198.18.100.1", "except_ports = [22]", name="all"),
            "22, which begins as service 'web'",
        ),
        (
            "[router]\nmax_flows = 1000\n" + service("198.18.100.1:80", "max_connections = 1001"),
            "found 1001, above max_flows of [router] (1000)",
        ),
        (service("198.18.100.1:80", "max_connections = -1"), "found -1, expected a whole number"),
        (service("198.18.1.2:1-90"), "the address of service 'web'"),
        (service("198.18.1.2"), "the address of service 'web'"),
    ],
)
def test_what_is_wrong_is_told(text: str, expected: str) -> None:
    """The message names the thing, and what would do."""
    with pytest.raises(ConfigError, match=".") as error:
        parse(text)
    assert expected in str(error.value)


def test_a_port_that_is_left_is_enough() -> None:
    """The first, one in the middle, the last."""
    for ports in ('["81-90"]', '["81-84", "86-90"]', '["81-85", "84-89"]'):
        parse(service("198.18.100.1:80-90", f"except_ports = {ports}"))


def test_an_address_has_so_many_ranges() -> None:
    """Nine of them are one too many."""
    texts = [service(f"198.18.100.1:{n}00-{n}50", name=f"s{n}") for n in range(1, 10)]
    parse(*texts[:8])
    with pytest.raises(ConfigError, match=r"9 ranges of ports of 198.18.100.1/tcp"):
        parse(*texts)
