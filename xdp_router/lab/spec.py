# SPDX-License-Identifier: Apache-2.0
"""What a lab consists of, and the addresses that follow from it."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .errors import LabError
from .stall import Stall

MAX_BACKENDS = 250
MAX_CLIENT_ADDRESSES = 250
MAX_VLAN = 4094

Kind = Literal["echo", "http", "hash", "stun", "quic", "iperf3"]
Method = Literal["nat", "fullnat", "dsr", "ipip"]
Topology = Literal["routed", "segment"]
Family = Literal[4, 6]

_ON_LOOPBACK: tuple[Method, ...] = ("dsr", "ipip")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One backend: its server and the wire to it.

    ``delay_ns`` lengthens the round trip. With neither delay nor stall the backend is wired
    directly, unless ``delay_line`` asks for a line whose delay is to be set later. With ``vlan``
    the backend hears and sends only frames with that 802.1Q tag.
    """

    name: str
    delay_ns: int = 0
    stall: Stall | None = None
    kind: Kind = "echo"
    port: int = 8080
    weight: int = 1
    delay_line: bool = False
    vlan: int | None = None

    @property
    def has_delay_line(self) -> bool:
        """Whether a delay-line process sits on the wire."""
        return self.delay_line or self.delay_ns > 0 or self.stall is not None


@dataclass(frozen=True, slots=True)
class LabAddresses:
    """Every address of a lab, of one family. ``service`` and ``backends`` are (address, port)
    pairs; ``prefix_length`` is that of every subnet.
    """

    service: tuple[str, int]
    client: str
    clients: tuple[str, ...]
    client_router: str
    backends: tuple[tuple[str, int], ...]
    backend_routers: tuple[str, ...]
    prefix_length: int


