# SPDX-License-Identifier: Apache-2.0
"""Tables as an operator reads them: width, numbers, time line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cli_samples import (
    BACKENDS,
    COMPARED,
    EXPLAIN,
    FLOWS,
    PICKED,
    PUSHED,
    SERVICES,
    STATUS,
)
from xdp_router.cli import render

Capture = pytest.CaptureFixture[str]


def _lines(capsys: Capture) -> list[str]:
    out = capsys.readouterr().out
    assert "\x1b" not in out, "no colours where the output is no terminal"
    lines = out.splitlines()
    assert all(len(line) <= 100 for line in lines)
    return [line.rstrip() for line in lines]


def test_flows_fit_one_line_each_at_100_columns(capsys: Capture) -> None:
    """The longest address and reason fit; every flow is one line."""
    render.flows(FLOWS)
    lines = _lines(capsys)
    assert len(lines) == 1 + len(FLOWS)
    assert lines[1].split()[0] == "255.255.255.255:65535"
    assert "race won" in lines[1]
    assert "1.2 ms" in lines[1]
    assert "1.2k/34k" in lines[1]


LONG = "[2001:db8:1111:2222:3333:4444:5555:6666]:65535"


def test_ipv6_addresses_stay_in_one_piece(capsys: Capture) -> None:
    """Where no terminal sets the width, the longest endpoint is in one line of each table."""
    render.flows([{**FLOWS[0], "client": LONG, "backend": LONG}])
    render.backends([{**BACKENDS[0], "name": f"{LONG}@x", "address": LONG}])
    render.services([{**SERVICES[0], "name": f"{LONG}/tcp", "address": LONG}])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert [line.count(LONG) for line in lines] == [0, 2, 0, 2, 0, 2]
    assert all(len(line) <= 200 for line in lines)


def test_flow_decided_without_measurement_says_why(capsys: Capture) -> None:
    """A hashed flow names the hash and its cause."""
    render.flows(FLOWS)
    assert "hash: ring full" in _lines(capsys)[2]


def test_no_rows_are_said_in_words(capsys: Capture) -> None:
    """An empty list prints a sentence, not an empty table."""
    render.flows([])
    render.services([])
    render.backends([])
    render.counters({"ring_full": 0}, show_all=False)
    expected = ["No flows.", "No services.", "No backends.", "All counters are 0."]
    assert _lines(capsys) == expected


def test_status_shows_interfaces_and_first_packet_latency(capsys: Capture) -> None:
    """Readiness, interfaces with their mode, and FPPL are on the page; zero counters are not."""
    render.status(STATUS)
    text = "\n".join(_lines(capsys))
    assert "client0 (native, takes no XDP frames), be1 (generic, not ready)" in text
    assert "p50 850 µs, p99 4.2 ms of 1.2k" in text
    assert "2 of 3 reached" in text
    assert "probe_budget" in text
    assert "never_happened" not in text


def test_an_interface_that_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    """It says so, and why."""
    lost = {"name": "be2", "ifindex": 0, "mode": "", "ready": False, "reason": "it was deleted"}
    lost["takes_xdp_frames"] = True
    render.status(STATUS | {"interfaces": [*STATUS["interfaces"], lost]})
    text = " ".join(capsys.readouterr().out.split())
    assert "be2 (not attached, not ready)" in text
    assert "be2: it was deleted" in text


def test_status_before_the_first_flow(capsys: Capture) -> None:
    """Without any decision the latency says so instead of showing zeros."""
    render.status({**STATUS, "fppl_us": {"p50": None, "p99": None, "count": 0}})
    assert any(line == "first packet  none yet" for line in _lines(capsys))


def test_backend_that_is_down_has_its_reason_below(capsys: Capture) -> None:
    """The reason of a down backend is given in full under the table."""
    render.backends(BACKENDS)
    lines = _lines(capsys)
    assert lines[-1] == "b2 is down: no ARP answer from 198.19.2.2 on be2"
    assert "850 µs" in lines[1]
    assert [line.split()[4:7] for line in lines[1:3]] == [
        ["be1", "syn", "850"],
        ["be2", "(kernel)", "syn"],
    ]


def test_services_are_listed(capsys: Capture) -> None:
    """Address with protocol, deadline and backends are in the row."""
    render.services(SERVICES)
    row = _lines(capsys)[1]
    assert "198.18.100.1:80/tcp" in row
    assert "50.0 ms" in row
    assert "b1 b2" in row
    assert row.split()[-2:] == ["12", "17/1000"]


def test_open_flows_are_without_those_that_close(capsys: Capture) -> None:
    """A limit counts closing ones, too; without one there is no column of it."""
    unlimited = {**SERVICES[0], "max_connections": None}
    render.services([unlimited, {**SERVICES[0], "name": "api", "open": 16}])
    lines = _lines(capsys)
    assert lines[0].split()[-3:] == ["DECIDED", "OPEN", "LIMIT"]
    assert lines[1].split()[-2:] == ["12", "-"]
    assert lines[2].split()[-2:] == ["16", "17/1000"]
    render.services([unlimited])
    lines = _lines(capsys)
    assert lines[0].endswith("OPEN")
    assert lines[1].endswith(" 12")


@pytest.mark.parametrize(
    ("flood", "forwarded", "told"),
    [
        (
            {"active": True, "since_s": 75.0, "reason": "budget_service"},
            4321,
            "over budget (budget service) for 75s, stateless: without entries, 4.3k packets went "
            "without one; what has no entry is hashed for another 12s",
        ),
        (
            {"active": True, "since_s": 3.0, "reason": "ring_deep", "mode": "flood_flows"},
            0,
            "over budget (ring deep) for 3s, with entries in a table of their own (flood_flows); "
            "what has no entry is hashed for another 12s",
        ),
        (
            {"active": True, "since_s": 3.0, "reason": "table_full", "mode": "flood_flows"},
            0,
            "no place in flow_table for 3s; what has no entry is hashed for another 12s",
        ),
        (
            {"mode": "flood_flows", "obstacle": "net.x is 0: the kernel tells no way to a client"},
            0,
            "not stateless, as configured: net.x is 0: the kernel tells no way to a client",
        ),
    ],
)
def test_a_service_over_budget_says_so(
    capsys: Capture, flood: dict[str, Any], forwarded: int, told: str
) -> None:
    """Since when, why, what becomes of first packets, for how long; and why not what is wanted."""
    row = SERVICES[0]
    stateless = {**row["stateless"], "for_s": 12.5, "forwarded": forwarded}
    render.services([{**row, "stateless": stateless, "flood": {**row["flood"], **flood}}])
    assert " ".join(_lines(capsys)[2:]) == f"web: {told}"
    render.services(SERVICES)
    assert len(_lines(capsys)) == 2


def test_services_that_are_full_or_flooded_are_named(capsys: Capture) -> None:
    """The first ones, and how many more."""
    render.status(STATUS)
    shown = "\n".join(_lines(capsys))
    assert "no service is at max_connections" in shown
    assert "no service is over budget" in shown
    over = {"services_over_budget": 12, "over_budget": ["a", "b"]}
    render.status({**STATUS, **over, "services_full": 1, "full": ["web"]})
    shown = "\n".join(_lines(capsys))
    assert "web is at max_connections" in shown
    assert "a, b and 10 others are over budget" in shown


def test_explain_orders_the_time_line(capsys: Capture) -> None:
    """Steps are in order of time, in microseconds since "seen", whatever order they came in."""
    render.explain(EXPLAIN)
    lines = _lines(capsys)
    assert lines[0] == "198.18.0.2:40000 to web/tcp: b1 (race won)"
    steps = [line.split()[0:2] for line in lines[3:9]]
    assert steps == [
        ["0", "seen"],
        ["31", "probe"],
        ["39.5", "probe"],
        ["1031", "answer"],
        ["1060", "decision"],
        ["1075", "re-injected"],
    ]
    assert "chosen" in next(line for line in lines if line.startswith("b1"))
    assert next(line for line in lines if line.startswith("b2")).split()[1:] == ["-", "lost"]


def test_a_pick_is_explained_by_its_snapshot(capsys: Capture) -> None:
    """Shares, scores, and the terms that were known of anybody; how old all of that was."""
    render.explain(PICKED)
    lines = _lines(capsys)
    assert lines[0] == "198.18.0.2:40000 to web/tcp: b2 (snapshot)"
    at = lines.index("Snapshot, 4.3 ms old:")
    assert lines[at + 1].split() == ["BACKEND", "SHARE", "SCORE", "RTT", "QUEUE"]
    assert lines[at + 2].split() == ["b1", "0.4%", "0.01", "0.01", "-"]
    assert lines[at + 3].split() == ["b2", "100%", "0.83", "1.00", "0.50", "picked"]
    assert lines[at + 4 :] == ["b2: queue 4 (scrape)"]


def test_a_choice_of_two_is_explained_by_both(capsys: Capture) -> None:
    """How soon each answers, how many flows it has for its weight; nothing known is no zero."""
    render.explain(COMPARED)
    lines = _lines(capsys)
    assert lines[0] == "198.18.0.2:40000 to web/tcp: b2 (inline)"
    at = next(i for i, line in enumerate(lines) if line.startswith("COMPARED"))
    assert lines[at].split() == ["COMPARED", "ANSWERS", "IN", "OPEN", "WEIGHT", "COST"]
    assert lines[at + 1].split() == ["b2", "100", "µs", "3", "2", "199", "µs", "chosen"]
    assert lines[at + 2].split() == ["b1", "-", "0", "1", "-"]


@pytest.mark.parametrize(("mode", "says"), [("race", "equally fast"), ("inline", "does not look")])
def test_what_is_told_in_vain_says_so(capsys: Capture, mode: str, says: str) -> None:
    """The mode may not look at it."""
    render.pushed({**PUSHED, "mode": mode})
    assert says in _lines(capsys)[0]


def test_refused_flow_is_explained(capsys: Capture) -> None:
    """A flow that nobody took says "refused"."""
    refused: dict[str, Any] = {
        **EXPLAIN,
        "backend": None,
        "mode": "refused",
        "reason": "no_candidate",
        "candidates": [],
        "timeline": [],
    }
    render.explain(refused)
    assert _lines(capsys)[0].endswith("refused (refused: no candidate)")


def test_counters_hide_zeros_unless_asked(capsys: Capture) -> None:
    """Zero counters appear only with show_all."""
    data = {"first_packet": 12, "ring_full": 0}
    render.counters(data, show_all=False)
    assert not any("ring_full" in line for line in _lines(capsys))
    render.counters(data, show_all=True)
    assert any(line.startswith("ring_full") for line in _lines(capsys))


def test_json_is_the_data(capsys: Capture) -> None:
    """What --json prints reads back as the same value."""
    render.json_out(FLOWS)
    assert json.loads(capsys.readouterr().out) == FLOWS
