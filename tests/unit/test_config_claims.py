# SPDX-License-Identifier: Apache-2.0
"""Names and addresses that are somebody else's already."""

from __future__ import annotations

import pytest

from xdp_router.core.config import parse_config
from xdp_router.core.errors import ConfigError


def service(name: str, address: str, *backends: tuple[str, str]) -> str:
    lines = ["[[service]]", f'name = "{name}"', f'address = "{address}"']
    for called, at in backends:
        lines += ["[[service.backend]]", f'name = "{called}"', f'address = "{at}"']
    return "\n".join(lines) + "\n"


ONE = service("a", "198.18.100.1:80", ("b1", "198.18.1.2:80"))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (service("a", "198.18.100.2:80", ("b2", "198.18.1.3:80")),
         "8: service.name: found 'a', expected a name that no other service has"),
        (service("b", "198.18.100.1:80", ("b2", "198.18.1.3:80")),
         "9: service.address: found 198.18.100.1:80, the address of service 'a' as well"),
        (service("b", "198.18.100.2:80", ("b1", "198.18.1.3:80")),
         "11: service.backend.name: found 'b1', a backend of service 'a' as well"),
        (service("b", "198.18.100.2:80", ("b2", "198.18.1.3:80"), ("b3", "198.18.1.3:80")),
         "the address of backend 'b2' as well, expected each backend of a service once"),
        (service("b", "198.18.100.2:80", ("b2", "198.18.100.1:80")),
         "the address of service 'a', expected the address of a real server"),
        (service("b", "198.18.100.2:80", ("b2", "[2001:db8::2]:80")),
         "no IPv4 address, expected an IPv4 address as the service's (198.18.100.2:80): "
         "forwarding 'nat' keeps the family"),
    ],
)  # fmt: skip
def test_what_is_claimed_twice(other: str, expected: str) -> None:
    """Told at the one that comes second, with who was first."""
    with pytest.raises(ConfigError) as error:
        parse_config(ONE + other, "router.toml")
    told = "\n".join(map(str, error.value.problems))
    assert expected in told


def test_one_server_of_two_services() -> None:
    """By another name it is another backend."""
    both = ONE + service("b", "198.18.100.2:80", ("b2", "198.18.1.2:80"))
    assert len(parse_config(both, "router.toml").services) == 2
