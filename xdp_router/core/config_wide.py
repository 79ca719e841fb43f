# SPDX-License-Identifier: Apache-2.0
"""Which packets are a service's and who may have a flow: ports, sources, affinity, limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .abi_values import RANGES
from .address import (
    EXAMPLES,
    PORT_MAX,
    Prefix,
    family_name,
    format_addr,
    format_endpoint,
    format_ports,
    is_ipv6,
    parse_ports,
    parse_prefix,
    protocol_name,
)
from .config_fields import Problems, S, Table
from .model import ONE_SIDED, Backend, Endpoint, Probe, ProbeKind, Service, SourcePrefix

SERVICE_EXAMPLES = f"{EXAMPLES}, 198.18.1.2:8000-8100, or an address alone for all its ports"
SERVER_EXAMPLES = f"{EXAMPLES}, or an address alone: the ports that clients ask for"
CONNECTIONS_MAX = 16_000_000
"""As many as ``max_flows`` can be."""
RULES_MAX = 32_768
"""Of all services. There is room for twice as many, so that others can take their place."""
EXCEPTIONS_MAX = 64
"""Of one service, each of which has a place in the map of the services."""
AFFINITY_TIME_NS = 600 * S
_NO_PORT = "an address with a port: a service of one port has no other to give"
_EXCEPTION = 'a port or a range, as 22 or "32768-60999", within the service\'s'


@dataclass(frozen=True, slots=True)
class Admission:
    """What :func:`read_admission` has read; names as in Service."""

    except_ports: tuple[tuple[int, int], ...]
    affinity_ns: int
    max_connections: int
    sources: tuple[SourcePrefix, ...]
    allowed_only: bool


def read_admission(table: Table, endpoint: Endpoint) -> Admission:
    """The keys of a service that say which packets it takes, beside its address."""
    affinity = table.choice("affinity", "none", {"none": False, "source": True})
    affinity_ns = table.duration("affinity_time", AFFINITY_TIME_NS, S, 7 * 86400 * S)
    if table.has("affinity_time") and not table.has("affinity"):
        table.found("affinity_time", "it alone", 'affinity = "source" beside it')
    allow = _prefixes(table, "allow", endpoint, False)
    deny = _prefixes(table, "deny", endpoint, True)
    both = {(each.network, each.length) for each in allow}
    for index, each in enumerate(deny):
        if (each.network, each.length) in both:
            shown = Prefix(each.network, each.length, is_ipv6(endpoint.addr))
            table.found_at("deny", index, f"{shown}, which is allowed as well", "it in one list")
    return Admission(
        except_ports=read_exceptions(table, endpoint),
        affinity_ns=affinity_ns if affinity else 0,
        max_connections=max(table.integer("max_connections", -1, 1, CONNECTIONS_MAX), 0),
        sources=(*allow, *deny),
        allowed_only=table.has("allow"),
    )


def _prefixes(table: Table, key: str, service: Endpoint, denied: bool) -> list[SourcePrefix]:
    found: list[SourcePrefix] = []
    seen: set[Prefix] = set()
    family = family_name(service.addr)
    expected = f"{family} prefixes, as " + (
        '"2001:db8:1::/48"' if is_ipv6(service.addr) else '"198.18.0.0/16"'
    )
    for index, text in table.items(key, str, expected):
        try:
            prefix = parse_prefix(str(text))
        except ValueError as error:
            table.problem_at(key, index, str(error), expected)
            continue
        if service.addr and prefix.ipv6 != is_ipv6(service.addr):
            table.found_at(
                key, index, f"{text!r}, no {family} prefix", f"{expected}, as the service"
            )
        elif prefix in seen:
            table.found_at(key, index, f"{prefix} again", "each prefix once")
        else:
            seen.add(prefix)
            found.append(SourcePrefix(prefix.network, prefix.length, denied))
    return found


def read_exceptions(table: Table, service: Endpoint) -> tuple[tuple[int, int], ...]:
    """First and last of the ports that a service of many leaves to others: ``except_ports``."""
    found = []
    for index, value in table.items("except_ports", (int, str), _EXCEPTION):
        try:
            first, last = parse_ports(str(value))
        except ValueError as error:
            table.problem_at("except_ports", index, str(error), _EXCEPTION)
            continue
        if service.ranged and not service.port <= first <= last <= service.last:
            table.found_at("except_ports", index, f"{value!r}", _EXCEPTION)
        else:
            found.append((first, last))
    if len(found) > EXCEPTIONS_MAX:
        table.found(
            "except_ports",
            f"{len(found)} entries",
            f"at most {EXCEPTIONS_MAX} (ports side by side can be one range)",
        )
        return ()
    if found and service.addr and not service.ranged:
        table.found("except_ports", "it at a service of one port", "a service of many ports")
        return ()
    if _cover(found, service):
        table.found(
            "except_ports",
            f"all ports of {format_endpoint(service)}",
            "ports of which some are left to the service",
        )
        return ()
    return tuple(found)


def _cover(ranges: Sequence[tuple[int, int]], service: Endpoint) -> bool:
    """Whether ranges of ports leave a service of many ports none."""
    left = max(service.port, 1)  # nothing is sent to port 0
    for first, last in sorted(ranges):
        if first > left:
            break
        left = max(left, last + 1)
    return bool(service.ranged and ranges) and left > min(service.last, PORT_MAX)


def check_servers(tables: Sequence[Table], service: Endpoint, backends: Sequence[Backend]) -> None:
    """Note backends that lack a port which somebody needs; ``tables`` are theirs."""
    if not service.addr:
        return  # it was bad, and reported: what it needs is not known
    for index, backend in enumerate(backends):
        if backend.endpoint.port or not backend.endpoint.addr:
            continue
        shown = format_endpoint(backend.endpoint)
        if not service.ranged:
            tables[index].found("address", f"{shown}, without a port", _NO_PORT)
        elif not _is_probeable(backend.probe):
            tables[index].found(
                "probe",
                f"{backend.probe.kind.value!r} for {shown}, which has no port of its own",
                'probe = "tcp:PORT" or "icmp", here or at the service, or a port in the address',
            )


def _is_probeable(probe: Probe) -> bool:
    return bool(probe.port) or probe.kind is ProbeKind.ICMP


# What services say of one another


def left_out(service: Service) -> list[Endpoint]:
    """Endpoints, of one port or many, that a service leaves to others, and to the host."""
    at = service.endpoint
    return [
        Endpoint(at.addr, first, at.proto, last > first, last if last > first else 0)
        for first, last in service.except_ports
    ]


def entries_of(services: Sequence[Service]) -> int:
    """How many places services have in the map of them: theirs, what they leave out, and addresses
    with ICMP echo, or that are taken up for the gateway."""
    echo = {each.endpoint.addr for each in services if each.icmp_echo}
    taken_up = {each.endpoint.addr for each in services if each.listener}
    return len(services) + exceptions_of(services) + len(echo) + len(taken_up)


def exceptions_of(services: Sequence[Service]) -> int:
    """How many endpoints services leave out, all together."""
    return sum(len(left_out(service)) for service in services)


def ranges_of(services: Sequence[Service]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Ranges of ports by (address, protocol), those left out among them, narrow ones first."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for service in services:
        for each in (service.endpoint, *left_out(service)):
            if each.ranged:
                found.setdefault((each.addr, each.proto), []).append((each.port, each.last))
    for ranges in found.values():
        ranges.sort(key=lambda ports: (ports[1] - ports[0], ports))
    return found


def check_ranges(services: Sequence[Service], problems: Problems) -> None:
    """Note ports that two services both claim, or leave out, by the same first one."""
    claimed: dict[Endpoint, str] = {
        each.endpoint: f"service {each.name!r}" for each in services if each.endpoint.addr
    }
    for service in services:
        for index, each in enumerate(left_out(service)):
            other = claimed.setdefault(each, f"what service {service.name!r} leaves out")
            if other != f"what service {service.name!r} leaves out":
                problems.found(
                    ("service", service.id, "except_ports", index),
                    f"{format_ports((each.port, each.last or each.port))}, which begins as {other}",
                    "ports that begin elsewhere (narrow services go before wide ones anyway)",
                )
    for (addr, proto), ranges in ranges_of(services).items():
        if len(ranges) > RANGES:
            last = [
                service
                for service in services
                if (service.endpoint.addr, service.endpoint.proto) == (addr, proto)
            ][-1]
            problems.found(
                ("service", last.id, "address"),
                f"{len(ranges)} ranges of ports of {format_addr(addr)}/{protocol_name(proto)}, "
                "those in except_ports included",
                f"at most {RANGES}",
            )
    rules = sum(len(service.sources) for service in services)
    if rules > RULES_MAX:
        problems.found(
            ("service", services[-1].id, "allow"),
            f"{rules} prefixes in allow and deny of all services",
            f"at most {RULES_MAX}",
        )


def check_limits(
    services: Sequence[Service], max_flows: int, problems: Problems, *, by_option: bool = False
) -> None:
    """Note limits of connections that are never reached, each for itself.

    ``by_option``: ``max_flows`` is not the file's.
    """
    where = "--max-flows" if by_option else "max_flows of [router]"
    for service in services:
        if service.max_connections > max_flows:
            problems.found(
                ("service", service.id, "max_connections"),
                f"{service.max_connections}, above {where} ({max_flows}), which all services share",
                f"at most {max_flows}, or a larger max_flows",
            )


def holds(endpoint: Endpoint, port: int) -> bool:
    """Whether a service's endpoint has a port among its own."""
    if not endpoint.ranged:
        return port == endpoint.port
    return endpoint.port <= port <= min(endpoint.last, PORT_MAX)


