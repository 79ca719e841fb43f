# SPDX-License-Identifier: Apache-2.0
"""Nobody takes a kept lab away while a process of it is being born.

Between fork and exec a process carries no mark of its lab yet, and it goes on if its parent is
killed. So it holds a shared lock until exec closes it; whoever takes the lab away waits for that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import LabError

FILE = "spawn.lock"
_POLL_S = 0.01


@contextlib.contextmanager
def spawning(directory: Path) -> Iterator[int]:
    """Keep the lab in ``directory`` from being taken away; waits while that is being done.

    Yields the descriptor that a new process has to hold until its exec.
    Raises LabError if the lab is gone.
    """
    gone = LabError(f"the lab in {directory} was taken down: run 'xdp-router lab up' again")
    try:
        fd = _open(directory)
    except FileNotFoundError:
        raise gone from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        if not os.fstat(fd).st_nlink:
            raise gone
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def no_births(directory: Path, timeout_s: float) -> Iterator[None]:
    """Let no process be born in the block; from its begin on, all that were carry their mark.

    Raises LabError if one is still on its way after ``timeout_s`` seconds.
    """
    fd = _open(directory)
    try:
        if not lock_within(fd, timeout_s):
            raise LabError(f"a process of the lab in {directory} is just being started: try again")
        yield
    finally:
        os.close(fd)


def lock_within(fd: int, timeout_s: float) -> bool:
    """Lock for ourselves alone; False if others hold it for so many seconds."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)


def _open(directory: Path) -> int:
    return os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
