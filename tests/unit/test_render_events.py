# SPDX-License-Identifier: Apache-2.0
"""Events as lines."""

from __future__ import annotations

import json

from xdp_router.cli.render_events import event_line, event_text

EVENT = {
    "number": 7,
    "time": "2026-03-01T12:34:56.789012Z",
    "event": "decision",
    "client": "198.18.0.1:4711",
    "backend": "b1",
    "rtts_us": {"b1": 300.0, "b2": 900.5},
    "unfit": {},
    "reason": "it is slow",
    "tied": ["b1", "b2"],
    "up": True,
}


def test_json_has_one_line_with_everything() -> None:
    """Whatever is in it."""
    line = event_line(EVENT | {"reason": "two\nlines"})
    assert "\n" not in line
    assert json.loads(line)["reason"] == "two\nlines"


def test_people_get_the_time_of_day_and_what_there_is() -> None:
    """Empty values are left out; what has blanks is quoted."""
    assert event_text(EVENT) == (
        "12:34:56.789 decision  client=198.18.0.1:4711 backend=b1 rtts_us=b1:300.0,b2:900.5 "
        'reason="it is slow" tied=b1,b2 up=True'
    )
    assert event_text({"event": "events_lost", "count": 3}) == f"{'':12} events_lost  count=3"


def test_nothing_moves_the_cursor() -> None:
    """What comes from outside is shown, not obeyed."""
    assert "\x1b" not in event_text({"event": "x", "error": "\x1b[2J"})


def test_sentences_of_a_list_are_told_apart() -> None:
    """Each is quoted on its own; so are values of tables."""
    changes = ["~ service web: deadline 50ms -> 20ms, mode race", "- backend b3 of web: gone"]
    assert event_text({"event": "reconfigured", "changes": changes, "draining": ["b3", "b4"]}) == (
        f'{"":12} reconfigured  changes="~ service web: deadline 50ms -> 20ms, mode race", '
        '"- backend b3 of web: gone" draining=b3,b4'
    )
    assert event_text({"event": "x", "by": {"a": "b c", "d": 1}}).endswith('by=a:"b c", d:1')
    assert "\x1b" not in event_text({"event": "x", "changes": ["\x1b[2J a"], "of": {"\x1b": 1}})
