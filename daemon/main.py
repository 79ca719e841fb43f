# SPDX-License-Identifier: Apache-2.0
"""``xdp-routerd``: attach, detach, gateway, check.

Exit codes: 0 done, 1 failed, 2 usage or configuration error, 128 + number: by a signal, before
it was ready.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click

from xdp_router import __version__
from xdp_router.adapters import completion
from xdp_router.adapters.control import (
    DEFAULT_CONTROL_PATH,
    DEFAULT_GATEWAY_CONTROL_PATH,
    group_id,
)
from xdp_router.adapters.loader import CHOICES
from xdp_router.adapters.pins import DEFAULT_ROOT
from xdp_router.adapters.xdp_link import AttachMode
from xdp_router.core.config import (
    MAX_FLOWS,
    Settings,
    config_from_flags,
    document_of_flags,
)
from xdp_router.core.config_gateway import require_services
from xdp_router.core.errors import ConfigError, XdpRouterError
from xdp_router.core.flow_room import limits_of, rooms_of, shortfalls
from xdp_router.core.probe_load import overloads

from . import former, garbage, logs, streams
from .app import run
from .attach_options import AttachOptions
from .config_file import ConfigFile
from .detach import detach_interfaces
from .signals import Interrupted, Signals

_MODES = {"auto": None, "native": AttachMode.NATIVE, "generic": AttachMode.GENERIC}
_EXIT_CONFIG = 2

completion.accept_shells()


class _Group(click.Group):
    """Turns errors into one message on stderr and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with former.told():
                return super().invoke(ctx)
        except ConfigError as error:
            click.echo(f"Error: {error}", err=True)
            raise click.exceptions.Exit(_EXIT_CONFIG) from error
        except XdpRouterError as error:
            if os.environ.get("XDP_ROUTER_DEBUG"):
                raise
            raise click.ClickException(str(error)) from error


