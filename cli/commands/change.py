# SPDX-License-Identifier: Apache-2.0
"""Commands that change a running router."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from xdp_router.adapters.completion import keys_of, names_of
from xdp_router.cli import render
from xdp_router.core.config_edit import parse_keys

from .context import Context, json_option, pass_context

POLL_S = 0.5
_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.command()
@click.argument("backend", shell_complete=names_of("backend"))
@click.option("--wait", is_flag=True, help="Return when its last flow has ended.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="S",
    help="With --wait: give up after so many seconds (exit code 1); default: never.",
)
@json_option
@pass_context
def drain(context: Context, backend: str, wait: bool, timeout: float | None, as_json: bool) -> None:
    """Give BACKEND no new flows; those that it has go on.

    A restarted daemon goes on with it, until 'undrain'.
    """
    if timeout is not None and not wait:
        raise click.UsageError("--timeout is how long --wait waits: give both")
    data = context.ask("drain", backend=backend)
    if wait:
        data = {**data, "flows": _wait(context, backend, timeout)}
    render.json_out(data) if as_json else render.drained(data)
    if data.get("flows"):
        raise click.ClickException(
            f"{backend} still has {_flows(data['flows'])} after {timeout:g} s, and goes on "
            f"draining: wait longer, or 'xdp-router undrain {backend}' gives it new ones again"
        )


def _wait(context: Context, backend: str, timeout: float | None) -> int:
    """Flows that are left: none, or it took too long."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        data = context.ask("backend_flows", backend=backend)
        if not data["draining"]:
            raise click.ClickException(
                f"{backend} was undrained meanwhile, and has {_flows(data['flows'])}"
            )
        left = POLL_S if end is None else end - time.monotonic()
        if not data["flows"] or left <= 0:
            return int(data["flows"])
        time.sleep(min(POLL_S, left))


def _flows(count: int) -> str:
    return f"{count} flow{'' if count == 1 else 's'}"


@click.command()
@click.argument("backend", shell_complete=names_of("backend"))
@json_option
@pass_context
def undrain(context: Context, backend: str, as_json: bool) -> None:
    """Give BACKEND new flows again."""
    data = context.ask("undrain", backend=backend)
    render.json_out(data) if as_json else render.drained(data)


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@json_option
@pass_context
def reload(context: Context, dry_run: bool, as_json: bool) -> None:
    """Read the configuration file again, and change what differs.

    Connections go on; those of what was removed, until they end. A file that cannot be used, or
    that changes something for which the router has to be restarted, changes nothing.
    """
    data = context.ask("reload", dry_run=dry_run)
    render.json_out(data) if as_json else render.changed(data)


def _keys(words: tuple[str, ...]) -> dict[str, Any]:
    try:
        return parse_keys(words)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _edit_options(command: _Command) -> _Command:
    """What all edits have."""
    for option in (
        json_option,
        click.option("--dry-run", is_flag=True, help="Only show what would change."),
        click.option(
            "--save",
            is_flag=True,
            help="Write it to the configuration file, too; else a restart or reload forgets it.",
        ),
    ):
        command = option(command)
    return command


def _words(what: str, *, needed: bool) -> Callable[[_Command], _Command]:
    """The ``KEY=VALUE`` words of a service or backend."""
    metavar = "KEY=VALUE..." if needed else "[KEY=VALUE]..."
    return click.argument(
        "keys", nargs=-1, required=needed, metavar=metavar, shell_complete=keys_of(what)
    )


def _send(context: Context, what: str, as_json: bool, **args: object) -> None:
    data = context.ask(what, **args)
    render.json_out(data) if as_json else render.changed(data)


@click.group()
def service() -> None:
    """Add, change or remove a service while the router runs.

    Keys and values are those of the configuration file: deadline=50ms, stateless=true,
    'allow=["198.18.0.0/16"]'. A dot leads into a table: score.queue=0.5, scrape.preset=vllm. An
    empty value (fallback=) takes a key away.
    """


@service.command("add")
@click.argument("address", metavar="ADDR:PORT[/PROTOCOL]")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="ADDR:PORT[,KEY=VALUE...]",
    help="A backend of it; may be given several times. With handler=gateway it has none.",
)
@_words("service", needed=False)
@_edit_options
@pass_context
def service_add(
    context: Context,
    address: str,
    backends: tuple[str, ...],
    keys: tuple[str, ...],
    save: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add a service at an address, with its backends."""
    where, slash, protocol = address.partition("/")
    said = {"address": where, **({"protocol": protocol} if slash else {}), **_keys(keys)}
    if not backends and "handler" not in said:
        raise click.UsageError(
            "Missing option '--backend': only with handler=gateway there is none"
        )
    tables = []
    for backend in backends:
        server, *more = backend.split(",")
        tables.append({"address": server, **_keys(tuple(more))})
    _send(
        context,
        "service",
        as_json,
        verb="add",
        keys=said,
        backends=tables,
        save=save,
        dry_run=dry_run,
    )


@service.command("set")
@click.argument("name", shell_complete=names_of("service"))
@_words("service", needed=True)
@_edit_options
@pass_context
def service_set(
    context: Context, name: str, keys: tuple[str, ...], save: bool, dry_run: bool, as_json: bool
) -> None:
    """Change keys of a service."""
    said = _keys(keys)
    _send(context, "service", as_json, verb="set", name=name, keys=said, save=save, dry_run=dry_run)


@service.command("remove")
@click.argument("name", shell_complete=names_of("service"))
@_edit_options
@pass_context
def service_remove(context: Context, name: str, save: bool, dry_run: bool, as_json: bool) -> None:
    """Remove a service: it takes no new flows, and those that it has go on until they end."""
    _send(context, "service", as_json, verb="remove", name=name, save=save, dry_run=dry_run)


@click.group()
def backend() -> None:
    """Add, change or remove a backend while the router runs.

    Keys and values are those of the configuration file: weight=3, name=b4. An empty value (vlan=)
    takes a key away.
    """


@backend.command("add")
@click.argument("service_name", metavar="SERVICE", shell_complete=names_of("service"))
@click.argument("address", metavar="ADDR:PORT")
@_words("backend", needed=False)
@_edit_options
@pass_context
def backend_add(
    context: Context,
    service_name: str,
    address: str,
    keys: tuple[str, ...],
    save: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add a backend to a service."""
    said = {"address": address, **_keys(keys)}
    _send(
        context,
        "backend",
        as_json,
        verb="add",
        name=service_name,
        keys=said,
        save=save,
        dry_run=dry_run,
    )


@backend.command("set")
@click.argument("name", shell_complete=names_of("backend"))
@_words("backend", needed=True)
@_edit_options
@pass_context
def backend_set(
    context: Context, name: str, keys: tuple[str, ...], save: bool, dry_run: bool, as_json: bool
) -> None:
    """Change keys of a backend."""
    said = _keys(keys)
    _send(context, "backend", as_json, verb="set", name=name, keys=said, save=save, dry_run=dry_run)


@backend.command("remove")
@click.argument("name", shell_complete=names_of("backend"))
@_edit_options
@pass_context
def backend_remove(context: Context, name: str, save: bool, dry_run: bool, as_json: bool) -> None:
    """Remove a backend: it gets no new flows, and those that it has go on until they end."""
    _send(context, "backend", as_json, verb="remove", name=name, save=save, dry_run=dry_run)
