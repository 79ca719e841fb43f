# SPDX-License-Identifier: Apache-2.0
"""Decisions are counted and logged, and the log is not flooded."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from tests.support.cast import T0, decision, first, key
from xdp_router.core.model import (
    NO_BACKEND,
    Decision,
    FlowKey,
    Mode,
    ProbeAnswer,
    ProbeRecord,
    Reason,
    Unfit,
)
from xdp_router.daemon.decision_report import LINES_PER_SECOND, DecisionReport, decision_line

NAMES = {1: "b1", 2: "b2"}


def made(decided_ns: int = T0, backend: int = 2, error: str = "") -> Decision:
    found = decision(first(1), backend, Mode.RACE, Reason.RACE_WON, decided_ns, [])
    found.error = error
    return found


def reported(*decisions: Decision) -> tuple[DecisionReport, list[dict[str, Any]]]:
    report = DecisionReport({0: "web"}.__getitem__, NAMES.__getitem__)
    with capture_logs() as lines:
        for each in decisions:
            report.report(each)
    return report, [dict(line) for line in lines]


def test_an_ipv6_client_has_brackets() -> None:
    """The log has it in the form that ``explain`` takes."""
    made = Decision(
        FlowKey((0x20010DB8 << 96) + 5, 4711, (0x20010DB8 << 96) + 1, 80),
        *(0, 2, Mode.RACE, Reason.RACE_WON, T0),
    )
    assert decision_line(made, "web", "b2", NAMES.__getitem__)["client"] == "[2001:db8::5]:4711"


def test_the_log_line_explains_a_decision() -> None:
    """One line has who, where to, why, how long it took and who answered when."""
    records = [
        ProbeRecord(1, T0),
        ProbeRecord(2, T0 + 10, ProbeAnswer.SYNACK, T0 + 300_010),
    ]
    made = Decision(
        key(1), 0, 2, Mode.RACE, Reason.RACE_WON, T0, decided_ns=T0 + 400_000, probes=records
    )
    assert decision_line(made, "web", "b2", NAMES.__getitem__) == {
        "client": "198.18.0.1:1",
        "protocol": "tcp",
        "service": "web",
        "backend": "b2",
        "mode": "race",
        "reason": "race_won",
        "latency_us": 400.0,
        "rtts_us": {"b2": 300.0},
    }
    assert decision_line(made, "web", "", NAMES.__getitem__)["backend"] is None
    for record in records:
        record.tied = True
    assert decision_line(made, "web", "b2", NAMES.__getitem__)["tied"] == ["b1", "b2"]


def test_decisions_are_counted_by_service() -> None:
    """All of them, logged or not."""
    report, lines = reported(*(made() for _ in range(LINES_PER_SECOND + 5)))
    assert (report.total, report.by_service) == (LINES_PER_SECOND + 5, {0: LINES_PER_SECOND + 5})
    assert len(lines) == LINES_PER_SECOND
    assert (lines[0]["event"], lines[0]["service"], lines[0]["backend"]) == (
        "decision",
        "web",
        "b2",
    )


def test_lines_left_out_are_told() -> None:
    """The next line says how many there were."""
    crowd = [made() for _ in range(LINES_PER_SECOND + 5)]
    _, lines = reported(*crowd, made(T0 + 2_000_000_000))
    assert lines[-1]["lines_skipped"] == 5


def test_a_decision_that_could_not_be_written() -> None:
    """It is an error, with what went wrong; a refusal has no backend."""
    _, (lost, refused) = reported(made(error="map full"), made(backend=NO_BACKEND))
    assert (lost["event"], lost["log_level"], lost["error"]) == (
        "decision_lost",
        "error",
        "map full",
    )
    assert refused["backend"] is None


def test_unfit_backends_are_told_of() -> None:
    """A client beside its backends has a line of its own."""
    odd = made()
    odd.unfit = ((1, Unfit.BESIDE_CLIENT),)
    _, lines = reported(odd)
    assert [line["event"] for line in lines] == ["client_beside_backend", "decision"]


def test_decisions_that_are_told_late_begin_no_second_anew() -> None:
    """XDP's own come by the ring, behind those that the daemon has made meanwhile."""
    both = [each for _ in range(LINES_PER_SECOND) for each in (made(T0 + 10**9), made(T0))]
    report, lines = reported(*both)
    assert report.total == 2 * LINES_PER_SECOND
    assert len(lines) == LINES_PER_SECOND
