# SPDX-License-Identifier: Apache-2.0
"""The command that tells how a backend is doing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.cli_samples import PUSHED
from xdp_router.cli.commands.context import Context
from xdp_router.cli.main import main


class _Daemon:
    """Notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, object]]] = []

    def ask(self, control: str, command: str, args: dict[str, object]) -> Any:
        self.asked.append((command, args))
        return PUSHED


def _run(daemon: _Daemon, *args: str) -> Result:
    return CliRunner().invoke(main, ["push", *args], obj=Context(ask_daemon=daemon.ask))


def test_what_is_given_is_told() -> None:
    """And nothing else; the answer says for how long it holds."""
    daemon = _Daemon()
    result = _run(daemon, "b2", "--queue", "4", "--cache-hit", "0.85")
    assert result.exit_code == 0
    assert daemon.asked == [("push", {"backend": "b2", "queue": 4.0, "cache_hit": 0.85})]
    assert result.stdout == "b2: queue 4, cache hits 85%, for 10s\n"
    result = _run(daemon, "b2", "--ttft", "120", "--json")
    assert daemon.asked[1][1] == {"backend": "b2", "ttft_ms": 120.0}
    assert json.loads(result.stdout) == PUSHED


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("b2",), "give --queue, --ttft, --cache-hit or --cache-usage"),
        (("b2", "--cache-hit", "1.5"), "not in the range 0<=x<=1"),
        (("b2", "--cache-usage", "85"), "not in the range 0<=x<=1"),
        (("b2", "--queue", "-1"), "not in the range x>=0"),
        (("--queue", "1"), "Missing argument 'BACKEND'"),
    ],
)
def test_a_wrong_push_is_a_usage_error(args: tuple[str, ...], words: str) -> None:
    """Exit code 2, and nothing is told."""
    daemon = _Daemon()
    result = _run(daemon, *args)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not daemon.asked
