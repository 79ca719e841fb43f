# SPDX-License-Identifier: Apache-2.0
"""What is told of a request."""

from __future__ import annotations

import json

from tests.support.listeners import listener
from tests.support.sights import ToldSight
from xdp_router.daemon.gateway.record import DETAILS, LegRecord, Record, since
from xdp_router.gateway.candidates import Candidates
from xdp_router.gateway.chooser import Chooser, Known

MS = 1_000_000
LISTENER = listener()


def record() -> Record:
    """Of a race with a hedge that won."""
    told = Record("r-1", "llm", "198.18.0.9:1", 10 * MS, 1_790_000_000.1234)
    told.first_byte_ns, told.head_ns, told.body_ns = 12 * MS, 13 * MS, 14 * MS
    told.decided_ns, told.answer_ns, told.ended_ns = 15 * MS, 90 * MS, 112 * MS
    told.method, told.path, told.status, told.mode = "POST", "/v1/completions", 200, "race"
    told.backend, told.reason, told.end, told.hedged = "b", "hedge won", "complete", 1
    known = [Known(0, 1, 3, ttft_ns=40 * MS), Known(1, 1, 1, ttft_ns=20 * MS)]
    told.order = Chooser(LISTENER).order(
        Candidates((0, 1)), ToldSight(known), (), 1.0, (0.0, 0.0, 0.0)
    )
    told.legs = [
        LegRecord("a", 15 * MS, reused=True, ready_ns=15 * MS, ended_ns=90 * MS, outcome="lost"),
        LegRecord("b", 45 * MS, False, 46 * MS, 50 * MS, 90 * MS, 112 * MS, 200, 0, "won"),
    ]
    return told


def test_times_are_from_the_first_byte() -> None:
    """In microseconds; what did not happen is not there."""
    told = record().summary()
    assert (told["head_us"], told["decided_us"]) == (1000.0, 3000.0)
    assert (told["first_byte_us"], told["total_us"]) == (78_000.0, 100_000.0)
    early = Record("r", "llm", "", 10 * MS, 0.0).summary()
    assert "head_us" not in early
    assert "total_us" not in early
    assert since(5, 0) is None


def test_a_line_is_one_line_of_json() -> None:
    """Whatever clients put into paths."""
    told = record()
    told.path = '/a"\n\x1b[31m'
    line = told.line()
    assert line.count("\n") == 1
    assert line.isprintable() is False or line.endswith("\n")
    assert "\x1b" not in line
    assert json.loads(line)["path"] == '/a"\n\x1b[31m'


def test_everything_is_explained() -> None:
    """Who could have had it, by which terms; each leg's steps in the order of time."""
    made = record()
    made.legs[0].tokens = 2
    told = made.explained(LISTENER.backends)
    ends = [each["detail"] for each in told["timeline"] if each["what"] == "leg ended"]
    assert ends == ["leg 1 to a: lost; events that it had sent: 2", "leg 2 to b: won"]
    assert told["candidates"][0] == {
        "backend": "a",
        "in_flight": 3,
        "terms": {"score": 0.25, "ttft": 0.5, "queue": 0.0},
        "legs": 1,
        "ttft_us": None,
        "outcome": "lost",
    }
    assert told["candidates"][1]["ttft_us"] == 45_000.0
    assert told["candidates"][1]["terms"]["ttft"] == 1.0
    steps = [(each["at_us"], each["what"]) for each in told["timeline"]]
    assert steps == sorted(steps, key=lambda step: step[0])
    whats = [what for _, what in steps]
    for what in (
        "accepted", "first byte", "head complete", "body complete", "decided", "leg", "connected",
        "answer's head", "first token", "first byte to the client", "leg ended", "end",
    ):  # fmt: skip
        assert what in whats
    assert whats.count("leg") == 2
    assert whats.count("connected") == 1, "a connection that was kept is not made"


def test_what_an_explanation_has_beside_the_row_is_known() -> None:
    """Rows of the list are made of explanations, of workers that have ended."""
    told = record()
    explained = told.explained(LISTENER.backends)
    assert explained.keys() - told.summary().keys() == set(DETAILS)