class Claims:
    """Which service takes what is sent to an endpoint."""

    def __init__(self, names: Mapping[Endpoint, str]) -> None:
        self._names = names
        self._ranged: dict[tuple[int, int], list[Endpoint]] = {}
        self._any: dict[tuple[int, int], str] = {}
        for each, name in names.items():
            self._any.setdefault((each.addr, each.proto), name)
            if each.ranged:
                self._ranged.setdefault((each.addr, each.proto), []).append(each)

    def of(self, server: Endpoint) -> str | None:
        """The name of one that packets to ``server`` would come to; None: no service."""
        where = (server.addr, server.proto)
        if not server.port:
            return self._any.get(where)
        wide = (each for each in self._ranged.get(where, ()) if holds(each, server.port))
        found = server if server in self._names else next(wide, None)
        return None if found is None else self._names[found]


def shared_endpoints(
    services: Sequence[Service], retired: Sequence[Backend]
) -> frozenset[Endpoint]:
    """Backends' endpoints whose reply tuples can be those of two flows.

    Two services have it; or a service of many ports brings them to one; or another backend has
    the same address with its own ports.
    """
    shared: set[Endpoint] = set()
    owners: dict[Endpoint, int] = {}
    users = [
        (each.id, backend)
        for each in services
        if each.forwarding not in ONE_SIDED  # whose reply tuples are the service's own
        for backend in each.backends
    ]
    users += [
        (-1 - index, backend)
        for index, backend in enumerate(retired)
        if backend.forwarding not in ONE_SIDED
    ]
    for owner, backend in users:
        if owners.setdefault(backend.endpoint, owner) != owner:
            shared.add(backend.endpoint)
    for service in services:
        if service.endpoint.ranged and service.forwarding not in ONE_SIDED:
            shared.update(each.endpoint for each in service.backends if each.endpoint.port)
    open_ports = {(each.addr, each.proto) for each in owners if not each.port}
    beside = {each for each in owners if each.port and (each.addr, each.proto) in open_ports}
    shared |= beside
    shared.update(Endpoint(each.addr, 0, each.proto) for each in beside)
    return frozenset(shared)
