# SPDX-License-Identifier: Apache-2.0
"""What a shell asks when somebody presses Tab: names from the running daemon, or from the host.

At once or not at all: somebody waits. click has the rest, but for one thing: bash takes a word
apart at colons, which addresses are full of.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import click
from click.shell_completion import BashComplete, add_completion_class

from .control import DEFAULT_CONTROL_PATH, ControlError
from .control_client import ControlClient

PATIENCE_S = 0.2

Complete = Callable[[click.Context, click.Parameter, str], list[str]]

_BASH = """\
# bash completion of %(prog_name)s
%(complete_func)s() {
    local IFS=$'\\n' words=() cword=0 index word before response type value
    # Put together again what bash has taken apart at colons.
    for index in "${!COMP_WORDS[@]}"; do
        word=${COMP_WORDS[index]}
        if ((${#words[@]})) && [[ $word == :* || ${words[-1]} == *: ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        ((index == COMP_CWORD)) && cword=$((${#words[@]} - 1))
    done
    response=$(env COMP_WORDS="$(printf '%%q ' "${words[@]}")" COMP_CWORD="$cword" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
    COMPREPLY=()
    # Readline replaces what is behind the last colon only.
    before=${words[cword]}
    [[ $before == *:* ]] && before=${before%%"${before##*:}"} || before=
    while IFS=, read -r type value; do
        case $type in
        dir) compopt -o dirnames ;;
        file) compopt -o default ;;
        plain) COMPREPLY+=("${value#"$before"}") ;;
        esac
    done <<<"$response"
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
        given = ctx.find_root().params.get("control")
        path = str(given or os.environ.get("XDP_ROUTER_CONTROL") or DEFAULT_CONTROL_PATH)
        try:
            with ControlClient(path, PATIENCE_S, in_all=True) as client:
                found = client.call("names", kind=kind, prefix=begun)
        except ControlError:
            return []
        return [each for each in found if isinstance(each, str)]

    return complete


def interfaces(_ctx: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """For ``shell_complete``: network interfaces that begin so, but for loopback."""
    found = (name for _, name in socket.if_nameindex())
    return sorted(name for name in found if name.startswith(begun) and name != "lo")
