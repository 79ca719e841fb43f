# SPDX-License-Identifier: Apache-2.0
"""The race for the first token against backends, clients and timers that do anything at all."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from xdp_router.gateway.race_commands import (
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
from xdp_router.gateway.ttft_race import RaceState, TtftRace

SETTINGS = st.builds(
    RaceSettings,
    width=st.integers(1, 4),
    hedge_ns=st.sampled_from([0, 0, 1, 5]),
    retries=st.integers(0, 3),
    first_token_ns=st.sampled_from([1, 100, 1000, 1000]),
    connect_ns=st.sampled_from([1, 50, 2000, 2000]),
    on_head=st.booleans(),
    replayable=st.booleans(),
)
STATUSES = st.sampled_from([200, 200, 200, 404, 429, 500, 503])
FAILURES = st.sampled_from(
    [Reason.CONNECT, Reason.CRASH, Reason.STALE, Reason.ERROR, Reason.BAD_ANSWER]
)
# By candidate, whether its budget says yes.
BUDGETS = st.sampled_from([0, 0b1010101, 0b1111111, 0b1111111])
# Else most lives would be short.
SELDOM = st.integers(0, 9)
GONE_WITH_IT = {Reason.CONNECT, Reason.CRASH, Reason.STALE}


class Backend:
    """One leg as the shell sees it: how far it has come, and who has ended it."""

    def __init__(self, start: StartLeg) -> None:
        self.start = start
        self.phase = "asked"
        self.ended = False
        self.cancelled = 0


class AnyRace(RuleBasedStateMachine):
    """The shell does what it is told, and nothing that it is told breaks a promise."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 1_000
        self.legs: list[Backend] = []
        self.wins: list[Win] = []
        self.given_up: list[GiveUp] = []
        self.client_gone = False
        self.broken: list[BreakOff] = []
        self.allowed: set[int] = set()
        self.over_for_new_legs = False
        self.must_not_repeat = False
        self.failed = False

    @initialize(chosen=SETTINGS, candidates=st.integers(0, 6), luck=BUDGETS)
    def begin(self, chosen: RaceSettings, candidates: int, luck: int) -> None:
        """A request comes."""
        self.settings = chosen
        self.race = TtftRace(candidates, chosen, lambda each: self.may_hedge(each, luck))
        self.begun_ns = self.now_ns
        self.do(self.race.start(self.now_ns))

    def may_hedge(self, candidate: int, luck: int) -> bool:
        """A budget that says yes to some."""
        if luck >> candidate & 1:
            self.allowed.add(candidate)
            return True
        return False

    def do(self, commands: list[Command]) -> None:
        """What a shell does; each command is judged as it comes."""
        self.failed = True
        self.judge(commands)
        self.failed = False

    def judge(self, commands: list[Command]) -> None:
        """Raise AssertionError for a command that breaks a promise."""
        for command in commands:
            if isinstance(command, StartLeg):
                assert not self.wins
                assert not self.given_up
                assert not self.over_for_new_legs
                assert command.leg == len(self.legs)
                same = [each for each in self.legs if each.start.candidate == command.candidate]
                assert len(same) == command.fresh
                if command.hedge and not command.fresh:
                    assert command.candidate in self.allowed
                assert not self.must_not_repeat
                self.legs.append(Backend(command))
            elif isinstance(command, CancelLeg):
                leg = self.legs[command.leg]
                assert not leg.ended
                leg.cancelled += 1
            elif isinstance(command, Win):
                assert not self.legs[command.leg].ended
                assert self.legs[command.leg].phase in ("headed", "token")
                self.wins.append(command)
            elif isinstance(command, GiveUp):
                assert command.status in (429, 500, 502, 503, 504)
                self.given_up.append(command)
            elif isinstance(command, HoldOff):
                wait_ns = command.until_ns - self.now_ns
                assert 0 <= wait_ns <= self.settings.hold_off_max_ns
            else:
                self.broken.append(command)

    def some(self, number: int, *phases: str) -> int | None:
        """A leg that can have news: in one of these phases, or cancelled a moment ago."""
        found = [
            index
            for index, leg in enumerate(self.legs)
            if leg.cancelled or (not leg.ended and leg.phase in phases)
        ]
        return found[number % len(found)] if found else None

    @rule(number=st.integers(0, 9))
    def connect(self, number: int) -> None:
        """A connection is there."""
        leg = self.some(number, "asked")
        if leg is not None:
            self.legs[leg].phase = "connected"
            self.do(self.race.leg_connected(leg, self.now_ns))

    @rule(number=st.integers(0, 9), status=STATUSES, wait_ns=st.none() | st.integers(-1, 1 << 40))
    def head(self, number: int, status: int, wait_ns: int | None) -> None:
        """A head comes."""
        leg = self.some(number, "asked", "connected")
        if leg is not None:
            self.legs[leg].phase = "headed"
            self.do(self.race.leg_head(leg, status, self.now_ns, wait_ns))

    @rule(number=st.integers(0, 9))
    def token(self, number: int) -> None:
        """Content comes."""
        leg = self.some(number, "headed", "token")
        if leg is not None:
            self.legs[leg].phase = "token"
            self.do(self.race.leg_token(leg, self.now_ns))

    @rule(number=st.integers(0, 9), reason=FAILURES)
    def fail(self, number: int, reason: Reason) -> None:
        """Something breaks."""
        leg = self.some(number, "asked", "connected", "headed", "token")
        if leg is not None:
            each = self.legs[leg]
            if not each.cancelled:
                each.ended = reason in GONE_WITH_IT
                begun = each.phase != "asked"
                self.must_not_repeat |= begun and not self.settings.replayable
            self.do(self.race.leg_failed(leg, reason, self.now_ns))

    @rule(number=st.integers(0, 9))
    def end(self, number: int) -> None:
        """An answer is complete."""
        leg = self.some(number, "headed", "token")
        if leg is not None:
            each = self.legs[leg]
            each.ended = not each.cancelled
            self.must_not_repeat |= each.ended and not self.settings.replayable
            self.do(self.race.leg_ended(leg, self.now_ns))

    @rule(luck=SELDOM)
    def freeze(self, luck: int) -> None:
        """The request's body is not kept any longer."""
        if luck:
            return
        self.race.freeze()
        self.over_for_new_legs = True

    @precondition(lambda self: self.race.state in (RaceState.RACING, RaceState.WON))
    @rule(luck=SELDOM)
    def leave(self, luck: int) -> None:
        """The client goes: nothing is started, all is cancelled."""
        if luck:
            return
        self.over_for_new_legs = True
        self.client_gone = True
        self.do(self.race.client_gone())
        self.all_is_settled(ignore_winner=False)

    @rule(by=st.sampled_from([0, 1, 2, 5, 50]))
    def wait(self, by: int) -> None:
        """Time passes; the timer may be late."""
        self.now_ns += by
        self.do(self.race.expire(self.now_ns))

    @rule()
    def wait_for_the_timer(self) -> None:
        """Exactly until it rings: each time something is due, or there is no timer."""
        due_ns = self.race.deadline()
        if due_ns is not None:
            self.now_ns = max(self.now_ns, due_ns)
            self.do(self.race.expire(self.now_ns))
            after_ns = self.race.deadline()
            assert after_ns is None or after_ns > self.now_ns

    @invariant()
    def promises(self) -> None:
        """What holds at every moment."""
        if not hasattr(self, "race"):
            return
        assert len(self.wins) + len(self.given_up) <= 1
        assert self.race.live <= self.settings.width
        assert self.race.retries <= self.settings.retries
        assert all(leg.cancelled <= 1 for leg in self.legs)
        if self.race.state is RaceState.RACING:
            assert self.race.live
        if self.wins or self.given_up:
            self.all_is_settled(ignore_winner=True)

    def all_is_settled(self, *, ignore_winner: bool) -> None:
        """Each leg that did not win was cancelled once, or is over by itself."""
        for index, leg in enumerate(self.legs):
            if ignore_winner and self.race.winner == index:
                continue
            assert leg.cancelled + leg.ended == 1

    def teardown(self) -> None:
        """However it was left, it ends in time without any further news."""
        if not hasattr(self, "race") or self.failed:
            return
        for _ in range(20):
            due_ns = self.race.deadline()
            if due_ns is None:
                break
            assert due_ns <= self.begun_ns + self.settings.first_token_ns
            self.now_ns = max(self.now_ns, due_ns)
            self.do(self.race.expire(self.now_ns))
        assert self.race.state in (RaceState.WON, RaceState.OVER)
        self.promises()
        decided = len(self.wins) + len(self.given_up)
        assert decided == 1 or self.client_gone


TestAnyRace = AnyRace.TestCase
TestAnyRace.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
