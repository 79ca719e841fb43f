# SPDX-License-Identifier: Apache-2.0
"""Labs that outlive their builder, and ``down``, which removes whatever there is."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.netns.test_lab import who
from tests.support.netns import mounts_under, unique_prefix, wait_for
from xdp_router.lab import (
    BackendSpec,
    Lab,
    LabError,
    LabSpec,
    LabState,
    down,
    open_lab,
    processes,
    up,
)
from xdp_router.lab.persist import Removed
from xdp_router.lab.spawn_guard import spawning

pytest_plugins = ("tests.support.netns",)

SPEC = LabSpec((BackendSpec("b1", delay_line=True), BackendSpec("b2")))
BUILD = """
import pathlib, sys
from xdp_router.lab import BackendSpec, LabSpec, up
directory, prefix, netns = sys.argv[1:]
spec = LabSpec((BackendSpec("b1", delay_line=True), BackendSpec("b2")))
print("begun", flush=True)
up(spec, directory=pathlib.Path(directory), prefix=prefix, netns_dir=pathlib.Path(netns))
print("up", flush=True)
"""


@dataclass(frozen=True)
class Place:
    """Where a test's lab is kept."""

    directory: Path
    prefix: str
    netns_dir: Path

    def builder(self) -> subprocess.Popen[bytes]:
        """Another process that builds the lab here."""
        arguments = [str(self.directory), self.prefix, str(self.netns_dir)]
        return subprocess.Popen([sys.executable, "-c", BUILD, *arguments], stdout=subprocess.PIPE)

    def up(self) -> Lab:
        """Build the lab here."""
        return up(SPEC, directory=self.directory, prefix=self.prefix, netns_dir=self.netns_dir)

    def down(self) -> Removed:
        """Take the lab here down."""
        return down(directory=self.directory, prefix=self.prefix, netns_dir=self.netns_dir)

    def assert_empty(self) -> None:
        """Nothing of a lab is left here."""
        assert not processes.marked(self.directory)
        assert not mounts_under(self.directory)
        assert not mounts_under(self.netns_dir)
        assert not list(self.netns_dir.glob(f"{self.prefix}-*"))
        assert not self.directory.exists()


@pytest.fixture
def place(private_mounts: Path) -> Place:
    """A directory and a prefix of the test's own."""
    prefix = unique_prefix()
    return Place(private_mounts / f"{prefix}-kept", prefix, private_mounts / "netns")


def test_lab_outlives_its_builder(place: Place) -> None:
    """Another process finds a kept lab, uses and changes it, adds to it, and takes it down."""
    with place.builder() as builder:
        assert builder.communicate(timeout=30)[0] == b"begun\nup\n"
    assert mounts_under(place.directory) == [str(place.directory / "bpf")]
    lab = open_lab(place.directory)
    try:
        assert [who(lab, 0), who(lab, 1)] == ["b1", "b2"]
        lab.kill_backend("b2")
        with pytest.raises(ConnectionRefusedError):
            who(lab, 1)
        lab.start_backend("b2")
        lab.set_delay("b1", 0.010)
        daemon = lab.router.spawn(["sleep", "1000"], name="xdp-routerd")
    finally:
        lab.close()
    state = LabState.load(place.directory)
    assert state is not None
    assert state.complete
    found = state.process("xdp-routerd")
    assert found is not None
    assert found.pid == daemon.pid
    assert daemon.poll() is None
    removed = place.down()
    assert daemon.wait(5) == -15
    assert removed.processes == 4
    assert removed.mounts == 1
    assert len(removed.namespaces) == 5
    place.assert_empty()


def test_second_up_is_refused(place: Place) -> None:
    """While a lab is up, another up names the mend and harms nothing."""
    lab = place.up()
    try:
        with pytest.raises(LabError, match=r"up already.*lab down"):
            place.up()
        assert who(lab, 0) == "b1"
    finally:
        lab.close()
        place.down()
    place.assert_empty()


