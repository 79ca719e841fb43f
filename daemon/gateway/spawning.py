# SPDX-License-Identifier: Apache-2.0
"""How one of our processes starts another one of this package, and learns of its end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import xdp_router

_OURS_ALONE = ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
"""What systemd has told us, and nobody else."""


def python(module: str) -> list[str]:
    """The beginning of a command; what lies in the current directory is not imported by it."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """Ours, with this very package to be found."""
    kept = {key: value for key, value in os.environ.items() if key not in _OURS_ALONE}
    root = str(Path(xdp_router.__file__).parents[1])
    former = [each for each in kept.get("PYTHONPATH", "").split(os.pathsep) if each]
    return {**kept, "PYTHONPATH": os.pathsep.join([root, *former])}


def watch_exit(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """Its exit status when it ends, as ``Popen.returncode`` has it; in the running loop."""
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[int] = loop.create_future()
    pidfd = os.pidfd_open(process.pid)

    def gone() -> None:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        status = process.wait()
        if not exited.done():
            exited.set_result(status)

    loop.add_reader(pidfd, gone)
    return exited
