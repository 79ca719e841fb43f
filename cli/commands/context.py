# SPDX-License-Identifier: Apache-2.0
"""What every command gets: the daemon to ask and the pinned maps to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import click

from xdp_router.adapters.control import DEFAULT_CONTROL_PATH, ControlClient
from xdp_router.adapters.pins import DEFAULT_ROOT
from xdp_router.core.address import parse_addr, parse_endpoint

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Instance(Protocol):
    """A router's pinned maps, as :func:`xdp_router.adapters.flow_reader.open_instance` gives."""

    def flows(self, limit: int) -> Iterator[dict[str, Any]]:
        """Flows, read as they are asked for."""
        ...

    def counters(self) -> dict[str, int]:
        """Counters by name, summed over the CPUs."""
        ...


def _ask(control: str, command: str, args: dict[str, object]) -> Any:
    with ControlClient(control) as client:
        return client.call(command, **args)


def _open(pins: str) -> Instance:
    # Here, because only commands that read maps need bpf(2).
    from xdp_router.adapters.flow_reader import open_instance

    return open_instance(pins)


@dataclass(slots=True)
class Context:
    """Where the router is, and how it is reached (handed in by tests)."""

    control: str = DEFAULT_CONTROL_PATH
    pins: str = str(DEFAULT_ROOT)
    ask_daemon: Callable[[str, str, dict[str, object]], Any] = field(default=_ask)
    open_pins: Callable[[str], Instance] = field(default=_open)

    def ask(self, command: str, **args: object) -> Any:
        """Data of the daemon's answer. Raises ControlError."""
        return self.ask_daemon(self.control, command, args)

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
    """``ADDR:PORT`` of a client; with ``port_optional`` also ``ADDR``."""

    name = "ADDR:PORT"

    def __init__(self, *, port_optional: bool = False) -> None:
        self._port_optional = port_optional
        if port_optional:
            self.name = "ADDR[:PORT]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The value as given. Fails as a usage error."""
        try:
            if self._port_optional and ":" not in value:
                parse_addr(value)
            else:
                parse_endpoint(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value
