# SPDX-License-Identifier: Apache-2.0
"""What becomes of a decided flow, brought to the decision that is kept of it."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from .commands import Command, LogEstablished
from .events import FlowClosed, FlowEstablished
from .flow import DecisionLog, Flow, FlowInput, IllegalTransition, next_state, state_of
from .model import Decision


class FlowUpdates:
    """``counters`` says what did not fit: ``flow_updates_unmatched``, ``flow_updates_illegal``."""

    def __init__(self, decisions: DecisionLog, counters: MutableMapping[str, int]) -> None:
        self._decisions = decisions
        self._counters = counters

    def established(self, event: FlowEstablished, flow: Flow | None) -> Sequence[Command]:
        """The handshake is verified. ``flow``: one of the same tuple whose decision is open."""
        decision = self._decisions.newest(event.key)
        if (
            decision is None
            or decision.backend != event.backend
            or (flow is not None and event.established_ns >= flow.first.seen_ns)
        ):
            # Older than what is kept; or XDP's decision, whose event was lost: the write that
            # is still to come will find it.
            self._counters["flow_updates_unmatched"] += 1
            return ()
        if not self._moves(decision, FlowInput.STREAM):
            return ()
        decision.established_ns = event.established_ns
        decision.synack_us = event.synack_us
        decision.fppl_ns = event.fppl_ns
        return (LogEstablished(decision),)

    def closed(self, event: FlowClosed) -> None:
        """The flow's entries were aged out."""
        decision = self._decisions.newest(event.key)
        if decision is None or event.closed_ns < decision.seen_ns:
            self._counters["flow_updates_unmatched"] += 1
            return
        if self._moves(decision, FlowInput.CLOSE):
            decision.first_data_us = event.first_data_us
            decision.closed_ns = event.closed_ns

    def _moves(self, decision: Decision, given: FlowInput) -> bool:
        try:
            next_state(state_of(decision), given)
        except IllegalTransition:
            self._counters["flow_updates_illegal"] += 1
            return False
        return True
