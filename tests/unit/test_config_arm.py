# SPDX-License-Identifier: Apache-2.0
"""The keys of the control arm, and where it cannot be."""

from __future__ import annotations

import pytest

from xdp_router.core.config import parse_config
from xdp_router.core.errors import ConfigError
from xdp_router.core.model import Mode, Service


def parsed(more: str) -> Service:
    text = f"""
[[service]]
address = "198.18.100.1:80"
{more}
[[service.backend]]
address = "198.18.1.2:80"
"""
    return parse_config(text, "x").services[0]


def problem(more: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(more)
    (found,) = caught.value.problems
    return f"{found.key}: {found.detail}"


def test_a_share_by_turns_or_by_hash() -> None:
    """Turns are the default; without a share there is no control arm."""
    web = parsed("control_arm = 5")
    assert (web.control_arm, web.control_arm_by) == (5, Mode.ROUND_ROBIN)
    web = parsed('control_arm = 50\ncontrol_arm_by = "hash"')
    assert (web.control_arm, web.control_arm_by) == (50, Mode.HASH)
    assert parsed("").control_arm == 0


def test_where_replies_are_not_seen_there_is_nothing_to_compare() -> None:
    """Refused, with the reason and what would do; a share of 0 is none."""
    found = problem('control_arm = 5\nforwarding = "dsr"')
    assert found.startswith("service.control_arm: found it with forwarding 'dsr'")
    assert 'expected forwarding = "nat" or "fullnat" beside it' in found
    assert parsed('control_arm = 0\nforwarding = "dsr"').control_arm == 0


def test_other_ways_are_named() -> None:
    """What is none says what there is."""
    assert "expected 'round_robin' or 'hash'" in problem('control_arm_by = "race"')
    assert "a whole number from 0 to 50" in problem("control_arm = 51")


@pytest.mark.parametrize("mode", ["race", "snapshot", "inline"])
@pytest.mark.parametrize("by", ["round_robin", "hash"])
def test_each_mode_has_one(mode: str, by: str) -> None:
    """Whoever decides there."""
    web = parsed(f'mode = "{mode}"\ncontrol_arm = 5\ncontrol_arm_by = "{by}"')
    assert (web.control_arm, web.control_arm_by) == (5, Mode[by.upper()])
