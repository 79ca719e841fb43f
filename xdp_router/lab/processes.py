# SPDX-License-Identifier: Apache-2.0
"""The processes of a lab: recognise them, and end them without hitting a stranger.

A process is ours if pid *and* start time are the recorded ones, or if its environment carries the
lab's mark; a pid alone may have been given to somebody else since.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MARK = "XDP_ROUTER_LAB"
"""Environment variable that names the lab's directory in each of its processes."""

_GRACE_S = 3.0
_POLL_S = 0.01
_EXEC_S = 2.0


@dataclass(frozen=True, slots=True)
class Process:
    """A process that is, or was. ``started`` is in clock ticks since boot; 0: gone at birth."""

    name: str
    pid: int
    started: int

    @classmethod
    def of(cls, name: str, pid: int) -> Process:
        """The process that has this pid now."""
        return cls(name, pid, _stat(pid)[1])

    @property
    def alive(self) -> bool:
        """Whether it runs; one that waits to be reaped does not."""
        state, started = _stat(self.pid)
        return started == self.started != 0 and state not in "ZX"

    def signal(self, number: int) -> None:
        """Send a signal if the process is still there."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on, the state; none if the process is gone."""
    try:
        # The command in parentheses may contain anything, also parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _stat(pid: int) -> tuple[str, int]:
    fields = _fields(pid)
    return (fields[0], int(fields[19])) if fields else ("X", 0)


def _in_exec(pid: int) -> bool:
    """Whether exec has a new address space (vsize), but its environment (env_end) not yet."""
    fields = _fields(pid)
    return bool(fields) and fields[20] != "0" and fields[48] == "0"


def _environment(pid: int) -> bytes:
    """Waits while the kernel is just replacing it. Raises OSError if it can't be read."""
    deadline = time.monotonic() + _EXEC_S
    while True:
        found = Path(f"/proc/{pid}/environ").read_bytes()
        if found or not _in_exec(pid) or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)


def marked(directory: Path) -> list[Process]:
    """All running processes that carry the mark of the lab in ``directory``."""
    wanted = f"{MARK}={directory}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environment = _environment(int(entry))
        except OSError:
            continue  # it ended meanwhile
        if wanted in environment.split(b"\0"):
            process = Process.of("marked", int(entry))
            if process.alive:
                found.append(process)
    return found


def end(processes: Iterable[Process], grace_s: float = _GRACE_S) -> int:
    """SIGTERM, and SIGKILL after ``grace_s`` seconds; how many had to be ended.

    Returns when all are gone or wait for their parent to reap them.
    """
    running = [process for process in processes if process.alive]
    for process in running:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # a paused one could not obey
    _wait(running, grace_s)
    for process in running:
        process.signal(signal.SIGKILL)
    _wait(running, grace_s)
    return len(running)


def kill(process: Process, timeout_s: float = _GRACE_S) -> None:
    """SIGKILL, and return when the process is gone or waits for its parent to reap it."""
    process.signal(signal.SIGKILL)
    _wait([process], timeout_s)


def _wait(processes: list[Process], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while any(process.alive for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def end_children(children: Iterable[subprocess.Popen[bytes]], grace_s: float = _GRACE_S) -> None:
    """As ``end``, for processes of our own, which are reaped too."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.terminate()
        child.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + grace_s
    for child in running:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
