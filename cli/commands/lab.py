# SPDX-License-Identifier: Apache-2.0
"""``xdp-router lab``: the router, a client and backends in namespaces of this machine."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

DEFAULT_BACKENDS = (("b1", 1_000_000, 1), ("b2", 4_000_000, 1), ("b3", 9_000_000, 1))
WEIGHT_MAX = 1000
_KINDS = ("http", "echo", "hash", "stun")
_UNITS_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}

_directory_option = click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/run/xdp-router/lab"),
    show_default=True,
    help="Where the lab keeps its state; a second lab needs another one.",
)
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def _prefix(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """It is part of file names, and of commands that are printed to be copied."""
    if not _PREFIX.fullmatch(value):
        raise click.BadParameter(
            f"{value!r}: use 1 to 64 letters, digits, '-', '_' or '.', beginning with a letter or "
            "digit"
        )
    return value


_prefix_option = click.option(
    "--prefix",
    default="xr-lab",
    callback=_prefix,
    show_default=True,
    help="Begins the names of the lab's namespaces.",
)


class _Backend(click.ParamType[tuple[str, int, int]]):
    """``NAME``, ``NAME=DELAY`` or either with ``,weight=N``: name, nanoseconds and weight."""

    name = "NAME[=DELAY][,weight=N]"

    def convert(
        self,
        value: str | tuple[str, int, int],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, int, int]:
        if isinstance(value, tuple):
            return value
        wire, *rest = value.split(",")
        name, equals, delay = wire.partition("=")
        nanoseconds = _nanoseconds(delay) if equals else 0
        weight = 1 if not rest else _weight(rest)
        if nanoseconds is None or weight is None:
            self.fail(
                f"{value!r} is not {self.name}, such as b1 or b1=5ms or b1=5ms,weight=3", param, ctx
            )
        return name, nanoseconds, weight


def _nanoseconds(delay: str) -> int | None:
    number = delay.rstrip("mus")
    unit_ns = _UNITS_NS.get(delay[len(number) :])
    if not number.isascii() or not number.isdigit() or unit_ns is None:
        return None
    return int(number) * unit_ns


def _weight(options: list[str]) -> int | None:
    key, _, number = options[0].partition("=")
    if len(options) > 1 or key != "weight" or not number.isascii() or not number.isdigit():
        return None
    return int(number) if 1 <= int(number) <= WEIGHT_MAX else None


@click.group()
def lab() -> None:
    """Try the router without hardware: client, router and backends in namespaces."""


@lab.command()
@click.option(
    "--backend",
    "backends",
    type=_Backend(),
    multiple=True,
    default=DEFAULT_BACKENDS,
    help="A backend, the round trip time of its wire and its weight; give it once for each "
    "backend. Default: b1=1ms, b2=4ms, b3=9ms.",
)
@click.option(
    "--kind",
    type=click.Choice(list(_KINDS)),
    help="What the backends serve. http and echo: TCP; stun: UDP; hash: both, and says who it is, "
    "what it got and how much.  [default: http, of UDP hash]",
)
@click.option(
    "--family",
    type=click.Choice(["4", "6"]),
    default="4",
    show_default=True,
    help="Address family of the service and its backends.",
)
@click.option(
    "--protocol",
    type=click.Choice(["tcp", "udp"]),
    default="tcp",
    show_default=True,
    help="What the service and its backends speak.",
)
@click.option(
    "--mode",
    type=click.Choice(["race", "snapshot", "inline"]),
    default="race",
    show_default=True,
    help="How a first packet gets its backend.",
)
@click.option(
    "--forwarding",
    type=click.Choice(["nat", "fullnat", "dsr", "ipip"]),
    default="nat",
    show_default=True,
    help="How packets get to the backends. With dsr and ipip the backends have the service's "
    "address, and all are on one Ethernet.",
)
@click.option(
    "--one-armed",
    is_flag=True,
    help="Clients, router and backends on one Ethernet: needs fullnat, dsr or ipip.",
)
@click.option(
    "--probe",
    metavar="KIND",
    help="How backends are probed: syn, icmp, tcp:PORT, tcp-connect, http, stun or udp.  [default: "
    "syn, of UDP udp or stun]",
)
@_directory_option
@_prefix_option
def up(
    backends: tuple[tuple[str, int, int], ...],
    kind: str | None,
    family: str,
    protocol: str,
    mode: str,
    forwarding: str,
    one_armed: bool,
    probe: str | None,
    directory: Path,
    prefix: str,
) -> None:
    """Build the lab, start the router in it, and leave both running."""
    from xdp_router.lab.choices import Choices, choose
    from xdp_router.lab.router import up_with_router

    chosen = choose(
        Choices(
            backends,
            kind,
            6 if family == "6" else 4,
            protocol,
            forwarding,
            one_armed,
            probe,
            mode,
        )
    )
    router = up_with_router(chosen.spec, directory=directory, prefix=prefix, config=chosen.config)
    router.lab.close()
    names = ", ".join(name for name, _, _ in backends)
    client = f"sudo ip netns exec {prefix}-client"
    command = f"sudo -E {_this_command()}"
    click.echo(
        f"The lab is up: service {chosen.service}/{protocol}, {mode}, {forwarding} to backends "
        f"{names}.\n"
        "Point the commands at it:\n"
        f"  export XDP_ROUTER_CONTROL={router.control}\n"
        f"  export XDP_ROUTER_PINS={router.pins}\n"
        "Then, for example:\n"
        f"  {client} {chosen.talk}\n"
        f"  {command} status\n"
        f"  {command} flows\n"
        f"  {command} backends\n"
        f"  {command} explain CLIENT   # as the first column of flows has it\n"
        f"Stop a backend: sudo kill $(sudo ip netns pids {prefix}-be1), and look again.\n"
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
    """Take the lab away, also a part of one; nothing happens if there is none.

    What somebody else has started in its namespaces is told, and not ended.
    """
    from xdp_router.lab import down as lab_down

    removed = lab_down(directory=directory, prefix=prefix)
    click.echo("No lab was up." if removed.nothing else "The lab is gone.")
    for guest in removed.guests:
        click.echo(f"{guest}.")


@lab.command()
@click.pass_context
def demo(ctx: click.Context) -> None:
    """Show in half a minute what the router does, in a lab of its own."""
    from xdp_router.lab.demo import run_demo

    ctx.exit(run_demo())


@lab.command()
@click.pass_context
def gateway(ctx: click.Context) -> None:
    """Show in some seconds what the gateway does, with three mock engines."""
    from xdp_router.lab.demo_gateway import run_demo

    ctx.exit(run_demo())
