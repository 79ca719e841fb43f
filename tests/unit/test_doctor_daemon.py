# SPDX-License-Identifier: Apache-2.0
"""The control socket in every state, and what a daemon's status gives away."""

from __future__ import annotations

import copy
import socket
from pathlib import Path

import pytest

from tests.support.cli_samples import STATUS
from xdp_router.adapters.doctor_daemon import check_socket, check_status, judge_fill
from xdp_router.adapters.doctor_finding import Severity

LOST = {"name": "be2", "ifindex": 0, "mode": "", "ready": False, "reason": "it was deleted"}


def test_states_of_the_socket(tmp_path: Path) -> None:
    """Absent, live, stale and something else are told apart."""
    path = tmp_path / "control.sock"
    assert [each.code for each in check_socket(path)] == ["no_daemon"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert [each.code for each in check_socket(path)] == ["control"]
    (stale,) = check_socket(path)
    assert (stale.code, stale.severity) == ("control_stale", Severity.WARN)
    path.unlink()
    path.write_text("")
    (other,) = check_socket(path)
    assert (other.code, other.severity) == ("control", Severity.FAIL)


def test_a_healthy_daemon() -> None:
    """All backends up, no losses: nothing to mend."""
    status = copy.deepcopy(STATUS) | {"backends_up": 3}
    assert {each.severity for each in check_status(status, 1000)} == {Severity.OK}


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ({"ready": False}, "daemon", Severity.FAIL),
        ({"backends_up": 0}, "no_backend_up", Severity.FAIL),
        ({"backends_up": 2}, "backends_down", Severity.WARN),
        ({"engine": {"netlink_overruns": 2}}, "netlink_overruns", Severity.WARN),
        ({"engine": {"bad_records": 1}}, "bad_records", Severity.WARN),
        ({"flows": 950}, "flow_table", Severity.WARN),
        ({"interfaces": [LOST]}, "interface_lost", Severity.FAIL),
    ],
)
def test_troubles(change: dict[str, object], code: str, severity: Severity) -> None:
    """Each trouble is found, alone, and has a mend."""
    status = copy.deepcopy(STATUS) | {"backends_up": 3} | change
    (found,) = (each for each in check_status(status, 1000) if each.severity is not Severity.OK)
    assert (found.code, found.severity) == (code, severity)
    assert found.mend


def test_fill() -> None:
    """A table is nearly full from nine tenths on."""
    assert judge_fill(899, 1000).severity is Severity.OK
    assert judge_fill(900, 1000).severity is Severity.WARN
