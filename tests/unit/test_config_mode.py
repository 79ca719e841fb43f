# SPDX-License-Identifier: Apache-2.0
"""Modes in the configuration: what a race and a snapshot go by."""

from __future__ import annotations

import pytest

from tests.support.playbook import MS
from xdp_router.core.config import parse_config
from xdp_router.core.errors import ConfigError
from xdp_router.core.model import Mode, ScoreWeights, Service

S = 1_000 * MS


def service(lines: str = "", score: str = "") -> Service:
    """The one service of a file that has these lines in it."""
    text = f'[[service]]\naddress = "198.18.100.1:80"\n{lines}\n'
    text += f"[service.score]\n{score}\n" if score else ""
    text += '[[service.backend]]\naddress = "198.18.1.2:8080"\n'
    return parse_config(text, "router.toml").services[0]


def test_what_a_service_has_that_says_nothing() -> None:
    """A race among all, and, for when its mode is changed, a probe each 10 ms."""
    found = service()
    assert (found.mode, found.candidates) == (Mode.RACE, 0)
    assert (found.probe_interval_ns, found.snapshot_age_ns) == (10 * MS, 100 * MS)
    assert (found.score, found.score_age_ns) == (ScoreWeights(0.4, 0.2, 0.2, 0.2), 10 * S)


@pytest.mark.parametrize("mode", ["race", "snapshot", "inline"])
def test_modes(mode: str) -> None:
    """By name."""
    assert service(f'mode = "{mode}"').mode is Mode[mode.upper()]


@pytest.mark.parametrize(
    ("interval", "age_ns"), [("1ms", 100 * MS), ("10ms", 100 * MS), ("50ms", 500 * MS)]
)
def test_a_snapshot_holds_for_ten_intervals(interval: str, age_ns: int) -> None:
    """Unless it says otherwise, and for 100 ms at least, as a daemon does without a heartbeat."""
    assert service(f'probe_interval = "{interval}"').snapshot_age_ns == age_ns


def test_weights_are_in_proportion() -> None:
    """Whatever they add up to; a term that is not named keeps its default."""
    assert service(score="rtt = 3\nttft = 0\ncache = 0\nqueue = 1").score == ScoreWeights(
        0.75, 0, 0, 0.25
    )
    assert service(score="rtt = 0.4").score == ScoreWeights()
    assert service(score='age = "1s"').score_age_ns == S


@pytest.mark.parametrize(
    ("lines", "score", "expected"),
    [
        (
            "candidates = 1",
            "",
            "3: service.candidates: found 1, expected a whole number from 2 to 1000",
        ),
        (
            'probe_interval = "100us"',
            "",
            '3: service.probe_interval: found \'100us\', expected a duration from "1ms" to "1m"',
        ),
        (
            'snapshot_age = "29ms"',
            "",
            "3: service.snapshot_age: found 29ms, expected at least 3 times probe_interval (10ms)",
        ),
        ("", "rtt = -1", "5: service.score.rtt: found -1, expected a number from 0 to 1000"),
        ("", "rtt = nan", "5: service.score.rtt: found nan, expected a number from 0 to 1000"),
        ("", "rtt = true", "5: service.score.rtt: found the boolean true, expected a number from"),
        (
            "",
            "rtt = 0\nttft = 0\ncache = 0\nqueue = 0",
            "5: service.score.rtt: found no weight above 0, expected at least one of rtt, ttft",
        ),
        (
            "",
            "load = 1",
            "5: service.score.load: unknown key, expected one of: age, cache, qu",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(lines: str, score: str, expected: str) -> None:
    """The key, what was found, what is expected."""
    with pytest.raises(ConfigError) as caught:
        service(lines, score)
    assert str(caught.value).startswith(f"router.toml:{expected}")
