# SPDX-License-Identifier: Apache-2.0
"""The operator's commands as processes: standard output that is closed, full, or narrow."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from tests.support import cli_samples as samples
from xdp_router.cli.commands.context import Context
from xdp_router.cli.main import main
class Maps:
    def flows(self, limit, client_addr): return iter(samples.FLOWS)
    def counters(self): return {"first_packet": 12}
answers = {"status": samples.STATUS, "backends": samples.BACKENDS, "services": samples.SERVICES}
answers["decisions"] = {}
main(obj=Context(ask_daemon=lambda _, name, __: answers[name], open_pins=lambda _: Maps()))
"""
COMMANDS = ["status", "status --json", "backends", "services", "flows", "flows --json", "counters"]


def run(args: str, redirection: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``xdp-router ARGS`` on given data, by a shell."""
    command = f'exec "$0" -c "$1" {args} {redirection}'
    argv = ["env", *(f"{name}={value}" for name, value in env.items())]
    argv += ["sh", "-c", command, sys.executable, SCRIPT]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("command", COMMANDS)
def test_standard_output_is_closed(command: str) -> None:
    """One line that says so, and exit code 1: nothing was shown."""
    done = run(command, ">&-")
    assert done.returncode == 1
    assert done.stderr == "Error: standard output is closed: there is nowhere to print to\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_standard_output_is_full(command: str) -> None:
    """The reason in one line, and exit code 1."""
    done = run(command, ">/dev/full")
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_narrow_encoding(command: str) -> None:
    """Where a terminal has no micro sign there is a u; everything else is the same."""
    narrow, wide = run(command, PYTHONIOENCODING="ascii"), run(command, PYTHONIOENCODING="utf-8")
    assert (narrow.returncode, narrow.stderr) == (0, "")
    assert narrow.stdout == wide.stdout.replace("\N{MICRO SIGN}", "u")


@pytest.mark.parametrize("command", ["flows --limit 99999999999999999999", "flows --state closed"])
def test_any_number_of_flows_may_be_asked_for(command: str) -> None:
    """A limit beyond what there can be is no limit."""
    done = run(command)
    assert (done.returncode, done.stderr) == (0, "")
