# SPDX-License-Identifier: Apache-2.0
"""The tables ``[gateway]`` and ``[[listener]]``: what the gateway listens on and where it goes."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence

from .config_arm import SHARE_MAX
from .config_fields import MS, NAME_MAX, Problems, S, Table, format_duration
from .config_metrics import read_metrics
from .config_mode import AGE_INTERVALS, AGE_MOST_NS, MODES, read_score_weights
from .errors import ConfigError, ConfigProblem
from .listeners import (
    Certificate,
    GatewayConfig,
    Listener,
    ListenerBackend,
    ListenerKind,
    Policy,
    ProbeWay,
    RaceSettings,
    Route,
    SocketAddress,
    TenantLimits,
)

_KINDS = {each.value: each for each in ListenerKind}
_LATER_KINDS = ("quic",)
_POLICIES = {each.value: each for each in Policy}
_PROBES = {each.value: each for each in ProbeWay}
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+)):([1-9][0-9]{0,4})")
_LISTEN_EXAMPLES = 'an address and a port, as "198.18.0.1:443", "[2001:db8::1]:443" or "[::]:443"'
_BACKEND_EXAMPLES = 'an address and a port, as "198.18.1.2:8000" or "127.0.0.1:8000"'
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,254}[\x21-\x7e])?")
_PATH = re.compile(r"/[\x21-\x7e]{0,255}")
_TEXT = re.compile(r"[\x21-\x7e]{1,255}")
WORKERS_MOST = 64
BODY_MOST = 1 << 30
_LLM_BODY = 4 << 20
"""Bytes of a request whose model and prompt have to be known: read whole before anything else."""


def read_gateway(root: Table, problems: Problems) -> GatewayConfig:
    """Everything that the document says of the gateway; no listeners if it says nothing."""
    table = root.table("gateway")
    default = GatewayConfig()
    listeners = tuple(
        _read_listener(each, number) for number, each in enumerate(root.tables("listener", False))
    )
    config = GatewayConfig(
        listeners=listeners,
        workers=table.integer("workers", default.workers, 1, WORKERS_MOST),
        drain_timeout_ns=table.duration(
            "drain_timeout", default.drain_timeout_ns, 0, 24 * 3600 * S
        ),
        decisions_kept=table.integer("decisions_kept", default.decisions_kept, 0, 1_000_000),
        access_log=table.boolean("access_log", default.access_log),
        metrics=read_metrics(table),
    )
    table.refuse_unknown()
    _check_listeners(listeners, problems)
    return config


def require_services(services: Sequence[object], path: str) -> None:
    """Raise ConfigError if there is no service, which the gateway alone can do without."""
    if not services:
        expected = "at least one [[service]] (listeners are served by 'xdp-routerd gateway')"
        raise ConfigError(
            [ConfigProblem(path, 0, "service", f"found none, expected {expected}", expected)]
        )


def _check_listeners(listeners: Sequence[Listener], problems: Problems) -> None:
    names: set[str] = set()
    addresses: dict[SocketAddress, str] = {}
    for number, each in enumerate(listeners):
        if each.name in names:
            problems.found(
                ("listener", number, "name"),
                repr(each.name),
                "a name that no other listener has",
            )
        names.add(each.name)
        if each.address.port and each.address in addresses:
            problems.found(
                ("listener", number, "address"),
                f"{each.address}, the address of listener {addresses[each.address]!r} as well",
                "an address that no other listener has",
            )
        addresses.setdefault(each.address, each.name)


def _read_listener(table: Table, number: int) -> Listener:
    kind = table.choice("type", "http", _KINDS, _LATER_KINDS)
    if not table.has("type"):
        table.found("type", "nothing", " or ".join(map(repr, _KINDS)))
    address = _read_address(table, _LISTEN_EXAMPLES, listening=True)
    default = Listener("", kind, address, ())
    name = table.name("name", str(address) if address.port else f"listener-{number}")
    entries = table.tables("backend", at_least_one=True)
    backends = tuple(_read_backend(each, kind) for each in entries)
    indices = _check_backends(table, backends)
    interval_ns = table.duration("probe_interval", default.probe_interval_ns, MS, 60 * S)
    age_ns = table.duration(
        "snapshot_age", max(10 * interval_ns, 200 * MS), AGE_INTERVALS * MS, AGE_MOST_NS
    )
    if age_ns < AGE_INTERVALS * interval_ns:
        table.found(
            "snapshot_age",
            format_duration(age_ns),
            f"at least {AGE_INTERVALS} times probe_interval ({format_duration(interval_ns)})",
        )
    priorities = _read_priorities(table)
    listener = Listener(
        name=name,
        kind=kind,
        address=address,
        backends=backends,
        mode=table.choice("mode", "race", MODES),
        policy=table.choice("policy", "score", _POLICIES),
        score=read_score_weights(table.table("score")),
        routes=tuple(
            _read_route(each, position, kind, indices)
            for position, each in enumerate(table.tables("route", False))
        ),
        tenants=_read_tenants(table, dict(priorities)),
        other_tenants=_read_limits(table.table("other_tenants"), "", dict(priorities)),
        priorities=priorities,
        race=_read_race(table.table("race"), len(backends)),
        probe=table.choice("probe", "connect" if kind is ListenerKind.TLS else "head", _PROBES),
        probe_path=_matching(
            table, "probe_path", default.probe_path, _PATH, 'a path, as "/health"'
        ),
        probe_interval_ns=interval_ns,
        snapshot_age_ns=age_ns,
        certificate=_read_certificate(table, kind),
        head_timeout_ns=table.duration("head_timeout", default.head_timeout_ns, MS, 60 * S),
        body_timeout_ns=table.duration("body_timeout", default.body_timeout_ns, MS, 3600 * S),
        connect_timeout_ns=table.duration(
            "connect_timeout", default.connect_timeout_ns, MS, 60 * S
        ),
        first_byte_timeout_ns=table.duration(
            "first_byte_timeout", default.first_byte_timeout_ns, MS, 3600 * S
        ),
        stream_timeout_ns=table.duration(
            "stream_timeout", default.stream_timeout_ns, MS, 24 * 3600 * S
        ),
        idle_timeout_ns=table.duration("idle_timeout", default.idle_timeout_ns, MS, 24 * 3600 * S),
        max_head=table.integer("max_head", default.max_head, 1 << 10, 1 << 18),
        max_body=table.integer(
            "max_body", _LLM_BODY if kind is ListenerKind.LLM else 0, 0, BODY_MOST
        ),
        max_connections=table.integer("max_connections", default.max_connections, 1, 1_000_000),
        max_per_source=table.integer("max_per_source", default.max_per_source, 1, 1_000_000),
        cache_blocks=table.integer("cache_blocks", default.cache_blocks, 0, 10_000_000),
        control_arm=table.integer("control_arm", 0, 0, SHARE_MAX),
    )
    if kind is ListenerKind.LLM and not listener.max_body:
        table.found(
            "max_body", "0", "a limit: the body of such a request is kept until it is decided"
        )
    table.refuse_unknown()
    return listener


def _read_address(table: Table, expected: str, *, listening: bool) -> SocketAddress:
    bad = SocketAddress("", 0)
    text = table.text("address", expected)
    if text is None:
        if not table.has("address"):
            table.found("address", "nothing", expected)
        return bad
    found = _ADDRESS.fullmatch(text)
    try:
        six, four, port = found.groups() if found else ("", "", "0")
        address = ipaddress.IPv6Address(six) if six else ipaddress.IPv4Address(four)
    except ValueError:
        table.wrong("address", text, expected)
        return bad
    if not 0 < int(port) <= 65_535 or address.is_multicast or address == _BROADCAST:
        table.wrong("address", text, expected)
        return bad
    if address.is_unspecified and not listening:
        table.wrong("address", text, expected)
        return bad
    if getattr(address, "ipv4_mapped", None) is not None or address.is_link_local:
        table.wrong("address", text, f"{expected}, neither mapped nor link-local")
        return bad
    return SocketAddress(str(address), int(port))


_BROADCAST = ipaddress.IPv4Address("255.255.255.255")


def _read_backend(table: Table, kind: ListenerKind) -> ListenerBackend:
    address = _read_address(table, _BACKEND_EXAMPLES, listening=False)
    backend = ListenerBackend(
        name=table.name("name", str(address) if address.port else "backend"),
        address=address,
        weight=table.integer("weight", 1, 1, 1_000),
        models=_words(table, "models", _TEXT, "names of models"),
    )
    if backend.models and kind is not ListenerKind.LLM:
        table.found("models", "it", 'type = "llm": nobody else reads which model is asked for')
    table.refuse_unknown()
    return backend


def _check_backends(table: Table, backends: Sequence[ListenerBackend]) -> Mapping[str, int]:
    """Index by name; notes those that are there twice."""
    indices: dict[str, int] = {}
    addresses: dict[SocketAddress, str] = {}
    for number, each in enumerate(backends):
        if not each.address.port:
            continue  # it was bad, and reported
        if each.address in addresses:
            table.found_at(
                "backend",
                number,
                f"{each.address}, the address of backend {addresses[each.address]!r} as well",
                "each backend of a listener once (weight gives it a larger share)",
            )
        elif each.name in indices:
            table.found_at(
                "backend", number, f"name {each.name!r} twice", "a name for each backend"
            )
        addresses.setdefault(each.address, each.name)
        indices.setdefault(each.name, number)
    return indices


def _read_route(table: Table, number: int, kind: ListenerKind, indices: Mapping[str, int]) -> Route:
    names = tuple(
        each.lower()
        for each in _words(
            table, "names", _HOST, 'host names, as "a.example.com" or "*.example.com"'
        )
    )
    path = headers = None
    models: tuple[str, ...] = ()
    if kind is not ListenerKind.TLS:
        path = _matching(table, "path", "", _PATH, 'the beginning of paths, as "/v1/"')
        headers = _read_headers(table)
    if kind is ListenerKind.LLM:
        models = _words(table, "models", _TEXT, "names of models")
    wanted = table.items("backends", str, "names of backends")
    if not table.has("backends"):
        table.found("backends", "nothing", "names of backends of this listener")
    chosen = []
    for index, each in wanted:
        if each in indices:
            chosen.append(indices[each])
        else:
            known = ", ".join(map(repr, indices)) or "none"
            table.found_at("backends", index, repr(each)[:NAME_MAX], f"one of {known}")
    name = table.name("name", f"route-{number}")
    table.refuse_unknown()
    return Route(name, tuple(dict.fromkeys(chosen)), names, path or "", headers or (), models)


def _read_headers(table: Table) -> tuple[tuple[str, str], ...]:
    found = []
    inner = table.table("headers")
    for key in inner.own_keys():
        value = inner.text(key, "the value that the header has to have")
        if value is None:
            continue
        if not _HEADER.fullmatch(key):
            inner.wrong(key, key, "the name of a header")
        elif not _VALUE.fullmatch(value):
            inner.wrong(key, value, "1 to 256 printable characters")
        else:
            found.append((key.lower(), value))
    return tuple(found)


def _read_priorities(table: Table) -> tuple[tuple[str, float], ...]:
    inner = table.table("priorities")
    return tuple((key, inner.number(key, 1.0, 0, 1_000)) for key in inner.own_keys())


def _read_tenants(table: Table, priorities: Mapping[str, float]) -> tuple[TenantLimits, ...]:
    found: dict[str, TenantLimits] = {}
    for entry in table.tables("tenant", False):
        name = _matching(entry, "name", "", _TEXT, "a tenant's name, as X-Tenant-ID has it")
        if not entry.has("name"):
            entry.found("name", "nothing", "a tenant's name, as X-Tenant-ID has it")
        if name in found:
            entry.wrong("name", name, "each tenant once")
        found.setdefault(name, _read_limits(entry, name, priorities))
    return tuple(found.values())


def _read_limits(table: Table, name: str, priorities: Mapping[str, float]) -> TenantLimits:
    rate = table.integer("rate", 0, 0, 10_000_000)
    limits = TenantLimits(
        name,
        rate,
        table.integer("burst", rate, 0, 10_000_000),
        table.integer("streams", 0, 0, 1_000_000),
        table.name("priority", ""),
    )
    if limits.burst and not rate:
        table.found("burst", str(limits.burst), "rate beside it")
    if rate and not limits.burst:
        table.found("burst", "0", "at least 1, or nothing would ever pass")
    if limits.priority and limits.priority not in priorities:
        known = ", ".join(map(repr, priorities)) or "none"
        table.wrong("priority", limits.priority, f"a key of [listener.priorities] ({known})")
    table.refuse_unknown()
    return limits


def _read_race(table: Table, backends: int) -> RaceSettings:
    default = RaceSettings()
    hedge_ns: int | None = None
    if table.has("hedge"):
        hedge_ns = table.duration("hedge", 0, 0, 60 * S)
    quantile = table.number("hedge_quantile", default.hedge_quantile, 0, 1)
    settings = RaceSettings(
        candidates=table.integer("candidates", default.candidates, 1, 16),
        hedge_ns=hedge_ns,
        hedge_quantile=quantile,
        extra_legs=table.integer("extra_legs", default.extra_legs, 0, 1_000_000),
        retries=table.integer("retries", min(default.retries, max(backends - 1, 1)), 0, 16),
    )
    if not 0.5 <= quantile < 1:
        table.found("hedge_quantile", str(quantile), "at least 0.5 and less than 1")
    table.refuse_unknown()
    return settings


def _read_certificate(table: Table, kind: ListenerKind) -> Certificate | None:
    if kind is ListenerKind.TLS:
        return None  # nothing is decrypted: the key is unknown to it
    inner = table.table("tls")
    expected = "the path of a PEM file"
    chain, key = inner.text("certificate", expected), inner.text("key", expected)
    inner.refuse_unknown()
    if chain and key:
        return Certificate(chain, key)
    if chain or key:
        inner.found("key" if chain else "certificate", "nothing", "certificate and key together")
    return None


def _words(table: Table, key: str, form: re.Pattern[str], expected: str) -> tuple[str, ...]:
    if not table.has(key):
        table.items(key, str, expected)
        return ()
    good = []
    for index, each in table.items(key, str, expected):
        if form.fullmatch(each) and len(each) <= 255:
            good.append(each)
        else:
            table.found_at(key, index, repr(each)[:NAME_MAX], expected)
    return tuple(dict.fromkeys(good))


def _matching(table: Table, key: str, default: str, form: re.Pattern[str], expected: str) -> str:
    text = table.text(key, expected)
    if text is None:
        return default
    if not form.fullmatch(text):
        table.wrong(key, text, expected)
        return default
    return text
