# SPDX-License-Identifier: Apache-2.0
"""The control socket in every state, and what a daemon's status gives away."""

from __future__ import annotations

import copy
import socket
from pathlib import Path

import pytest

from tests.support.cli_samples import SERVICES, STATUS
from xdp_router.adapters.doctor_daemon import (
    check_services,
    check_socket,
    check_status,
    judge_fill,
)
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
    assert {each.severity for each in check_status(status, {4: 1000, 6: 1000})} == {Severity.OK}


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ({"ready": False}, "daemon", Severity.FAIL),
        ({"backends_up": 0}, "no_backend_up", Severity.FAIL),
        ({"backends_up": 2}, "backends_down", Severity.WARN),
        ({"engine": {"netlink_overruns": 2}}, "netlink_overruns", Severity.WARN),
        ({"engine": {"bad_records": 1}}, "bad_records", Severity.WARN),
        ({"flow_entries": {"flow_table": 1900}}, "flow_table", Severity.WARN),
        ({"flow_entries": {"flow_table": 1, "flow_table6": 1900}}, "flow_table", Severity.WARN),
        ({"interfaces": [LOST]}, "interface_lost", Severity.FAIL),
    ],
)
def test_troubles(change: dict[str, object], code: str, severity: Severity) -> None:
    """Each trouble is found, alone, and has a mend."""
    status = copy.deepcopy(STATUS) | {"backends_up": 3} | change
    (found,) = (
        each
        for each in check_status(status, {4: 1000, 6: 1000})
        if each.severity is not Severity.OK
    )
    assert (found.code, found.severity) == (code, severity)
    assert found.mend


def test_fill() -> None:
    """A table is nearly full from nine tenths on; two that are half full are not."""
    assert judge_fill("flow_table", 1799, 1000).severity is Severity.OK
    assert judge_fill("flow_table", 1800, 1000).severity is Severity.WARN
    status = copy.deepcopy(STATUS) | {"backends_up": 3, "flows": 1000}
    status["flow_entries"] = {"flow_table": 1000, "flow_table6": 1000}
    found = [each for each in check_status(status, {4: 1000, 6: 1000}) if each.code == "flow_table"]
    assert [(each.subject, each.severity) for each in found] == [
        ("flow_table", Severity.OK),
        ("flow_table6", Severity.OK),
    ]


def test_tables_of_two_sizes() -> None:
    """One that was taken over keeps its size; that of a family that came later has another."""
    status = copy.deepcopy(STATUS) | {"backends_up": 3}
    status["flow_entries"] = {"flow_table": 100, "flow_table6": 1900}
    found = [each for each in check_status(status, {4: 100_000, 6: 1000}) if each.mend]
    assert [(each.code, each.subject) for each in found] == [("flow_table", "flow_table6")]
    assert not [each for each in check_status(status, {4: 100, 6: 100_000}) if each.mend]
    assert not [each for each in check_status(status, {}) if each.code == "flow_table"]


@pytest.mark.parametrize(
    ("row", "flood", "code"),
    [
        ({"connections": 1000}, {}, "connections_at_limit"),
        ({}, {"active": True, "since_s": 5.0, "reason": "budget_global"}, "over_budget"),
        ({}, {"obstacle": "net.x is 0"}, "stateless_impossible"),
        (
            {"gateway": {"listener": "web", "sockets": False, "reason": "it has ended"}},
            {},
            "gateway_absent",
        ),
    ],
)
def test_services_in_trouble(row: dict[str, object], flood: dict[str, object], code: str) -> None:
    """At its limit, over budget, not stateless as it should be, led to a gateway that is not there:
    each is told with a mend."""
    assert not list(check_services(SERVICES))
    changed = {**SERVICES[0], **row, "flood": {**SERVICES[0]["flood"], **flood}}
    (found,) = check_services([changed])
    assert (found.code, found.subject, found.severity) == (code, "web", Severity.WARN)
    assert found.mend
    full = {**SERVICES[0]["flood"], "active": True, "since_s": 5.0, "reason": "table_full"}
    assert not list(check_services([{**SERVICES[0], "flood": full}]))
    there = {"listener": "web", "sockets": True, "reason": ""}
    assert not list(check_services([{**SERVICES[0], "gateway": there}]))
