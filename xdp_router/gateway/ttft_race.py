# SPDX-License-Identifier: Apache-2.0
"""The race of one request for the first token: whom to ask, who has won, who is to stop.

    READY ──► RACING ──► WON ──► OVER
      │          └──────────────► │
      └─────────────────────────► │

READY      nobody has been asked yet.
RACING     at least one leg is under way; nothing has been said to the client.
WON        one leg's answer goes to the client: nobody else is asked from here on.
OVER       the answer is at its end or broke off, nobody had one, or the client is gone.

Each candidate that is asked is a leg, with a table of its own (``race_leg``).

A request that is no race is one with a width of 1: the same retries, and the same freeze behind
the first byte. Where an answer's head decides (``on_head``), the head is the token.

The caller tells what happens, with the instant, and does what it gets back, in order. It keeps
one timer, for ``deadline()``. Retries and candidates are bounded, and so is the time to the first
token: whatever backends do, a race ends.
"""

from __future__ import annotations

from collections.abc import Callable

from xdp_router.core.plain_enum import PlainEnum

from .race_commands import (
    BreakOff,
    CancelLeg,
    Command,
    GiveUp,
    HoldOff,
    RaceSettings,
    Reason,
    StartLeg,
    Win,
)
from .race_leg import (
    LEG_TABLE,
    LIVE,
    IllegalTransition,
    Leg,
    LegInput,
    LegState,
    best_refusal,
    least_retry_after,
)


class RaceState(PlainEnum):
    """Where a race is."""

    READY = "ready"
    RACING = "racing"
    WON = "won"
    OVER = "over"


class RaceInput(PlainEnum):
    """What can happen to a race as a whole."""

    START = "start"
    WIN = "win"
    GIVE_UP = "give up"
    FINISH = "finish"
    LEAVE = "leave"


RACE_TABLE: dict[RaceState, dict[RaceInput, RaceState]] = {
    RaceState.READY: {
        RaceInput.START: RaceState.RACING,
        RaceInput.LEAVE: RaceState.OVER,
    },
    RaceState.RACING: {
        RaceInput.WIN: RaceState.WON,
        RaceInput.GIVE_UP: RaceState.OVER,
        RaceInput.LEAVE: RaceState.OVER,
    },
    RaceState.WON: {
        RaceInput.FINISH: RaceState.OVER,
        RaceInput.LEAVE: RaceState.OVER,
    },
    RaceState.OVER: {},
}


# What leg_failed() may be told, and whether the connection is gone with it.
_FAILURES = {
    Reason.CONNECT: True,
    Reason.CRASH: True,
    Reason.STALE: True,
    Reason.ERROR: False,
    Reason.BAD_ANSWER: False,
}


def _always(_candidate: int) -> bool:
    return True


