# SPDX-License-Identifier: Apache-2.0
"""One process at a time makes, takes over or removes what is pinned under a root.

A lock on the directory of this version (flock works on bpffs: it is the kernel's, not the file
system's). It goes with the process that holds it, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError

from .pins import NoBpfFs, PinError, require_bpffs

WAIT_S = 30.0
"""Longer than an attach holds it, compilation by bcc on a slow machine included."""
LOOK_S = 0.02


class PinsBusy(XdpRouterError):
    """Another process has held the lock for too long."""


class PinLock:
    """The lock of one root; not held at first. A root that is not on bpffs has nothing to lock."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / f"v{abi.ABI_VERSION}"
        self._fd = -1

    def try_lock(self) -> bool:
        """Take the lock; False: another process has it. Raises PinError."""
        if self._fd < 0:
            try:
                require_bpffs(self._root)
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except (NoBpfFs, PinError):
                return True  # told by whoever wants to pin
            except OSError:
                return True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def busy(self) -> PinsBusy:
        """The error of who has waited for WAIT_S."""
        return PinsBusy(
            f"{self._folder}: another xdp-routerd has been attaching or detaching for "
            f"{WAIT_S:.0f} s: see what it does, or stop it (fuser -v {self._folder})"
        )

    def release(self) -> None:
        """Give the lock back. Calling it again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def pins_locked(root: Path) -> Iterator[None]:
    """Hold the lock; waits for it. Raises PinsBusy."""
    lock = PinLock(root)
    end = time.monotonic() + WAIT_S
    try:
        while not lock.try_lock():
            if time.monotonic() > end:
                raise lock.busy()
            time.sleep(LOOK_S)
        yield
    finally:
        lock.release()
