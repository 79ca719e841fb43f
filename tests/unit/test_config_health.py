# SPDX-License-Identifier: Apache-2.0
"""What a service may say of the health of its backends."""

from __future__ import annotations

import pytest

from xdp_router.core.changes import diff
from xdp_router.core.config import parse_config
from xdp_router.core.errors import ConfigError
from xdp_router.core.model import HealthSettings

S = 1_000_000_000
TEXT = """\
[[service]]
address = "198.18.100.1:80"
{}
[[service.backend]]
address = "198.18.1.2:8080"
"""


def parsed(keys: str) -> HealthSettings | None:
    return parse_config(TEXT.format(keys), "router.toml").services[0].health


def problem(keys: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(keys)
    return str(caught.value)


def test_it_is_looked_at_unless_somebody_says_otherwise() -> None:
    """With the settings by default; off is off, whatever else stands there."""
    assert parsed("") == parsed("health = true") == HealthSettings()
    assert parsed('health = false\nhealth_interval = "5s"') is None


def test_each_key_has_its_place() -> None:
    """As they are called in the file."""
    text = (
        'health_interval = "200ms"\nhealth_rise = 4\nhealth_fall = 5\nhealth_hold = "6s"\n'
        'health_hold_max = "7s"\nslow_start = "8s"\nreset_on_death = false'
    )
    assert parsed(text) == HealthSettings(S // 5, 4, 5, 6 * S, 7 * S, 8 * S, False)


def test_a_hold_that_is_longer_than_the_most_by_default() -> None:
    """Is the most itself."""
    found = parsed('health_hold = "90s"')
    assert found is not None
    assert found.hold_max_ns == 90 * S


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("health = 1", "service.health: found the number 1, expected true or false"),
        ('health_interval = "10ms"', "service.health_interval: found '10ms', expected a duration"),
        ("health_fall = 0", "service.health_fall: found 0, expected a whole number from 1 to 100"),
        ("health_rise = 101", "expected a whole number from 1 to 100"),
        (
            'health_hold = "9s"\nhealth_hold_max = "8s"',
            "service.health_hold_max: found 8s, expected at least health_hold (9s)",
        ),
        ('slow_start = "2h"', "service.slow_start: found '2h', expected a duration"),
        ('reset_on_death = "no"', "service.reset_on_death: found"),
    ],
)
def test_what_is_wrong_is_told(keys: str, expected: str) -> None:
    """With its key, and what it may be."""
    assert expected in problem(keys)


def test_a_change_is_told() -> None:
    """By the file's keys; turning it off is one line."""
    before = parse_config(TEXT.format(""), "a")
    (line,) = diff(before, parse_config(TEXT.format("health_fall = 9"), "b")).lines
    assert str(line).endswith(": health_fall 3 -> 9")
    (line,) = diff(before, parse_config(TEXT.format("health = false"), "b")).lines
    assert "health true -> false" in str(line)
