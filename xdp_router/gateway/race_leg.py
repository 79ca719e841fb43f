# SPDX-License-Identifier: Apache-2.0
"""One leg of a race, a candidate that is asked: the table of its states, and its record.

    ASKED ──► CONNECTED ──► HEADED ──► WINNER ──► ENDED
      └──────────┴────────────┴──────────┴──► CANCELLED | FAILED

A leg is CANCELLED by the race (the caller closes its connection); it has FAILED or ENDED by
itself. What still comes of a cancelled leg before its connection is closed changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdp_router.core.plain_enum import PlainEnum

from .race_commands import BUSY, Reason


class LegState(PlainEnum):
    """Where a leg is."""

    ASKED = "asked"
    CONNECTED = "connected"
    HEADED = "headed"
    WINNER = "winner"
    CANCELLED = "cancelled"
    FAILED = "failed"
    ENDED = "ended"


class LegInput(PlainEnum):
    """What can happen to a leg."""

    CONNECT = "connect"
    HEAD = "head"
    TOKEN = "token"
    FAIL = "fail"
    END = "end"
    CANCEL = "cancel"


LEG_TABLE: dict[LegState, dict[LegInput, LegState]] = {
    LegState.ASKED: {
        LegInput.CONNECT: LegState.CONNECTED,
        LegInput.HEAD: LegState.HEADED,
        LegInput.FAIL: LegState.FAILED,
        LegInput.CANCEL: LegState.CANCELLED,
    },
    LegState.CONNECTED: {
        LegInput.HEAD: LegState.HEADED,
        LegInput.FAIL: LegState.FAILED,
        LegInput.CANCEL: LegState.CANCELLED,
    },
    LegState.HEADED: {
        LegInput.TOKEN: LegState.WINNER,
        LegInput.FAIL: LegState.FAILED,
        LegInput.END: LegState.ENDED,
        LegInput.CANCEL: LegState.CANCELLED,
    },
    LegState.WINNER: {
        LegInput.TOKEN: LegState.WINNER,
        LegInput.FAIL: LegState.FAILED,
        LegInput.END: LegState.ENDED,
        LegInput.CANCEL: LegState.CANCELLED,
    },
    LegState.CANCELLED: {
        LegInput.CONNECT: LegState.CANCELLED,
        LegInput.HEAD: LegState.CANCELLED,
        LegInput.TOKEN: LegState.CANCELLED,
        LegInput.FAIL: LegState.CANCELLED,
        LegInput.END: LegState.CANCELLED,
    },
    LegState.FAILED: {},
    LegState.ENDED: {},
}

LIVE = frozenset({LegState.ASKED, LegState.CONNECTED, LegState.HEADED})


class IllegalTransition(Exception):
    """An input that a table does not have for its state; nothing has changed.

    It is a mistake of the caller, never of a client or a backend.
    """

    def __init__(self, what: str, given: str, legal: str) -> None:
        super().__init__(f"{what} cannot {given}; it accepts {legal or 'nothing: it is final'}")


@dataclass(slots=True)
class Leg:
    """One candidate that was asked, with all its instants; 0: that did not happen."""

    candidate: int
    started_ns: int
    hedge: bool = False
    fresh: bool = False
    state: LegState = LegState.ASKED
    connected_ns: int = 0
    token_ns: int = 0
    status: int = 0
    reason: Reason | None = None
    """Why it did not win, or broke off."""
    retry_after_ns: int | None = None
    """As its refusal said."""

    def check(self, given: LegInput) -> Leg:
        """Itself, if ``given`` is legal now. Raise IllegalTransition otherwise."""
        row = LEG_TABLE[self.state]
        if given not in row:
            legal = ", ".join(each.value for each in row)
            raise IllegalTransition(f"leg in state {self.state.value}", given.value, legal)
        return self

    def apply(self, given: LegInput) -> Leg:
        """Itself, moved on. Raise IllegalTransition, and stay, if the table does not allow it."""
        self.check(given)
        self.state = LEG_TABLE[self.state][given]
        return self


def best_refusal(legs: Sequence[Leg]) -> Leg | None:
    """Who is busy before who is broken, then who has time soonest; of equals the newest."""
    refused = [leg for leg in legs if leg.reason is Reason.REFUSED]
    never = 1 << 63
    return min(
        reversed(refused),
        key=lambda leg: (
            leg.status not in BUSY,
            never if leg.retry_after_ns is None else leg.retry_after_ns,
        ),
        default=None,
    )


def least_retry_after(legs: Sequence[Leg]) -> int | None:
    """The least that any of them said, in ns from then; None: nobody did."""
    said = [leg.retry_after_ns for leg in legs if leg.retry_after_ns is not None]
    return min(said, default=None)
