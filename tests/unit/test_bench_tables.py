# SPDX-License-Identifier: Apache-2.0
"""What rows make of samples: own costs taken off, noise told from differences."""

from __future__ import annotations

import pytest

from bench.forwarding import FLOWS, flow_counts
from bench.one_table import is_noise
from bench.over_budget import MODES
from bench.program_run import own_cost
from bench.traffic import NO_BUDGET, Traffic, combinations
from xdp_router.core import abi
from xdp_router.core.model import Forwarding

CALM = [0.0, 0.1, -0.1, 0.05, -0.05, 0.0, 0.1]


def test_a_tunnels_driver_costs_half_of_what_it_and_its_inverse_do() -> None:
    """It takes an outer header off, which the inverse puts on again."""
    at = {"f forward driver": 30.0, "f forward grow": 90.0}
    assert own_cost(at, "f", "forward", tunnel=False) == 30.0
    assert own_cost(at, "f", "forward", tunnel=True) == 60.0


@pytest.mark.parametrize(
    ("more", "noise", "base_ns", "equal"),
    [
        ([5.0, 5.1, 4.9, 5.0, 5.05], CALM, 60.0, False),
        ([5.0, 5.1, 4.9, 5.0, 5.05], [5.5, 5.5, 5.6], 60.0, True),
        ([1.0, 1.1, 0.9, 1.0, 1.05], CALM, 60.0, True),
        ([9.0, 9.1, 8.9, 9.0, 9.05], CALM, 400.0, True),
        ([13.0, 13.1, 12.9, 13.0, 13.05], CALM, 400.0, False),
        ([-9.0, -9.1, -8.9, -9.0, -9.05], CALM, 60.0, True),
        ([-20.0, 20.0, 30.0, -30.0, 9.0], CALM, 60.0, True),
    ],
    ids=["slower", "noise-as-large", "2-ns", "3-percent", "beyond", "faster", "cannot-be-told"],
)
def test_what_counts_as_slower(
    more: list[float], noise: list[float], base_ns: float, equal: bool
) -> None:
    """Only what is above zero for sure, above the noise, and worth telling."""
    assert is_noise(more, noise, base_ns) is equal


def test_only_nat_is_measured_with_the_most_flows() -> None:
    """Other methods differ from it by what they do to a packet, not by the table."""
    assert flow_counts(Traffic()) == FLOWS
    for each in combinations():
        expected = FLOWS if each.method is Forwarding.NAT else FLOWS[:-1]
        assert flow_counts(each) == expected


def test_modes_of_first_packets() -> None:
    """Events, a stateless service and flood_flows, which comes last because others then look
    into it; budgets are spent where no event is wanted."""
    names = [mode.name for mode in MODES]
    assert len(set(names)) == len(names)
    assert names[-1] == "over-budget SYN"
    assert [mode.events for mode in MODES] == [mode.budget is NO_BUDGET for mode in MODES]
    assert [mode.name for mode in MODES if mode.flags & abi.SERVICE_STATELESS] == [
        "over-budget SYN, stateless"
    ]
    assert {mode.goal for mode in MODES if mode.events} == {False}
