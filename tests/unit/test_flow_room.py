# SPDX-License-Identifier: Apache-2.0
"""Limits of connections are compared with the room that all services share."""

from __future__ import annotations

import re

import pytest

from xdp_router.core.config import parse_config
from xdp_router.core.flow_room import Limit, limits_of, rooms_of, shortfalls
from xdp_router.core.model import Forwarding


def _told(*limits: Limit, room: int = 1000) -> list[str]:
    return [each.text for each in shortfalls(limits, rooms_of(room))]


def test_limits_that_have_room() -> None:
    """All of it may be given away; families have tables of their own."""
    assert not _told(Limit("a", 4, 600), Limit("b", 4, 400), Limit("c", 6, 1000))
    assert not _told()


@pytest.mark.parametrize("family", [4, 6])
def test_limits_that_add_up_to_more_than_there_is(family: int) -> None:
    """Both are named with what they want, and the mend has the number that is enough."""
    found = list(shortfalls([Limit("a", family, 600), Limit("b", family, 401)], rooms_of(1000)))
    (each,) = found
    assert f"a (600), b (401) add up to more connections of IPv{family}" in each.text
    needed = re.search(r"max_flows = (\d+)", each.mend)
    assert needed is not None
    assert not _told(Limit("a", family, 600), Limit("b", family, 401), room=int(needed[1]))


def test_each_family_has_its_own_room() -> None:
    """A table that was taken over keeps its size; that of a family that came later has its own."""
    limits = [Limit("a", 4, 600), Limit("b", 6, 600)]
    (found,) = shortfalls(limits, {4: 500, 6: 1000})
    assert "IPv4 than max_flows (500)" in found.text
    (found,) = shortfalls(limits, {4: 1000, 6: 500})
    assert "IPv6 than max_flows (500)" in found.text


def test_a_connection_without_replies_takes_half_the_room() -> None:
    """dsr and ipip have one entry a connection."""
    assert not _told(Limit("a", 4, 2000, entries=1))
    assert _told(Limit("a", 4, 2000, entries=1), Limit("b", 4, 1))


def test_many_services_are_counted_not_listed() -> None:
    """The largest by name."""
    (text,) = _told(*(Limit(f"s{n}", 4, 100 + n) for n in range(12)))
    assert "s11 (111), s10 (110), s9 (109) and 9 others" in text


def test_ports_of_fullnat_are_a_limit_too() -> None:
    """Of each backend as many as there are ports."""
    assert not _told(Limit("a", 4, 900, ports=900))
    (text,) = _told(Limit("a", 4, 901, ports=900))
    assert "a (901) cannot be reached" in text
    assert "enough for 900" in text


def test_limits_of_a_configuration() -> None:
    """Family, method and ports of each service that has a limit."""
    text = "".join(
        f'[[service]]\nname = "{method}"\naddress = "{address}:80"\nforwarding = "{method}"\n'
        f"max_connections = 5\n"
        f'[[service.backend]]\naddress = "{backend}:80"\n'
        for method, address, backend in (
            ("nat", "[2001:db8:100::1]", "[2001:db8::2]"),
            ("fullnat", "198.18.100.2", "198.19.0.2"),
            ("dsr", "198.18.100.3", "198.19.0.3"),
        )
    )
    config = parse_config("[router]\nnat_ports = '20000-20009'\n" + text, "x")
    assert limits_of(config.services, config.nat_ports) == (
        Limit("nat", 6, 5),
        Limit("fullnat", 4, 5, ports=10),
        Limit("dsr", 4, 5, entries=1),
    )
    assert config.services[1].forwarding is Forwarding.FULLNAT
