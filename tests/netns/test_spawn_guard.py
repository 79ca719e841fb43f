# SPDX-License-Identifier: Apache-2.0
"""A process of a kept lab holds the lab from its fork to its exec, not longer and not shorter."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from xdp_router.lab import LabError
from xdp_router.lab.namespace import Namespace, SpawnPolicy
from xdp_router.lab.spawn_guard import FILE, lock_within, no_births, spawning


def test_births_keep_the_lab_and_each_other_not(tmp_path: Path) -> None:
    """Any number may start processes at once; whoever wants to remove waits, and says for what."""
    with spawning(tmp_path), spawning(tmp_path):
        with pytest.raises(LabError, match=r"just being started: try again"):
            with no_births(tmp_path, 0.05):
                pytest.fail("a birth was overlooked")
    with no_births(tmp_path, 0.0):
        pass


def test_killed_parent_leaves_the_guard_to_its_child(tmp_path: Path) -> None:
    """The guard is let go when the last of parent and forked child has ended or called exec."""
    waiting, go = os.pipe()
    with spawning(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(waiting, 1)  # as one that gets no CPU time before its exec
            os.execv("/bin/sleep", ["sleep", "0.5"])
    os.close(waiting)
    with pytest.raises(LabError), no_births(tmp_path, 0.05):
        pytest.fail("the child was overlooked")
    os.close(go)
    with no_births(tmp_path, 5.0):
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "it runs: exec has let go"
    os.waitpid(child, 0)


def test_spawned_process_does_not_hold_the_guard(tmp_path: Path) -> None:
    """As soon as spawn has returned, the process is no reason to wait, nor has it the file open."""
    namespace = Namespace.create("ns", policy=SpawnPolicy(kept=tmp_path))
    try:
        with namespace.spawn(["sleep", "1000"]) as process, no_births(tmp_path, 0.0):
            open_files = Path(f"/proc/{process.pid}/fd").iterdir()
            assert all(path.readlink().name != FILE for path in open_files)
            process.kill()
    finally:
        namespace.close()


def test_birth_in_a_removed_lab_is_refused(tmp_path: Path) -> None:
    """Whoever waited while the lab was removed, or comes later, hears that it is gone."""
    directory = tmp_path / "lab"
    directory.mkdir()
    failures: list[LabError] = []

    def spawn() -> None:
        try:
            with spawning(directory):
                pytest.fail("the lab is gone")
        except LabError as error:
            failures.append(error)

    waiting = threading.Thread(target=spawn)
    with no_births(directory, 0.0):
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
        (directory / FILE).unlink()
        directory.rmdir()
    waiting.join(5)
    spawn()
    assert ["was taken down: run 'xdp-router lab up'" in str(error) for error in failures] == [
        True,
        True,
    ]


def test_lock_within_waits_no_longer_than_told(tmp_path: Path) -> None:
    """A lock that others keep is given up; one that they let go is taken."""
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    try:
        assert lock_within(first, 0.0)
        assert not lock_within(second, 0.05)
        threading.Timer(0.1, os.close, [first]).start()
        assert lock_within(second, 5.0)
    finally:
        os.close(second)
