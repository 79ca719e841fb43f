# SPDX-License-Identifier: Apache-2.0
"""What was told of backends, in words."""

from __future__ import annotations

from typing import Any

from xdp_router.cli.render_score import scrape_line, told_line, told_words

URL = "http://198.18.1.2:8000/metrics"


def scrape(**more: Any) -> dict[str, Any]:
    return {"name": "b1", "scrape": {"url": URL, "error": "", "missing": [], **more}}


def test_each_input_has_its_unit() -> None:
    """As ``push`` and ``explain`` show it, with who has told it."""
    assert told_words("cache_usage", 0.5) == "cache 50% full"
    row = {
        "backend": "b1", "queue": 12.0, "ttft_ms": 180.0, "cache_hit": None, "cache_usage": 0.5,
        "sources": {"queue": "scrape", "ttft_ms": "push"},
    }  # fmt: skip
    assert told_line(row) == "b1: queue 12 (scrape), TTFT 180 ms (push)"
    assert told_line({"backend": "b1", "sources": {}}) == ""


def test_a_scrape_that_fails_is_told() -> None:
    """With its cause, or what is not there; nothing where all is well, or nobody asks."""
    assert scrape_line(scrape(error="status 404 instead of 200")) == (
        f"b1: metrics of {URL} are not read: status 404 instead of 200"
    )
    assert scrape_line(scrape(missing=["ttft"])) == f"b1: {URL} has nothing about ttft"
    assert scrape_line(scrape()) == ""
    assert scrape_line({"name": "b1", "scrape": None}) == ""
