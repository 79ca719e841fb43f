# SPDX-License-Identifier: Apache-2.0
"""The command that tells the router of a backend's load, and what the gateway's has of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from xdp_router.adapters.completion import names_of
from xdp_router.cli import render

from .context import Context, json_option, pass_context

_Command = TypeVar("_Command", bound=Callable[..., object])

_INPUTS = (
    click.option(
        "--queue",
        type=click.FloatRange(min=0),
        metavar="N",
        help="Requests that run or wait there.",
    ),
    click.option(
        "--ttft",
        "ttft_ms",
        type=click.FloatRange(min=0),
        metavar="MS",
        help="Time to the first token, in milliseconds.",
    ),
    click.option(
        "--cache-hit",
        type=click.FloatRange(0, 1),
        metavar="RATE",
        help="Share of requests that its cache serves, from 0 to 1.",
    ),
    click.option(
        "--cache-usage",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        help="How full its cache is, from 0 to 1.",
    ),
)


def inputs(command: _Command) -> _Command:
    """Options for what can be told of a backend."""
    for option in reversed(_INPUTS):
        command = option(command)
    return command


def told(given: dict[str, float | None]) -> dict[str, float]:
    """Those that were given. Raises UsageError: there are none."""
    found = {name: value for name, value in given.items() if value is not None}
    if not found:
        raise click.UsageError(
            "nothing to tell: give --queue, --ttft, --cache-hit or --cache-usage"
        )
    return found


@click.command()
@click.argument("backend", shell_complete=names_of("backend"))
@inputs
@json_option
@pass_context
def push(context: Context, /, backend: str, as_json: bool, **given: float | None) -> None:
    """Tell how BACKEND is doing, for its score.

    It holds for the time that [service.score] says (age): tell it again before.
    """
    data = context.ask("push", backend=backend, **told(given))
    render.json_out(data) if as_json else render.pushed(data)