def test_down_is_idempotent(place: Place) -> None:
    """Down without a lab, or a second time, does nothing and says so."""
    assert place.down().nothing
    lab = place.up()
    lab.close()
    assert not place.down().nothing
    assert place.down().nothing
    place.assert_empty()


@pytest.mark.parametrize("after_ms", [0, 20, 60, 120, 250, 400])
def test_down_after_a_killed_builder(place: Place, after_ms: int) -> None:
    """Wherever SIGKILL hits the builder, down removes every part that it had made."""
    with place.builder() as builder:
        assert builder.stdout is not None
        builder.stdout.readline()
        time.sleep(after_ms / 1000)
        builder.kill()
    place.down()
    place.assert_empty()


def test_down_waits_for_a_process_that_is_being_born(place: Place) -> None:
    """A process between fork and exec, with no mark yet, keeps the lab; afterwards it is found."""
    lab = place.up()
    removed: list[Removed] = []
    taker = threading.Thread(target=lambda: removed.append(place.down()))
    try:
        with spawning(place.directory):
            taker.start()
            taker.join(0.3)
            assert taker.is_alive()
            assert lab.backend_pid("b1") is not None
            daemon = lab.router.spawn(["sleep", "1000"])
        taker.join(10)
        assert daemon.wait(0) == -15
        assert removed[0].processes == 4
        with pytest.raises(LabError, match="was taken down"):
            lab.router.spawn(["true"])
    finally:
        lab.close()
        taker.join(10)
        place.down()
    place.assert_empty()


def test_down_without_the_state_file(place: Place) -> None:
    """If the state file is lost or unreadable, mark and prefix are enough."""
    lab = place.up()
    lab.close()
    (place.directory / "state.json").write_text("{")
    with pytest.raises(LabError, match=r"state.json can't be read.*lab down"):
        open_lab(place.directory)
    assert place.down().processes == 3
    place.assert_empty()


def test_up_and_down_exclude_each_other(place: Place) -> None:
    """While another process is at work on a lab, up and down say so instead of interfering."""
    place.directory.mkdir()
    held = os.open(place.directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LabError, match="at work"):
            place.up()
        with pytest.raises(LabError, match="at work"):
            place.down()
    finally:
        os.close(held)
    place.down()
    place.assert_empty()


def test_failed_up_leaves_nothing(place: Place) -> None:
    """If something is in the way, up explains it and removes what it had made."""
    place.netns_dir.mkdir(exist_ok=True)
    other = place.netns_dir / f"{place.prefix}-be2"
    other.touch()
    with pytest.raises(LabError, match="be2 exists already"):
        place.up()
    place.assert_empty()


def test_no_lab_is_said_plainly(place: Place) -> None:
    """Opening what is not there, or not finished, tells the next step."""
    with pytest.raises(LabError, match=r"no lab is up.*lab up"):
        open_lab(place.directory)
    place.directory.mkdir()
    LabState(place.directory, place.prefix, place.netns_dir, SPEC).save()
    with pytest.raises(LabError, match=r"not finished.*lab down"):
        open_lab(place.directory)
    place.down()
    wait_for(lambda: not place.directory.exists())


def test_segment_is_kept_and_goes(place: Place) -> None:
    """A kept lab with a switch works for a later process, and nothing of it stays behind."""
    spec = LabSpec((BackendSpec("b1", port=80),), method="dsr", topology="segment")
    up(spec, directory=place.directory, prefix=place.prefix, netns_dir=place.netns_dir).close()
    lab = open_lab(place.directory)
    try:
        assert lab.router_interfaces == ("lan0",)
        assert who(lab, 0) == "b1"
        lab.down_backend(0)
        lab.up_backend(0)
        assert who(lab, 0) == "b1"
    finally:
        lab.close()
    assert f"{place.prefix}-segment" in place.down().namespaces
    place.assert_empty()
