# SPDX-License-Identifier: Apache-2.0
"""Closed standard streams, real pipes and files: nothing that is written takes the process down."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from xdp_router.daemon.streams import SurvivingStream, hold_standard_streams


def _python(code: str, closed: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python code with some of its standard streams closed from the beginning."""
    argv = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code]
    return subprocess.run(argv, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_are_held(closed: str) -> None:
    """The next file that is opened does not become stdin, stdout or stderr."""
    code = (
        "import os, sys\n"
        "from xdp_router.daemon.streams import hold_standard_streams\n"
        "hold_standard_streams()\n"
        "fd = os.open('/', os.O_RDONLY)\n"
        "assert all(os.stat(f'/proc/self/fd/{n}') for n in range(3))\n"
        "os._exit(0 if fd > 2 else 9)\n"
    )
    assert _python(code, closed).returncode == 0


def test_open_streams_stay_as_they_are() -> None:
    """Nothing is replaced, and no descriptor is left over."""
    before = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)}
    count = len(os.listdir("/proc/self/fd"))
    hold_standard_streams()
    assert {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)} == before
    assert len(os.listdir("/proc/self/fd")) == count


def test_text_arrives() -> None:
    """An ordinary stream gets what is written."""
    target = io.StringIO()
    stream = SurvivingStream(target)
    assert stream.write("one\n") == 4
    stream.flush()
    assert target.getvalue() == "one\n"
    assert not stream.isatty()


def test_nobody_reads_any_more() -> None:
    """The reader of a pipe has ended: later lines are lost, nothing is raised, closing is clean."""
    reader, writer = os.pipe()
    target = os.fdopen(writer, "w", buffering=1)
    stream = SurvivingStream(target)
    os.close(reader)
    for _ in range(3):
        stream.write("lost\n")
        stream.flush()
    target.close()  # would raise if anything was left to be written


def test_a_process_whose_log_reader_ends_goes_on() -> None:
    """It finishes its work and exits with 0."""
    code = (
        "import sys, time\n"
        "from xdp_router.daemon import logs\n"
        "from xdp_router.daemon.streams import SurvivingStream\n"
        "import structlog\n"
        "logs.configure('json', SurvivingStream(sys.stderr))\n"
        "log = structlog.get_logger()\n"
        "log.info('first')\n"
        "sys.stdin.readline()\n"
        "for _ in range(100): log.info('more')\n"
        "print('done')\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert b"first" in process.stderr.readline()
    process.stderr.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    assert process.stdout.read() == b"done\n"
    process.stdout.close()
    assert process.wait(30) == 0


class _Full(io.StringIO):
    """A file on a disk that is full for a while."""

    full = True

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_full_disk_may_have_room_again() -> None:
    """Lines are lost while it is full, and written when it is not."""
    target = _Full()
    stream = SurvivingStream(target)
    stream.write("lost\n")
    target.full = False
    stream.write("kept\n")
    assert target.getvalue() == "kept\n"


def _closed_file(tmp_path: Path) -> IO[str]:
    target = (tmp_path / "log").open("w")
    target.close()
    return target


@pytest.mark.parametrize("kind", ["none", "closed"])
def test_there_is_no_stream(kind: str, tmp_path: Path) -> None:
    """Closed when the process started, or closed since: written to nowhere."""
    stream = SurvivingStream(None if kind == "none" else _closed_file(tmp_path))
    assert not stream.isatty()
    for _ in range(2):
        stream.write("lost\n")
        stream.flush()
