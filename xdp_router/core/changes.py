# SPDX-License-Identifier: Apache-2.0
"""What differs between the configuration that runs and another one, and whether it can change.

Both have ids by :mod:`.identity`: who has the same id is the same service or backend, and what
else is said of it has changed. What is shown has the file's own keys and, as far as may be, its
own words.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from .address import Prefix, format_endpoint, format_ports, is_ipv6, protocol_name
from .config import RouterConfig, Settings
from .config_fields import format_duration
from .config_handler import GATEWAY_KEYS
from .config_metrics import format_metrics
from .config_mode import implied_age_ns, implied_score_age_ns
from .config_scrape import format_scrape, scrape_keys
from .config_wide import AFFINITY_TIME_NS
from .model import (
    NO_BACKEND,
    Backend,
    HealthSettings,
    Probe,
    ProbeKind,
    ScoreWeights,
    Scrape,
    Service,
)

_RESTART = "restart the daemon with --persist: connections go on"
_REMAKE = f"tables keep their size while it runs: {_RESTART}"
FIXED: Mapping[str, str] = {
    "max_flows": _REMAKE,
    "pending_flows": _REMAKE,
    "probe_ports": _RESTART,
    "nat_ports": _RESTART,
    "kernel_handoff": _RESTART,
    "metrics": _RESTART,
}
"""Keys of ``[router]`` that do not change while the router runs, and what changes them."""

NONE = "none"
_PLACE = ("address", "protocol")
"""What is told of everything that is added."""
_COUNTS_AS = "score"
"""A key of no file: how much weights that are written in any sum count, in parts of 1."""


class Kind(enum.Enum):
    """What has become of something."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


_SIGNS = {Kind.ADDED: "+", Kind.REMOVED: "-", Kind.CHANGED: "~"}


@dataclass(frozen=True, slots=True)
class Change:
    """One line. ``what``: setting, service or backend; ``where``: a backend's service.

    ``keys``: (key, before, after), of what has changed, or of what was added whatever is not as it
    would be unsaid; before is empty where there was no such key. ``meaning``: what it comes to,
    where that is not what was written.
    """

    kind: Kind
    what: str
    name: str
    where: str = ""
    keys: tuple[tuple[str, str, str], ...] = ()
    meaning: str = ""

    def __str__(self) -> str:
        of = f" of {self.where}" if self.where else ""
        if self.kind is Kind.REMOVED:
            told = "its connections go on until they end"
        else:
            told = ", ".join(
                f"{key} {before} -> {after}" if before else f"{key} {after}"
                for key, before, after in self.keys
                if key != _COUNTS_AS
            )
            told += f" ({self.meaning})" if self.meaning else ""
        if self.what == "setting":
            return f"~ {told}"
        return f"{_SIGNS[self.kind]} {self.what} {self.name}{of}: {told}"


@dataclass(frozen=True, slots=True)
class Changes:
    """All of them, in the order of the configuration. None: the two say the same.

    ``warnings``: what follows from them on this host, for whoever has asked for them.
    """

    lines: tuple[Change, ...]
    warnings: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lines)

    @property
    def refused(self) -> list[str]:
        """What cannot change while the router runs, and the mend of each."""
        return [
            f"{key} {before} -> {after}: {FIXED[key]}"
            for line in self.lines
            if line.what == "setting"
            for key, before, after in line.keys
            if key in FIXED
        ]


def diff(old: RouterConfig, new: RouterConfig) -> Changes:
    """What makes ``new`` of ``old``."""
    lines: list[Change] = []
    settings = _differ(settings_keys(old.settings), settings_keys(new.settings), {})
    lines += [Change(Kind.CHANGED, "setting", key[0], keys=(key,)) for key in settings]
    before = {service.id: service for service in old.services}
    after = {service.id for service in new.services}
    for service in new.services:
        was = before.get(service.id)
        if was is None:
            unsaid = _unsaid_of_service(service, new.settings)
            keys = _added(service.name, service_keys(service), unsaid)
            lines.append(Change(Kind.ADDED, "service", service.name, "", keys, _meaning(service)))
            lines += _of_backends((), service.backends, service.name)
            continue
        unsaid = _unsaid_of_service(service, new.settings)
        keys = _differ(service_keys(was), service_keys(service), unsaid)
        if keys:
            weighed = any(key == _COUNTS_AS or key in _WEIGHTS for key, _, _ in keys)
            told = _meaning(service) if weighed else ""
            lines.append(Change(Kind.CHANGED, "service", service.name, "", keys, told))
        lines += _of_backends(was.backends, service.backends, service.name)
    for service in old.services:
        if service.id not in after:
            lines += _of_backends(service.backends, (), service.name)
            lines.append(Change(Kind.REMOVED, "service", service.name))
    return Changes(tuple(lines))


