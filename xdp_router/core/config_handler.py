# SPDX-License-Identifier: Apache-2.0
"""Services that the gateway of the same host takes up: ``handler = "gateway"``.

Such a service has no backends: it leads to a listener of the file, which says what becomes of a
connection.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from .address import PROTOCOLS, family_name, format_endpoint, is_ipv6, parse_wide, protocol_name
from .config_fields import Problems, Table
from .config_wide import SERVICE_EXAMPLES, holds, read_exceptions
from .listeners import Listener
from .model import Endpoint, Service

GATEWAY_SERVICES_MAX = 1_024
"""As many as the map of listening sockets has room for."""
GATEWAY_ADDRESSES_MAX = 96
"""As many as one note has room for, in which the routes to them are."""
_HANDLERS = {"backends": False, "gateway": True}
GATEWAY_KEYS = ("address", "protocol", "name", "handler", "listener", "except_ports")
"""All that such a service can have."""


def is_for_gateway(table: Table) -> bool:
    """Whether a ``[[service]]`` is to be taken up by the gateway; notes a ``listener`` of one that
    is not."""
    wanted = table.choice("handler", "backends", _HANDLERS)
    if not wanted and table.text("listener", "the name of a [[listener]] of this file"):
        table.found("listener", "it alone", 'handler = "gateway" beside it')
    return wanted


def read_gateway_service(table: Table, number: int, listeners: Sequence[Listener]) -> Service:
    """One that the gateway takes up. Notes what only a service with backends can have."""
    protocol = table.choice("protocol", "tcp", PROTOCOLS)
    if protocol != PROTOCOLS["tcp"]:
        table.found("protocol", f"{protocol_name(protocol)!r}", "'tcp': no listener takes others")
    endpoint = table.endpoint("address", PROTOCOLS["tcp"], parse_wide, SERVICE_EXAMPLES)
    name = table.name("name", f"{format_endpoint(endpoint)}/tcp")
    for key in table.own_keys():
        if key not in GATEWAY_KEYS:
            table.found(
                key,
                'it beside handler = "gateway"',
                f"none: such a service has {', '.join(GATEWAY_KEYS)}; the listener says all else",
            )
    by_name = {each.name: each for each in listeners}
    known = ", ".join(map(repr, by_name)) or "none"
    expected = f"the name of a [[listener]] of this file ({known})"
    wanted = table.text("listener", expected)
    if wanted is None:
        if not table.has("listener"):
            table.found("listener", "nothing", expected)
    elif wanted not in by_name:
        table.wrong("listener", wanted, expected)
    else:
        _check_listener(table, endpoint, by_name[wanted])
    return Service(
        id=number,
        name=name,
        endpoint=endpoint,
        backends=(),
        except_ports=read_exceptions(table, endpoint),
        listener=wanted or "",
    )


def _check_listener(table: Table, service: Endpoint, listener: Listener) -> None:
    if not service.addr or not listener.address.port:
        return  # one of them was bad, and reported
    shown = f"{listener.name!r}, which listens on {listener.address}"
    if (ipaddress.ip_address(listener.address.host).version == 6) != is_ipv6(service.addr):
        family = family_name(service.addr)
        table.found("listener", shown, f"one that listens on an {family} address, as the service")
    for each in listener.backends:
        if each.address.port and _leads_to(service, each.address.host, each.address.port):
            table.found(
                "listener",
                f"{listener.name!r}, whose backend {each.name!r} is at the service's address",
                "a listener with other backends (connections would go round in a loop)",
            )


def _leads_to(service: Endpoint, host: str, port: int) -> bool:
    address = ipaddress.ip_address(host)
    same = int(address) == service.addr and (address.version == 6) == is_ipv6(service.addr)
    return same and holds(service, port)


def check_gateway_services(services: Sequence[Service], problems: Problems) -> None:
    """Note what they are too many of, all together."""
    taken_up = [each for each in services if each.listener]
    if len(taken_up) > GATEWAY_SERVICES_MAX:
        problems.found(
            ("service", taken_up[-1].id, "handler"),
            f'{len(taken_up)} services with handler = "gateway"',
            f"at most {GATEWAY_SERVICES_MAX} (a service can have many ports)",
        )
    addresses = {each.endpoint.addr for each in taken_up}
    if len(addresses) > GATEWAY_ADDRESSES_MAX:
        problems.found(
            ("service", taken_up[-1].id, "address"),
            f'{len(addresses)} addresses of services with handler = "gateway"',
            f"at most {GATEWAY_ADDRESSES_MAX}",
        )


def gateway_listeners(services: Sequence[Service]) -> Mapping[int, str]:
    """Which listener takes up a service, by the service's id."""
    return {each.id: each.listener for each in services if each.listener}