class _OrderedCommand(click.Command):
    """Remembers in which order --service and --backend came: a backend belongs to the service
    before it, and click hands over each option's values on their own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        targets: list[tuple[str, list[str]]] = []
        words = iter(args)
        for word in words:
            if word == "--":
                break
            option, equals, value = word.partition("=")
            if option not in ("--service", "--backend"):
                continue
            value = value if equals else next(words, "")
            if option == "--service":
                targets.append((value, []))
            elif targets:
                targets[-1][1].append(value)
            else:
                raise click.UsageError(
                    f"--backend {value} comes before any --service: name the service first, "
                    "its backends after it",
                    ctx,
                )
        ctx.meta["targets"] = targets
        return super().parse_args(ctx, args)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="xdp-routerd")
def main() -> None:
    """The daemon of a first-packet-probing XDP router."""


_pins_option = click.option(
    "--pins",
    envvar="XDP_ROUTER_PINS",
    type=click.Path(path_type=Path),
    default=DEFAULT_ROOT,
    show_default=True,
    show_envvar=True,
    metavar="DIR",
    help="Where the maps are pinned; must be on a BPF file system.",
)


_log_format_option = click.option(
    "--log-format",
    type=click.Choice(logs.FORMATS),
    default="console",
    show_default=True,
    help="Form of the log lines on stderr.",
)


def _until_stopped(log_format: str, work: Callable[[Signals], Coroutine[Any, Any, None]]) -> None:
    """Run what ends by a signal."""
    signals = Signals()
    signals.install()
    streams.hold_standard_streams()
    log = streams.LogStream(sys.stderr)
    log.lost_line = logs.configure(log_format, log)
    # What libraries have to say must not wait for a reader either.
    logging.basicConfig(stream=log, format="%(name)s: %(message)s")
    try:
        with garbage.postponed():
            asyncio.run(work(signals))
    except Interrupted as error:
        log.write(f"{str(error).capitalize()}.\n")
        raise click.exceptions.Exit(128 + signals.number) from error
    finally:
        signals.ignore()
        log.close()


@main.command(cls=_OrderedCommand)
@click.argument(
    "interfaces",
    nargs=-1,
    required=True,
    metavar="IFACE...",
    shell_complete=completion.interfaces,
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Services and settings (TOML).",
)
@click.option(
    "--service",
    "services",
    multiple=True,
    metavar="ADDR:PORT/tcp",
    help="A service, by flag; or /udp.",
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="ADDR:PORT",
    help="A backend of the service named before it.",
)
@click.option(
    "--mode",
    type=click.Choice(["race", "snapshot", "inline"]),
    default="race",
    show_default=True,
    help="Mode of the services that are named by flag.",
)
@click.option(
    "--xdp-mode",
    type=click.Choice(list(_MODES)),
    default="auto",
    show_default=True,
    help="Where XDP runs: in the driver, or in the network stack.",
)
@click.option(
    "--loader",
    type=click.Choice(CHOICES),
    default="auto",
    show_default=True,
    help="Compiled program, or compile it at start; auto: the program if it was built.",
)
@click.option(
    "--max-flows",
    type=click.IntRange(*MAX_FLOWS),
    metavar="N",
    help="Established connections that are kept; goes before max_flows of the configuration.",
)
@click.option(
    "--persist",
    is_flag=True,
    help="When stopped, leave the data plane at work: connections go on, the next attach takes "
    "them over, detach ends them.",
)
@click.option(
    "--gateway",
    "with_gateway",
    is_flag=True,
    help="Also run the gateway, for the listeners of the configuration.",
)
@click.option("--replace", is_flag=True, help="Remove another XDP program from the interfaces.")
@click.option(
    "--control",
    envvar="XDP_ROUTER_CONTROL",
    type=click.Path(path_type=Path),
    default=DEFAULT_CONTROL_PATH,
    show_default=True,
    show_envvar=True,
    metavar="PATH",
    help="Control socket.",
)
@click.option(
    "--control-group",
    envvar="XDP_ROUTER_CONTROL_GROUP",
    metavar="GROUP",
    help="Group whose members may use the control socket; default: the daemon's own.",
)
@_pins_option
@_log_format_option
@click.pass_context
def attach(
    ctx: click.Context,
    interfaces: tuple[str, ...],
    config_file: Path | None,
    services: tuple[str, ...],
    backends: tuple[str, ...],
    mode: str,
    xdp_mode: str,
    loader: str,
    max_flows: int | None,
    persist: bool,
    with_gateway: bool,
    replace: bool,
    control: Path,
    control_group: str | None,
    pins: Path,
    log_format: str,
) -> None:
    """Attach to IFACE... and route until SIGTERM or Ctrl-C.

    Name every interface that clients come in by or backends are reached by. What a daemon that
    was killed, or stopped with --persist, has left on them is taken over, connections and all.
    """
    if config_file is not None and (services or backends):
        raise click.UsageError("--config and --service/--backend exclude each other", ctx)
    source: ConfigFile | None = None
    if config_file is not None:
        source = ConfigFile(config_file, max_flows)
        config = source.load()
        require_services(config.services, source.shown)
    elif services:
        settings = None if max_flows is None else Settings(max_flows=max_flows)
        config = config_from_flags(ctx.meta["targets"], mode, settings)
    else:
        raise click.UsageError(
            "nothing to route: give --config FILE, or --service ADDR:PORT/tcp with "
            "--backend ADDR:PORT",
            ctx,
        )
    if with_gateway and source is None:
        raise click.UsageError("--gateway serves the listeners of a file: give --config FILE", ctx)
    repeated = {name for name in interfaces if interfaces.count(name) > 1}
    if repeated:
        raise click.UsageError(f"interface named twice: {', '.join(sorted(repeated))}", ctx)
    if os.geteuid() != 0:
        raise click.ClickException("attaching XDP needs root: sudo xdp-routerd attach ...")
    group = group_id(control_group) if control_group else None
    options = AttachOptions(
        interfaces,
        _MODES[xdp_mode],
        loader,
        replace,
        control,
        pins,
        persist=persist,
        control_group=group,
        log_format=log_format,
        gateway=with_gateway,
        source=source,
        document=None if source is not None else document_of_flags(ctx.meta["targets"], mode),
    )
    _until_stopped(log_format, lambda signals: run(config, options, signals))


@main.command()
@click.argument(
    "interfaces",
    nargs=-1,
    required=True,
    metavar="IFACE...",
    shell_complete=completion.interfaces,
)
@_pins_option
def detach(interfaces: tuple[str, ...], pins: Path) -> None:
    """Take a data plane off IFACE... whose daemon is gone, and remove its pins.

    Flows through it end. A running daemon detaches by itself when it is stopped, unless it was
    started with --persist.
    """
    for line in detach_interfaces(interfaces, pins):
        click.echo(line)


@main.command()
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Listeners and settings (TOML).",
)
@click.option(
    "--control",
    envvar="XDP_ROUTER_GATEWAY_CONTROL",
    type=click.Path(path_type=Path),
    default=DEFAULT_GATEWAY_CONTROL_PATH,
    show_default=True,
    show_envvar=True,
    metavar="PATH",
    help="Control socket. A gateway that runs with the same hands over.",
)
@click.option(
    "--control-group",
    envvar="XDP_ROUTER_CONTROL_GROUP",
    metavar="GROUP",
    help="Group whose members may look; default: the gateway's own.",
)
@_log_format_option
def gateway(config_file: Path, control: Path, control_group: str | None, log_format: str) -> None:
    """Route by what connections say: serve the listeners of FILE until SIGTERM or Ctrl-C.

    Streams are finished then, for as long as drain_timeout; a second signal ends them. Needs no
    root but for ports below 1024.
    """
    # Here, because attach needs none of it.
    from .gateway.reloads import load
    from .gateway.supervisor import GatewayOptions
    from .gateway.supervisor import run as serve

    group = group_id(control_group) if control_group else None
    options = GatewayOptions(control, group, log_format)
    file = ConfigFile(config_file)
    document = load(file)
    _until_stopped(log_format, lambda signals: serve(file, document, options, signals))


@main.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def check(file: Path) -> None:
    """Check a configuration file; nothing is attached."""
    config = ConfigFile(file).load()
    backends = sum(len(service.backends) for service in config.services)
    for each in shortfalls(
        limits_of(config.services, config.nat_ports), rooms_of(config.settings.max_flows)
    ):
        click.echo(f"Warning: {each.text}: {each.mend}", err=True)
    for overload in overloads(config.services, config.settings.probe_rate):
        click.echo(f"Warning: {overload.text}: {overload.mend}", err=True)
    listeners = config.gateway.listeners
    more = ""
    if listeners:
        servers = sum(len(listener.backends) for listener in listeners)
        more = f"; listeners: {len(listeners)}, their backends: {servers}"
    click.echo(f"{file}: good; services: {len(config.services)}, backends: {backends}{more}")


if __name__ == "__main__":
    main()
