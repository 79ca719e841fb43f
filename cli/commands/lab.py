# SPDX-License-Identifier: Apache-2.0
"""``xdp-router lab``: the router, a client and backends in namespaces of this machine."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xdp_router.adapters.control import ControlClient, ControlError

if TYPE_CHECKING:
    from xdp_router.lab import Lab

DEFAULT_BACKENDS = (("b1", 1_000_000), ("b2", 4_000_000), ("b3", 9_000_000))
_READY_S = 20.0
_POLL_S = 0.05
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


class LabRouterError(Exception):
    """The lab's router did not come up."""


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
    from xdp_router.lab import down as lab_down
    from xdp_router.lab import up as lab_up

    specs = (
        BackendSpec(name, delay_ns=delay_ns, kind="http" if kind == "http" else "echo")
        for name, delay_ns in backends
    )
    spec = LabSpec(tuple(specs))
    built = lab_up(spec, directory=directory, prefix=prefix)
    try:
        control, pins = _start_router(built)
    except BaseException:
        built.close()
        lab_down(directory=directory, prefix=prefix)
        raise
    built.close()
    address, port = spec.addresses.service
    names = ", ".join(name for name, _ in backends)
    client = f"sudo ip netns exec {prefix}-client"
    talk = f"curl http://{address}:{port}/" if kind == "http" else f"nc {address} {port}"
    click.echo(
        f"The lab is up: service {address}:{port}, backends {names}.\n"
        "Point the commands at it:\n"
        f"  export XDP_ROUTER_CONTROL={control}\n"
        f"  export XDP_ROUTER_PINS={pins}\n"
        "Then, for example:\n"
        f"  {client} {talk}\n"
        "  sudo -E xdp-router status\n"
        "  sudo -E xdp-router flows\n"
        "  sudo -E xdp-router backends\n"
        f"Log of the router: {control.with_name('router.log')}\n"
        f"Take it away: sudo xdp-router lab down{_other_options(directory, prefix)}"
    )


def _other_options(directory: Path, prefix: str) -> str:
    """What ``lab down`` needs to find a lab that is not the default one."""
    text = "" if str(directory) == "/run/xdp-router/lab" else f" --directory {directory}"
    return text if prefix == "xr-lab" else f"{text} --prefix {prefix}"


def _start_router(built: Lab) -> tuple[Path, Path]:
    """Start the daemon in the router's namespace and wait until it is ready."""
    control = built.directory / "control.sock"
    pins = built.directory / "bpf" / "xdp-router"
    config = built.directory / "router.toml"
    log = built.directory / "router.log"
    config.write_text(built.config_toml(), encoding="utf-8")
    argv = [sys.executable, "-m", "xdp_router.daemon.main", "attach", *built.router_interfaces]
    argv += ["--config", str(config), "--control", str(control), "--pins", str(pins)]
    with log.open("wb") as output:
        process = built.router.spawn(argv, name="router", stdout=output, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + _READY_S
    while True:
        if process.poll() is not None:
            last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            said = last[0] if last else "nothing"
            raise LabRouterError(f"the router ended with exit code {process.returncode}: {said}")
        if _is_ready(control):
            return control, pins
        if time.monotonic() >= deadline:
            raise LabRouterError(f"the router was not ready within {_READY_S:.0f} s")
        time.sleep(_POLL_S)


def _is_ready(control: Path) -> bool:
    try:
        with ControlClient(control, timeout_s=2.0) as client:
            return bool(client.call("status")["ready"])
    except ControlError:
        return False


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
