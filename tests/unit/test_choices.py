# SPDX-License-Identifier: Apache-2.0
"""Which labs can be asked for by options, and what is refused."""

from __future__ import annotations

import itertools

import pytest

from xdp_router.core.config import parse_config
from xdp_router.core.model import Forwarding, Mode, ProbeKind
from xdp_router.lab import LabError
from xdp_router.lab.choices import Choices, choose
from xdp_router.lab.spec import Family

TWO = (("b1", 1_000_000, 1), ("b2", 0, 3))


@pytest.mark.parametrize(
    ("family", "protocol", "forwarding"),
    list(itertools.product((4, 6), ("tcp", "udp"), ("nat", "fullnat", "dsr", "ipip"))),
)
def test_each_of_them_is_a_good_configuration(
    family: Family, protocol: str, forwarding: str
) -> None:
    """The router takes it, and it is what was asked for; the command talks to the service."""
    chosen = choose(Choices(TWO, None, family, protocol, forwarding))
    (service,) = parse_config(chosen.config, "x").services
    assert service.forwarding is Forwarding[forwarding.upper()]
    assert (service.endpoint.proto, service.endpoint.addr > 1 << 32) == (
        6 if protocol == "tcp" else 17,
        family == 6,
    )
    assert [each.weight for each in service.backends] == [1, 3]
    assert [each.delay_ns for each in chosen.spec.backends] == [1_000_000, 0]
    address = chosen.spec.addresses_of(family).service[0]
    assert address in chosen.talk
    assert (chosen.spec.topology == "segment") is (forwarding in ("dsr", "ipip"))


@pytest.mark.parametrize("mode", ["race", "snapshot", "inline"])
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_modes(mode: str, protocol: str) -> None:
    """Each of them can be tried."""
    (service,) = parse_config(
        choose(Choices(TWO, protocol=protocol, mode=mode)).config, "x"
    ).services
    assert service.mode is Mode[mode.upper()]


def test_probes_fit_the_protocol() -> None:
    """Unless one is asked for, it is the server itself that is asked: who stops it sees it lose."""

    def kind(choices: Choices) -> ProbeKind:
        (service,) = parse_config(choose(choices).config, "x").services
        return service.backends[0].probe.kind

    assert kind(Choices(TWO)) is ProbeKind.SYN
    assert kind(Choices(TWO, probe="icmp")) is ProbeKind.ICMP
    assert kind(Choices(TWO, probe="http")) is ProbeKind.HTTP
    assert kind(Choices(TWO, protocol="udp")) is ProbeKind.UDP
    assert kind(Choices(TWO, protocol="udp", probe="icmp")) is ProbeKind.ICMP
    assert kind(Choices(TWO, kind="stun", protocol="udp")) is ProbeKind.STUN
    assert kind(Choices(TWO, protocol="udp", probe="tcp:8080")) is ProbeKind.SYN


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        (Choices(TWO, kind="http", protocol="udp"), "does not speak udp: choose of hash, stun"),
        (Choices(TWO, kind="stun"), "does not speak tcp: choose of http, echo, hash"),
        (Choices(TWO, probe="udp"), "--probe udp and --kind http: only --kind hash answers it"),
        (Choices(TWO, protocol="udp", probe="stun"), "only --kind stun answers it"),
        (Choices(TWO, one_armed=True), "choose fullnat, dsr or ipip"),
        (Choices((("B!", 0, 1),)), "name 'B!'"),
    ],
)
def test_what_does_not_go_together(choices: Choices, told: str) -> None:
    """The option is named, and what would do."""
    with pytest.raises(LabError, match=".") as error:
        choose(choices)
    assert told in str(error.value)


def test_one_armed() -> None:
    """With fullnat everybody may be on one Ethernet."""
    assert choose(Choices(TWO, forwarding="fullnat", one_armed=True)).spec.topology == "segment"
    assert choose(Choices(TWO, forwarding="fullnat")).spec.topology == "routed"
