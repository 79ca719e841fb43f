# SPDX-License-Identifier: Apache-2.0
"""What a shell asks when somebody presses Tab: names from the running daemon, or from the host.

At once or not at all: somebody waits. click has the rest, but for one thing: bash takes a word
apart at colons, which addresses are full of, and at the equals signs of ``KEY=VALUE``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import click
from click.shell_completion import BashComplete, add_completion_class

from xdp_router.core import config_words, event_names

from .control import DEFAULT_CONTROL_PATH, ControlError
from .control_client import ControlClient

PATIENCE_S = 0.2

Complete = Callable[[click.Context, click.Parameter, str], list[str]]

_BASH = """\
# bash completion of %(prog_name)s
%(complete_func)s() {
    local IFS=$'\\n' words=() cword=0 index word line=$COMP_LINE glued= before response type value
    # Put together again what bash has taken apart at colons and equals signs.
    for index in "${!COMP_WORDS[@]}"; do
        word=${COMP_WORDS[index]}
        if [[ $glued && ( $word == [:=]* || ${words[-1]} == *[:=] ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        ((index == COMP_CWORD)) && cword=$((${#words[@]} - 1))
        line=${line#*"$word"}
        [[ $line && $line != [[:blank:]]* ]] && glued=yes || glued=
    done
    response=$(env COMP_WORDS="$(printf '%%q ' "${words[@]}")" COMP_CWORD="$cword" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
    COMPREPLY=()
    # Readline replaces what is behind the last of them only.
    before=${words[cword]}
    [[ $before == *[:=]* ]] && before=${before%%"${before##*[:=]}"} || before=
    while IFS=, read -r type value; do
        case $type in
        dir) compopt -o dirnames ;;
        file) compopt -o default ;;
        plain) COMPREPLY+=("${value#"$before"}") ;;
        esac
    done <<<"$response"
    # A key is not all of its word.
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:=] ]] && compopt -o nospace
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Bash(BashComplete):
    name = "bash"
    source_template = _BASH


def accept_shells() -> None:
    """Have commands answer the shells by what is written here."""
    add_completion_class(_Bash)


def names_of(kind: str) -> Complete:
    """For ``shell_complete`` of a parameter: names that the daemon knows.

    Kinds are ``service``, ``backend``, ``client`` (with protocol) and ``address`` (without).
    """

    def complete(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        return _ask(ctx, kind=kind, prefix=begun)

    return complete


def _ask(ctx: click.Context, **args: object) -> list[str]:
    given = ctx.find_root().params.get("control")
    path = str(given or os.environ.get("XDP_ROUTER_CONTROL") or DEFAULT_CONTROL_PATH)
    try:
        with ControlClient(path, PATIENCE_S, in_all=True) as client:
            found = client.call("names", **args)
    except ControlError:
        return []
    return [each for each in found if isinstance(each, str)]


def keys_of(what: str) -> Complete:
    """For ``shell_complete``: ``KEY=`` of a service or backend, then the values that are words, and
    where a backend is named those of the service ``name``."""

    def complete(ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        key, equals, value = begun.partition("=")
        if equals and what == "service" and key == config_words.BACKEND_NAME:
            names = _ask(ctx, kind="backend", prefix=value, service=ctx.params.get("name"))
            return [f"{key}={each}" for each in names]
        return config_words.begun(what, begun, tuple(ctx.params.get("keys") or ()))

    return complete


def events(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """For ``shell_complete``: names of events."""
    return sorted(each for each in event_names.NAMES if each.startswith(begun))


def interfaces(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """For ``shell_complete``: network interfaces that begin so, but for loopback."""
    found = (name for _, name in socket.if_nameindex())
    return sorted(name for name in found if name.startswith(begun) and name != "lo")
