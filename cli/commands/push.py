# SPDX-License-Identifier: Apache-2.0
"""The command that tells the router of a backend's load."""

from __future__ import annotations

import click

from xdp_router.adapters.completion import names_of
from xdp_router.cli import render

from .context import Context, json_option, pass_context


@click.command()
@click.argument("backend", shell_complete=names_of("backend"))
@click.option(
    "--queue",
    type=click.FloatRange(min=0),
    metavar="N",
    help="Requests that run or wait there.",
)
@click.option(
    "--ttft",
    type=click.FloatRange(min=0),
    metavar="MS",
    help="Time to the first token, in milliseconds.",
)
@click.option(
    "--cache-hit",
    type=click.FloatRange(0, 1),
    metavar="RATE",
    help="Share of requests that its cache serves, from 0 to 1.",
)
@click.option(
    "--cache-usage",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="How full its cache is, from 0 to 1.",
)
@json_option
@pass_context
def push(
    context: Context,
    backend: str,
    queue: float | None,
    ttft: float | None,
    cache_hit: float | None,
    cache_usage: float | None,
    as_json: bool,
) -> None:
    """Tell how BACKEND is doing, for its score.

    It holds for the time that [service.score] says (age): tell it again before.
    """
    given = {
        "queue": queue,
        "ttft_ms": ttft,
        "cache_hit": cache_hit,
        "cache_usage": cache_usage,
    }
    told = {name: value for name, value in given.items() if value is not None}
    if not told:
        raise click.UsageError(
            "nothing to tell: give --queue, --ttft, --cache-hit or --cache-usage"
        )
    data = context.ask("push", backend=backend, **told)
    render.json_out(data) if as_json else render.pushed(data)
