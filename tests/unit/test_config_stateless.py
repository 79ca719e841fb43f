# SPDX-License-Identifier: Apache-2.0
"""Which services may be stateless, and what is in the way of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xdp_router.core.config import parse_config
from xdp_router.core.config_fields import Problems
from xdp_router.core.config_stateless import check_stateless
from xdp_router.core.errors import ConfigError
from xdp_router.core.model import Forwarding

WEB = """
[[service]]
name = "web"
address = "198.18.100.1:80"
stateless = true
[[service.backend]]
name = "b1"
address = "198.18.1.2:8080"
"""
SHOP = """
[[service]]
name = "shop"
address = "198.18.100.2:80"
[[service.backend]]
name = "b2"
address = "198.18.1.2:{port}"
"""


def test_a_service_with_backends_of_its_own() -> None:
    """Another service on the same server, by another port, is not in the way."""
    web, shop = parse_config(WEB + SHOP.format(port=8081), "router.toml").services
    assert (web.stateless, shop.stateless) == (True, False)


def test_a_shared_backend_is_in_the_way() -> None:
    """The message has line, backend and service, and the mend."""
    with pytest.raises(ConfigError) as caught:
        parse_config(WEB + SHOP.format(port=8080), "router.toml")
    text = str(caught.value)
    assert "router.toml:5: service" in text
    assert "198.18.1.2:8080 is a backend of service 'shop' as well" in text
    assert "an address and port for each service" in text


def test_other_forwardings_and_protocols_are_in_the_way() -> None:
    """Only nat's replies, and only TCP's, can do without an entry."""
    (web,) = parse_config(WEB, "router.toml").services
    other = replace(web, forwarding=Forwarding.FULLNAT, endpoint=replace(web.endpoint, proto=17))
    problems = Problems("router.toml", WEB)
    check_stateless([other], problems)
    text = str(problems.error())
    assert "forwarding 'fullnat'" in text
    assert "protocol 'udp'" in text
    problems = Problems("router.toml", WEB)
    check_stateless([replace(other, stateless=False)], problems)
    assert not problems


def test_a_tag_of_a_backend_is_in_the_way() -> None:
    """What tag the client has stands in an entry."""
    with pytest.raises(ConfigError, match="vlan of 198.18.1.2:8080"):
        parse_config(WEB + "vlan = 7\n", "router.toml")


def test_many_ports() -> None:
    """Backends that keep the port can do without an entry, one port for all of them cannot."""
    wide = WEB.replace(':80"', ':8000-8100"') + 'probe = "icmp"\n'
    (web,) = parse_config(wide.replace("1.2:8080", "1.2"), "router.toml").services
    assert web.stateless
    with pytest.raises(ConfigError, match="many ports that all go to 198.18.1.2:8080"):
        parse_config(wide, "router.toml")


def test_a_port_of_a_server_that_has_all_of_them() -> None:
    """Its replies could be those of the backend that keeps its port."""
    shop = SHOP.format(port=9000).replace('.2:80"', '.2:8000-8100"').replace(":9000", "")
    with pytest.raises(ConfigError, match="another backend has the address"):
        parse_config(WEB + shop + 'probe = "icmp"\n', "router.toml")


def test_it_is_true_or_false() -> None:
    """A word in its place is a mistake."""
    with pytest.raises(ConfigError, match="true or false"):
        parse_config(WEB.replace("= true", '= "yes"'), "router.toml")
