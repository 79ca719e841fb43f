# SPDX-License-Identifier: Apache-2.0
"""Commands that ask the gateway: ``xdp-router gateway ...``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xdp_router.adapters.control import (
    DEFAULT_GATEWAY_CONTROL_PATH,
    UNIT_GATEWAY_CONTROL_PATH,
    NoDaemon,
)
from xdp_router.cli import render, render_gateway

from .context import Context, json_option, pass_context
from .push import inputs, told


def control_path(*paths: str) -> str:
    """The first one that is there, else the first one."""
    return next((path for path in paths if Path(path).exists()), paths[0])


@click.group()
@click.option(
    "--control",
    envvar="XDP_ROUTER_GATEWAY_CONTROL",
    default=lambda: control_path(DEFAULT_GATEWAY_CONTROL_PATH, UNIT_GATEWAY_CONTROL_PATH),
    show_default=f"{DEFAULT_GATEWAY_CONTROL_PATH}, or {UNIT_GATEWAY_CONTROL_PATH} if it is there",
    show_envvar=True,
    metavar="PATH",
    help="Control socket of the gateway.",
)
@pass_context
def gateway(context: Context, control: str) -> None:
    """Look at the gateway, and at what it decided and why."""
    context.control = control


def _ask(context: Context, command: str, **args: object) -> Any:
    try:
        return context.ask(command, **args)
    except NoDaemon as error:
        raise click.ClickException(
            f"no gateway listens on {context.control}: start one with 'xdp-routerd gateway "
            "--config FILE', or name its socket with 'gateway --control PATH'"
        ) from error


@gateway.command()
@json_option
@pass_context
def status(context: Context, as_json: bool) -> None:
    """Show whether the gateway serves, and its worker processes."""
    data = _ask(context, "status")
    render.json_out(data) if as_json else render_gateway.status(data)


@gateway.command()
@json_option
@pass_context
def listeners(context: Context, as_json: bool) -> None:
    """List the listeners."""
    data = _ask(context, "listeners")
    render.json_out(data) if as_json else render_gateway.listeners(data)


@gateway.command()
@json_option
@pass_context
def backends(context: Context, as_json: bool) -> None:
    """List the backends: how they are, how fast, how much they have to do."""
    data = _ask(context, "backends")
    render.json_out(data) if as_json else render_gateway.backends(data)


@gateway.command()
@click.argument("backend")
@inputs
@json_option
@pass_context
def push(context: Context, /, backend: str, as_json: bool, **given: float | None) -> None:
    """Tell how BACKEND is doing, for its score: a name, or an address with its port.

    It holds for the time that [listener.score] says (age): tell it again before.
    """
    data = _ask(context, "push", backend=backend, **told(given))
    render.json_out(data) if as_json else render_gateway.pushed(data)


_limit = click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    metavar="N",
    help="So many at most.",
)


@gateway.command()
@_limit
@json_option
@pass_context
def streams(context: Context, limit: int, as_json: bool) -> None:
    """List requests and connections that are open."""
    data = _ask(context, "streams", limit=limit)
    render.json_out(data) if as_json else render_gateway.streams(data)


@gateway.command()
@_limit
@json_option
@pass_context
def decisions(context: Context, limit: int, as_json: bool) -> None:
    """List what was decided last, the newest first."""
    data = _ask(context, "decisions", limit=limit)
    render.json_out(data) if as_json else render_gateway.decisions(data)


@gateway.command()
@click.argument("request", metavar="ID")
@json_option
@pass_context
def explain(context: Context, request: str, as_json: bool) -> None:
    """Show why a request went where it went.

    ID is the request's, as 'decisions' and the access log have it.
    """
    data = _ask(context, "explain", request=request)
    render.json_out(data) if as_json else render_gateway.explain(data)


@gateway.command()
@click.option("--dry-run", is_flag=True, help="Only look whether the file could be used.")
@json_option
@pass_context
def reload(context: Context, dry_run: bool, as_json: bool) -> None:
    """Read the configuration file and the certificates again.

    Open streams go on as they are. A file that cannot be used changes nothing.
    """
    data = _ask(context, "reload", dry_run=dry_run)
    render.json_out(data) if as_json else render_gateway.reloaded(data)


@gateway.command()
@click.option("--now", is_flag=True, help="Cut what is open instead of waiting for its end.")
@json_option
@pass_context
def drain(context: Context, now: bool, as_json: bool) -> None:
    """Stop the gateway: it takes nothing new, finishes what is open, and ends."""
    data = _ask(context, "drain", now=now)
    render.json_out(data) if as_json else render_gateway.draining(data)


@gateway.command()
@json_option
@pass_context
def upgrade(context: Context, as_json: bool) -> None:
    """Start the gateway anew, as what is installed now, without a gap.

    A successor is started as the running one was, and takes over: no client is refused, open
    streams go on. If it fails nothing has changed, and this says why.
    """
    data = _ask(context, "upgrade")
    render.json_out(data) if as_json else render_gateway.upgraded(data)
