# SPDX-License-Identifier: Apache-2.0
"""Every name that the daemon's log has is known, and no other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import xdp_router.adapters.host_checks as host_checks
import xdp_router.daemon
from xdp_router.core.event_names import LOST, NAMES, reject_unknown

DAEMON = Path(xdp_router.daemon.__file__).parent
ELSEWHERE = {"event": ("app.py", "draining.py"), "finding.code": ("preflight.py",)}
"""What a line is called by that is not written there."""


def _strings(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.IfExp):
            for part in (each.body, each.orelse):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def _of_log(call: ast.Call) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "_log" for each in ast.walk(call.func))


def logged() -> Iterator[str]:
    """Names of all lines that the daemon's sources write."""
    for path in sorted(DAEMON.glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "event":
                yield from _strings(node.value)
            if not isinstance(node, ast.Call) or not _of_log(node) or not node.args:
                continue
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield str(name.value)
            elif isinstance(name, ast.IfExp):
                yield from _strings(name)
            else:  # else it would be missed here
                assert path.name in ELSEWHERE[ast.unparse(name)], path.name
    for node in ast.walk(ast.parse(Path(host_checks.__file__).read_text())):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "HostWarning":
            continue
        if isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)
    yield from ("lro_on", "gro_hw_on")  # by a table, there


def test_all_that_is_logged_is_known_and_nothing_else() -> None:
    """A new line of the log needs its name there, one that has gone leaves."""
    assert set(logged()) == NAMES


def test_known_names_pass() -> None:
    """None, and any number of them."""
    reject_unknown(())
    reject_unknown(("decision", "backend_up"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("backend_don", "no event is called 'backend_don': did you mean backend_down"),
        ("BACKEND_UP", "did you mean backend_up"),
        ("handoff", "did you mean handoff_"),
        ("qqq", r"no event is called 'qqq': There are adopted, .*vlan_offload_on$"),
        ("", "no event is called '': There are adopted, "),
        (LOST, "comes to every reader"),
    ],
)
def test_others_are_refused_with_what_is_close(name: str, told: str) -> None:
    """And with all that there are."""
    with pytest.raises(ValueError, match=told):
        reject_unknown(("decision", name))
