# SPDX-License-Identifier: Apache-2.0
"""The gain and the costs in words."""

from __future__ import annotations

from typing import Any

import pytest

from xdp_router.cli.render_gain import costs, gain_line


def service(gain: dict[str, float | None] | None) -> dict[str, Any]:
    arm = {"count": 1000, "p99_ms": 2.5}
    control = {"percent": 5, "by": "round_robin", "confidence": 0.95, "gain_p99_ms": gain}
    arms = {"mode": arm, "control": arm | {"count": 52, "p99_ms": 31.0}}
    return {"first_byte": {"arms": arms, "control_arm": control}}


def test_a_gain_has_its_interval() -> None:
    """Both p99s, the difference, how sure, and of how many."""
    assert gain_line(service({"estimate": 28.5, "low": 20.0, "high": 33.25})) == (
        "control arm, 5 % of new flows by round robin: first byte p99 31 ms, with the mode 2.5 ms; "
        "it gains 28.5 ms (95 %: 20 to 33.25 ms, of 1000 and 52 flows)"
    )


@pytest.mark.parametrize(
    ("estimate", "low", "high", "told"),
    [
        (-3.5, -9.0, -1.0, "it is 3.5 ms slower (95 %: 1 to 9 ms, of"),
        (-3.5, -9.0, 2.0, "it is 3.5 ms slower (95 %: 9 ms slower to 2 ms faster, of"),
        (3.5, -1.0, 9.0, "it gains 3.5 ms (95 %: 1 ms slower to 9 ms faster, of"),
        (0.0, -1.0, 1.0, "that makes no difference (95 %: 1 ms slower to 1 ms faster, of"),
        (0.0, 0.0, 1.0, "that makes no difference (95 %: 0 to 1 ms, of"),
        (-3.5, None, None, "it is 3.5 ms slower (of 1000"),
    ],
)
def test_a_loss_is_called_one(
    estimate: float, low: float | None, high: float | None, told: str
) -> None:
    """No gain has a sign in front of it."""
    line = gain_line(service({"estimate": estimate, "low": low, "high": high}))
    assert told in line
    assert " -" not in line


def test_too_few_flows_are_said_to_be_too_few() -> None:
    """No interval that does not hold; no gain of nothing; no line without a control arm."""
    assert "(of 1000 and 52 flows: too few to say" in gain_line(
        service({"estimate": 28.5, "low": None, "high": 30.0})
    )
    assert gain_line(service(None)).endswith("nothing to compare yet")
    assert gain_line({"first_byte": {"arms": {}, "control_arm": None}}) == ""
    assert gain_line({}) == ""


def test_costs() -> None:
    """As percentages; what is not known is not told."""
    assert costs({"flow_binding_retention": 0.9998, "probe_overhead": 0.00251}) == (
        "99.98 % of flows kept their binding, probing took 0.25 % of the bytes"
    )
    assert costs({"flow_binding_retention": None, "probe_overhead": 0.5}) == (
        "probing took 50 % of the bytes"
    )
    assert costs({}) == "nothing to tell yet"
