# SPDX-License-Identifier: Apache-2.0
"""A lab's processes are recognised and ended, and nobody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from xdp_router.lab.processes import MARK, Process, end, end_children, kill, marked

STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
)


def test_a_reused_pid_is_not_ours() -> None:
    """The same pid with another start time is a stranger: not alive, and never signalled."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        stranger = Process("x", child.pid, Process.of("x", child.pid).started - 1)
        assert not stranger.alive
        assert end([stranger]) == 0
        assert child.poll() is None
        child.kill()


def test_end_asks_first_and_then_insists() -> None:
    """SIGTERM ends what listens; what ignores it, or is stopped, is gone after the grace."""
    stubborn = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    polite = subprocess.Popen(["sleep", "1000"])
    stopped = subprocess.Popen(["sleep", "1000"])
    with stubborn, polite, stopped:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        stopped.send_signal(signal.SIGSTOP)
        children = (stubborn, polite, stopped)
        assert end([Process.of("x", child.pid) for child in children], grace_s=0.2) == 3
        assert [child.wait(5) for child in children] == [-9, -15, -15]


def test_end_children_reaps() -> None:
    """Own children are ended and reaped."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        end_children([child])
        assert child.returncode == -15


def test_kill_returns_when_it_is_done() -> None:
    """After kill the process does not run any more; killing again does nothing."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        process = Process.of("x", child.pid)
        kill(process)
        assert not process.alive
        kill(process)
        assert child.wait(0) == -9


def test_marked_finds_the_labs_own(tmp_path: Path) -> None:
    """Only processes whose environment names this very directory are found."""
    mine = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: str(tmp_path)})
    other = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: f"{tmp_path}2"})
    with mine, other:
        assert [process.pid for process in marked(tmp_path)] == [mine.pid]
        mine.kill()
        other.kill()
    assert marked(tmp_path) == []
