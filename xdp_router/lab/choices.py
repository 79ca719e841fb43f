# SPDX-License-Identifier: Apache-2.0
"""What ``xdp-router lab up`` may be asked for, and the lab and configuration that follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from .errors import LabError
from .spec import BackendSpec, Family, Kind, LabSpec, Method, endpoint_text

_TCP: tuple[str, ...] = ("http", "echo", "hash")
_UDP: tuple[str, ...] = ("hash", "stun")
_ON_BACKENDS = ("dsr", "ipip")
_ANSWERED_BY = {"udp": "hash", "stun": "stun", "http": "http"}
"""Kinds of probes that only one kind of server answers: with others each race is refused."""
_SERVICE_PORT = 80


@dataclass(frozen=True, slots=True)
class Choices:
    """As the options have them. ``backends``: name, round trip of the wire in ns, weight;
    ``kind`` and ``probe`` None: what fits the protocol."""

    backends: tuple[tuple[str, int, int], ...]
    kind: str | None = None
    family: Family = 4
    protocol: str = "tcp"
    forwarding: str = "nat"
    one_armed: bool = False
    probe: str | None = None
    mode: str = "race"


@dataclass(frozen=True, slots=True)
class Chosen:
    """``service``: its endpoint; ``talk``: a command that talks to it."""

    spec: LabSpec
    config: str
    service: str
    talk: str


def choose(choices: Choices) -> Chosen:
    """The lab that was asked for. Raises LabError, with the option, for what goes together with
    nothing else."""
    udp = choices.protocol == "udp"
    kind = choices.kind or ("hash" if udp else "http")
    if kind not in (_UDP if udp else _TCP):
        usable = ", ".join(_UDP if udp else _TCP)
        raise LabError(f"--kind {kind} does not speak {choices.protocol}: choose of {usable}")
    server = _ANSWERED_BY.get(choices.probe or "", kind)
    if server != kind:
        raise LabError(
            f"--probe {choices.probe} and --kind {kind}: only --kind {server} answers it"
        )
    direct = choices.forwarding in _ON_BACKENDS
    if choices.one_armed and choices.forwarding == "nat":
        raise LabError(
            "--one-armed and --forwarding nat: backends would answer clients past the router: "
            "choose fullnat, dsr or ipip"
        )
    spec = LabSpec(
        tuple(
            BackendSpec(
                name,
                delay_ns=delay_ns,
                kind=cast(Kind, kind),
                port=_SERVICE_PORT if direct else 8080,
                weight=weight,
            )
            for name, delay_ns, weight in choices.backends
        ),
        method=cast(Method, choices.forwarding),
        topology="segment" if direct or choices.one_armed else "routed",
        service_port=_SERVICE_PORT,
    )
    probe = choices.probe
    if udp and probe is None:  # who asks the server itself notices when that is stopped
        probe = "stun" if kind == "stun" else "udp"
    config = spec.config_toml(
        mode=choices.mode, family=choices.family, protocol=choices.protocol, probe=probe
    )
    address, port = spec.addresses_of(choices.family).service
    return Chosen(spec, config, endpoint_text(address, port), _talk(kind, address, port, udp=udp))


def _talk(kind: str, address: str, port: int, *, udp: bool) -> str:
    """A command of a client, of what is on every machine: curl is for HTTP alone."""
    if kind == "http":
        return f"curl http://{endpoint_text(address, port)}/"
    # It answers at the end of what is sent, which a shell can't tell.
    if kind == "hash" and not udp:
        return (
            f'python3 -c \'import socket; s = socket.create_connection(("{address}", {port})); '
            's.sendall(b"hello"); s.shutdown(1); print(s.recv(200).decode())\''
        )
    if kind == "stun":  # a binding request of RFC 8489, with a transaction id of zeros
        request = r"\0\1\0\0\41\22\244\102" + r"\0" * 12
        show = "head -c32 <&3 | od -An -tx1"
        return _by_bash(address, port, f'printf "{request}"', show, udp=udp)
    return _by_bash(address, port, "echo hello", "head -n1 <&3", udp=udp)


def _by_bash(address: str, port: int, say: str, show: str, *, udp: bool) -> str:
    where = f"/dev/{'udp' if udp else 'tcp'}/{address}/{port}"
    return f"timeout 2 bash -c 'exec 3<>{where}; {say} >&3; {show}'"
