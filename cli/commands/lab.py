# SPDX-License-Identifier: Apache-2.0
"""``xdp-router lab``: the router, a client and backends in namespaces of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

DEFAULT_BACKENDS = (("b1", 1_000_000), ("b2", 4_000_000), ("b3", 9_000_000))
_UNITS_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}

_directory_option = click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/run/xdp-router/lab"),
    show_default=True,
    help="Where the lab keeps its state; a second lab needs another one.",
)
_prefix_option = click.option(
    "--prefix",
    default="xr-lab",
    show_default=True,
    help="Begins the names of the lab's namespaces.",
)


class _BackendDelay(click.ParamType[tuple[str, int]]):
    """``NAME`` or ``NAME=DELAY`` as name and nanoseconds."""

    name = "NAME[=DELAY]"

    def convert(
        self,
        value: str | tuple[str, int],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, equals, delay = value.partition("=")
        if not equals:
            return name, 0
        number = delay.rstrip("mus")
        unit_ns = _UNITS_NS.get(delay[len(number) :])
        if not number.isascii() or not number.isdigit() or unit_ns is None:
            self.fail(f"{value!r} is not {self.name}, such as b1 or b1=5ms", param, ctx)
        return name, int(number) * unit_ns


@click.group()
def lab() -> None:
    """Try the router without hardware: client, router and backends in namespaces."""


@lab.command()
@click.option(
    "--backend",
    "backends",
    type=_BackendDelay(),
    multiple=True,
    default=DEFAULT_BACKENDS,
    help="A backend and the round trip time of its wire; give it once for each "
    "backend. Default: b1=1ms, b2=4ms, b3=9ms.",
)
@click.option(
    "--kind",
    type=click.Choice(["http", "echo"]),
    default="http",
    show_default=True,
    help="What the backends serve.",
)
@_directory_option
@_prefix_option
def up(backends: tuple[tuple[str, int], ...], kind: str, directory: Path, prefix: str) -> None:
    """Build the lab, start the router in it, and leave both running."""
    from xdp_router.lab import BackendSpec, LabSpec
    from xdp_router.lab.router import up_with_router

    specs = (
        BackendSpec(name, delay_ns=delay_ns, kind="http" if kind == "http" else "echo")
        for name, delay_ns in backends
    )
    spec = LabSpec(tuple(specs))
    router = up_with_router(spec, directory=directory, prefix=prefix)
    router.lab.close()
    address, port = spec.addresses.service
    names = ", ".join(name for name, _ in backends)
    client = f"sudo ip netns exec {prefix}-client"
    command = f"sudo -E {_this_command()}"
    talk = f"curl http://{address}:{port}/" if kind == "http" else f"nc {address} {port}"
    click.echo(
        f"The lab is up: service {address}:{port}, backends {names}.\n"
        "Point the commands at it:\n"
        f"  export XDP_ROUTER_CONTROL={router.control}\n"
        f"  export XDP_ROUTER_PINS={router.pins}\n"
        "Then, for example:\n"
        f"  {client} {talk}\n"
        f"  {command} status\n"
        f"  {command} flows\n"
        f"  {command} backends\n"
        f"  {command} explain CLIENT   # as the first column of flows has it\n"
        f"Stop a backend: sudo kill $(ip netns pids {prefix}-be1), and look again.\n"
        f"Log of the router: {router.log}\n"
        f"Take it away: sudo {_this_command()} lab down{_other_options(directory, prefix)}"
    )


def _this_command() -> str:
    """The command as it was called: it need not be in PATH."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "xdp-router" else "xdp-router"


def _other_options(directory: Path, prefix: str) -> str:
    """What ``lab down`` needs to find a lab that is not the default one."""
    text = "" if str(directory) == "/run/xdp-router/lab" else f" --directory {directory}"
    return text if prefix == "xr-lab" else f"{text} --prefix {prefix}"


@lab.command()
@_directory_option
@_prefix_option
def down(directory: Path, prefix: str) -> None:
    """Take the lab away, also a part of one; nothing happens if there is none."""
    from xdp_router.lab import down as lab_down

    removed = lab_down(directory=directory, prefix=prefix)
    click.echo("No lab was up." if removed.nothing else "The lab is gone.")


@lab.command()
@click.pass_context
def demo(ctx: click.Context) -> None:
    """Show in half a minute what the router does, in a lab of its own."""
    from xdp_router.lab.demo import run_demo

    ctx.exit(run_demo())
