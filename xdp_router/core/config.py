# SPDX-License-Identifier: Apache-2.0
"""The configuration as values: parsed from TOML or made from command line flags.

All problems of a file are reported at once, each with its line. Nothing is read from disk.
"""

from __future__ import annotations

import bisect
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .address import (
    PROTOCOLS,
    format_endpoint,
    parse_server,
    parse_wide,
    protocol_name,
)
from .config_arm import read_control_arm
from .config_claims import check_claims
from .config_direct import (
    check_direct,
    check_tunnel_sources,
    read_tunnel_source,
    with_implied_port,
)
from .config_fields import MS, NAME_MAX, Problems, S, Table
from .config_gateway import read_gateway
from .config_handler import check_gateway_services, is_for_gateway, read_gateway_service
from .config_health import read_health
from .config_metrics import read_metrics
from .config_mode import read_mode
from .config_nat import check_nat
from .config_probe import read_probe, require_probes
from .config_scrape import check_scrapes, read_scrape_address
from .config_stateless import check_stateless
from .config_wide import (
    SERVER_EXAMPLES,
    SERVICE_EXAMPLES,
    check_limits,
    check_servers,
    read_admission,
)
from .listeners import NO_GATEWAY, GatewayConfig
from .model import (
    NO_BACKEND,
    Backend,
    Endpoint,
    Forwarding,
    KernelHandoff,
    Orphans,
    Probe,
    ProbeKind,
    Service,
)
from .toml_lines import key_lines

_FORWARDINGS = {
    "nat": Forwarding.NAT,
    "fullnat": Forwarding.FULLNAT,
    "dsr": Forwarding.DSR,
    "ipip": Forwarding.IPIP,
}
_LATER_FORWARDINGS = ("srv6",)
_ORPHANS = {"reset": Orphans.RESET, "hash": Orphans.HASH}
_HANDOFFS = {"check": KernelHandoff.CHECK, "set": KernelHandoff.SET, "off": KernelHandoff.OFF}
_SYNTAX_LINE = re.compile(r" ?\(at line (\d+), column \d+\)$")


MAX_FLOWS = (1_000, 16_000_000)
"""The least and the most that ``max_flows`` may be."""
HEARTBEAT_INTERVAL_MAX_NS = 250 * MS
"""A daemon that is silent for a second is taken for gone: not one whose beat comes late."""


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
    one_sided_rate_per_prefix: int = 1_000  # flows established by what the client says alone
    probe_rate: int = 1_000  # probes to one backend
    probe_burst: int = 100
    probe_port_min: int = 61_000  # inclusive, as is the other end
    probe_port_max: int = 61_999
    nat_port_min: int = 10_000  # source ports of fullnat, likewise
    nat_port_max: int = 29_999
    heartbeat_interval_ns: int = 10 * MS
    heartbeat_stale_ns: int = 100 * MS
    pending_idle_ns: int = 10 * S
    flow_idle_ns: int = 3600 * S
    udp_idle_ns: int = 60 * S
    closed_linger_ns: int = 10 * S
    coalesce_window_ns: int = 2 * MS  # 0: each first packet has its own race
    tie_window_ns: int = 30_000  # RTTs that differ by no more are a tie
    decisions_kept: int = 10_000
    max_open_decisions: int = 20_000
    kernel_handoff: KernelHandoff = KernelHandoff.CHECK
    metrics: tuple[str, int] | None = None  # where they are served; None: nowhere

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
    gateway: GatewayConfig = NO_GATEWAY

    @property
    def nat_ports(self) -> tuple[int, int] | None:
        """First and last source port of ``fullnat``; None: no service needs one."""
        if all(each.forwarding is not Forwarding.FULLNAT for each in self.services):
            return None
        return self.settings.nat_port_min, self.settings.nat_port_max

    @property
    def reserved_ports(self) -> tuple[tuple[int, int], ...]:
        """Ranges (first, last) of local ports that nobody else may use."""
        probes = self.settings.probe_port_min, self.settings.probe_port_max
        return (probes, self.nat_ports) if self.nat_ports else (probes,)


def parse_config(text: str, path: str, max_flows: int | None = None) -> RouterConfig:
    """Configuration in ``text``; ``path`` is only for messages.

    ``max_flows``: goes before that of the text, if it is not None.
    Raises ConfigError, with every problem that was found.
    """
    text = text.removeprefix("\ufeff")  # a byte order mark
    problems = Problems(path, text)
    try:
        return _read(tomllib.loads(text), problems, max_flows)
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


