# SPDX-License-Identifier: Apache-2.0
"""How a service's backends are chosen: its mode, and what a race or a snapshot goes by."""

from __future__ import annotations

from dataclasses import dataclass

from .config_fields import MS, S, Table, format_duration
from .config_scrape import AGE_INTERVALS as SCRAPES_MISSED
from .config_scrape import read_scrape
from .model import Mode, ScoreWeights, Scrape

MODES = {"race": Mode.RACE, "snapshot": Mode.SNAPSHOT, "inline": Mode.INLINE}
AGE_INTERVALS = 3
"""Probe intervals that a snapshot has to hold, at least: an answer may be late, or lost."""
_AGE_DEFAULT = 10
_AGE_LEAST_NS = 100 * MS
AGE_MOST_NS = 600 * S
CANDIDATES_MOST = 1_000
_EVEN = ScoreWeights()


@dataclass(frozen=True, slots=True)
class ModeSettings:
    """What a service says of it; names are those of ``Service``."""

    mode: Mode
    candidates: int
    probe_interval_ns: int
    snapshot_age_ns: int
    score: ScoreWeights
    score_said: ScoreWeights | None
    score_age_ns: int
    scrape: Scrape | None


def read_mode(table: Table) -> ModeSettings:
    """The keys that say how backends are chosen: from ``mode`` to the tables of scores.

    They may be there in each mode: it can be changed while the router runs.
    """
    mode = table.choice("mode", "race", MODES)
    candidates = table.integer("candidates", 0, 2, CANDIDATES_MOST)
    interval_ns = table.duration("probe_interval", 10 * MS, MS, 60 * S)
    age_ns = table.duration(
        "snapshot_age", implied_age_ns(interval_ns), AGE_INTERVALS * MS, AGE_MOST_NS
    )
    if age_ns < AGE_INTERVALS * interval_ns:
        table.found(
            "snapshot_age",
            format_duration(age_ns),
            f"at least {AGE_INTERVALS} times probe_interval ({format_duration(interval_ns)}), or "
            "snapshots are out of date before the next one",
        )
    scrape = read_scrape(table)
    score, said, score_age_ns = read_score(table.table("score"), scrape, _EVEN)
    return ModeSettings(mode, candidates, interval_ns, age_ns, score, said, score_age_ns, scrape)


def implied_age_ns(probe_interval_ns: int) -> int:
    """``snapshot_age`` of a service that does not say it."""
    return max(_AGE_DEFAULT * probe_interval_ns, _AGE_LEAST_NS)


def implied_score_age_ns(scrape: Scrape | None) -> int:
    """``score.age`` of a service that does not say it."""
    return max(10 * S, SCRAPES_MISSED * scrape.interval_ns if scrape is not None else 0)


def read_score(
    table: Table, scrape: Scrape | None, default: ScoreWeights
) -> tuple[ScoreWeights, ScoreWeights | None, int]:
    """The table ``score``: weights, these as they are written, and how long holds what is told."""
    age_ns = table.duration("age", implied_score_age_ns(scrape), 100 * MS, 3600 * S)
    weights, said = _read_score_weights(table, default)
    return weights, said, age_ns


def _read_score_weights(
    table: Table, default: ScoreWeights
) -> tuple[ScoreWeights, ScoreWeights | None]:
    """The last keys of a table that are read: weights in parts of 1; and as they are written, if
    that is another sum."""
    given = {
        name: table.number(name, getattr(default, name), 0, 1_000)
        for name in ("rtt", "ttft", "cache", "queue", "usage")
    }
    total = sum(given.values())
    if total <= 0:
        table.found(
            "rtt", "no weight above 0", "at least one of rtt, ttft, cache, queue, usage above 0"
        )
        total, given = 1.0, {**dict.fromkeys(given, 0.0), "rtt": 1.0}
    table.refuse_unknown()
    if abs(total - 1) < 1e-9:
        return ScoreWeights(**given), None
    parts = ScoreWeights(**{name: value / total for name, value in given.items()})
    return parts, ScoreWeights(**given)
