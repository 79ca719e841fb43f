# SPDX-License-Identifier: Apache-2.0
"""``xdp-router events``: what has happened, and what happens."""

from __future__ import annotations

import contextlib

import click

from xdp_router.adapters.completion import events as event_names
from xdp_router.cli.render_events import event_line, event_text
from xdp_router.core.event_names import reject_unknown

from .context import Context, pass_context


def _known(
    _context: click.Context, _option: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    """An event that never comes would be waited for in silence."""
    try:
        reject_unknown(names)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return names


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens from now on.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(0, 2000),
    metavar="N",
    help="The newest N.  [default: 50, with --follow 0]",
)
@click.option(
    "--event",
    "names",
    multiple=True,
    metavar="NAME",
    callback=_known,
    shell_complete=event_names,
    help="Only events of this name, such as decision or backend_down; may be given again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line.")
@pass_context
def events(
    context: Context, follow: bool, limit: int | None, names: tuple[str, ...], as_json: bool
) -> None:
    """Show decisions, backends that come and go, interfaces, budgets: whatever the log tells.

    The newest are kept by the daemon. A reader that does not keep up is told how many it has
    missed (event events_lost), and cut off if it reads nothing for 5 s.
    """
    words = event_line if as_json else event_text
    if limit is None:
        limit = 0 if follow else 50
    stream = context.stream("events", follow=True, names=list(names)) if follow else None
    newest = 0
    if limit:
        for each in context.ask("events", limit=limit, names=list(names)):
            newest = each["number"]
            click.echo(words(each))
    if stream is None:
        return
    with contextlib.suppress(KeyboardInterrupt):  # as one ends it
        for each in stream:
            if each.get("number", newest + 1) > newest:
                click.echo(words(each))
