# SPDX-License-Identifier: Apache-2.0
"""Whoever was in a lab and is not the lab's is told by ``down``, and not ended by it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.netns import unique_prefix, wait_for
from xdp_router.adapters.control import ControlError
from xdp_router.adapters.control_client import ControlClient
from xdp_router.lab import BackendSpec, Lab, LabSpec, down, libc, up
from xdp_router.lab.guests import Guest, guests, wait_for_loss
from xdp_router.lab.processes import Process

pytest_plugins = ("tests.support.netns",)


@pytest.fixture
def lab(private_mounts: Path) -> Iterator[Lab]:
    """A kept lab of one backend, without a router."""
    prefix = unique_prefix()
    place = private_mounts / f"{prefix}-kept"
    netns = private_mounts / "netns"
    made = up(LabSpec((BackendSpec("b1"),)), directory=place, prefix=prefix, netns_dir=netns)
    yield made
    made.close()
    down(directory=place, prefix=prefix, netns_dir=netns)


def take_down(lab: Lab) -> tuple[Guest, ...]:
    assert lab.state is not None
    lab.close()  # which only lets go
    where = {"directory": lab.directory, "netns_dir": lab.state.netns_dir}
    return down(prefix=lab.prefix, **where).guests


@contextlib.contextmanager
def running(lab: Lab, *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of our own in the router's namespace: nothing tells that it is in a lab."""
    fd = lab.router.fd
    process = subprocess.Popen(
        argv, preexec_fn=lambda: libc.setns(fd), pass_fds=(), start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


@contextlib.contextmanager
def daemon(lab: Lab, pins: Path, control: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that was attached by hand."""
    config = control.with_suffix(".toml")
    config.write_text(lab.config_toml())
    options = ["--config", str(config), "--control", str(control), "--pins", str(pins)]
    argv = [sys.executable, "-m", "xdp_router.daemon.main", "attach", *lab.router_interfaces]

    def is_ready() -> bool:
        with contextlib.suppress(ControlError), ControlClient(str(control)) as client:
            return bool(client.call("status")["ready"])
        return False

    with running(lab, *argv, *options) as process:
        wait_for(is_ready, 60, "the daemon is ready")
        yield process


def test_a_daemon_of_somebodys_own_goes_on(lab: Lab, bpffs: Path) -> None:
    """It is named with its pid and how to end it; so is any other process."""
    control = bpffs.parent / f"{lab.prefix}.sock"
    with daemon(lab, bpffs, control) as own, running(lab, "sleep", "300") as other:
        found = {guest.process.pid: guest for guest in take_down(lab)}
        assert set(found) == {own.pid, other.pid}
        assert own.poll() is None
        assert other.poll() is None
        assert str(found[own.pid]) == (
            f"xdp-routerd (pid {own.pid}), attached in {lab.prefix}-router, was not started by "
            "the lab and goes on, without the lab's wires and in a namespace without a name: sudo "
            f"kill {own.pid} ends it"
        )
        assert str(found[other.pid]).startswith(f"sleep (pid {other.pid}), in {lab.prefix}-router")
        own.terminate()
        assert own.wait(30) == 0


def test_one_that_has_its_pins_in_the_lab_ends(lab: Lab, private_mounts: Path) -> None:
    """They go with the lab's file system, and it notices; that is said."""
    assert lab.state is not None
    control = private_mounts / f"{lab.prefix}.sock"
    with daemon(lab, lab.state.bpffs / "xdp-router", control) as own:
        (guest,) = take_down(lab)
        assert own.wait(30) == 1
        assert str(guest) == (
            f"xdp-routerd (pid {own.pid}), attached in {lab.prefix}-router, was not started by "
            "the lab and has ended: its pins were on the lab's file system"
        )


def test_without_one_there_is_nothing_to_tell(lab: Lab) -> None:
    """The lab's own servers are nobody else's."""
    assert take_down(lab) == ()


def test_paths_that_are_no_namespaces(tmp_path: Path) -> None:
    """A builder that was killed leaves files; nobody is in them, and nothing is waited for."""
    (tmp_path / "x-router").touch()
    assert guests([tmp_path / "x-router", tmp_path / "none"], tmp_path, ()) == []
    wait_for_loss([Guest(Process.of("me", os.getpid()), "x-router", True, False)], 60)
