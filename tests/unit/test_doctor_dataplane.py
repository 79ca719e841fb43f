# SPDX-License-Identifier: Apache-2.0
"""What the maps of a data plane give away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xdp_router.adapters import doctor_dataplane
from xdp_router.adapters.doctor_dataplane import Facts, judge_facts, judge_limits, rooms_in
from xdp_router.adapters.doctor_finding import Severity
from xdp_router.core import abi
from xdp_router.core.flow_room import Limit, rooms_of

MS = 1_000_000
NOW_NS = 10_000 * MS
GOOD = Facts(
    beat_ns=NOW_NS - 10 * MS,
    stale_ns=100 * MS,
    ports=(61_000, 61_999),
    max_flows=1000,
    counters={"promoted": 5, "first_packet": 5, "no_path": 0},
    pending={"pending_flows": (10, 100), "pending_flows6": (1, 1)},
)


def _bad(facts: Facts) -> list[str]:
    found = judge_facts("eth0", facts, NOW_NS)
    return [each.code for each in found if each.severity is not Severity.OK]


def test_a_healthy_data_plane() -> None:
    """A fresh heartbeat and innocent counters give nothing to mend."""
    assert _bad(GOOD) == []


def test_heartbeat_and_handshakes() -> None:
    """A heartbeat older than its limit and a full table of handshakes are found."""
    assert _bad(replace(GOOD, beat_ns=NOW_NS - 101 * MS)) == ["heartbeat"]
    for table in GOOD.pending:
        assert _bad(replace(GOOD, pending={**GOOD.pending, table: (91, 100)})) == ["pending_flows"]


def test_a_full_flow_table_is_found_while_it_matters() -> None:
    """A flow that found no room within the last minute; longer ago the counters tell."""
    assert _bad(replace(GOOD, full_ns=NOW_NS - 1000 * MS)) == ["flow_table_full"]
    assert _bad(replace(GOOD, full_ns=NOW_NS - 1)) == ["flow_table_full"]
    assert _bad(replace(GOOD, beat_ns=10**12, full_ns=1)) == ["flow_table_full"]
    assert _bad(replace(GOOD, full6_ns=NOW_NS - 1)) == ["flow_table_full"]
    facts = replace(GOOD, full_ns=1, beat_ns=61_000 * MS)
    found = [each.code for each in judge_facts("eth0", facts, 61_001 * MS)]
    assert "flow_table_full" not in found


@pytest.mark.parametrize("name", sorted(doctor_dataplane._TROUBLE))
def test_counters_that_mean_trouble(name: str) -> None:
    """Each is a counter of the program, and is found with its number."""
    assert name in abi.Counter.__members__
    (found,) = (
        each
        for each in judge_facts("eth0", replace(GOOD, counters={name: 7}), NOW_NS)
        if each.severity is not Severity.OK
    )
    assert found.code == name
    assert found.text.startswith("7 since attach")
    assert found.mend


def test_limits_and_the_room_that_there_is() -> None:
    """Judged by the table's size; nothing is said where there is no limit, or no table known."""
    limits = [Limit("web", 4, 600), Limit("api", 4, 600)]
    (found,) = judge_limits(limits, rooms_of(1000))
    assert (found.code, found.severity) == ("max_connections_out_of_reach", Severity.WARN)
    assert "1200" in found.mend
    (found,) = judge_limits(limits, rooms_of(1200))
    assert found.severity is Severity.OK
    (found,) = judge_limits(limits, {4: 1200, 6: 0})
    assert found.severity is Severity.OK
    assert not list(judge_limits(limits, {}))
    assert not list(judge_limits([], rooms_of(1000)))


def test_room_of_each_family() -> None:
    """Tables that were taken over keep their sizes, and a family that came later has its own."""
    assert rooms_in([]) == {}
    assert rooms_in([replace(GOOD, max_flows6=50)]) == {4: 1000, 6: 50}
    full = replace(GOOD, full_ns=NOW_NS, full6_ns=NOW_NS, max_flows6=50)
    found = {
        each.subject: each.text
        for each in judge_facts("eth0", full, NOW_NS)
        if each.code == "flow_table_full"
    }
    assert "no room among 1000; new ones of IPv4" in found["flow_table"]
    assert "no room among 50; new ones of IPv6" in found["flow_table6"]
