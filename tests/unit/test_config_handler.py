# SPDX-License-Identifier: Apache-2.0
"""Services that the gateway takes up, as an operator writes them, and every wrong way."""

from __future__ import annotations

import pytest

from xdp_router.core.changes import diff
from xdp_router.core.config import RouterConfig, parse_config
from xdp_router.core.config_handler import (
    GATEWAY_ADDRESSES_MAX,
    GATEWAY_SERVICES_MAX,
    gateway_listeners,
)
from xdp_router.core.config_wide import entries_of
from xdp_router.core.errors import ConfigError
from xdp_router.core.identity import Known, renumber, vanished
from xdp_router.core.model import Endpoint

LISTENERS = """[[listener]]
name = "web"
type = "http"
address = "127.0.0.1:8443"
[[listener.backend]]
address = "198.18.1.2:80"
[[listener]]
name = "web6"
type = "tls"
address = "[::]:8443"
[[listener.backend]]
address = "[2001:db8::2]:80"
"""
ADDR = 0xC6126401


def service(*keys: str, address: str = "198.18.100.1:443", listener: str = "web") -> str:
    """One that a listener of the gateway takes up."""
    lines = ["[[service]]", f'address = "{address}"', 'handler = "gateway"']
    lines += [f'listener = "{listener}"'] if listener else []
    return "\n".join([*lines, *keys]) + "\n"


def parse(*services: str, listeners: str = LISTENERS) -> RouterConfig:
    return parse_config("".join(services) + listeners, "router.toml")


def wrong(*services: str, listeners: str = LISTENERS) -> str:
    with pytest.raises(ConfigError) as error:
        parse(*services, listeners=listeners)
    return "\n".join(map(str, error.value.problems))


def test_what_is_read() -> None:
    """Address, name, listener, ports that are left out; and no backends."""
    config = parse(
        service(),
        service('name = "six"', address="[2001:db8::1]:443", listener="web6"),
        service('except_ports = [22, "8000-8100"]', address="198.18.100.2"),
        service('protocol = "tcp"', address="198.18.100.3:8000-8100"),
    )
    one, six, wide, ranged = config.services
    assert (one.endpoint, one.name) == (Endpoint(ADDR, 443, 6), "198.18.100.1:443/tcp")
    assert (one.listener, one.backends, one.health) == ("web", (), None)
    assert (six.name, six.listener) == ("six", "web6")
    assert (wide.endpoint.ranged, wide.except_ports) == (True, ((22, 22), (8000, 8100)))
    assert (ranged.endpoint.port, ranged.endpoint.last) == (8000, 8100)
    assert gateway_listeners(config.services) == {0: "web", 1: "web6", 2: "web", 3: "web"}
    # Each of the four addresses has a place that says that it is taken up.
    assert entries_of(config.services) == 4 + 2 + 4


def test_beside_services_with_backends() -> None:
    """Ids and backends' ids go on; a port can be taken out of somebody's whole address."""
    lb = '[[service]]\naddress = "198.18.100.1"\nprobe = "icmp"\n[[service.backend]]\n'
    lb += 'address = "198.18.1.3"\n'
    config = parse(lb, service(), lb.replace("100.1", "100.2").replace("1.3", "1.4"))
    assert [each.id for each in config.services] == [0, 1, 2]
    assert [[each.id for each in one.backends] for one in config.services] == [[0], [], [1]]
    assert [each.listener for each in config.services] == ["", "web", ""]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (service(listener=""), "service.listener: found nothing, expected the name of a "
         "[[listener]] of this file ('web', 'web6')"),
        (service(listener="other"), "router.toml:4: "),
        (service(listener="other"), "found 'other', expected the name of a [[listener]]"),
        (service(listener="web6"), "found 'web6', which listens on [::]:8443, expected one that "
         "listens on an IPv4 address, as the service"),
        (service(address="[2001:db8::1]:443"), "found 'web', which listens on 127.0.0.1:8443, "
         "expected one that listens on an IPv6 address"),
        (service(address="198.18.1.2:80"), "found 'web', whose backend '198.18.1.2:80' is at the "
         "service's address, expected a listener with other backends"),
        (service(address="198.18.1.2"), "whose backend '198.18.1.2:80' is at the service's"),
        (service('protocol = "udp"'), "service.protocol: found 'udp', expected 'tcp'"),
        (service('protocol = "sctp"'), "service.protocol: found 'sctp'"),
        (service("except_ports = [22]"), "service.except_ports"),
        (service(address="198.18.100.1:99999"), "service.address"),
        (service().replace('"web"', "7"), "service.listener: found the number 7"),
        (service().replace('"gateway"', '"elsewhere"'), "service.handler: found 'elsewhere', "
         "expected 'backends' or 'gateway'"),
        (service() + "[[service.backend]]\naddress = '198.18.1.9:80'\n",
         'service.backend: found it beside handler = "gateway", expected none: such a service has '
         "address, protocol, name, handler, listener, except_ports; the listener says all else"),
        *((service(f"{key} = {value}"), f"service.{key}: found it beside handler")
          for key, value in (
              ("mode", '"race"'), ("forwarding", '"nat"'), ("fallback", '"b1"'),
              ("deadline", '"1s"'), ("icmp_echo", "true"), ("stateless", "true"),
              ("max_connections", "7"), ("allow", '["198.18.0.0/16"]'), ("affinity", '"source"'),
              ("health", "true"), ("probe", '"icmp"'), ("colour", "1"),
          )),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, expected: str) -> None:
    """By key, with what there should be."""
    assert expected in wrong(text)


