# SPDX-License-Identifier: Apache-2.0
"""A lab's specification: addresses, configuration text, and what it refuses."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from xdp_router.lab import BackendSpec, LabError, LabSpec, Stall

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


def test_json_round_trip() -> None:
    """A spec survives being written to a state file."""
    assert LabSpec.from_json(json.loads(json.dumps(SPEC.as_json()))) == SPEC


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
    ],
)
def test_impossible_specs_are_refused(
    backends: tuple[BackendSpec, ...], options: dict[str, Any], message: str
) -> None:
    """What can't be built is refused before anything is made, with the name of the culprit."""
    with pytest.raises(LabError, match=message):
        LabSpec(backends, **options)
