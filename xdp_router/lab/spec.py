# SPDX-License-Identifier: Apache-2.0
"""What a lab consists of, and the addresses that follow from it."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Literal

from .errors import LabError
from .stall import Stall

MAX_BACKENDS = 250
MAX_CLIENT_ADDRESSES = 250

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """One backend: its server and the wire to it.

    ``delay_ns`` lengthens the round trip. With neither delay nor stall the backend is wired
    directly, unless ``delay_line`` asks for a line whose delay is to be set later.
    """

    name: str
    delay_ns: int = 0
    stall: Stall | None = None
    kind: Literal["echo", "http"] = "echo"
    port: int = 8080
    weight: int = 1
    delay_line: bool = False

    @property
    def has_delay_line(self) -> bool:
        """Whether a delay-line process sits on the wire."""
        return self.delay_line or self.delay_ns > 0 or self.stall is not None


@dataclass(frozen=True, slots=True)
class LabAddresses:
    """Every address of a lab. ``service`` and ``backends`` are (address, port) pairs."""

    service: tuple[str, int]
    client: str
    clients: tuple[str, ...]
    client_router: str
    backends: tuple[tuple[str, int], ...]
    backend_routers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabSpec:
    """A lab: one service, its backends, and how many addresses the client has.

    Raises LabError for names, counts, delays or ports that can't be built.
    """

    backends: tuple[BackendSpec, ...]
    service_name: str = "web"
    service_address: str = "198.18.100.1"
    service_port: int = 80
    client_addresses: int = 1

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
        for backend in self.backends:
            if backend.delay_ns < 0:
                raise LabError(f"backend {backend.name}: the delay must not be negative")
            if not 0 < backend.port < 65536:
                raise LabError(f"backend {backend.name}: port {backend.port} is not in 1..65535")

    @property
    def addresses(self) -> LabAddresses:
        """The addresses, as text."""
        clients = tuple(f"198.18.0.{2 + n}" for n in range(self.client_addresses))
        return LabAddresses(
            service=(self.service_address, self.service_port),
            client=clients[0],
            clients=clients,
            client_router="198.18.0.1",
            backends=tuple(
                (f"198.19.{i}.2", backend.port) for i, backend in enumerate(self.backends, 1)
            ),
            backend_routers=tuple(f"198.19.{i}.1" for i in range(1, len(self.backends) + 1)),
        )

    def config_toml(
        self,
        *,
        mode: str = "race",
        forwarding: str = "nat",
        deadline: str = "50ms",
        fallback: str | None = None,
    ) -> str:
        """The router.toml for this lab; the fallback is the first backend unless named."""
        addresses = self.addresses
        lines = [
            "[[service]]",
            f'name = "{self.service_name}"',
            f'address = "{self.service_address}:{self.service_port}"',
            'protocol = "tcp"',
            f'mode = "{mode}"',
            f'forwarding = "{forwarding}"',
            f'fallback = "{fallback or self.backends[0].name}"',
            f'deadline = "{deadline}"',
        ]
        for backend, (address, port) in zip(self.backends, addresses.backends, strict=True):
            lines += [
                "",
                "[[service.backend]]",
                f'name = "{backend.name}"',
                f'address = "{address}:{port}"',
                f"weight = {backend.weight}",
            ]
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