def test_a_listener_alone_does_nothing() -> None:
    """A service with backends that names one is a mistake."""
    text = '[[service]]\naddress = "198.18.100.1:80"\nlistener = "web"\n[[service.backend]]\n'
    assert 'service.listener: found it alone, expected handler = "gateway" beside it' in wrong(
        text + 'address = "198.18.1.3:80"\n'
    )
    assert len(parse(text.replace("listener", "handler").replace("web", "backends")
                     + 'address = "198.18.1.3:80"\n').services) == 1  # fmt: skip


def test_no_listener_at_all() -> None:
    """The message says so."""
    assert "of this file (none)" in wrong(service(), listeners="")


def test_claims_are_those_of_any_service() -> None:
    """Two services of one address; a backend that is a service's address."""
    assert "the address of service '198.18.100.1:443/tcp' as well" in wrong(
        service(), service('name = "b"')
    )
    lb = '[[service]]\naddress = "198.18.100.7:80"\n[[service.backend]]\n'
    assert "packets would go round in a loop" in wrong(
        service(), lb + 'address = "198.18.100.1:443"\n'
    )


def test_too_many() -> None:
    """Of services there is room for as many sockets; of addresses, for as many in a note."""
    many = [service(address=f"198.18.100.1:{1 + n}") for n in range(GATEWAY_SERVICES_MAX + 1)]
    parse(*many[1:])
    assert f"found {GATEWAY_SERVICES_MAX + 1} services with handler" in wrong(*many)
    addresses = [service(address=f"198.18.100.{1 + n}:1") for n in range(GATEWAY_ADDRESSES_MAX + 1)]
    parse(*addresses[1:])
    assert f"found {GATEWAY_ADDRESSES_MAX + 1} addresses of services" in wrong(*addresses)


def test_changes_are_told_in_few_words() -> None:
    """What the listener says is none of the service's keys."""
    lb = '[[service]]\naddress = "198.18.100.1:443"\n[[service.backend]]\nname = "b"\n'
    routed, taken_up = parse(lb + 'address = "198.18.1.9:80"\n'), parse(service())
    said = [str(line) for line in diff(routed, taken_up).lines]
    assert said[0] == (
        "~ service 198.18.100.1:443/tcp: handler backends -> gateway, listener none -> web"
    )
    assert said[1:] == ["- backend b of 198.18.100.1:443/tcp: its connections go on until they end"]
    back = [str(line) for line in diff(taken_up, routed).lines]
    assert back[0].endswith(": handler gateway -> backends, listener web -> none")
    none = parse("", listeners=LISTENERS)
    (added,) = diff(none, taken_up).lines
    assert str(added) == (
        "+ service 198.18.100.1:443/tcp: address 198.18.100.1:443, protocol tcp, handler gateway, "
        "listener web"
    )


def test_numbers_are_kept() -> None:
    """A service keeps its id when it gets backends, or loses them."""
    lb = '[[service]]\naddress = "198.18.100.1:443"\n[[service.backend]]\nname = "b"\n'
    wanted = parse(lb + 'address = "198.18.1.9:80"\n')
    known = Known({Endpoint(ADDR, 443): 5}, {}, 64, 64)
    assert renumber(wanted, known, ()).services[0].id == 5
    known = Known({Endpoint(ADDR, 443): 5}, {3: (5, Endpoint(0xC6120109, 80))}, 64, 64)
    assert vanished(parse(service()), known) == {3}
    assert renumber(parse(service()), known, {3}).services[0].id == 5
