# SPDX-License-Identifier: Apache-2.0
"""Who takes part: hosts, the services on them, and the configuration that says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdp_router.lab import BackendSpec, LabSpec
from xdp_router.lab.spec import Family, endpoint_text

TCP_HOSTS = ("b1", "b2", "b3", "b4")
UDP_HOSTS = ("u1", "u2", "u3")
HOSTS = TCP_HOSTS + UDP_HOSTS
PORT = 8080
MODES = ("race", "snapshot", "inline")

FLOW_IDLE_S = 20
"""Longer than any trouble keeps a stream from speaking; a dead one's entries live so long."""
UDP_IDLE_S = 8
"""An asker asks again each second, whatever happens."""
LINGER_S = 1

SPEC = LabSpec(
    (
        *(BackendSpec(name, port=PORT) for name in TCP_HOSTS),
        *(BackendSpec(name, kind="hash", port=PORT) for name in UDP_HOSTS),
    ),
    client_addresses=8,
)


@dataclass(frozen=True, slots=True)
class Service:
    """A service as it is at the start."""

    name: str
    family: Family
    protocol: str
    forwarding: str
    port: int
    mode: str

    @property
    def hosts(self) -> tuple[str, ...]:
        """On which it has a backend each."""
        return TCP_HOSTS if self.protocol == "tcp" else UDP_HOSTS

    @property
    def address(self) -> tuple[str, int]:
        """Where clients go."""
        return SPEC.addresses_of(self.family).service[0], self.port


SERVICES = (
    Service("web4", 4, "tcp", "nat", 80, "race"),
    Service("web6", 6, "tcp", "nat", 80, "snapshot"),
    Service("one4", 4, "tcp", "fullnat", 81, "inline"),
    Service("one6", 6, "tcp", "fullnat", 81, "race"),
    Service("ask4", 4, "udp", "nat", 53, "race"),
    Service("ask6", 6, "udp", "nat", 53, "inline"),
)
BY_NAME = {service.name: service for service in SERVICES}


def backend_name(service: str, host: str) -> str:
    """What the router calls a service's backend."""
    return f"{service}-{host}"


def host_of(backend: str) -> str:
    """The host of a backend that the router calls so."""
    return backend.rpartition("-")[2]


BACKENDS = tuple(backend_name(each.name, host) for each in SERVICES for host in each.hosts)


@dataclass(slots=True)
class Wishes:
    """What the configuration says now: modes by service, weights by backend, and who is absent."""

    modes: dict[str, str] = field(default_factory=lambda: {s.name: s.mode for s in SERVICES})
    weights: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BACKENDS, 1))
    absent: set[str] = field(default_factory=set)

    def text(self) -> str:
        """The router.toml."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "[router]"
        yield "max_flows = 20_000"
        yield "pending_flows = 16_384"
        yield f'flow_idle = "{FLOW_IDLE_S}s"'
        yield f'udp_idle = "{UDP_IDLE_S}s"'
        yield f'closed_linger = "{LINGER_S}s"'
        yield 'pending_idle = "5s"'
        yield "event_rate = 2_000"
        yield "event_burst = 500"
        yield 'metrics = "127.0.0.1:9850"'
        for service in SERVICES:
            yield from self._service(service)

    def _service(self, service: Service) -> Iterator[str]:
        yield "[[service]]"
        yield f'name = "{service.name}"'
        yield f'address = "{endpoint_text(*service.address)}"'
        yield f'protocol = "{service.protocol}"'
        yield f'forwarding = "{service.forwarding}"'
        yield f'mode = "{self.modes[service.name]}"'
        if service.protocol == "udp":
            yield 'probe = "udp"'
            yield 'probe_payload = "are you there?"'
        addresses = SPEC.addresses_of(service.family).backends
        for host in service.hosts:
            name = backend_name(service.name, host)
            if name in self.absent:
                continue
            yield "[[service.backend]]"
            yield f'name = "{name}"'
            yield f'address = "{endpoint_text(*addresses[HOSTS.index(host)])}"'
            yield f"weight = {self.weights[name]}"
