# SPDX-License-Identifier: Apache-2.0
"""What every command gets: the daemon to ask and the pinned maps to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import click

from xdp_router.adapters.control import DEFAULT_CONTROL_PATH, LONG_S
from xdp_router.adapters.control_client import ANSWER_S, ControlClient
from xdp_router.adapters.pins import DEFAULT_ROOT
from xdp_router.core.address import (
    format_client,
    format_endpoint,
    format_host,
    parse_addr,
    parse_client,
    parse_endpoint,
)

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Instance(Protocol):
    """A router's pinned maps, as :func:`xdp_router.adapters.flow_reader.open_instance` gives."""

    def flows(self, limit: int, client_addr: int | None = None) -> Iterator[dict[str, Any]]:
        """Flows, of one client's address if one is named, read as they are asked for."""
        ...

    def counters(self) -> dict[str, int]:
        """Counters by name, summed over the CPUs."""
        ...


_LONG = ("reload", "upgrade", "service", "backend", "backend_flows")


def _ask(control: str, command: str, args: dict[str, object]) -> Any:
    with ControlClient(control, LONG_S if command in _LONG else ANSWER_S) as client:
        return client.call(command, **args)


def _follow(control: str, command: str, args: dict[str, object]) -> Iterator[dict[str, Any]]:
    client = ControlClient(control)
    click.get_current_context().call_on_close(client.close)
    return client.stream(command, **args)


def _open(pins: str) -> Instance:
    # Here, because only commands that read maps need bpf(2).
    from xdp_router.adapters.flow_reader import open_instance

    instance = open_instance(pins)
    click.get_current_context().call_on_close(instance.close)
    return instance


@dataclass(slots=True)
class Context:
    """Where the router is, and how it is reached (handed in by tests)."""

    control: str = DEFAULT_CONTROL_PATH
    pins: str = str(DEFAULT_ROOT)
    ask_daemon: Callable[[str, str, dict[str, object]], Any] = field(default=_ask)
    open_pins: Callable[[str], Instance] = field(default=_open)
    follow_daemon: Callable[[str, str, dict[str, object]], Iterator[dict[str, Any]]] = field(
        default=_follow
    )

    def ask(self, command: str, **args: object) -> Any:
        """Data of the daemon's answer. Raises ControlError."""
        return self.ask_daemon(self.control, command, args)

    def stream(self, command: str, **args: object) -> Iterator[dict[str, Any]]:
        """What the daemon has to say from now on. Raises ControlError."""
        return self.follow_daemon(self.control, command, args)

    def instance(self) -> Instance:
        """The maps of the running, or persisting, router. Raises NoInstance."""
        return self.open_pins(self.pins)


pass_context = click.make_pass_decorator(Context)


def json_option(command: _Command) -> _Command:
    """The ``--json`` of every read command."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print JSON with stable keys instead of a table."
    )(command)


class ClientAddress(click.ParamType[str]):
    """``ADDR:PORT`` or ``[ADDR]:PORT`` of a client; with ``port_optional`` also ``ADDR``, with
    ``protocol`` also ``ADDR:PORT/udp``."""

    name = "ADDR:PORT"

    def __init__(self, *, port_optional: bool = False, protocol: bool = False) -> None:
        self._port_optional = port_optional
        self._protocol = protocol
        if port_optional:
            self.name = "ADDR[:PORT]"
        elif protocol:
            self.name = "ADDR:PORT[/PROTOCOL]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The value in the form that is shown of it. Fails as a usage error."""
        try:
            if self._port_optional and (host := as_host(value)):
                return host
            if self._protocol:
                return format_client(parse_client(value))
            return format_endpoint(parse_endpoint(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def as_host(value: str) -> str:
    """An address without a port, brackets or not, as endpoints begin with it; else empty."""
    bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    try:
        return format_host(parse_addr(bare))
    except ValueError:
        return ""
