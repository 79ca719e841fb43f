# SPDX-License-Identifier: Apache-2.0
"""A lab's specification: addresses, configuration text, and what it refuses."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import tomllib
from typing import Any

import pytest

from xdp_router.lab import BackendSpec, LabError, LabSpec, Stall
from xdp_router.lab.spec import Family

SPEC = LabSpec(
    (
        BackendSpec("b1"),
        BackendSpec("b2", delay_ns=5, stall=Stall(seed=9), kind="http", port=81, weight=3),
    ),
    client_addresses=2,
)


def test_addresses_follow_from_the_place() -> None:
    """Backend i is 198.19.i.2 behind the router's 198.19.i.1; clients begin at 198.18.0.2."""
    addresses = SPEC.addresses
    assert addresses.service == ("198.18.100.1", 80)
    assert addresses.clients == ("198.18.0.2", "198.18.0.3")
    assert addresses.client == "198.18.0.2"
    assert addresses.client_router == "198.18.0.1"
    assert addresses.backends == (("198.19.1.2", 8080), ("198.19.2.2", 81))
    assert addresses.backend_routers == ("198.19.1.1", "198.19.2.1")


def test_config_is_a_router_toml() -> None:
    """The configuration names the service and every backend; the fallback can be chosen."""
    parsed = tomllib.loads(SPEC.config_toml(deadline="20ms", fallback="b2"))
    assert parsed == {
        "service": [
            {
                "name": "web",
                "address": "198.18.100.1:80",
                "protocol": "tcp",
                "mode": "race",
                "forwarding": "nat",
                "fallback": "b2",
                "deadline": "20ms",
                "backend": [
                    {"name": "b1", "address": "198.19.1.2:8080", "weight": 1},
                    {"name": "b2", "address": "198.19.2.2:81", "weight": 3},
                ],
            }
        ]
    }
    assert tomllib.loads(SPEC.config_toml())["service"][0]["fallback"] == "b1"


def test_addresses_of_ipv6_follow_the_same_pattern() -> None:
    """Subnet and host have the same numbers as with IPv4, in hexadecimal; ports are the same."""
    addresses = SPEC.addresses_of(6)
    assert addresses.service == ("2001:db8:100::1", 80)
    assert addresses.clients == ("2001:db8:18::2", "2001:db8:18::3")
    assert addresses.client_router == "2001:db8:18::1"
    assert addresses.backends == (("2001:db8:19:1::2", 8080), ("2001:db8:19:2::2", 81))
    assert addresses.backend_routers == ("2001:db8:19:1::1", "2001:db8:19:2::1")
    assert (addresses.prefix_length, SPEC.addresses_of(4).prefix_length) == (64, 24)


@pytest.mark.parametrize("family", [4, 6])
def test_segment_is_one_subnet(family: Family) -> None:
    """On a segment the client, the router and all backends are in one subnet, the service not."""
    spec = dataclasses.replace(SPEC, topology="segment", client_addresses=250)
    addresses = spec.addresses_of(family)
    assert set(addresses.backend_routers) == {addresses.client_router}
    hosts = [*addresses.clients, addresses.client_router, *(host for host, _ in addresses.backends)]
    assert len(set(hosts)) == 250 + 1 + 2
    length = addresses.prefix_length
    subnets = {ipaddress.ip_interface(f"{host}/{length}").network for host in hosts}
    (subnet,) = subnets
    assert ipaddress.ip_address(addresses.service[0]) not in subnet


def test_config_of_the_other_family_and_protocol() -> None:
    """IPv6 addresses stand in brackets; forwarding is the lab's method unless named."""
    spec = LabSpec((BackendSpec("b1", port=80),), method="dsr")
    (service,) = tomllib.loads(spec.config_toml(family=6, protocol="udp"))["service"]
    assert service["address"] == "[2001:db8:100::1]:80"
    assert (service["protocol"], service["forwarding"]) == ("udp", "dsr")
    assert service["backend"][0]["address"] == "[2001:db8:19:1::2]:80"
    assert tomllib.loads(spec.config_toml(forwarding="nat"))["service"][0]["forwarding"] == "nat"


@pytest.mark.parametrize("spec", [SPEC, dataclasses.replace(SPEC, topology="segment")])
def test_json_round_trip(spec: LabSpec) -> None:
    """A spec survives being written to a state file."""
    assert LabSpec.from_json(json.loads(json.dumps(spec.as_json()))) == spec


def test_delay_line_only_where_needed() -> None:
    """A delay, a stall or the wish for one puts a delay line on the wire."""
    assert not BackendSpec("b").has_delay_line
    assert BackendSpec("b", delay_ns=1).has_delay_line
    assert BackendSpec("b", stall=Stall()).has_delay_line
    assert BackendSpec("b", delay_line=True).has_delay_line


@pytest.mark.parametrize(
    ("backends", "options", "message"),
    [
        ((), {}, "1 to 250 backends"),
        ((BackendSpec("b"), BackendSpec("b")), {}, "must differ"),
        ((BackendSpec('b"'),), {}, "lower-case"),
        ((BackendSpec("b", delay_ns=-1),), {}, "backend b: the delay"),
        ((BackendSpec("b", port=0),), {}, "backend b: port 0"),
        ((BackendSpec("b"),), {"client_addresses": 0}, "1 to 250 addresses"),
        ((BackendSpec("b"),), {"method": "dsr"}, "backend b: dsr keeps the port.*80, not 8080"),
        ((BackendSpec("b"),), {"method": "ipip"}, "backend b: ipip keeps the port"),
        ((BackendSpec("b", vlan=4095),), {}, "backend b: VLAN 4095"),
        ((BackendSpec("b"),), {"client_vlan": 0}, "the client: VLAN 0"),
        ((BackendSpec("b", kind="ftp"),), {}, "backend b: kind 'ftp'.*echo, http"),  # type: ignore[arg-type] # on purpose
        ((BackendSpec("b"),), {"method": "gre"}, "method 'gre'.*nat, fullnat, dsr, ipip"),
        ((BackendSpec("b"),), {"topology": "ring"}, "topology 'ring'.*routed, segment"),
    ],
)
def test_impossible_specs_are_refused(
    backends: tuple[BackendSpec, ...], options: dict[str, Any], message: str
) -> None:
    """What can't be built is refused before anything is made, with the name of the culprit."""
    with pytest.raises(LabError, match=message):
        LabSpec(backends, **options)
