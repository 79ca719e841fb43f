# SPDX-License-Identifier: Apache-2.0
"""iperf3 as a backend's server: the process becomes it, and says when it listens."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import NoReturn

_LISTEN = "0A"
_POLL_S = 0.01
_PATIENCE_S = 15.0


def become_iperf(port: int, ready_fd: int) -> NoReturn:
    """Turn into ``iperf3 --server``; ``ready_fd`` gets a byte when it listens, and is closed.

    Exits with a message if there is no iperf3.
    """
    program = shutil.which("iperf3")
    if program is None:
        raise SystemExit("the program iperf3 was not found: apt-get install iperf3")
    os.set_inheritable(ready_fd, False)
    if is_listening(port):
        raise SystemExit(f"port {port} is in use")
    # A grandchild watches: nobody has to wait for it, and iperf3 is the process that was started.
    server = os.getpid()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            _tell_when_listening(server, port, ready_fd)
        os._exit(0)
    os.waitpid(child, 0)
    os.execv(program, [program, "--server", "--port", str(port), "--forceflush"])


def is_listening(port: int) -> bool:
    """Whether somebody listens on the TCP port in this network namespace."""
    for name in ("tcp", "tcp6"):
        path = Path("/proc/thread-self/net") / name
        rows = [line.split() for line in path.read_text().splitlines()[1:]] if path.exists() else []
        if any(row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port for row in rows):
            return True
    return False


def _tell_when_listening(server: int, port: int, ready_fd: int) -> NoReturn:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and Path(f"/proc/{server}").exists():
        if is_listening(port):
            os.write(ready_fd, b"\n")
            break
        time.sleep(_POLL_S)
    os._exit(0)
