# SPDX-License-Identifier: Apache-2.0
"""The watchdog's signs of life, over a real notification socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

from xdp_router.daemon.watchdog import Watchdog, watchdog_interval_s


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_interval(environment: dict[str, str], expected: float | None) -> None:
    """Half of what systemd waits; none when it does not watch, or watches another process."""
    assert watchdog_interval_s(environment, 7) == expected


def _messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[str]:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.setblocking(False)

        async def watch() -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(Watchdog(lambda: "all is well").run(), seconds)

        asyncio.run(watch())
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(supervisor.recv(1000).decode())
        return found


def test_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come twice in each period; the status line comes once while it stays the same."""
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    found = _messages(tmp_path, monkeypatch, 0.5)
    assert found[0] == "WATCHDOG=1\nSTATUS=all is well"
    assert set(found[1:]) == {"WATCHDOG=1"}
    assert 4 <= len(found) <= 12


def test_no_watchdog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one only the status is sent."""
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    assert _messages(tmp_path, monkeypatch, 0.1) == ["STATUS=all is well"]


def test_no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a supervisor it ends at once."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    asyncio.run(asyncio.wait_for(Watchdog(lambda: "").run(), 1))
