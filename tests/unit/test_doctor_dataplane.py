# SPDX-License-Identifier: Apache-2.0
"""What the maps of a data plane give away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xdp_router.adapters import doctor_dataplane
from xdp_router.adapters.doctor_dataplane import Facts, judge_facts
from xdp_router.adapters.doctor_finding import Severity
from xdp_router.core import abi

MS = 1_000_000
NOW_NS = 10_000 * MS
GOOD = Facts(
    beat_ns=NOW_NS - 10 * MS,
    stale_ns=100 * MS,
    ports=(61_000, 61_999),
    max_flows=1000,
    counters={"promoted": 5, "first_packet": 5, "no_path": 0},
    pending=10,
    pending_max=100,
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
    assert _bad(replace(GOOD, pending=91)) == ["pending_flows"]


def test_a_full_flow_table_is_found_while_it_matters() -> None:
    """A flow that found no room within the last minute; longer ago the counters tell."""
    assert _bad(replace(GOOD, full_ns=NOW_NS - 1000 * MS)) == ["flow_table_full"]
    assert _bad(replace(GOOD, full_ns=NOW_NS - 1)) == ["flow_table_full"]
    assert _bad(replace(GOOD, beat_ns=10**12, full_ns=1)) == ["flow_table_full"]
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
