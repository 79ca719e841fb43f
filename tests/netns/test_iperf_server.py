# SPDX-License-Identifier: Apache-2.0
"""iperf3 as a backend's server: when it is ready, and that it ends like the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.iperf import iperf
from tests.support.netns import LabFactory, wait_for
from tests.support.privileges import require_program
from tests.support.wide_lab import wide_spec
from xdp_router.lab import LabError, processes
from xdp_router.lab.iperf_server import is_listening

pytest_plugins = ("tests.support.netns",)


def test_server_is_the_process_that_was_started(make_lab: LabFactory) -> None:
    """The lab knows the process id of iperf3 itself, and nothing else stays beside it."""
    require_program("iperf3", "iperf3")
    lab = make_lab(wide_spec(kind="iperf3"))
    pid = lab.backend_pid(0)
    assert Path(f"/proc/{pid}/comm").read_text() == "iperf3\n"
    assert lab.backends[0].run(lambda: is_listening(8080))
    wait_for(lambda: len(processes.marked(lab.directory)) == 1, message="only the server is left")


def test_killed_server_can_be_started_again(make_lab: LabFactory) -> None:
    """After SIGKILL its port is refused; started again it measures."""
    require_program("iperf3", "iperf3")
    lab = make_lab(wide_spec(kind="iperf3"))
    target = lab.addresses.backends[0]
    lab.kill_backend(0)
    with pytest.raises(ConnectionRefusedError):
        lab.client.connect(target)
    lab.start_backend(0)
    assert iperf(lab.client, target, "--bitrate=10M")["sum_received"]["bytes"] > 0


def test_taken_port_is_told(make_lab: LabFactory) -> None:
    """A port that somebody has already is an error that says so."""
    require_program("iperf3", "iperf3")
    lab = make_lab(wide_spec(kind="iperf3"))
    lab.kill_backend(0)
    with lab.backends[0].socket() as taken:
        taken.bind(("0.0.0.0", 8080))
        taken.listen()
        with pytest.raises(LabError, match="port 8080 is in use"):
            lab.start_backend(0)


def test_missing_program_is_told(make_lab: LabFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without iperf3 the error names the package that has it."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LabError, match="apt-get install iperf3"):
        make_lab(wide_spec(kind="iperf3"))