def _of_backends(old: Iterable[Backend], new: Iterable[Backend], service: str) -> list[Change]:
    before = {backend.id: backend for backend in old}
    lines = []
    for backend in new:
        was = before.pop(backend.id, None)
        if was is None:
            said = _added(backend.name, backend_keys(backend), _unsaid_of_backend(backend))
            lines.append(Change(Kind.ADDED, "backend", backend.name, service, said))
        elif keys := _differ(backend_keys(was), backend_keys(backend), _unsaid_of_backend(backend)):
            lines.append(Change(Kind.CHANGED, "backend", backend.name, service, keys))
    lines += [Change(Kind.REMOVED, "backend", each.name, service) for each in before.values()]
    return lines


def _added(
    name: str, keys: Mapping[str, str], unsaid: Mapping[str, str]
) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (key, "", value)
        for key, value in keys.items()
        if key in _PLACE or (value not in (name, NONE, "") and value != unsaid.get(key))
    )


def _differ(
    before: Mapping[str, str], after: Mapping[str, str], unsaid: Mapping[str, str]
) -> tuple[tuple[str, str, str], ...]:
    """A key that there was not counts as one that was not said; one that is gone went with what
    it belonged to, which is told."""
    return tuple(
        (key, (before[key] or '""') if key in before else "", value or '""')
        for key, value in after.items()
        if before.get(key, unsaid.get(key, value)) != value
    )


def _unsaid_of_service(service: Service, settings: Settings) -> dict[str, str]:
    """What keys would be of which nobody has said anything, beside what is said of others."""
    plain = Service(
        service.id,
        service.name,
        service.endpoint,
        service.backends,
        event_rate=settings.service_event_rate,
        snapshot_age_ns=implied_age_ns(service.probe_interval_ns),
        score_age_ns=implied_score_age_ns(service.scrape),
        health=HealthSettings(),
    )
    return {
        **scrape_keys(Scrape(())),
        **service_keys(plain),
        "affinity_time": format_duration(AFFINITY_TIME_NS),
    }


def _unsaid_of_backend(backend: Backend) -> dict[str, str]:
    plain = Backend(backend.id, backend.name, backend.endpoint, backend.service)
    return {**_http_keys(Probe(ProbeKind.HTTP)), **backend_keys(plain)}


def _meaning(service: Service) -> str:
    return f"in parts of 1: {_score(service.score)}" if service.score_said is not None else ""


# What is said, by key of the file


def settings_keys(settings: Settings) -> dict[str, str]:
    """The ``[router]`` table."""
    keys: dict[str, str] = {}
    for field in dataclasses.fields(settings):
        name, value = field.name, getattr(settings, field.name)
        if name.endswith("_port_min"):
            kind = name.removesuffix("_port_min")
            keys[f"{kind}_ports"] = format_ports((value, getattr(settings, f"{kind}_port_max")))
        elif name.endswith("_ns"):
            keys[name.removesuffix("_ns")] = format_duration(value)
        elif name == "metrics":
            keys[name] = NONE if value is None else format_metrics(value)
        elif not name.endswith("_port_max"):
            keys[name] = str(value.value if isinstance(value, enum.Enum) else value)
    return keys