class TtftRace:
    """The race of one request over ``candidates`` candidates, best first.

    ``may_hedge`` is asked for a candidate before it becomes a leg beside another one, and pays
    for it if it says yes; never for the first leg or for one that replaces a failed one.
    """

    __slots__ = (
        "legs", "state", "winner", "retries", "hedges", "hedges_denied",
        "_asked_ns", "_frozen", "_hedge_ns", "_may_hedge", "_next", "_settings", "_wanted",
    )  # fmt: skip

    def __init__(
        self,
        candidates: int,
        settings: RaceSettings,
        may_hedge: Callable[[int], bool] = _always,
    ) -> None:
        self.state = RaceState.READY
        self.legs: list[Leg] = []
        """All that were asked, in order; a leg's number is its index."""
        self.winner: int | None = None
        self.retries = 0
        self.hedges = 0
        self.hedges_denied = 0
        """How often a hedge was due, and nobody could be had for it."""
        self._settings = settings
        self._may_hedge = may_hedge
        self._next: list[int] = list(range(candidates))
        self._asked_ns = 0
        self._frozen = False
        self._hedge_ns: int | None = None
        self._wanted = 1

    # What the caller tells.

    def start(self, now_ns: int) -> list[Command]:
        """Begin. Raise IllegalTransition if it has begun already."""
        self._move(RaceInput.START)
        self._asked_ns = now_ns
        if not self._next:
            return [self._give_up(503, Reason.NO_CANDIDATE, None)]
        commands: list[Command] = [self._ask(now_ns)]
        if self._settings.hedge_ns:
            self._arm(now_ns)
        else:
            while self._wanted < self._settings.width and self._hedge(now_ns, commands):
                pass
        return commands

    def leg_connected(self, leg: int, now_ns: int) -> list[Command]:
        """The leg has its connection, and the request goes out."""
        each = self._leg(leg).apply(LegInput.CONNECT)
        if each.state is LegState.CONNECTED:
            each.connected_ns = now_ns
        return []

    def leg_head(
        self, leg: int, status: int, now_ns: int, retry_after_ns: int | None = None
    ) -> list[Command]:
        """The leg's final head is whole; a 100 or 103 before it is not told.

        ``retry_after_ns``: from now, if the answer says so.
        """
        each = self._leg(leg).apply(LegInput.HEAD)
        if each.state is LegState.CANCELLED:
            return []
        each.status = status
        if not each.connected_ns:
            each.connected_ns = now_ns
        if status in self._settings.refusals:
            each.retry_after_ns = retry_after_ns
            return self._refused(leg, now_ns)
        if self._settings.on_head or status >= 400:
            return self._won(leg, Win(leg))
        return []

    def leg_token(self, leg: int, now_ns: int) -> list[Command]:
        """The leg has a first token, or more; or it is finished without any, or its answer in one
        piece is whole."""
        each = self._leg(leg).apply(LegInput.TOKEN)
        if each.token_ns or each.state is LegState.CANCELLED:
            return []
        each.token_ns = now_ns
        if self.winner == leg:
            return []
        return self._won(leg, Win(leg))

    def leg_failed(self, leg: int, reason: Reason, now_ns: int) -> list[Command]:
        """The leg is of no use: CONNECT, CRASH, STALE (a kept connection closed before the first
        byte of an answer), or ERROR, BAD_ANSWER of one whose connection still stands.

        Raise ValueError for another reason.
        """
        if reason not in _FAILURES:
            legal = ", ".join(each.name for each in _FAILURES)
            raise ValueError(f"a leg fails by {legal}, not by {reason.name}")
        gone = _FAILURES[reason]
        each = self._leg(leg).check(LegInput.FAIL)
        if each.state is LegState.CANCELLED:
            return []
        return self._failed(leg, reason, LegInput.FAIL if gone else LegInput.CANCEL, now_ns)

    def leg_ended(self, leg: int, now_ns: int) -> list[Command]:
        """The leg's answer is complete."""
        each = self._leg(leg).check(LegInput.END)
        if each.state is LegState.CANCELLED:
            return []
        if self.winner != leg:
            return self._failed(leg, Reason.EMPTY, LegInput.END, now_ns)
        each.state = LegState.ENDED
        self._move(RaceInput.FINISH)
        return []

    def client_gone(self) -> list[Command]:
        """The client has closed: everything under way is cancelled."""
        self._move(RaceInput.LEAVE)
        return self._cancel_others(None, Reason.CLIENT_GONE)

    def more_asked(self, now_ns: int) -> None:
        """More of the request's body has come: nobody can answer what is not asked yet."""
        self._asked_ns = now_ns

    def freeze(self) -> None:
        """What was sent of the request is not kept: from now on nobody else can be asked."""
        self._frozen = True
        self._hedge_ns = None

    def deadline(self) -> int | None:
        """When ``expire`` is to be called next; None: not at all."""
        if self.state is not RaceState.RACING:
            return None
        soonest = self._asked_ns + self._settings.first_token_ns
        if self._hedge_ns is not None:
            soonest = min(soonest, self._hedge_ns)
        for leg in self.legs:
            if leg.state is LegState.ASKED:
                soonest = min(soonest, leg.started_ns + self._settings.connect_ns)
        return soonest

    def expire(self, now_ns: int) -> list[Command]:
        """Do what is due at ``now_ns``; nothing, at any other moment and in any other state."""
        if self.state is not RaceState.RACING:
            return []
        commands: list[Command] = []
        if now_ns >= self._asked_ns + self._settings.first_token_ns:
            commands += self._cancel_others(None, Reason.DEADLINE)
            commands.append(self._give_up(504, Reason.DEADLINE, None))
            return commands
        for index in range(len(self.legs)):
            leg = self.legs[index]
            if leg.state is LegState.ASKED and now_ns >= leg.started_ns + self._settings.connect_ns:
                commands += self._failed(index, Reason.CONNECT_TIMEOUT, LegInput.CANCEL, now_ns)
        if self._hedge_ns is not None and now_ns >= self._hedge_ns:
            self._hedge_ns = None
            if self._hedge(now_ns, commands):
                self._arm(now_ns)
        return commands

    # What follows from it.

    @property
    def live(self) -> int:
        """Legs that are under way and have not won."""
        return sum(leg.state in LIVE for leg in self.legs)

    def _ask(self, now_ns: int, hedge: bool = False) -> StartLeg:
        self.legs.append(Leg(self._next.pop(0), now_ns, hedge=hedge))
        return StartLeg(len(self.legs) - 1, self.legs[-1].candidate, hedge=hedge)

    def _arm(self, now_ns: int) -> None:
        more = self._wanted < self._settings.width and bool(self._next) and not self._frozen
        self._hedge_ns = now_ns + self._settings.hedge_ns if more else None

    def _hedge(self, now_ns: int, commands: list[Command]) -> bool:
        """One more leg beside those there are, by the first candidate that may be had."""
        if self._frozen:
            return False
        for place, candidate in enumerate(self._next):
            if self._may_hedge(candidate):
                self._next.insert(0, self._next.pop(place))
                commands.append(self._ask(now_ns, hedge=True))
                self.hedges += 1
                self._wanted += 1
                return True
        self.hedges_denied += bool(self._next)
        return False

    def _won(self, leg: int, win: Win) -> list[Command]:
        self._move(RaceInput.WIN)
        self.winner = leg
        self.legs[leg].state = LegState.WINNER
        return [win, *self._cancel_others(leg, Reason.LOST)]

    def _refused(self, leg: int, now_ns: int) -> list[Command]:
        each = self.legs[leg]
        commands: list[Command] = []
        if each.retry_after_ns is not None:
            wait_ns = min(max(each.retry_after_ns, 0), self._settings.hold_off_max_ns)
            commands.append(HoldOff(each.candidate, now_ns + wait_ns))
        each.reason = Reason.REFUSED
        alone = self.live == 1 and not self._has_next()
        if alone and best_refusal(self.legs) is each:
            win = Win(leg, refused=True, retry_after_ns=least_retry_after(self.legs))
            return commands + self._won(leg, win)
        return commands + self._failed(leg, Reason.REFUSED, LegInput.CANCEL, now_ns)

    def _failed(self, leg: int, reason: Reason, given: LegInput, now_ns: int) -> list[Command]:
        """``given``: CANCEL if its connection still stands, else how it went by itself."""
        each = self.legs[leg]
        begun = bool(each.connected_ns)
        each.apply(given)
        each.reason = reason
        commands: list[Command] = []
        if given is LegInput.CANCEL:
            commands.append(CancelLeg(leg, reason))
        if self.winner == leg:
            self._move(RaceInput.FINISH)
            return [BreakOff(leg, reason), *commands]
        if self._settings.replayable or not begun or reason is Reason.REFUSED:
            if reason is Reason.STALE and not each.fresh and not self._frozen:
                self.legs.append(Leg(each.candidate, now_ns, hedge=each.hedge, fresh=True))
                commands.append(
                    StartLeg(len(self.legs) - 1, each.candidate, fresh=True, hedge=each.hedge)
                )
                return commands
        else:
            # It may have done what it was asked for: asking again could do it twice.
            self.freeze()
        if self._has_next():
            self.retries += 1
            commands.append(self._ask(now_ns))
            if self._hedge_ns is not None:
                self._arm(now_ns)
        elif not self.live:
            commands.append(self._nobody_left(reason))
        return commands

    def _has_next(self) -> bool:
        return bool(self._next) and not self._frozen and self.retries < self._settings.retries

    def _nobody_left(self, reason: Reason) -> GiveUp:
        best = best_refusal(self.legs)
        if best is not None:
            return self._give_up(best.status, Reason.REFUSED, least_retry_after(self.legs))
        slow = all(leg.reason is Reason.CONNECT_TIMEOUT for leg in self.legs)
        return self._give_up(504 if slow else 502, reason, None)

    def _give_up(self, status: int, reason: Reason, retry_after_ns: int | None) -> GiveUp:
        self._move(RaceInput.GIVE_UP)
        # A hedge may be due at this very moment.
        self._hedge_ns = None
        return GiveUp(status, reason, retry_after_ns)

    def _cancel_others(self, winner: int | None, reason: Reason) -> list[Command]:
        commands: list[Command] = []
        for index, leg in enumerate(self.legs):
            if index != winner and LegInput.CANCEL in LEG_TABLE[leg.state]:
                leg.state = LegState.CANCELLED
                leg.reason = reason
                commands.append(CancelLeg(index, reason))
        return commands

    def _move(self, given: RaceInput) -> None:
        after = RACE_TABLE[self.state].get(given)
        if after is None:
            legal = ", ".join(each.value for each in RACE_TABLE[self.state])
            raise IllegalTransition(f"race in state {self.state.value}", given.value, legal)
        self.state = after

    def _leg(self, leg: int) -> Leg:
        if 0 <= leg < len(self.legs):
            return self.legs[leg]
        raise IllegalTransition("race", f"hear of leg {leg}", f"legs below {len(self.legs)}")
