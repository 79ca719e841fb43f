# SPDX-License-Identifier: Apache-2.0
"""The daemon as a process: signals, and standard streams that are closed or close."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.netns import running_lab, wait_for
from tests.support.router import Router, router_in
from xdp_router.lab import BackendSpec, LabSpec

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1"),))


@pytest.fixture
def router(private_mounts: Path) -> Iterator[Router]:
    """A router that is not started yet."""
    with running_lab(SPEC) as lab, router_in(lab, private_mounts) as made:
        yield made


def works(router: Router) -> bool:
    """Whether a new connection reaches the backend, decided by a race."""
    before = router.ask("status")["engine"]["decided_race"]
    with router.lab.client.connect(router.service) as peer:
        peer.sendall(b"WHO\n")
        assert peer.recv(100) == b"b1\n"
    return bool(router.ask("status")["engine"]["decided_race"] == before + 1)


def test_a_hangup_changes_nothing(router: Router) -> None:
    """SIGHUP: a line that says what this version does not do; the router goes on."""
    router.start()
    os.kill(router.pid, signal.SIGHUP)
    (line,) = wait_for(lambda: router.events("reload_not_supported"), message="the log line")
    assert line["level"] == "warning"
    assert line["mend"] == "stop the daemon and start it with the new configuration"
    assert works(router)
    assert router.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_daemon_leaves_nothing(router: Router, number: signal.Signals) -> None:
    """SIGTERM and Ctrl-C detach and unpin; the exit code is 0."""
    router.start()
    assert works(router)
    assert router.stop(number) == 0
    assert router.left_behind() == []
    assert [line["event"] for line in router.events()][-2:] == ["detaching", "stopped"]


def spawn(router: Router, redirection: str, **popen: Any) -> subprocess.Popen[bytes]:
    """Start the daemon by a shell, with redirections."""
    router.config.write_text(router.lab.config_toml())
    argv = [*router._attach_argv(router.lab.router_interfaces), "--config", str(router.config)]
    command = f"exec {shlex.join(argv)} {redirection}"
    return router.lab.router.spawn(["sh", "-c", command], name="router", **popen)


def test_a_daemon_without_standard_streams_serves(router: Router) -> None:
    """stdin, stdout and stderr closed from the beginning: nothing of it is missed."""
    router._process = spawn(router, "<&- >&- 2>&-")
    wait_for(router._is_ready, 20, "the daemon is ready")
    streams = [os.readlink(f"/proc/{router.pid}/fd/{fd}") for fd in range(3)]
    assert streams == ["/dev/null"] * 3
    assert works(router)
    assert router.stop() == 0
    assert router.left_behind() == []


def test_a_daemon_whose_log_nobody_reads_serves(router: Router) -> None:
    """The reader of its log ends: decisions go on, and the exit code is still 0."""
    process = router._process = spawn(router, "", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    wait_for(router._is_ready, 20, "the daemon is ready")
    process.stderr.close()
    assert all(works(router) for _ in range(3))
    assert router.stop() == 0
    assert router.left_behind() == []
