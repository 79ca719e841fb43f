# SPDX-License-Identifier: Apache-2.0
"""Commands that read the pinned maps themselves, with or without a daemon."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import click

from xdp_router.adapters.completion import names_of
from xdp_router.adapters.control import ControlError
from xdp_router.cli import render
from xdp_router.core.address import format_endpoint, parse_addr, parse_endpoint

from .context import ClientAddress, Context, as_host, json_option, pass_context

DEFAULT_LIMIT = 1000
STATES = ("probing", "opening", "established", "stateless", "closing", "closed", "refused")
CLIENTS_PER_QUESTION = 200
"""So that the daemon answers each question within a millisecond or two."""


def _matches(flow: Mapping[str, Any], wanted: Mapping[str, str | None]) -> bool:
    """Whether a flow passes the filters; an address without a port matches any port."""
    texts = {
        "client": (flow["client"],),
        "service": (flow["service"],),
        "backend": (flow["backend"], flow["backend_address"]),
        "state": (flow["state"],),
    }
    return all(
        any(text == value or str(text).startswith(f"{value}:") for text in texts[name])
        for name, value in wanted.items()
        if value is not None
    )


def _shown(backend: str) -> str:
    """An address or endpoint in the form that flows show; a name as it is."""
    with contextlib.suppress(ValueError):
        return as_host(backend) or format_endpoint(parse_endpoint(backend))
    return backend


def _addr_of(client: str) -> int:
    """Of what ``ClientAddress`` gives, with or without a port."""
    host = as_host(client)
    return parse_addr(host.strip("[]")) if host else parse_endpoint(client).addr


def _client(row: Mapping[str, Any]) -> str:
    """A flow's client, for the daemon: one port may be of two protocols."""
    return f"{row['client']}/{row['protocol']}"


def _add_candidates(context: Context, rows: Sequence[dict[str, Any]]) -> None:
    """Fill in the candidates that the daemon still keeps; without a daemon they stay empty."""
    clients = list(dict.fromkeys(map(_client, rows)))
    kept: dict[str, list[dict[str, Any]]] = {}
    try:
        for start in range(0, len(clients), CLIENTS_PER_QUESTION):
            chunk = clients[start : start + CLIENTS_PER_QUESTION]
            kept.update(context.ask("decisions", clients=chunk))
    except ControlError:
        pass  # the maps are the answer; what the daemon knows is an addition
    for row in rows:
        candidates = kept.get(_client(row))
        if not candidates:
            continue
        # The client's port may since have been used for another service: its race says nothing
        # about a flow whose winner did not take part.
        if row["decision"]["mode"] != "race" or any(
            candidate["backend"] == row["backend"] for candidate in candidates
        ):
            row["decision"]["candidates"] = candidates


@click.command()
@click.option(
    "--client",
    type=ClientAddress(port_optional=True),
    help="Only this client's flows.",
    shell_complete=names_of("address"),
)
@click.option(
    "--service",
    metavar="NAME",
    help="Only flows of this service.",
    shell_complete=names_of("service"),
)
@click.option(
    "--backend",
    metavar="NAME|ADDR[:PORT]",
    help="Only flows to this backend.",
    shell_complete=names_of("backend"),
)
@click.option("--state", type=click.Choice(STATES), help="Only flows in this state.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=DEFAULT_LIMIT,
    show_default=True,
    help="Print at most so many flows.",
)
@json_option
@pass_context
def flows(
    context: Context,
    client: str | None,
    service: str | None,
    backend: str | None,
    state: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the flows, from the kernel's tables; works without a daemon too."""
    if backend is not None:
        backend = _shown(backend)
    wanted = {"client": client, "service": service, "backend": backend, "state": state}
    filtered = any(value is not None for value in wanted.values())
    limit = min(limit, sys.maxsize - 1)
    # One more than asked for tells whether there are more.
    source = None if client is None else _addr_of(client)
    found = context.instance().flows(sys.maxsize if filtered else limit + 1, source)
    rows = list(islice((flow for flow in found if _matches(flow, wanted)), limit + 1))
    more = len(rows) > limit
    del rows[limit:]
    if as_json:
        _add_candidates(context, rows)
        render.json_out(rows)
    else:
        render.flows(rows)
    if more:
        click.echo(f"There are more than {limit} flows: --limit shows more.", err=True)


@click.command()
@click.option("--all", "show_all", is_flag=True, help="Also show the counters that are 0.")
@json_option
@pass_context
def counters(context: Context, show_all: bool, as_json: bool) -> None:
    """Show why packets were not simply forwarded; works without a daemon too."""
    data = context.instance().counters()
    render.json_out(data) if as_json else render.counters(data, show_all=show_all)
