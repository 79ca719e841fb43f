# SPDX-License-Identifier: Apache-2.0
"""What a configuration with ``fullnat`` may have, and what it is told it may not."""

from __future__ import annotations

import pytest

from xdp_router.core.config import parse_config
from xdp_router.core.errors import ConfigError
from xdp_router.core.model import Forwarding


def text(router: str = "", forwarding: str = "fullnat", port: int = 80, more: str = "") -> str:
    return f"""
[router]
{router}
[[service]]
name = "web"
address = "198.18.100.1:{port}"
forwarding = "{forwarding}"
{more}
[[service.backend]]
address = "198.18.1.2:8080"
"""


def problems(config: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(config, "x")
    return [f"{each.key}: {each.detail}" for each in caught.value.problems]


def test_ports_are_there_only_if_some_service_needs_them() -> None:
    """With nat alone nothing is reserved but probe ports."""
    config = parse_config(text(), "x")
    assert config.services[0].forwarding is Forwarding.FULLNAT
    assert config.nat_ports == (10_000, 29_999)
    assert config.reserved_ports == ((61_000, 61_999), (10_000, 29_999))
    config = parse_config(text(forwarding="nat", router='nat_ports = "61500-61600"'), "x")
    assert config.nat_ports is None
    assert config.reserved_ports == ((61_000, 61_999),)


def test_another_range() -> None:
    """``nat_ports`` sets it."""
    assert parse_config(text('nat_ports = "1024-60999"'), "x").nat_ports == (1024, 60_999)


@pytest.mark.parametrize("ports", ["60000-61000", "61999-62000", "61100-61200", "50000-65535"])
def test_probe_ports_are_others(ports: str) -> None:
    """A backend's answers to probes and to flows are told apart by their ports."""
    (found,) = problems(text(f'nat_ports = "{ports}"'))
    assert found.startswith(f"router.nat_ports: found {ports}, which overlaps probe_ports")


@pytest.mark.parametrize("port", [10_000, 29_999])
def test_services_have_other_ports(port: int) -> None:
    """A service on an address of ours would be taken for the port of a flow."""
    (found,) = problems(text(port=port))
    assert "service.address: found 198.18.100.1" in found
    assert "a port within nat_ports (10000-29999)" in found
    parse_config(text(port=port, forwarding="nat"), "x")


@pytest.mark.parametrize("forwarding", ["nat", "fullnat"])
@pytest.mark.parametrize("port", [61_000, 61_999])
def test_services_have_no_port_of_probes(forwarding: str, port: int) -> None:
    """An answer to a probe would be taken for a client's packet, whatever the forwarding."""
    (found,) = problems(text(port=port, forwarding=forwarding))
    assert "a port within probe_ports (61000-61999)" in found


@pytest.mark.parametrize("ports", ["10000-10100", "9000-9100", "61000-61100"])
def test_a_range_may_hold_them(ports: str) -> None:
    """XDP tells a backend's answer from a client's packet there."""
    config = text().replace(':80"', f':{ports}"')
    assert parse_config(config, "x").services[0].endpoint.ranged


def test_orphans_cannot_be_hashed() -> None:
    """Without the router's port the backend does not know the connection."""
    (found,) = problems(text(more='orphans = "hash"'))
    assert found.startswith("service.orphans: found 'hash' with forwarding 'fullnat', expected 're")


def test_the_family_stays() -> None:
    """Addresses are rewritten, headers of one family do not become the other's."""
    (found,) = problems(text().replace("198.18.1.2:8080", "[2001:db8::2]:8080"))
    assert found.endswith("forwarding 'fullnat' keeps the family")
