# SPDX-License-Identifier: Apache-2.0
"""A file and a running daemon describe the same target."""

from __future__ import annotations

import pytest

from tests.support.cli_samples import BACKENDS, SERVICES
from xdp_router.adapters.doctor_target import from_answers, from_config
from xdp_router.core.address import is_ipv6
from xdp_router.core.config import parse_config

TEXT = """
[[service]]
name = "web"
address = "198.18.100.1:80"
max_connections = 1000
[[service.backend]]
name = "b1"
address = "198.19.1.2:8080"
[[service.backend]]
name = "b2"
address = "198.19.2.2:8080"
"""

UDP = '[[service]]\nprotocol = "udp"\nprobe = "icmp"'


def test_file_and_daemon_agree() -> None:
    """Interfaces, names, addresses and ports are the same from both."""
    by_file = from_config(parse_config(TEXT, "x"), ["eth0"])
    assert by_file == from_answers(["eth0"], SERVICES, BACKENDS, (61_000, 61_999))


def test_endpoints_of_two_families() -> None:
    """A service of IPv4 whose tunnels go to IPv6: both are among what is looked at."""
    text = TEXT.replace(':80"', ':80"\nforwarding = "ipip"', 1)
    text = text.replace("198.19.1.2:8080", "[2001:db8::2]:80").replace(":8080", ":80")
    named = dict(from_config(parse_config(text, "x"), ["eth0"]).endpoints)
    assert [is_ipv6(named[name].addr) for name in ("web", "b1", "b2")] == [False, True, False]


def test_services_of_udp() -> None:
    """Their protocol is known from both, and so is their backends'."""
    by_file = from_config(parse_config(TEXT.replace("[[service]]", UDP, 1), "x"), ["eth0"])
    rows = [{**row, "protocol": "udp"} for row in SERVICES]
    assert by_file == from_answers(["eth0"], rows, BACKENDS, (61_000, 61_999))
    endpoints = [endpoint for _, endpoint in (*by_file.services, *by_file.backends)]
    assert {endpoint.proto for endpoint in endpoints} == {17}


def test_services_with_fullnat() -> None:
    """Their ports are known, and where their clients stand is nobody's concern."""
    text = TEXT.replace("[[service]]", '[[service]]\nforwarding = "fullnat"', 1)
    by_file = from_config(parse_config(text, "x"), ["eth0"])
    rows = [{**SERVICES[0], "forwarding": "fullnat"}]
    ports = (61_000, 61_999), (10_000, 29_999)
    assert by_file == from_answers(["eth0"], rows, BACKENDS, *ports)
    assert by_file.nat_ports == (10_000, 29_999)
    assert by_file.fullnat == {"web"}
    assert by_file.answered_through_us == ()
    assert by_file.known_by_us == by_file.backends


@pytest.mark.parametrize(
    ("method", "direct", "on_link"),
    [("nat", (), ()), ("dsr", ("web",), ("b1", "b2")), ("ipip", ("web",), ())],
)
def test_methods_ask_for_different_things(
    method: str, direct: tuple[str, ...], on_link: tuple[str, ...]
) -> None:
    """Whose replies need not come back, and who has to be a neighbour: from both alike."""
    text = TEXT.replace(':80"', f':80"\nforwarding = "{method}"', 1).replace(":8080", ":80")
    by_file = from_config(parse_config(text, "x"), ["eth0"])
    assert (by_file.direct, by_file.on_link) == (frozenset(direct), frozenset(on_link))
    assert {name for name, _ in by_file.answered_through_us} == {"web"} - set(direct)
    services = [row | {"forwarding": method} for row in SERVICES]
    backends = [row | {"address": row["address"].replace(":8080", ":80")} for row in BACKENDS]
    by_daemon = from_answers(["eth0"], services, backends, (61_000, 61_999))
    assert by_daemon == by_file


@pytest.mark.parametrize("handoff", ["check", "set", "off"])
def test_hand_off_is_what_the_daemon_was_told(handoff: str) -> None:
    """From both; one that does not say it is of a version that only checks."""
    text = f'[router]\nkernel_handoff = "{handoff}"\n{TEXT}'
    by_file = from_config(parse_config(text, "x"), ["eth0"])
    ports = (61_000, 61_999)
    status = {"kernel_handoff": handoff}
    assert from_answers(["eth0"], SERVICES, BACKENDS, ports, None, status) == by_file
    assert from_answers(["eth0"], SERVICES, BACKENDS, ports, None, {}).kernel_handoff == "check"


def test_what_the_gateway_takes_up() -> None:
    """Its replies come from here, and its address will be local: from both alike."""
    text = (
        TEXT
        + """
[[service]]
name = "up"
address = "198.18.100.1:443"
handler = "gateway"
listener = "gw"
[[listener]]
name = "gw"
type = "http"
address = "127.0.0.1:8443"
[[listener.backend]]
address = "198.18.1.2:8080"
"""
    )
    by_file = from_config(parse_config(text, "x"), ["eth0"])
    up = {
        **SERVICES[0], "name": "up", "address": "198.18.100.1:443", "backends": [],
        "forwarding": "none", "mode": "gateway", "max_connections": None,
        "gateway": {"listener": "gw", "sockets": True, "reason": "", "route": True},
    }  # fmt: skip
    assert by_file == from_answers(["eth0"], [*SERVICES, up], BACKENDS, (61_000, 61_999))
    assert by_file.taken_up == {"up"}
    assert [name for name, _ in by_file.with_backends] == ["web"]
    assert [name for name, _ in by_file.answered_through_us] == ["web"]
    assert by_file.made_local == {0xC6126401}
