# SPDX-License-Identifier: Apache-2.0
"""Commands that ask the daemon: status, services, backends, explain."""

from __future__ import annotations

import click

from xdp_router.adapters.completion import names_of
from xdp_router.cli import render

from .context import ClientAddress, Context, json_option, pass_context


@click.command()
@json_option
@pass_context
def status(context: Context, as_json: bool) -> None:
    """Show whether the router runs, where, and how much it has decided."""
    data = context.ask("status")
    render.json_out(data) if as_json else render.status(data)


@click.command()
@json_option
@pass_context
def services(context: Context, as_json: bool) -> None:
    """List the services."""
    data = context.ask("services")
    render.json_out(data) if as_json else render.services(data)


@click.command()
@json_option
@pass_context
def backends(context: Context, as_json: bool) -> None:
    """List the backends: which are up, how fast they answer, how often they win."""
    data = context.ask("backends")
    render.json_out(data) if as_json else render.backends(data)


@click.command()
@click.argument("client", type=ClientAddress(protocol=True), shell_complete=names_of("client"))
@json_option
@pass_context
def explain(context: Context, client: str, as_json: bool) -> None:
    """Show on a time line why the flow of CLIENT went where it went.

    CLIENT is ADDR:PORT; of one port's flows of TCP and of UDP the newest is shown, or that of
    ADDR:PORT/tcp or ADDR:PORT/udp.
    """
    data = context.ask("explain", client=client)
    render.json_out(data) if as_json else render.explain(data)
