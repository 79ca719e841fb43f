# SPDX-License-Identifier: Apache-2.0
"""The configuration as values: parsed from TOML or made from command line flags.

All problems of a file are reported at once, each with its line. Nothing is read from disk.
"""

from __future__ import annotations

import bisect
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .address import PROTOCOLS, format_endpoint, protocol_name
from .config_fields import MS, Problems, S, Table
from .model import NO_BACKEND, Backend, Endpoint, Forwarding, KernelHandoff, Mode, Orphans, Service
from .toml_lines import Path, key_lines

_MODES = {"race": Mode.RACE}
_LATER_MODES = ("snapshot", "inline")
_FORWARDINGS = {"nat": Forwarding.NAT}
_LATER_FORWARDINGS = ("fullnat", "dsr", "ipip", "srv6")
_ORPHANS = {"reset": Orphans.RESET, "hash": Orphans.HASH}
_HANDOFFS = {"check": KernelHandoff.CHECK, "set": KernelHandoff.SET, "off": KernelHandoff.OFF}
_SYNTAX_LINE = re.compile(r" ?\(at line (\d+), column \d+\)$")


MAX_FLOWS = (1_000, 16_000_000)
"""The least and the most that ``max_flows`` may be."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits and times of the whole router: the ``[router]`` table. Rates are per second."""

    max_flows: int = 500_000
    pending_flows: int = 262_144  # entries, up to three a flow
    event_rate: int = 50_000  # first-packet events of all services together
    service_event_rate: int = 50_000  # of one service that names no rate of its own
    event_burst: int = 2_000
    icmp_rate: int = 1_000  # ICMP errors that the router sends; 0: none
    event_rate_per_prefix: int = 5_000  # of one source /24; 0: no limit
    probe_rate: int = 1_000  # probes to one backend
    probe_burst: int = 100
    probe_port_min: int = 61_000  # inclusive, as is the other end
    probe_port_max: int = 61_999
    heartbeat_interval_ns: int = 10 * MS
    heartbeat_stale_ns: int = 100 * MS
    pending_idle_ns: int = 10 * S
    flow_idle_ns: int = 3600 * S
    closed_linger_ns: int = 10 * S
    coalesce_window_ns: int = 2 * MS  # 0: each first packet has its own race
    decisions_kept: int = 10_000
    max_open_decisions: int = 20_000
    kernel_handoff: KernelHandoff = KernelHandoff.CHECK

    @property
    def flow_table_entries(self) -> int:
        """Size of ``flow_table``: a flow has an entry for each direction."""
        return 2 * self.max_flows


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Everything that an operator decides.

    ``services[i].id`` is ``i``; backends are numbered through in file order, so that those of
    one service are a contiguous range.
    """

    services: tuple[Service, ...]
    settings: Settings = Settings()


def parse_config(text: str, path: str) -> RouterConfig:
    """Configuration in ``text``; ``path`` is only for messages.

    Raises ConfigError, with every problem that was found.
    """
    text = text.removeprefix("\ufeff")  # a byte order mark
    problems = Problems(path, text)
    try:
        return _read(tomllib.loads(text), problems)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        at = _SYNTAX_LINE.search(message)
        line = int(at[1]) if at else text.count("\n") + 1
        problems.add_at(line, "", f"not valid TOML: {_SYNTAX_LINE.sub('', message)}", "TOML")
        raise problems.error() from error
    except (RecursionError, ValueError) as error:  # what tomllib says of TOML that is too much
        deep = isinstance(error, RecursionError)
        detail = "arrays or tables nested too deeply" if deep else "a number has too many digits"
        problems.add_at(_line_of_fault(text), "", f"not usable: {detail}", "less of it")
        raise problems.error() from error


def _loads(text: str) -> None:
    tomllib.loads(text)
    key_lines(text)  # it recurses as well, when a problem's line is looked for


def _line_of_fault(text: str) -> int:
    """The line by which ``text`` has become too much; what comes before it is only cut off."""
    lines = text.split("\n")

    def too_much(count: int) -> bool:
        try:
            _loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            return False
        except (RecursionError, ValueError):
            return True
        return False

    return bisect.bisect_left(range(len(lines)), True, key=too_much)


def config_from_flags(
    services: Sequence[tuple[str, Sequence[str]]],
    mode: str = "race",
    settings: Settings | None = None,
) -> RouterConfig:
    """Configuration of ``--service ADDR:PORT/tcp --backend ADDR:PORT ...`` groups.

    Services are named by address and protocol, backends by address (from the second service
    that has it on: with the service's name behind it). Raises ConfigError.
    """
    document: dict[str, Any] = {"service": []}
    used: set[str] = set()
    for text, backends in services:
        address, slash, protocol = text.partition("/")
        entry: dict[str, Any] = {"address": address, "mode": mode}
        if slash:
            entry["protocol"] = protocol
        if backends:
            # A backend of two services needs two names, because commands use them.
            entry["backend"] = [
                {"address": backend, "name": f"{backend}@{text}"}
                if backend in used
                else {"address": backend}
                for backend in backends
            ]
            used.update(backends)
        document["service"].append(entry)
    config = _read(document, Problems("command line", None))
    return RouterConfig(config.services, settings or config.settings)


def _read(document: dict[str, Any], problems: Problems) -> RouterConfig:
    root = Table(document, (), problems)
    settings = _read_settings(root.table("router"))
    services: list[Service] = []
    next_backend = 0
    for number, table in enumerate(root.tables("service", at_least_one=True)):
        service = _read_service(table, number, next_backend, settings)
        next_backend += len(service.backends)
        services.append(service)
    root.refuse_unknown()
    _check_services(services, problems)
    if problems:
        raise problems.error()
    return RouterConfig(tuple(services), settings)


def _read_settings(table: Table) -> Settings:
    default = Settings()
    low, high = table.port_range("probe_ports", (default.probe_port_min, default.probe_port_max))
    rate = 10_000_000
    settings = Settings(
        max_flows=table.integer("max_flows", default.max_flows, *MAX_FLOWS),
        pending_flows=table.integer("pending_flows", default.pending_flows, 4_096, 16_000_000),
        event_rate=table.integer("event_rate", default.event_rate, 1, rate),
        service_event_rate=table.integer("service_event_rate", default.service_event_rate, 1, rate),
        event_burst=table.integer("event_burst", default.event_burst, 1, 1_000_000),
        icmp_rate=table.integer("icmp_rate", default.icmp_rate, 0, 1_000_000),
        event_rate_per_prefix=table.integer(
            "event_rate_per_prefix", default.event_rate_per_prefix, 0, rate
        ),
        probe_rate=table.integer("probe_rate", default.probe_rate, 1, 1_000_000),
        probe_burst=table.integer("probe_burst", default.probe_burst, 1, 100_000),
        probe_port_min=low,
        probe_port_max=high,
        heartbeat_interval_ns=table.duration(
            "heartbeat_interval", default.heartbeat_interval_ns, MS, S
        ),
        heartbeat_stale_ns=table.duration(
            "heartbeat_stale", default.heartbeat_stale_ns, 10 * MS, 60 * S
        ),
        pending_idle_ns=table.duration("pending_idle", default.pending_idle_ns, S, 600 * S),
        flow_idle_ns=table.duration("flow_idle", default.flow_idle_ns, S, 7 * 86400 * S),
        closed_linger_ns=table.duration("closed_linger", default.closed_linger_ns, S, 600 * S),
        coalesce_window_ns=table.duration("coalesce_window", default.coalesce_window_ns, 0, S),
        decisions_kept=table.integer("decisions_kept", default.decisions_kept, 0, 1_000_000),
        max_open_decisions=table.integer(
            "max_open_decisions", default.max_open_decisions, 1, 1_000_000
        ),
        kernel_handoff=table.choice("kernel_handoff", "check", _HANDOFFS),
    )
    if settings.heartbeat_stale_ns < 3 * settings.heartbeat_interval_ns:
        # One beat that comes late must not send every new flow down the degrade chain.
        table.found(
            "heartbeat_stale",
            f"{settings.heartbeat_stale_ns // MS}ms",
            f"at least 3 times heartbeat_interval ({settings.heartbeat_interval_ns // MS}ms)",
        )
    table.refuse_unknown()
    return settings


def _read_service(table: Table, number: int, first_backend: int, settings: Settings) -> Service:
    protocol = table.choice("protocol", "tcp", {"tcp": PROTOCOLS["tcp"]}, ("udp",))
    endpoint = table.endpoint("address", protocol)
    mode = table.choice("mode", "race", _MODES, _LATER_MODES)
    forwarding = table.choice("forwarding", "nat", _FORWARDINGS, _LATER_FORWARDINGS)
    orphans = table.choice("orphans", "reset", _ORPHANS)
    deadline_ns = table.duration("deadline", 50 * MS, MS, 10 * S)
    event_rate = table.integer("event_rate", settings.service_event_rate, 1, 10_000_000)
    name = table.name("name", f"{format_endpoint(endpoint)}/{protocol_name(protocol)}")
    backends = tuple(
        _read_backend(entry, first_backend + index, number, protocol)
        for index, entry in enumerate(table.tables("backend", at_least_one=True))
    )
    fallback = NO_BACKEND
    wanted = table.name("fallback", "")
    if wanted:
        # Without those whose address was bad, and reported: their names are not the operator's.
        by_name = {each.name: each.id for each in backends if each.endpoint.port}
        fallback = by_name.get(wanted, NO_BACKEND)
        if fallback == NO_BACKEND:
            known = ", ".join(map(repr, by_name)) or "none"
            table.found("fallback", repr(wanted), f"a backend of this service ({known})")
    table.refuse_unknown()
    return Service(
        id=number,
        name=name,
        endpoint=endpoint,
        backends=backends,
        mode=mode,
        forwarding=forwarding,
        fallback=fallback,
        deadline_ns=deadline_ns,
        orphans=orphans,
        event_rate=event_rate,
    )


def _read_backend(table: Table, number: int, service: int, protocol: int) -> Backend:
    endpoint = table.endpoint("address", protocol)
    name = table.name("name", format_endpoint(endpoint))
    weight = table.integer("weight", 1, 1, 1_000)
    table.refuse_unknown()
    return Backend(number, name, endpoint, service, weight)


def _check_services(services: Sequence[Service], problems: Problems) -> None:
    names: set[str] = set()
    addresses: dict[Endpoint, str] = {}
    for service in services:
        if service.name in names:
            problems.found(
                ("service", service.id, "name"),
                repr(service.name),
                "a name that no other service has",
            )
        if service.endpoint in addresses:
            problems.found(
                ("service", service.id, "address"),
                f"{format_endpoint(service.endpoint)}, the address of service "
                f"{addresses[service.endpoint]!r} as well",
                "an address that no other service has",
            )
        if service.endpoint.port:  # else it was bad, and reported
            names.add(service.name)
            addresses.setdefault(service.endpoint, service.name)
    _check_backends(services, addresses, problems)


def _check_backends(
    services: Sequence[Service], service_at: dict[Endpoint, str], problems: Problems
) -> None:
    owners: dict[str, str] = {}
    for service in services:
        seen: dict[Endpoint, str] = {}
        for index, backend in enumerate(service.backends):
            where: Path = ("service", service.id, "backend", index)
            address = format_endpoint(backend.endpoint)
            if not backend.endpoint.port:
                continue  # it was bad, and reported
            if backend.endpoint in seen:
                problems.found(
                    (*where, "address"),
                    f"{address}, the address of backend {seen[backend.endpoint]!r} as well",
                    "each backend of a service once (weight gives it a larger share)",
                )
            elif backend.name in owners:
                problems.found(
                    (*where, "name"),
                    f"{backend.name!r}, a backend of service {owners[backend.name]!r} as well",
                    "a name that no other backend of the router has, because commands use it",
                )
            if backend.endpoint in service_at:
                problems.found(
                    (*where, "address"),
                    f"{address}, the address of service {service_at[backend.endpoint]!r}",
                    "the address of a real server (packets would go round in a loop)",
                )
            seen.setdefault(backend.endpoint, backend.name)
            owners.setdefault(backend.name, service.name)
