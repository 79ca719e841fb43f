# SPDX-License-Identifier: Apache-2.0
"""Closed streams, pipes that nobody reads, full disks: what is written stops nobody."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.support.descriptors import open_descriptors
from xdp_router.daemon.streams import LogStream, hold_standard_streams
from xdp_router.lab.readable import is_readable


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
    count = len(open_descriptors())
    hold_standard_streams()
    assert {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)} == before
    assert len(open_descriptors()) == count


@pytest.fixture
def pipe() -> Iterator[tuple[int, IO[str]]]:
    """A pipe of one page: where it is read, and a stream that writes into it."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    target = os.fdopen(writer, "w")
    yield reader, target
    target.close()
    with contextlib.suppress(OSError):
        os.close(reader)


def test_lines_arrive(pipe: tuple[int, IO[str]]) -> None:
    """In order and whole, in whatever pieces they are written; close() waits for them."""
    reader, target = pipe
    stream = LogStream(target)
    assert stream.write("one\ntw") == 6
    stream.flush()
    stream.write("o\n")
    stream.write("\ud800\n")  # no UTF-8 has that
    stream.close()
    stream.close()
    assert os.read(reader, 100) == b"one\ntwo\n\\ud800\n"
    assert not stream.isatty()


def test_nobody_reads_and_then_somebody_does(pipe: tuple[int, IO[str]]) -> None:
    """What is too much is lost and counted, and that is said where it is missing."""
    reader, target = pipe
    stream = LogStream(target, max_lines=100)
    for number in range(5000):
        stream.write(f"line {number}\n")
    got = os.read(reader, 1 << 16).decode()
    while "line 99\n" not in got:
        got += os.read(reader, 1 << 16).decode()
    time.sleep(0.1)
    while is_readable(reader, 0.2):
        got += os.read(reader, 1 << 16).decode()
    stream.write("again\n")
    stream.close()
    got += os.read(reader, 1 << 16).decode()
    lines = got.splitlines()
    following, lost = 0, 0
    for line in lines[:-1]:  # on a busy machine there is room again before all are written
        missing = re.fullmatch(r"(\d+) lines? lost", line)
        if missing:
            lost += int(missing[1])
            following += int(missing[1])
        else:
            assert line == f"line {following}"
            following += 1
    assert lines[-1] == "again"
    assert following == 5000
    assert lost


def test_it_ends_although_nobody_reads(pipe: tuple[int, IO[str]]) -> None:
    """After the time that it may take; then what is still said is lost, and blocks nobody."""
    _, target = pipe
    stream = LogStream(target)
    for _ in range(100):
        stream.write("x" * 1000 + "\n")
    begun = time.monotonic()
    stream.close(0.2)
    assert 0.1 < time.monotonic() - begun < 2
    target.write("y" * 100_000)
    target.flush()


def test_what_is_closed_is_left_alone(pipe: tuple[int, IO[str]]) -> None:
    """The reader ends after the stream was given up: its number may be another file's by then."""
    reader, target = pipe
    stream = LogStream(target)
    stream.write("x" * 100_000 + "\n")
    stream.close(0.1)
    number = target.fileno()
    with open(os.devnull, "rb") as other:
        os.dup2(other.fileno(), number)
        os.close(reader)  # the thread's write fails
        stream._thread.join(10)
        assert not stream._thread.is_alive()
        assert fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def test_a_reader_that_has_ended(pipe: tuple[int, IO[str]]) -> None:
    """Later lines are lost, nothing is raised, and the stream can be closed."""
    reader, target = pipe
    stream = LogStream(target)
    os.close(reader)
    for _ in range(3):
        stream.write("lost\n")
    stream.close()
    target.write("lost")
    target.flush()


def test_a_descriptor_that_does_not_block(pipe: tuple[int, IO[str]]) -> None:
    """Somebody who shares the pipe may have made it so: the line is written all the same."""
    reader, target = pipe
    os.set_blocking(target.fileno(), False)
    stream = LogStream(target)
    stream.write("x" * 20_000 + "\n")
    got = b""
    while not got.endswith(b"\n"):
        got += os.read(reader, 1 << 16)
    assert len(got) == 20_001
    stream.close()


PROCESS = """
import sys, time
from xdp_router.daemon import logs
from xdp_router.daemon.streams import LogStream
import structlog
stream = LogStream(sys.stderr)
stream.lost_line = logs.configure('json', stream)
log = structlog.get_logger()
log.info('first')
sys.stdin.readline()
for _ in range(100_000): log.info('more')
print('done')
stream.close()
print('error', file=sys.stderr)
"""


@pytest.mark.parametrize("reader", ["ends", "stops"])
def test_a_process_whose_log_nobody_reads_goes_on(reader: str) -> None:
    """It finishes its work and exits with 0."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    assert b"first" in process.stderr.readline()
    if reader == "ends":
        process.stderr.close()
    process.stdin.write(b"\n")
    process.stdin.close()
    assert is_readable(process.stdout, 20), "it stands still"
    assert process.stdout.read() == b"done\n"
    process.stdout.close()
    assert process.wait(30) == 0
    process.stderr.close()


def test_a_full_disk_may_have_room_again(tmp_path: Path) -> None:
    """Lines are lost while it is full, and written when it is not."""
    target = (tmp_path / "log").open("w")
    stream = LogStream(target)
    stream.write("kept\n")
    with open("/dev/full", "w") as full:
        place = os.dup(stream._out)
        time.sleep(0.1)
        os.dup2(full.fileno(), stream._out)
        stream.write("lost\n")
        time.sleep(0.1)
        os.dup2(place, stream._out)
        os.close(place)
    stream.write("kept\n")
    stream.close()
    assert (tmp_path / "log").read_text() == "kept\nkept\n"
    target.close()


def _closed_file(tmp_path: Path) -> IO[str]:
    target = (tmp_path / "log").open("w")
    target.close()
    return target


@pytest.mark.parametrize("kind", ["none", "closed"])
def test_there_is_no_stream(kind: str, tmp_path: Path) -> None:
    """Closed when the process started, or closed since: written to nowhere."""
    stream = LogStream(None if kind == "none" else _closed_file(tmp_path))
    assert not stream.isatty()
    for _ in range(2):
        stream.write("lost\n")
        stream.flush()
    stream.close()
