# SPDX-License-Identifier: Apache-2.0
"""Log lines in both formats, and how many of a kind are let through."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from xdp_router.daemon import logs
from xdp_router.daemon.logs import Sampler

S = 1_000_000_000


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_json_lines_have_event_level_time_and_keys() -> None:
    """One object a line, with the instant in UTC."""
    out = io.StringIO()
    logs.configure("json", out)
    structlog.get_logger().warning("backend_down", backend="b1", reason="no ARP answer")
    line = json.loads(out.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "backend_down",
        "level": "warning",
        "backend": "b1",
        "reason": "no ARP answer",
    }


def test_console_lines_are_plain_where_nobody_looks() -> None:
    """No colours into a file or a journal."""
    out = io.StringIO()
    logs.configure("console", out)
    structlog.get_logger().info("ready", services=1)
    assert "\x1b" not in out.getvalue()
    assert "ready" in out.getvalue()
    assert "services=1" in out.getvalue()


def test_loggers_made_before_are_configured_too() -> None:
    """Modules make theirs when they are imported."""
    early = structlog.get_logger()
    out = io.StringIO()
    logs.configure("json", out)
    early.info("late")
    assert json.loads(out.getvalue())["event"] == "late"


def test_the_line_about_lost_lines_is_like_any_other() -> None:
    """It has its event, level, time and the number, in the format of the others."""
    line = logs.configure("json", io.StringIO())(17)
    assert line.endswith("\n")
    told = json.loads(line)
    assert (told["event"], told["level"], told["count"]) == ("log_lines_lost", "warning", 17)
    assert "log_lines_lost" in logs.configure("console", io.StringIO())(17)


def test_the_sampler_lets_so_many_through_a_second() -> None:
    """The rest is counted, and said with the next line that may be written."""
    sampler = Sampler(2)
    assert [sampler.take(5 * S + n) for n in range(5)] == [True, True, False, False, False]
    assert sampler.take(6 * S)
    assert sampler.skipped() == 3
    assert sampler.skipped() == 0


def test_a_sampler_of_nothing_takes_nothing() -> None:
    """Zero lines a second is silence."""
    sampler = Sampler(0)
    assert not any(sampler.take(n * S) for n in range(3))
    assert sampler.skipped() == 3
