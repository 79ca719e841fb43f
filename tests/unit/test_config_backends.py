# SPDX-License-Identifier: Apache-2.0
"""Configuration: what is said of backends, and of how they are probed and reached."""

from __future__ import annotations

import pytest

from tests.unit.test_config import service
from xdp_router.core.config import parse_config
from xdp_router.core.errors import ConfigError
from xdp_router.core.model import Probe, ProbeKind


def test_backends_are_probed_as_they_or_their_service_say() -> None:
    """A service's kind is its backends', but for those that have their own."""
    text = service("probe = 'icmp'") + "[[service.backend]]\naddress = '198.18.1.3:80'\n"
    text += "probe = 'udp'\nprobe_payload = 'ping'\nprobe_answer = 'hex:00'\n"
    config = parse_config(text, "router.toml")
    assert [each.probe for each in config.services[0].backends] == [
        Probe(ProbeKind.ICMP),
        Probe(ProbeKind.UDP, payload=b"ping", answer=b"\0"),
    ]
    assert parse_config(service(), "router.toml").services[0].backends[0].probe == Probe()


@pytest.mark.parametrize(("line", "vlan"), [("", None), ("vlan = 7", 7), ("vlan = 'none'", 0)])
def test_a_backend_may_have_a_tag(line: str, vlan: int | None) -> None:
    """Nothing said is not the same as no tag."""
    (web,) = parse_config(service("", line), "router.toml").services
    assert web.backends[0].vlan == vlan


@pytest.mark.parametrize("value", ["0", "4095", "'seven'", "true"])
def test_what_is_no_tag(value: str) -> None:
    """An id that cannot be, and words other than "none"."""
    with pytest.raises(ConfigError, match=r"vlan: found .*expected a VLAN id from 1 to 4094"):
        parse_config(service("", f"vlan = {value}"), "router.toml")


def test_a_service_may_answer_pings() -> None:
    """Only if it says so, and by a boolean."""
    assert not parse_config(service(), "router.toml").services[0].icmp_echo
    assert parse_config(service("icmp_echo = true"), "router.toml").services[0].icmp_echo
    with pytest.raises(ConfigError, match="icmp_echo: found the string 'yes', expected true or"):
        parse_config(service("icmp_echo = 'yes'"), "router.toml")