def service_keys(service: Service) -> dict[str, str]:
    """A ``[[service]]`` table, without its backends and what they inherit; of one that the gateway
    has only what it can say."""
    names = {backend.id: backend.name for backend in service.backends}
    family = is_ipv6(service.endpoint.addr)
    prefixes: dict[bool, list[str]] = {False: [], True: []}
    for each in service.sources:
        prefixes[each.denied].append(str(Prefix(each.network, each.length, family)))
    allow = prefixes[False] if service.allowed_only or prefixes[False] else [NONE]
    keys = {
        "address": format_endpoint(service.endpoint),
        "name": service.name,
        "protocol": protocol_name(service.endpoint.proto),
        "handler": "gateway" if service.listener else "backends",
        "listener": service.listener or NONE,
        "quic": _flag(service.quic),
        "mode": service.mode.name.lower(),
        "candidates": str(service.candidates or NONE),
        "probe_interval": format_duration(service.probe_interval_ns),
        "snapshot_age": format_duration(service.snapshot_age_ns),
        **_said_weights(service.score_said or service.score),
        _COUNTS_AS: _score(service.score),
        "score.age": format_duration(service.score_age_ns),
        **scrape_keys(service.scrape),
        "forwarding": service.forwarding.name.lower(),
        "tunnel_source": _tunnel_source(service),
        "fallback": NONE if service.fallback == NO_BACKEND else names[service.fallback],
        "deadline": format_duration(service.deadline_ns),
        "orphans": service.orphans.name.lower(),
        "event_rate": str(service.event_rate),
        "stateless": _flag(service.stateless),
        "except_ports": ", ".join(map(format_ports, service.except_ports)) or NONE,
        "affinity": "source" if service.affinity_ns else NONE,
        **_affinity_time(service),
        "max_connections": str(service.max_connections or NONE),
        "allow": " ".join(allow) or "nobody",
        "deny": " ".join(prefixes[True]) or NONE,
        "icmp_echo": _flag(service.icmp_echo),
        "control_arm": str(service.control_arm),
        "control_arm_by": service.control_arm_by.name.lower(),
        **_health_keys(service.health),
    }
    if service.listener:  # which says all else
        return {key: keys[key] for key in GATEWAY_KEYS}
    return keys


def backend_keys(backend: Backend) -> dict[str, str]:
    """A ``[[service.backend]]`` table; how it is probed may be the service's word."""
    return {
        "address": format_endpoint(backend.endpoint),
        "name": backend.name,
        "weight": str(backend.weight),
        "vlan": "as it came" if backend.vlan is None else str(backend.vlan or NONE),
        "scrape": format_scrape(backend.scrape),
        "probe": backend.probe.name,
        "probe_payload": _bytes(backend.probe.payload),
        "probe_answer": _bytes(backend.probe.answer),
        **_http_keys(backend.probe),
    }


def _health_keys(health: HealthSettings | None) -> dict[str, str]:
    if health is None:
        return {"health": _flag(False)}
    return {
        "health": _flag(True),
        "health_interval": format_duration(health.interval_ns),
        "health_rise": str(health.rise),
        "health_fall": str(health.fall),
        "health_hold": format_duration(health.hold_ns),
        "health_hold_max": format_duration(health.hold_max_ns),
        "slow_start": format_duration(health.slow_start_ns),
        "reset_on_death": _flag(health.reset_on_death),
    }


def _http_keys(probe: Probe) -> dict[str, str]:
    if probe.kind is not ProbeKind.HTTP:
        return {}
    status = "-".join(map(str, probe.status))
    return {"probe_path": probe.path, "probe_host": probe.host, "probe_status": status}


def _affinity_time(service: Service) -> dict[str, str]:
    return {"affinity_time": format_duration(service.affinity_ns)} if service.affinity_ns else {}


_WEIGHTS = tuple(f"score.{each.name}" for each in fields(ScoreWeights))


def _said_weights(weights: ScoreWeights) -> dict[str, str]:
    values = (getattr(weights, each.name) for each in fields(weights))
    return {key: f"{value:g}" for key, value in zip(_WEIGHTS, values, strict=True)}


def _score(weights: ScoreWeights) -> str:
    """What counts how much, in parts of 1."""
    parts = ((each.name, getattr(weights, each.name)) for each in fields(weights))
    return " ".join(f"{name} {value:.3g}" for name, value in parts)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _bytes(value: bytes) -> str:
    return f"hex:{value.hex()}" if value else ""


def _tunnel_source(service: Service) -> str:
    if not service.tunnel_source:
        return NONE
    ipv6 = is_ipv6(service.tunnel_source)
    length = (128 if ipv6 else 32) - service.tunnel_bits
    return str(Prefix(service.tunnel_source, length, ipv6))
