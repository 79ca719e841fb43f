# SPDX-License-Identifier: Apache-2.0
"""``xdp-router``: the operator's command line.

Exit codes: 0 done, 1 failed, 2 usage or configuration error.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import click

from xdp_router import __version__
from xdp_router.adapters import completion
from xdp_router.adapters.control import DEFAULT_CONTROL_PATH
from xdp_router.adapters.pins import DEFAULT_ROOT

from . import output
from .commands import change, daemon, doctor, events, gateway, lab, maps, push
from .commands.context import Context

completion.accept_shells()


class _Group(click.Group):
    """Turns exceptions into one line on stderr and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        output.accept_any_encoding()
        try:
            result = super().invoke(ctx)
            output.flush()
            return result
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if os.environ.get("XDP_ROUTER_DEBUG") or _is_broken_pipe(error):
                raise
            raise click.ClickException(_one_line(output.as_output_error(error) or error)) from error


def _is_broken_pipe(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _one_line(error: Exception) -> str:
    if type(error).__module__.startswith("xdp_router."):
        text = str(error)  # our own errors speak for themselves
    elif isinstance(error, PermissionError):
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror or 'no permission'}: run the command with sudo"
    elif isinstance(error, OSError):
        text = str(error)
    else:
        text = (
            f"internal error: {type(error).__name__}: {error} "
            "(XDP_ROUTER_DEBUG=1 shows where; please report it)"
        )
    return " ".join(text.split())


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--control",
    envvar="XDP_ROUTER_CONTROL",
    default=DEFAULT_CONTROL_PATH,
    show_default=True,
    show_envvar=True,
    metavar="PATH",
    help="Control socket of the daemon.",
)
@click.option(
    "--pins",
    envvar="XDP_ROUTER_PINS",
    default=str(DEFAULT_ROOT),
    show_default=True,
    show_envvar=True,
    metavar="DIR",
    help="Where the router's maps are pinned.",
)
@click.version_option(__version__, prog_name="xdp-router")
@click.pass_context
def main(ctx: click.Context, control: str, pins: str) -> None:
    """Look at a first-packet-probing XDP router, and at what it decided and why."""
    context = ctx.ensure_object(Context)
    context.control = control
    context.pins = pins


for _command in (
    daemon.status,
    daemon.services,
    daemon.backends,
    maps.flows,
    daemon.explain,
    events.events,
    maps.counters,
    push.push,
    change.drain,
    change.undrain,
    change.reload,
    change.service,
    change.backend,
    gateway.gateway,
    doctor.doctor,
    lab.lab,
):
    main.add_command(_command)

if __name__ == "__main__":
    main()
