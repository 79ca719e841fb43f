# SPDX-License-Identifier: Apache-2.0
"""What is kept of what happens, and what readers get who follow."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.cast import T0, decision, first
from xdp_router.core.event_names import LOST
from xdp_router.core.model import Decision, Mode, Reason
from xdp_router.daemon.event_feed import AT_ONCE, KEPT, QUEUE, EventFeed


def made(port: int = 1, error: str = "") -> Decision:
    found = decision(first(port), 1, Mode.RACE, Reason.RACE_WON, T0, [])
    found.error = error
    return found


def feed() -> EventFeed:
    return EventFeed(lambda each: {"client": each.key.client_port})


def names(events: list[dict[str, Any]]) -> list[str]:
    return [each["event"] for each in events]


def test_the_newest_are_kept_in_their_order() -> None:
    """Decisions in full, other lines of the log as they are; a flood of one loses none of the
    other."""
    kept = feed()
    kept.log_line({"event": "backend_down", "level": "warning", "timestamp": "x", "backend": "b1"})
    for port in range(KEPT + 5):
        kept.decision(made(port))
    kept.log_line({"event": "decision", "client": "a sample of what is there"})
    kept.decision(made(7, error="map full"))
    found = list(kept.newest(2 * KEPT))
    assert len(found) == KEPT + 1
    assert [each["number"] for each in found] == sorted(each["number"] for each in found)
    assert names(found[:2]) == ["backend_down", "decision"]
    assert found[0]["backend"] == "b1"
    assert "timestamp" not in found[0]
    assert found[-1] | {"time": ""} == {
        "number": KEPT + 7,
        "time": "",
        "event": "decision_lost",
        "client": 7,
        "error": "map full",
    }
    assert [each["client"] for each in kept.newest(2)] == [KEPT + 4, 7]


def test_instants_are_in_utc_with_microseconds() -> None:
    """As in the log."""
    kept = feed()
    kept.decision(made())
    (found,) = kept.newest(1)
    assert len(found["time"]) == len("2026-01-01T00:00:00.000000Z")


def test_only_some_names() -> None:
    """Of those that are kept, and of those that come."""
    kept = feed()
    kept.log_line({"event": "backend_up"})
    kept.decision(made())
    kept.log_line({"event": "over_budget"})
    assert names(list(kept.newest(5, ["backend_up", "decision"]))) == ["backend_up", "decision"]

    async def follow() -> list[dict[str, Any]]:
        stream = kept.follow(["over_budget"])
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        kept.decision(made())
        kept.log_line({"event": "over_budget", "service": "web"})
        return await task

    assert names(asyncio.run(follow())) == ["over_budget"]


def test_values_that_json_does_not_know_are_text() -> None:
    """A path, a set: a line of the log may have anything."""
    kept = feed()
    kept.log_line({"event": "x", "at": Path("/run"), "all": {3}, "of": {1: (None, 1.5, True)}})
    (found,) = kept.newest(1)
    assert (found["at"], found["all"], found["of"]) == ("/run", [3], {"1": [None, 1.5, True]})


def test_a_reader_gets_some_at_a_time_from_now_on() -> None:
    """What was before is not in it; when it goes, its queue goes."""
    kept = feed()
    kept.decision(made())

    async def follow() -> tuple[list[int], int]:
        stream = kept.follow()
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        for port in range(2 * AT_ONCE):
            kept.decision(made(port))
        sizes = [len(await task), len(await anext(stream))]
        assert kept.readers == 1
        await stream.aclose()  # type: ignore[attr-defined]  # it is a generator
        return sizes, kept.readers

    assert asyncio.run(follow()) == ([AT_ONCE, AT_ONCE], 0)


def test_a_slow_reader_loses_the_oldest_and_is_told_how_many() -> None:
    """The others, and what is kept, lose nothing."""
    kept = feed()

    async def follow() -> list[dict[str, Any]]:
        stream = kept.follow()
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        for port in range(QUEUE + 7):
            kept.decision(made(port))
        return await task

    found = asyncio.run(follow())
    assert found[0] == {"event": LOST, "count": 7}
    assert found[1]["client"] == 7
    assert len(list(kept.newest(KEPT))) == KEPT
