# SPDX-License-Identifier: Apache-2.0
"""What was told of backends for their scores, by whom, and why it was not, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_UNITS = {
    "queue": "queue {:g}",
    "ttft_ms": "TTFT {:g} ms",
    "cache_hit": "cache hits {:.0%}",
    "cache_usage": "cache {:.0%} full",
}


def told_words(name: str, value: float) -> str:
    """One input."""
    return _UNITS[name].format(value)


def told_line(row: Mapping[str, Any]) -> str:
    """Below a table of scores: what one backend's was made of, and by whom that was told; empty:
    nothing was."""
    told = [
        f"{told_words(name, row[name])} ({source})"
        for name, source in (row.get("sources") or {}).items()
    ]
    return f"{row['backend']}: {', '.join(told)}" if told else ""


def scrape_line(row: Mapping[str, Any]) -> str:
    """Below the table of backends; empty where all is well."""
    scrape = row.get("scrape")
    if scrape is None:
        return ""
    if scrape["error"]:
        return f"{row['name']}: metrics of {scrape['url']} are not read: {scrape['error']}"
    if scrape["missing"]:
        return f"{row['name']}: {scrape['url']} has nothing about {', '.join(scrape['missing'])}"
    return ""
