# SPDX-License-Identifier: Apache-2.0
"""Members are themselves, also when they come back from elsewhere."""

from __future__ import annotations

import copy
import pickle

import pytest

from xdp_router.core.flow import FlowInput, FlowState
from xdp_router.core.plain_enum import PlainEnum
from xdp_router.gateway.race_commands import Reason
from xdp_router.gateway.race_leg import LegInput, LegState
from xdp_router.gateway.ttft_race import RaceInput, RaceState


@pytest.mark.parametrize(
    "made", [FlowState, FlowInput, LegState, LegInput, RaceState, RaceInput, Reason]
)
def test_a_member_is_there_once(made: type[PlainEnum]) -> None:
    """A copy is the member itself."""
    table = {each: each.name for each in made}
    for each in made:
        assert table[made(each.value)] == table[pickle.loads(pickle.dumps(each))] == each.name
        assert copy.deepcopy(each) is each


def test_no_python_runs_for_a_look_up() -> None:
    """A member is hashed by the interpreter."""
    assert "__hash__" in PlainEnum.__dict__
    assert PlainEnum.__dict__["__hash__"] is object.__dict__["__hash__"]
