# SPDX-License-Identifier: Apache-2.0
"""What is set for a race."""

from __future__ import annotations

from typing import Any

import pytest

from xdp_router.gateway.race_commands import BROKEN, BUSY, NS_PER_S, RaceSettings


def test_the_defaults_are_those_of_the_design() -> None:
    """Two legs, two retries, and nothing that lasts for ever."""
    settings = RaceSettings()
    assert (settings.width, settings.retries) == (2, 2)
    assert settings.refusals == BUSY | BROKEN
    assert settings.first_token_ns == 60 * NS_PER_S
    assert settings.replayable
    assert not settings.on_head


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("width", 0, 1),
        ("hedge_ns", -1, 0),
        ("retries", -1, 0),
        ("hold_off_max_ns", -1, 0),
        ("first_token_ns", 0, 1),
        ("connect_ns", 0, 1),
    ],
)
def test_what_cannot_be_is_refused(name: str, value: int, least: int) -> None:
    """With its name and what was expected; the least that is allowed is taken."""
    fields: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name}: expected {least} or more, found {value}"):
        RaceSettings(**fields)
    fields[name] = least
    assert getattr(RaceSettings(**fields), name) == least
