# SPDX-License-Identifier: Apache-2.0
"""How ``services`` tells the gain."""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace
from typing import Any, cast

from tests.support.cast import service
from xdp_router.core.model import Decision, FlowKey, Mode, Reason
from xdp_router.core.strategy.control_arm import Arm
from xdp_router.daemon.app import Router
from xdp_router.daemon.field_view import first_byte_view, overhead_of, p99_ns, retention_of
from xdp_router.daemon.latencies import Latencies

WEB = dataclasses.replace(service(), control_arm=20)


def view(flows: int) -> dict[str, Any]:
    """Of so many flows of each arm: 1 ms with the mode, 21 ms in the control arm."""
    latencies = Latencies([WEB], lambda _addr: None)  # type: ignore[arg-type, return-value]  # not looked at
    decision = Decision(FlowKey(1, 1, 2, 80), 0, 1, Mode.RACE, Reason.RACE_WON, 1)
    latencies.decided(decision)
    for arm, took_ms in ((Arm.MODE, 1), (Arm.CONTROL, 21)):
        for _ in range(flows):
            latencies.by_service[0].arms[arm].newest.add(took_ms * 1_000_000, time.monotonic_ns())
    router = SimpleNamespace(figures=SimpleNamespace(latencies=latencies))
    return first_byte_view(cast(Router, router), WEB)


def test_with_enough_flows_the_gain_has_both_bounds() -> None:
    """About 440 of each arm."""
    found = view(500)
    assert found["arms"]["mode"]["count"] == found["arms"]["control"]["count"] == 500
    told = found["control_arm"]
    assert (told["percent"], told["by"], told["confidence"]) == (20, "round_robin", 0.95)
    assert 19 < told["gain_p99_ms"]["low"] <= told["gain_p99_ms"]["estimate"]
    assert told["gain_p99_ms"]["estimate"] <= told["gain_p99_ms"]["high"] < 21
    assert 20 < told["p99_ratio"]["low"] <= told["p99_ratio"]["high"] < 22


def test_with_few_flows_a_bound_is_missing() -> None:
    """Rather than one that does not hold."""
    told = view(20)["control_arm"]
    assert told["gain_p99_ms"]["estimate"] > 19
    assert told["gain_p99_ms"]["low"] is None


def test_without_flows_nothing_is_told() -> None:
    """Null, not 0."""
    found = view(0)
    assert found["control_arm"]["gain_p99_ms"] is None
    assert found["arms"]["mode"]["p99_ms"] is None
    latencies = Latencies([WEB], lambda _addr: None)  # type: ignore[arg-type, return-value]  # not looked at
    router = SimpleNamespace(figures=SimpleNamespace(latencies=latencies))
    assert first_byte_view(cast(Router, router), service())["control_arm"] is None
    latencies.decided(Decision(FlowKey(1, 1, 2, 80), 0, 1, Mode.RACE, Reason.RACE_WON, 1))
    assert p99_ns(latencies.by_service[0].arms[Arm.MODE], 0) is None


def test_lost_bindings_are_told_by_segments_that_nobody_knows() -> None:
    """For each flow that was established, however it was; none: nothing is told."""
    counters = dict.fromkeys(
        ("promoted", "one_sided_promoted", "stateless_promoted", "orphan_reset", "orphan_hashed"), 0
    )
    assert retention_of(counters) is None
    counters |= {"promoted": 900, "one_sided_promoted": 60, "stateless_promoted": 40}
    assert retention_of(counters) == 1
    assert retention_of(counters | {"orphan_reset": 3, "orphan_hashed": 7}) == 0.99


def test_probing_is_weighed_against_what_was_forwarded() -> None:
    """Probes, answers as long as they are, and a RST for each SYN-ACK."""
    answers = dict.fromkeys(
        (f"probes_{kind}" for kind in ("synack", "rst", "unreachable", "echo", "stun", "datagram")),
        0,
    )
    router = SimpleNamespace(
        sender=SimpleNamespace(counters={"probe_sent": 0, "probe_bytes": 0}),
        engine=SimpleNamespace(counters=answers),
        figures=SimpleNamespace(traffic=SimpleNamespace(octets_since_start=100_000)),
    )
    assert overhead_of(cast(Router, router)) is None
    router.sender.counters.update(probe_sent=10, probe_bytes=400)
    assert overhead_of(cast(Router, router)) == 0.004
    answers.update(probes_synack=5, probes_echo=5)
    assert overhead_of(cast(Router, router)) == 0.01