def read_document(
    document: dict[str, Any], path: str, max_flows: int | None = None
) -> RouterConfig:
    """The same as ``parse_config`` of a document that was parsed: problems have no lines."""
    return _read(document, Problems(path, "", lines=False), max_flows)


def config_from_flags(
    services: Sequence[tuple[str, Sequence[str]]],
    mode: str = "race",
    settings: Settings | None = None,
) -> RouterConfig:
    """Configuration of ``--service ADDR:PORT/tcp --backend ADDR:PORT ...`` groups.

    Services are named by address and protocol, backends by address (from the second service
    that has it on: with the service's name behind it, or its number). Raises ConfigError.
    """
    config = _read(document_of_flags(services, mode), Problems("command line", None))
    return RouterConfig(config.services, settings or config.settings)


def document_of_flags(
    services: Sequence[tuple[str, Sequence[str]]], mode: str = "race"
) -> dict[str, Any]:
    """What a file would have said."""
    document: dict[str, Any] = {"service": []}
    used: set[str] = set()
    for number, (text, backends) in enumerate(services, 1):
        address, slash, protocol = text.partition("/")
        entry: dict[str, Any] = {"address": address, "mode": mode}
        if slash:
            entry["protocol"] = protocol
        if protocol == "udp":  # it needs one, and no flag has it: every host answers this one
            entry["probe"] = ProbeKind.ICMP.value
        if backends:
            # A backend of two services needs two names, because commands use them.
            shown = [_canonical(backend) for backend in backends]
            service = f"{_canonical(address)}{slash}{protocol}"
            entry["backend"] = [
                {"address": backend, "name": _name_at(name, service, number)}
                if name in used
                else {"address": backend}
                for backend, name in zip(backends, shown, strict=True)
            ]
            used.update(shown)
        document["service"].append(entry)
    return document


def _canonical(text: str) -> str:
    """An endpoint in the one form that it is shown in; what is none as it is: told later."""
    try:
        return format_endpoint(parse_wide(text))
    except ValueError:
        return text


def _name_at(backend: str, service: str, number: int) -> str:
    """Two of the longest addresses do not fit: then the service is called by its place."""
    name = f"{backend}@{service}"
    return name if len(name) <= NAME_MAX else f"{backend}@{number}"


def _read(
    document: dict[str, Any], problems: Problems, max_flows: int | None = None
) -> RouterConfig:
    root = Table(document, (), problems)
    settings = _read_settings(root.table("router"))
    if max_flows is not None:
        settings = replace(settings, max_flows=max_flows)
    gateway = read_gateway(root, problems)
    services: list[Service] = []
    next_backend = 0
    for number, table in enumerate(root.tables("service", not gateway.listeners)):
        if is_for_gateway(table):
            services.append(read_gateway_service(table, number, gateway.listeners))
            continue
        service = _read_service(table, number, next_backend, settings)
        next_backend += len(service.backends)
        services.append(service)
    root.refuse_unknown()
    check_claims(services, problems)
    check_gateway_services(services, problems)
    check_stateless(services, problems)
    check_scrapes(services, problems)
    check_nat(
        services,
        (settings.nat_port_min, settings.nat_port_max),
        (settings.probe_port_min, settings.probe_port_max),
        problems,
    )
    check_direct(services, problems)
    check_tunnel_sources(services, problems)
    check_limits(services, settings.max_flows, problems, by_option=max_flows is not None)
    if problems:
        raise problems.error()
    return RouterConfig(tuple(services), settings, gateway)


