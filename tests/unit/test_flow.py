# SPDX-License-Identifier: Apache-2.0
"""The flow's table of states, its open object, and the log of past decisions."""

from __future__ import annotations

import itertools

import pytest

from xdp_router.core.events import FirstPacket
from xdp_router.core.flow import (
    TRANSITIONS,
    DecisionLog,
    Flow,
    FlowInput,
    FlowState,
    IllegalTransition,
    next_state,
    state_of,
)
from xdp_router.core.model import NO_BACKEND, Decision, Endpoint, FlowKey, Mode, Reason, Service
from xdp_router.core.strategy.base import Evidence

KEY = FlowKey(0xC6120001, 40_000, 0xC6126401, 80)
SERVICE = Service(3, "web", Endpoint(0xC6126401, 80), ())
FIRST = FirstPacket(KEY, 3, 2, 1_000, 77, 0, 7, b"syn")

ARROWS = {
    ("init", "probe", "probing"),
    ("init", "bind", "bound"),
    ("init", "fall back", "fallback"),
    ("probing", "bind", "bound"),
    ("probing", "fall back", "fallback"),
    ("probing", "close", "closed"),
    ("bound", "stream", "streaming"),
    ("bound", "close", "closed"),
    ("fallback", "stream", "streaming"),
    ("fallback", "close", "closed"),
    ("streaming", "close", "closed"),
}


def flow_in(state: FlowState) -> Flow:
    """A flow that has come to ``state``."""
    flow = Flow(FIRST, SERVICE, Evidence())
    flow.state = state
    return flow


def test_the_table_has_the_arrows_of_the_design_and_no_others() -> None:
    """INIT → PROBING → BOUND | FALLBACK → STREAMING → CLOSED, and the named short cuts."""
    assert {
        (state.value, given.value, after.value)
        for state, row in TRANSITIONS.items()
        for given, after in row.items()
    } == ARROWS


@pytest.mark.parametrize(("state", "given"), list(itertools.product(FlowState, FlowInput)))
def test_every_pair_either_moves_or_raises_and_stays(state: FlowState, given: FlowInput) -> None:
    """Input that the table does not have raises, says why, and leaves the state as it was."""
    flow = flow_in(state)
    after = TRANSITIONS[state].get(given)
    if after is not None:
        flow.apply(given)
        assert flow.state is after
        return
    with pytest.raises(IllegalTransition) as raised:
        flow.apply(given)
    assert flow.state is state
    assert (raised.value.state, raised.value.given) == (state, given)
    assert f"flow in state {state.value} cannot {given.value}; it accepts " in str(raised.value)


def test_the_message_of_an_illegal_input_names_what_is_legal() -> None:
    """The reader learns what would have been accepted, or that the state is final."""
    with pytest.raises(IllegalTransition, match="it accepts bind, fall back, close"):
        next_state(FlowState.PROBING, FlowInput.STREAM)
    with pytest.raises(IllegalTransition, match="it accepts nothing: it is final"):
        next_state(FlowState.CLOSED, FlowInput.BIND)


@pytest.mark.parametrize("start", [FlowState.INIT, FlowState.PROBING])
@pytest.mark.parametrize(
    ("mode", "state"),
    [
        (Mode.RACE, FlowState.BOUND),
        (Mode.SNAPSHOT, FlowState.BOUND),
        (Mode.INLINE, FlowState.BOUND),
        (Mode.FALLBACK, FlowState.FALLBACK),
        (Mode.HASH, FlowState.FALLBACK),
        (Mode.REFUSED, FlowState.CLOSED),
    ],
)
def test_settling_leads_to_the_state_of_the_mode(
    start: FlowState, mode: Mode, state: FlowState
) -> None:
    """Each mode has its state; the record agrees with the flow and shares its probes."""
    flow = flow_in(start)
    flow.choose(4, mode, Reason.RACE_WON, 9_000)
    decision = flow.settle()
    assert flow.state is state
    assert state_of(decision) is state
    assert decision == Decision(KEY, 3, 4, mode, Reason.RACE_WON, 1_000, decided_ns=9_000)
    assert decision.probes is flow.evidence.records


def test_settling_without_a_choice_is_refused() -> None:
    """A flow for which nothing was chosen has no decision to record; it stays open."""
    flow = flow_in(FlowState.PROBING)
    with pytest.raises(IllegalTransition):
        flow.settle()
    assert flow.state is FlowState.PROBING


def test_settling_twice_is_refused() -> None:
    """A decision is final: there is no second one."""
    flow = flow_in(FlowState.PROBING)
    flow.choose(4, Mode.RACE, Reason.RACE_WON, 9_000)
    flow.settle()
    with pytest.raises(IllegalTransition):
        flow.settle()
    assert flow.state is FlowState.BOUND


def test_state_of_a_record_follows_its_instants() -> None:
    """A kept record streams once established, and is closed once it is closed."""
    decision = Decision(KEY, 3, 4, Mode.HASH, Reason.DEADLINE, 1_000)
    assert state_of(decision) is FlowState.FALLBACK
    decision.established_ns = 2_000
    assert state_of(decision) is FlowState.STREAMING
    decision.closed_ns = 3_000
    assert state_of(decision) is FlowState.CLOSED


def decision_of(port: int, seen_ns: int) -> Decision:
    """A record of client port ``port``."""
    key = FlowKey(0xC6120001, port, 0xC6126401, 80)
    return Decision(key, 3, NO_BACKEND, Mode.REFUSED, Reason.NO_CANDIDATE, seen_ns)


def test_the_log_keeps_the_newest_and_gives_them_newest_first() -> None:
    """Beyond the limit the oldest goes; a five-tuple's newest decision is found."""
    log = DecisionLog(3)
    kept = [decision_of(port, seen) for port, seen in [(1, 10), (2, 20), (1, 30), (1, 40)]]
    for decision in kept:
        log.add(decision)
    assert len(log) == 3
    assert list(log) == [kept[3], kept[2], kept[1]]
    assert log.newest(kept[0].key) is kept[3]


def test_the_log_forgets_a_flow_with_its_last_record() -> None:
    """What was pushed out is not found by its five-tuple either."""
    log = DecisionLog(1)
    old, new = decision_of(1, 10), decision_of(2, 20)
    log.add(old)
    log.add(new)
    assert log.newest(old.key) is None
    assert log.newest(new.key) is new


def test_a_log_of_nothing_keeps_nothing() -> None:
    """A limit of 0 is legal."""
    log = DecisionLog(0)
    log.add(decision_of(1, 10))
    assert len(log) == 0
    assert log.newest(decision_of(1, 10).key) is None


def test_a_clients_newest_decision_is_found_whatever_the_service() -> None:
    """By address and port alone; gone with the last record of that client."""
    log = DecisionLog(2)
    old, new = decision_of(1, 10), decision_of(1, 20)
    new.key = FlowKey(0xC6120001, 1, 0xC6126402, 443)
    log.add(old)
    log.add(new)
    assert log.newest_of_client(0xC6120001, 1) is new
    assert log.newest_of_client(0xC6120001, 1, 6) is new
    assert log.newest_of_client(0xC6120001, 1, 17) is None
    assert log.newest_of_client(0xC6120001, 2) is None
    log.add(decision_of(2, 30))
    assert log.newest_of_client(0xC6120001, 1) is new
    log.add(decision_of(3, 40))
    assert log.newest_of_client(0xC6120001, 1) is None
