# SPDX-License-Identifier: Apache-2.0
"""``xdp-router doctor``: what is, or would be, wrong on this host."""

from __future__ import annotations

from pathlib import Path

import click

from xdp_router.adapters import completion
from xdp_router.cli import render

from .context import Context, json_option, pass_context


@click.command()
@click.argument("interfaces", nargs=-1, metavar="[IFACE...]", shell_complete=completion.interfaces)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Look at the services and backends of this file; default: the running daemon's.",
)
@click.option("--all", "show_all", is_flag=True, help="Also show what is in order.")
@json_option
@pass_context
@click.pass_context
def doctor(
    ctx: click.Context,
    context: Context,
    interfaces: tuple[str, ...],
    config_file: Path | None,
    show_all: bool,
    as_json: bool,
) -> None:
    """Look for what keeps this host from routing, or makes it slow; changes nothing.

    IFACE... are interfaces to attach to; default: those that are attached. Exit code 1 when
    something fails.
    """
    # Here, because only this command needs bpf(2) and netlink.
    from xdp_router.adapters.doctor import examine
    from xdp_router.adapters.doctor_finding import Severity, worst
    from xdp_router.core.config import parse_config
    from xdp_router.core.config_gateway import require_services
    from xdp_router.core.errors import ConfigError

    config = None
    if config_file is not None:
        try:
            config = parse_config(config_file.read_text("utf-8"), str(config_file))
            require_services(config.services, str(config_file))
        except ConfigError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(2)
    found = examine(Path(context.control), Path(context.pins), interfaces, config)
    grave = worst(found)
    rows = [
        {
            "code": each.code,
            "severity": each.severity.value,
            "subject": each.subject,
            "text": each.text,
            "mend": each.mend,
        }
        for each in found
    ]
    if as_json:
        render.json_out({"severity": grave.value, "findings": rows})
    else:
        render.doctor(rows, show_all=show_all)
    ctx.exit(1 if grave is Severity.FAIL else 0)
