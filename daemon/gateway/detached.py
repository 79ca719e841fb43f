# SPDX-License-Identifier: Apache-2.0
"""Starts a process that is nobody's child: it goes on when we end, and whoever adopts orphans
(systemd, for a service) learns of its end, whether we are there or not.

An interpreter with nothing of this package forks it: here, threads may hold any lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from xdp_router.core.errors import XdpRouterError
from xdp_router.daemon.former import VARIABLE

from . import spawning

BEGIN_S: Final = 10.0
"""How long the process that forks it may take."""
END_S: Final = 10.0
"""How long it may take to end after SIGTERM."""
_TEXT_MAX: Final = 1 << 16

# It waits for a byte before it becomes what it is to be: until then its pid is certainly its own.
_LAUNCHER: Final = """
import os, signal, sys
report, go, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
pid = os.fork()
if pid:
    os.write(report, b"%d\\n" % pid)
    os._exit(0)
if not os.read(go, 1):
    os._exit(0)
os.close(go)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
try:
    os.execv(argv[0], argv)
except OSError as error:
    os.write(report, f"{argv[0]} cannot be run: {error.strerror}".encode())
os._exit(1)
"""


class NotStarted(XdpRouterError):
    """There is no process; the text says why."""


class Detached:
    """A process that was started. ``close`` leaves it to itself."""

    def __init__(
        self, pid: int, pidfd: int, reader: asyncio.StreamReader, pipe: asyncio.BaseTransport
    ) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._reader = reader
        self._pipe = pipe

    async def last_words(self) -> str:
        """Why it failed, when it has; empty if it does not say."""
        data = b""
        while len(data) < _TEXT_MAX and (some := await self._reader.read(_TEXT_MAX)):
            data += some
        return data.decode(errors="replace").strip()

    async def end(self) -> None:
        """Have it end: by SIGTERM, later by force."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await _readable(self._pidfd)
                return

    def close(self) -> None:
        """Let go of it."""
        self._pipe.close()
        os.close(self._pidfd)


async def start(argv: Sequence[str], environment: Mapping[str, str]) -> Detached:
    """Start it, in a session of its own, with our standard streams and no other descriptor of ours.

    ``argv[0]``: the path of the program. Raises NotStarted.
    """
    report_in, report_out = os.pipe()
    go_in, go_out = os.pipe()
    with contextlib.ExitStack() as undo, os.fdopen(go_out, "wb", buffering=0) as go:
        report = undo.enter_context(os.fdopen(report_in, "rb", buffering=0))
        try:
            launcher = _launch(argv, environment, report_out, go_in)
        except OSError as error:
            raise NotStarted(f"{sys.executable} cannot be run: {error.strerror}") from error
        finally:
            os.close(report_out)
            os.close(go_in)
        exited = spawning.watch_exit(launcher)
        reader = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), report
        )
        undo.callback(pipe.close)
        try:
            async with asyncio.timeout(BEGIN_S):
                pid = int(await reader.readline())
                await asyncio.shield(exited)
            pidfd = os.pidfd_open(pid)
        except (OSError, ValueError) as error:  # a TimeoutError is one
            launcher.kill()
            why = "it took too long" if isinstance(error, TimeoutError) else str(error)
            raise NotStarted(f"no process could be made: {why}") from error
        undo.pop_all()
        go.write(b"\0")
        return Detached(pid, pidfd, reader, pipe)


def _launch(
    argv: Sequence[str], environment: Mapping[str, str], report: int, go: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(report), str(go), *argv],
        env={**environment, VARIABLE: str(report)},
        pass_fds=[report, go],
        start_new_session=True,
    )


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
