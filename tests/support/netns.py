# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the network tests: private mounts, a bpffs per test, labs, and a leak check.

A test module says ``pytest_plugins = ("tests.support.netns",)``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.support.privileges import require_root
from xdp_router.lab import Lab, LabSpec, libc, processes

T = TypeVar("T")

PREFIX = f"xrt{os.getpid()}"
"""Begins every name that this test process makes in a place which it shares with others."""

LabFactory = Callable[..., Lab]

_numbers = itertools.count()
_directories: list[Path] = []


def unique_prefix() -> str:
    """A name prefix that no other lab, of this process or of another, has."""
    return f"{PREFIX}-{next(_numbers)}"


def wait_for(condition: Callable[[], T], timeout: float = 5.0, message: str = "") -> T:
    """The condition's first true result; fails with the message after ``timeout`` seconds.

    An AssertionError of the condition counts as "not yet"; the last one is shown.
    """
    deadline = time.monotonic() + timeout
    while True:
        failure: AssertionError | None = None
        result: T | None = None
        try:
            result = condition()
        except AssertionError as error:
            failure = error
        if result:
            return result
        if time.monotonic() > deadline:
            reason = message or getattr(condition, "__name__", "the condition")
            pytest.fail(f"not within {timeout} s: {reason} (last: {failure or result!r})")
        time.sleep(0.005)


def mounts_under(directory: Path) -> list[str]:
    """What is mounted at or below a directory in this process's mount namespace."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in lines]
    return [point for point in points if Path(point).is_relative_to(directory)]


@pytest.fixture(scope="session")
def private_mounts() -> Iterator[Path]:
    """Move the test process into its own mount namespace; a directory for mounts in it.

    Nothing mounted from here on is seen by other processes, and it all goes with this one.
    At the end of the session nothing of ours may be left: processes, mounts, namespace names.
    """
    require_root()
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}-") as text:
        directory = Path(text)
        yield directory
        left = [f"mount {point}" for point in mounts_under(directory)]
        for used in (directory, *_directories):
            left += [f"process {entry.pid}" for entry in processes.marked(used)]
        for netns_dir in (Path("/run/netns"), directory / "netns"):
            if netns_dir.is_dir():
                left += [f"namespace {path}" for path in netns_dir.glob(f"{PREFIX}-*")]
        for point in mounts_under(directory):
            libc.umount(point)
        assert not left, f"the tests left behind: {', '.join(left)}"


@pytest.fixture
def bpffs(private_mounts: Path) -> Iterator[Path]:
    """An empty bpffs of the test's own."""
    directory = Path(tempfile.mkdtemp(prefix="bpf-", dir=private_mounts))
    libc.mount("bpf", str(directory), "bpf")
    yield directory
    libc.umount(str(directory))
    directory.rmdir()


@contextlib.contextmanager
def running_lab(spec: LabSpec, **options: Any) -> Iterator[Lab]:
    """A lab for fixtures of any scope; the leak check looks after it."""
    options.setdefault("prefix", unique_prefix())
    with Lab(spec, **options) as lab:
        _directories.append(lab.directory)
        yield lab


@pytest.fixture
def make_lab(private_mounts: Path) -> Iterator[LabFactory]:
    """Builds labs that end with the test: ``make_lab(LabSpec(...))``."""
    with contextlib.ExitStack() as labs:

        def make(spec: LabSpec, **options: Any) -> Lab:
            return labs.enter_context(running_lab(spec, **options))

        yield make
