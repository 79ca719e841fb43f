# SPDX-License-Identifier: Apache-2.0
"""Programs that are loaded side by side, with files in place of programs."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.support.descriptors import open_descriptors
from xdp_router.adapters.side_by_side import load_side_by_side


def test_all_are_loaded_and_the_first_begins(tmp_path: Path) -> None:
    """One fd for each name; the calls begin in the order of the names."""
    began: list[str] = []

    def load(name: str) -> int:
        began.append(name)
        return os.open(tmp_path / name, os.O_CREAT)

    names = [f"program{i}" for i in range(20)]
    fds = load_side_by_side(names, load)
    assert list(fds) == names
    assert began[0] == names[0]
    for name, fd in fds.items():
        assert os.readlink(f"/proc/self/fd/{fd}") == str(tmp_path / name)
        os.close(fd)
    assert load_side_by_side([], load) == {}


def test_what_was_loaded_is_closed_when_one_is_refused() -> None:
    """The first error in the order of the names is raised, and no fd is left."""
    fds = len(open_descriptors())

    def load(name: str) -> int:
        if name.startswith("bad"):
            raise ValueError(name)
        return os.open("/dev/null", os.O_RDONLY)

    with pytest.raises(ValueError, match="bad1"):
        load_side_by_side(["good1", "bad1", "good2", "bad2", "good3"], load)
    assert len(open_descriptors()) == fds


def test_threads_take_no_signal_that_the_caller_holds() -> None:
    """The kernel gives up verifying for a signal: who loads must not be the one that gets it."""
    masks: list[set[int]] = []

    def load(_name: str) -> int:
        assert threading.current_thread() is not threading.main_thread()
        masks.append({int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())})
        return os.open("/dev/null", os.O_RDONLY)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        for fd in load_side_by_side(["one", "two", "three"], load).values():
            os.close(fd)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert len(masks) == 3
    assert all(signal.SIGTERM in mask for mask in masks)
