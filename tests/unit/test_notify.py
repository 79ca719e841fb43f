# SPDX-License-Identifier: Apache-2.0
"""sd_notify over real sockets: by path, by abstract name, and with nobody there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from xdp_router.daemon.notify import notify


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_supervisor_is_told(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One datagram with the state arrives at $NOTIFY_SOCKET."""
    name = str(tmp_path / "notify") if kind == "path" else f"@xdp-router-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(name.replace("@", "\0"))
        supervisor.settimeout(3)
        notify("READY=1")
        assert supervisor.recv(100) == b"READY=1"


@pytest.mark.parametrize("name", [None, "", "/nowhere/at/all", "relative"])
def test_without_a_supervisor_nothing_happens(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable, or nobody behind it: no error."""
    if name is None:
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    else:
        monkeypatch.setenv("NOTIFY_SOCKET", name)
    notify("READY=1")


def test_a_stuck_supervisor_does_not_hold_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing and its queue is full: the message is lost, and we go on."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        for _ in range(2000):
            notify("READY=1")
