# SPDX-License-Identifier: Apache-2.0
"""The daemon as a process: signals, and standard streams that are closed or close."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import shlex
import signal
import subprocess
import sys
import time
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


def test_a_hangup_reads_the_file_again(router: Router) -> None:
    """SIGHUP: what differs is logged, nothing here; a file that is gone changes nothing."""
    router.start()
    os.kill(router.pid, signal.SIGHUP)
    (line,) = wait_for(lambda: router.events("reconfigured"), message="the log line")
    assert line["changes"] == []
    router.config.unlink()
    os.kill(router.pid, signal.SIGHUP)
    (line,) = wait_for(lambda: router.events("reload_refused"), message="the log line")
    assert line["level"] == "error"
    assert line["reason"].endswith("router.toml: cannot be read: No such file or directory")
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


def test_a_daemon_whose_log_reader_stands_still_serves(router: Router) -> None:
    """Nobody empties the pipe: decisions go on, lines are lost, and it ends in time, undone."""
    process = router._process = spawn(router, "", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
    wait_for(router._is_ready, 20, "the daemon is ready")
    for _ in range(60):
        assert works(router)
    assert router.stop() == 0
    assert router.left_behind() == []
    process.stderr.close()


def storm(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Send signals until the process has ended, or the time is over."""
    numbers = itertools.cycle((signal.SIGINT, signal.SIGHUP, signal.SIGTERM))
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end:
        process.send_signal(next(numbers))
        time.sleep(0.002)


def test_a_storm_of_signals_while_it_runs(router: Router) -> None:
    """It ends once, in order: exit code 0, nothing left, no traceback."""
    for _ in range(3):
        router.start()
        assert router._process is not None
        storm(router._process, 10)
        assert router._process.wait(1) == 0, router.log.read_text()
        assert router.left_behind() == []
        assert "Traceback" not in router.log.read_text()
        assert len(router.events("stopped")) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, 0])
def test_signals_at_any_moment_of_the_start(
    router: Router, number: int, rng: random.Random
) -> None:
    """Ended by the signal or its exit code, or with 0 when it was ready: one line, nothing left.

    0: a storm of all of them.
    """
    router.config.write_text(router.lab.config_toml())
    argv = router._attach_argv(router.lab.router_interfaces, "--config", str(router.config))
    argv[1:3] = ["-m", "xdp_router.daemon"]
    for step in range(8):
        process = router.lab.router.spawn(
            argv, name="router", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        time.sleep(0.1 + 0.09 * (step + rng.random()))
        if number:
            process.send_signal(number)
            if number == signal.SIGHUP:  # nothing to it, once it is noticed
                time.sleep(0.5)
                process.send_signal(signal.SIGTERM)
        else:
            storm(process, 10)
        _, said = process.communicate(timeout=10)
        allowed = {0, *(sign * n for n in (1, 2, 15) for sign in (-1,)), 128 + 2, 128 + 15}
        # The interpreter's own start, before a line of ours has run: long on a busy machine.
        before_us = b"KeyboardInterrupt" in said and b"xdp_router" not in said
        if said.strip() != b"Aborted!" and not before_us:  # while its arguments were read
            assert process.returncode in allowed, said
        assert before_us or b"Traceback" not in said, said
        if process.returncode == 128 + signal.SIGINT:
            assert len([line for line in said.splitlines() if b"[" not in line]) <= 1, said
        assert router.left_behind() == []


def test_ctrl_c_while_the_modules_are_imported() -> None:
    """Exit code 130, and one line."""
    codes = set()
    for step in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", STARTS], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        time.sleep(0.02 * step)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=10)
        if b"usage" not in out.lower():
            codes.add((process.returncode, said))
    assert codes == {(130, b"Interrupted.\n")}


STARTS = """
import signal
from xdp_router.daemon.__main__ import main, _interrupted
signal.signal(signal.SIGINT, _interrupted)
print("begun", flush=True)
main()
"""