def _read_settings(table: Table) -> Settings:
    default = Settings()
    low, high = table.port_range("probe_ports", (default.probe_port_min, default.probe_port_max))
    nat_low, nat_high = table.port_range("nat_ports", (default.nat_port_min, default.nat_port_max))
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
        one_sided_rate_per_prefix=table.integer(
            "one_sided_rate_per_prefix", default.one_sided_rate_per_prefix, 0, rate
        ),
        probe_rate=table.integer("probe_rate", default.probe_rate, 1, 1_000_000),
        probe_burst=table.integer("probe_burst", default.probe_burst, 1, 100_000),
        probe_port_min=low,
        probe_port_max=high,
        nat_port_min=nat_low,
        nat_port_max=nat_high,
        heartbeat_interval_ns=table.duration(
            "heartbeat_interval", default.heartbeat_interval_ns, MS, HEARTBEAT_INTERVAL_MAX_NS
        ),
        heartbeat_stale_ns=table.duration(
            "heartbeat_stale", default.heartbeat_stale_ns, 10 * MS, 60 * S
        ),
        pending_idle_ns=table.duration("pending_idle", default.pending_idle_ns, S, 600 * S),
        flow_idle_ns=table.duration("flow_idle", default.flow_idle_ns, S, 7 * 86400 * S),
        udp_idle_ns=table.duration("udp_idle", default.udp_idle_ns, S, 24 * 3600 * S),
        closed_linger_ns=table.duration("closed_linger", default.closed_linger_ns, S, 600 * S),
        coalesce_window_ns=table.duration("coalesce_window", default.coalesce_window_ns, 0, S),
        tie_window_ns=table.duration("tie_window", default.tie_window_ns, 0, S),
        decisions_kept=table.integer("decisions_kept", default.decisions_kept, 0, 1_000_000),
        max_open_decisions=table.integer(
            "max_open_decisions", default.max_open_decisions, 1, 1_000_000
        ),
        kernel_handoff=table.choice("kernel_handoff", "check", _HANDOFFS),
        metrics=read_metrics(table),
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
    protocol = table.choice("protocol", "tcp", PROTOCOLS)
    quic = table.boolean("quic", False)
    if quic and protocol != PROTOCOLS["udp"]:
        table.found("quic", "true", 'protocol = "udp" beside it, which QUIC runs over')
    endpoint = table.endpoint("address", protocol, parse_wide, SERVICE_EXAMPLES)
    how = read_mode(table)
    forwarding = table.choice("forwarding", "nat", _FORWARDINGS, _LATER_FORWARDINGS)
    orphans = table.choice("orphans", "reset", _ORPHANS)
    deadline_ns = table.duration("deadline", 50 * MS, MS, 10 * S)
    event_rate = table.integer("event_rate", settings.service_event_rate, 1, 10_000_000)
    icmp_echo = table.boolean("icmp_echo", False)
    stateless = table.boolean("stateless", False)
    name = table.name("name", f"{format_endpoint(endpoint)}/{protocol_name(protocol)}")
    probe = read_probe(table, protocol)
    entries = table.tables("backend", at_least_one=True)
    probes = [read_probe(entry, protocol, probe) for entry in entries]
    require_probes(table, probes)
    backends = tuple(
        _read_backend(
            entry, first_backend + index, number, endpoint, forwarding, probes[index] or Probe()
        )
        for index, entry in enumerate(entries)
    )
    check_servers(entries, endpoint, backends)
    admission = read_admission(table, endpoint)
    tunnel_source, tunnel_bits = read_tunnel_source(table, forwarding, backends)
    control_arm, control_arm_by = read_control_arm(table, forwarding)
    health = read_health(table)
    fallback = NO_BACKEND
    wanted = table.name("fallback", "")
    if wanted:
        # Without those whose address was bad, and reported: their names are not the operator's.
        by_name = {each.name: each.id for each in backends if each.endpoint.addr}
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
        mode=how.mode,
        forwarding=forwarding,
        fallback=fallback,
        deadline_ns=deadline_ns,
        orphans=orphans,
        event_rate=event_rate,
        quic=quic,
        except_ports=admission.except_ports,
        affinity_ns=admission.affinity_ns,
        max_connections=admission.max_connections,
        sources=admission.sources,
        allowed_only=admission.allowed_only,
        tunnel_source=tunnel_source,
        tunnel_bits=tunnel_bits,
        icmp_echo=icmp_echo,
        stateless=stateless,
        candidates=how.candidates,
        probe_interval_ns=how.probe_interval_ns,
        snapshot_age_ns=how.snapshot_age_ns,
        score=how.score,
        score_said=how.score_said,
        score_age_ns=how.score_age_ns,
        scrape=how.scrape,
        control_arm=control_arm,
        control_arm_by=control_arm_by,
        health=health,
    )


def _read_backend(
    table: Table,
    number: int,
    service: int,
    of_service: Endpoint,
    forwarding: Forwarding,
    probe: Probe,
) -> Backend:
    endpoint = table.endpoint("address", of_service.proto, parse_server, SERVER_EXAMPLES)
    endpoint = with_implied_port(endpoint, forwarding, of_service)
    name = table.name("name", format_endpoint(endpoint))
    weight = table.integer("weight", 1, 1, 1_000)
    vlan = table.vlan("vlan")
    scrape = read_scrape_address(table)
    table.refuse_unknown()
    return Backend(number, name, endpoint, service, weight, probe, forwarding, vlan, scrape)
