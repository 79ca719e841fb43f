# SPDX-License-Identifier: Apache-2.0
"""The router in a lab: daemon and commands as processes, and what is said when they fail."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.netns import LabFactory, wait_for
from xdp_router.lab import BackendSpec, Lab, LabError, LabSpec
from xdp_router.lab.router import LabRouter

pytest_plugins = ("tests.support.netns",)


@pytest.fixture
def lab(make_lab: LabFactory) -> Lab:
    """A lab with one backend."""
    return make_lab(LabSpec((BackendSpec("b1"),)))


def test_up_asked_and_stopped(lab: Lab, bpffs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """When it is made it is ready; commands answer and print; it stops without a fault."""
    router = LabRouter(lab, lab.config_toml(), bpffs / "pins")
    assert router.ask("status")["ready"] is True
    assert router.ask("status")["pid"] == router.pid
    router.show("services")
    assert "198.18.100.1:80/tcp" in capfd.readouterr().out
    with pytest.raises(LabError, match=r"xdp-router explain 1\.2\.3\.4:5: .*no decision"):
        router.show("explain", "1.2.3.4:5")
    router.stop()
    with pytest.raises(LabError, match=r"has ended \(exit code 0\)"):
        router.check()
    assert list(bpffs.glob("pins/*/*")) == []


def test_bad_configuration(lab: Lab, bpffs: Path) -> None:
    """A daemon that refuses to start is an error with its exit code and its own words."""
    with pytest.raises(LabError) as failed:
        LabRouter(lab, lab.config_toml(mode="nonsense"), bpffs / "pins")
    assert "has ended (exit code 2)" in str(failed.value)
    assert "nonsense" in str(failed.value)


def test_killed_daemon(lab: Lab, bpffs: Path) -> None:
    """After its death every use says so, by which signal, with the end of the log."""
    router = LabRouter(lab, lab.config_toml(), bpffs / "pins")
    wait_for(lambda: " ready " in router.log.read_text())  # the log is written behind
    os.kill(router.pid, signal.SIGKILL)

    def dead() -> bool:
        try:
            router.check()
        except LabError:
            return True
        return False

    wait_for(dead)
    for use in (router.check, router.stop, lambda: router.ask("status")):
        with pytest.raises(LabError, match=r"has ended \(signal 9\)") as failed:
            use()
        assert "The end of its log:" in str(failed.value)
        assert " ready " in str(failed.value)