@dataclass(frozen=True, slots=True)
class LabSpec:
    """A lab: one service, its backends, and how many addresses the client has.

    ``method`` is how packets will come to the backends: with ``dsr`` and ``ipip`` they have the
    service's addresses themselves (on ``lo``, so nobody is told), and ``ipip`` takes the outer
    header off. In the topology ``segment`` client, router and backends share one Ethernet, in
    ``routed`` each has a wire to the router. ``client_vlan`` puts the client, and the router's
    link to it, behind a tag.
    Raises LabError for names, counts, delays or ports that can't be built.
    """

    backends: tuple[BackendSpec, ...]
    service_name: str = "web"
    service_address: str = "198.18.100.1"
    service_port: int = 80
    client_addresses: int = 1
    service_address6: str = "2001:db8:100::1"
    method: Method = "nat"
    topology: Topology = "routed"
    client_vlan: int | None = None

    def __post_init__(self) -> None:
        names = [backend.name for backend in self.backends]
        if not 1 <= len(names) <= MAX_BACKENDS:
            raise LabError(f"a lab has 1 to {MAX_BACKENDS} backends, not {len(names)}")
        if len(set(names)) != len(names):
            raise LabError(f"backend names must differ: {', '.join(names)}")
        for name in (*names, self.service_name):
            if not _NAME.fullmatch(name):
                raise LabError(
                    f"name {name!r}: use 1 to 32 lower-case letters, digits, '-' or '_', "
                    "beginning with a letter or digit"
                )
        if not 1 <= self.client_addresses <= MAX_CLIENT_ADDRESSES:
            raise LabError(f"a client has 1 to {MAX_CLIENT_ADDRESSES} addresses")
        _check_choice("method", self.method, get_args(Method))
        _check_choice("topology", self.topology, get_args(Topology))
        _check_tag("the client", self.client_vlan)
        for backend in self.backends:
            self._check_backend(backend)

    def _check_backend(self, backend: BackendSpec) -> None:
        if backend.delay_ns < 0:
            raise LabError(f"backend {backend.name}: the delay must not be negative")
        if not 0 < backend.port < 65536:
            raise LabError(f"backend {backend.name}: port {backend.port} is not in 1..65535")
        _check_choice(f"backend {backend.name}: kind", backend.kind, get_args(Kind))
        if self.service_on_backends and backend.port != self.service_port:
            raise LabError(
                f"backend {backend.name}: {self.method} keeps the port, so it must be the "
                f"service's, {self.service_port}, not {backend.port}"
            )
        _check_tag(f"backend {backend.name}", backend.vlan)

    @property
    def service_on_backends(self) -> bool:
        """Whether each backend has the service's addresses itself and answers from them."""
        return self.method in _ON_LOOPBACK

    @property
    def addresses(self) -> LabAddresses:
        """The IPv4 addresses, as text."""
        return self.addresses_of(4)

    def addresses_of(self, family: Family) -> LabAddresses:
        """The addresses of a family, as text."""
        numbers = range(1, len(self.backends) + 1)
        if family == 4:
            clients, service = "198.18.0.{}", self.service_address
            near, far = [f"198.19.{i}.2" for i in numbers], [f"198.19.{i}.1" for i in numbers]
            shared, length = [f"198.18.1.{i}" for i in numbers], (24, 23)
        else:
            clients, service = "2001:db8:18::{:x}", self.service_address6
            near = [f"2001:db8:19:{i:x}::2" for i in numbers]
            far = [f"2001:db8:19:{i:x}::1" for i in numbers]
            shared, length = [f"2001:db8:18::1:{i:x}" for i in numbers], (64, 64)
        router = clients.format(1)
        segment = self.topology == "segment"
        hosts = shared if segment else near
        return LabAddresses(
            service=(service, self.service_port),
            client=clients.format(2),
            clients=tuple(clients.format(2 + n) for n in range(self.client_addresses)),
            client_router=router,
            backends=tuple(
                (host, backend.port) for host, backend in zip(hosts, self.backends, strict=True)
            ),
            backend_routers=tuple(router for _ in numbers) if segment else tuple(far),
            prefix_length=length[segment],
        )

    def config_toml(
        self,
        *,
        mode: str = "race",
        forwarding: str | None = None,
        deadline: str = "50ms",
        fallback: str | None = None,
        family: Family = 4,
        protocol: str = "tcp",
        probe: str | None = None,
        keys: str = "",
    ) -> str:
        """The router.toml for this lab's service of one family.

        Unless named, the fallback is the first backend and the forwarding the lab's method. With
        ``probe`` "udp" any answer to the payload is a good one. ``keys``: further lines of it.
        """
        addresses = self.addresses_of(family)
        lines = [
            "[[service]]",
            f'name = "{self.service_name}"',
            f'address = "{endpoint_text(*addresses.service)}"',
            f'protocol = "{protocol}"',
            f'mode = "{mode}"',
            f'forwarding = "{forwarding or self.method}"',
            f'fallback = "{fallback or self.backends[0].name}"',
            f'deadline = "{deadline}"',
            *([] if probe is None else [f'probe = "{probe}"']),
            *(['probe_payload = "are you there?"'] if probe == "udp" else []),
            *keys.splitlines(),
        ]
        for backend, (address, port) in zip(self.backends, addresses.backends, strict=True):
            lines += [
                "",
                "[[service.backend]]",
                f'name = "{backend.name}"',
                f'address = "{endpoint_text(address, port)}"',
                f"weight = {backend.weight}",
            ]
            if backend.vlan is not None:
                lines.append(f"vlan = {backend.vlan}")
            elif self.client_vlan is not None:  # what clients send has a tag
                lines.append('vlan = "none"')
        return "\n".join(lines) + "\n"

    def as_json(self) -> dict[str, Any]:
        """The spec as plain values; ``from_json`` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> LabSpec:
        """The spec that ``as_json`` wrote."""
        backends = tuple(
            BackendSpec(
                **{**backend, "stall": Stall(**backend["stall"]) if backend["stall"] else None}
            )
            for backend in values["backends"]
        )
        return cls(**{**values, "backends": backends})


def endpoint_text(address: str, port: int) -> str:
    """``198.18.0.1:80`` or ``[2001:db8::1]:80``."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise LabError(f"{what} {value!r} is not one of {', '.join(choices)}")


def _check_tag(what: str, vlan: int | None) -> None:
    if vlan is not None and not 1 <= vlan <= MAX_VLAN:
        raise LabError(f"{what}: VLAN {vlan} is not in 1..{MAX_VLAN}")
