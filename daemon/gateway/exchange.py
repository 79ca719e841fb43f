# SPDX-License-Identifier: Apache-2.0
"""One request and its answer: who is asked, whose answer the client gets, and what is left undone.

The race itself is :mod:`xdp_router.gateway.ttft_race`; this does what it says with connections.
Every request is one: without rivals it has a width of 1, and the same retries.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from xdp_router.core.listeners import ListenerKind
from xdp_router.gateway.first_token import Verdict, whole_answer
from xdp_router.gateway.http_head import RequestHead, ResponseHead
from xdp_router.gateway.prompt import Prompt, read_prompt
from xdp_router.gateway.race_commands import (
    BreakOff,
    CancelLeg,
    Command,
    GiveUp,
    HoldOff,
    Reason,
    StartLeg,
    Win,
)
from xdp_router.gateway.retry_after import retry_after_ns
from xdp_router.gateway.ttft_race import RaceState, TtftRace

from .answer import Answer
from .decision import Decision, decide, may_have_rival
from .delivery import Delivery
from .leg import Leg
from .outcome import failure, goes_on, headers_beside, interim, why
from .record import LegRecord, Record
from .request_body import RequestBody
from .tunnel import HALF_CLOSED, HALF_LATE, Tunnel

if TYPE_CHECKING:
    from .client import Client
    from .front import Front

_SWEPT_NS = 2_000_000_000
_NS = 1e9


class Exchange:
    """From a request's head to the last byte of its answer."""

    __slots__ = (
        "record", "head", "client", "tunnel",
        "_front", "_loop", "_clock", "_body", "_is_inference", "_decision", "_race", "_legs",
        "_answers", "_first", "_delivery", "_timer", "_client_waits", "_finished",
    )  # fmt: skip

    def __init__(self, client: Client, front: Front, head: RequestHead, record: Record) -> None:
        self.client = client
        self.head = head
        self.record = record
        self.tunnel: Tunnel | None = None
        """From where both sides speak another protocol on."""
        self._front = front
        self._loop = front.world.loop
        self._clock = front.world.clock
        self._is_inference = (
            front.listener.kind is ListenerKind.LLM
            and head.method == b"POST"
            and head.path.endswith(b"/completions")
        )
        self._body: RequestBody
        self._decision: Decision | None = None
        self._race: TtftRace | None = None
        self._legs: list[Leg | None] = []
        self._answers: dict[int, Answer] = {}
        self._first = b""
        self._delivery: Delivery | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._client_waits = False
        self._finished = False

    # What the client does

    def begin(self) -> None:
        """Go on as far as the head alone allows. Raises MessageError."""
        most, whole = self._front.listener.max_body, self._is_inference
        self._body = RequestBody.of(self.head, most, keep_all=whole)
        if not self._is_inference or self._body.is_whole:  # there is none
            self._decide(read_prompt(self.head.path, b"") if self._is_inference else None)
        if self.head.expects_continue and not self._finished:
            self.client.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def feed(self, data: bytes, start: int) -> int:
        """More of the body; returns how far ``data`` belongs to it. Raises MessageError."""
        body, record = self._body, self.record
        piece = body.feed(data, start)
        record.bytes_in = body.size
        if body.is_whole and not record.body_ns:
            record.body_ns = self._clock()
        if not self._is_inference:
            self._pass_on(piece)
        elif body.is_whole and self._race is None:
            self._decide(read_prompt(self.head.path, body.content()))
        return start + len(piece)

    @property
    def wants_body(self) -> bool:
        """Whether what comes next of the client is this request's body."""
        return not self._body.is_whole

    @property
    def is_answering(self) -> bool:
        """Whether the client has got some of an answer: no other can be given."""
        return self.record.answer_ns > 0

    def client_said_all(self) -> None:
        """Of its tunnel; the backend's half may go on."""
        if self.tunnel is not None and self.tunnel.client_ends():
            self._tunnel_is_over()

    def abandon(self, reason: str, *, by_reset: bool = False) -> None:
        """Nobody waits for the answer, or the gateway has to end it here. ``by_reset``: as the
        client has, which a backend has to see if it speaks to the client itself."""
        race = self._race
        if by_reset and self.tunnel is not None and self._delivery is not None:
            self._delivery.leg.reset()
        if race is not None and race.state is not RaceState.OVER:
            self._obey(race.client_gone())
        self._finish(reason)

    def client_writable(self, writable: bool) -> None:
        """Whether the client takes more of the answer."""
        self._client_waits = not writable
        delivery = self._delivery
        # Before there is a winner only 1xx go to the client, and of one leg.
        leg = delivery.leg if delivery is not None else self._legs[-1] if self._legs else None
        if leg is not None:
            (leg.resume if writable else leg.pause)()
        if delivery is not None and writable:
            delivery.newest_ns = self._clock()  # until now nobody has read on

    # Whom it may go to

    def _decide(self, prompt: Prompt | None) -> None:
        """Find the candidates, and begin. Raises MessageError."""
        decision = decide(self._front, self.client, self.head, prompt, self.record)
        self._decision = decision
        # Nothing of this object: it would hold itself, and stay until the collector comes by.
        may_hedge = partial(may_have_rival, self._front, decision)
        self._race = TtftRace(len(decision.order), decision.settings, may_hedge)
        self.record.decided_ns = now_ns = self._clock()
        self._obey(self._race.start(now_ns))
        self._set_timer()

    def _pass_on(self, piece: bytes) -> None:
        """More of a body that nobody has to read whole."""
        leg = self._legs[-1] if self._legs else None
        is_open = leg is not None and leg.transport is not None
        if leg is not None and is_open:
            if leg.head is None or leg.head.status < 300:
                leg.write(piece)
            elif piece:
                # Refused: the rest is read and goes nowhere. The backend still waits for it.
                leg.is_reusable = False
        if self._race is not None:
            self._race.more_asked(self._clock())
        if self._body.is_much:
            if is_open and self._race is not None:
                self._body.forget()
                self._race.freeze()
            else:
                self.client.pause()  # until there is a connection that takes it

    # What the race says

    def _obey(self, commands: list[Command]) -> None:
        for each in commands:
            if isinstance(each, StartLeg):
                self._start(each)
            elif isinstance(each, CancelLeg):
                self._cancel(each)
            elif isinstance(each, Win):
                self._win(each)
            elif isinstance(each, GiveUp):
                self._give_up(each)
            elif isinstance(each, HoldOff):
                self._front.hold_off(self._index(each.candidate), each.until_ns)
            elif isinstance(each, BreakOff):
                self._break_off(each)

    def _start(self, start: StartLeg) -> None:
        front, index, decision = self._front, self._index(start.candidate), self._decision
        assert decision is not None
        now_ns = self._clock()
        replayable = decision.settings.replayable
        leg = front.leg(index, self, start.leg, fresh=start.fresh, replayable=replayable)
        if leg.reused:
            self._send(leg)  # before anything is noted of it
        backend = front.listener.backends[index].name
        self.record.legs.append(LegRecord(backend, now_ns, leg.reused))
        self._legs.append(leg)
        front.world.asked.begin(leg.row, leg, now_ns, owes=self.record.streams)
        front.note_leg(index, decision)
        if start.hedge:
            self.record.hedged += 1
            front.figures.count("hedges", front.listener.name, backend)
        if leg.reused:
            self._sent(leg)

    def _cancel(self, cancel: CancelLeg) -> None:
        leg = self._legs[cancel.leg]
        if leg is not None:
            told = self.record.legs[cancel.leg]
            self._front.figures.count("cancelled_legs", self._front.listener.name, told.backend)
            if cancel.reason in (Reason.LOST, Reason.DEADLINE) and told.ready_ns:
                self._front.note_lost(self._backend_of(leg), self.record, told)
            self._let_go(leg, cancel.reason.value)
            leg.abort()

    def _let_go(self, leg: Leg, outcome: str) -> None:
        """The leg is over, whatever becomes of its connection."""
        if self._legs[leg.number] is not leg:
            return
        self._legs[leg.number] = None
        told, front = self.record.legs[leg.number], self._front
        told.ended_ns = self._clock()
        told.outcome = outcome
        front.world.asked.end(leg.row, leg)
        answer = self._answers.pop(leg.number, None)
        if answer is not None and not self._is_winner(leg):
            told.tokens = found = answer.tokens()
            if found and outcome == Reason.LOST.value:
                front.figures.count("loser_tokens", front.listener.name, told.backend, by=found)
        if told.status == 200 and self._decision is not None and self._decision.blocks:
            # Whoever has begun with the prompt has it in its cache.
            front.note_prompt(self._backend_of(leg), self._decision.blocks)

    def _is_winner(self, leg: Leg) -> bool:
        return self._delivery is not None and self._delivery.leg is leg

    def _index(self, candidate: int) -> int:
        assert self._decision is not None
        return self._decision.order[candidate]

    def _backend_of(self, leg: Leg) -> int:
        assert self._race is not None
        return self._index(self._race.legs[leg.number].candidate)

    def _win(self, win: Win) -> None:
        leg, race = self._legs[win.leg], self._race
        assert leg is not None
        assert race is not None
        record, answer, version = self.record, self._answers[win.leg], self.head.version
        extra, drop = headers_beside(answer.head, record, win)
        now_ns = self._clock()
        self._front.world.asked.answered(leg.row, leg)
        record.answer_ns = now_ns  # from here on the client has some of it
        delivery = self._delivery = Delivery(leg, answer, version, self.client.write)
        delivery.newest_ns = now_ns
        keeps = not self._front.retired and self._body.is_whole and goes_on(self.head, answer.head)
        delivery.begin(
            answer, first=self._first, close=not keeps, extra=extra, version=version, drop=drop
        )
        self._first = b""
        told = record.legs[win.leg]
        record.backend, record.status = told.backend, answer.head.status
        record.streams = record.streams and answer.is_stream
        record.reason = why(race, win)
        if not win.refused and answer.head.status < 500:
            # How long the client took to send its body is not the backend's time.
            took_ns = now_ns - max(told.started_ns, record.body_ns)
            self._front.note_first_byte(self._backend_of(leg), record, took_ns, now_ns)
        if leg.tunnel:
            self.tunnel = Tunnel(self.client, leg, self._clock)
            self.client.begin_tunnel()
        if self._client_waits:
            leg.pause()

    def _give_up(self, given: GiveUp) -> None:
        after_ns = given.retry_after_ns
        after_s = None if after_ns is None else max(1, -(-after_ns // 1_000_000_000))
        self.record.reason = given.reason.value
        self.client.refuse(given.status, f"no answer: {given.reason.value}", after_s)

    def _break_off(self, broken: BreakOff) -> None:
        """Bytes have gone to the client: what it has is marked as not whole, and cut."""
        if self._delivery is not None:
            self._delivery.break_off()
        front = self._front
        front.figures.count("broken_off", front.listener.name, self.record.legs[broken.leg].backend)
        self._end_legs(broken.reason.value)
        self.client.reset_soon()
        self._finish(f"the backend broke off: {broken.reason.value}")

    # What legs do

    def leg_ready(self, leg: Leg) -> None:
        """Its connection is there: the request goes out."""
        self._send(leg)
        self._sent(leg)

    def _send(self, leg: Leg) -> None:
        assert self._decision is not None
        request = self._decision.request + self._body.kept
        leg.send(request, self.head.method, upgrade=self.head.upgrade is not None)

    def _sent(self, leg: Leg) -> None:
        race, now_ns = self._race, self._clock()
        assert race is not None
        self.record.legs[leg.number].ready_ns = now_ns
        self._obey(race.leg_connected(leg.number, now_ns))
        if self._body.is_much:
            self._body.forget()
            race.freeze()
        self.leg_writable(leg, not leg.is_full)

    def leg_head(self, leg: Leg, head: ResponseHead, first: bytes) -> None:
        """An answer begins."""
        race = self._race
        assert race is not None
        if head.status < 200 and head.status != 101:
            if head.status != 100 and self.head.version == 11 and len(self._legs) == 1:
                race.freeze()
                self.client.write(interim(head))
            return
        now_ns = self._clock()
        told = self.record.legs[leg.number]
        told.head_ns, told.status = now_ns, head.status
        self._answers[leg.number] = Answer(head)
        self._first = first
        wait_ns = None
        if head.status >= 400:
            wait_ns = retry_after_ns(head.get(b"retry-after"), self._front.world.wall())
        self._obey(race.leg_head(leg.number, head.status, now_ns, wait_ns))
        first, self._first = self._first, b""
        if first and leg.user is self:
            self.leg_body(leg, first)  # it has not won, so far
        else:
            self._set_timer()

    def leg_body(self, leg: Leg, data: bytes) -> None:
        """More of an answer."""
        delivery = self._delivery
        if delivery is not None and delivery.leg is leg:
            now_ns = self._clock()
            if delivery.is_stream:
                self._front.note_gap(self.record, now_ns - delivery.newest_ns)
            delivery.newest_ns = now_ns
            delivery.more(data)
            return
        race, answer = self._race, self._answers[leg.number]
        assert race is not None
        verdict = answer.take(data)
        if verdict is Verdict.NOTHING or verdict is Verdict.DONE:
            return
        now_ns = self._clock()
        told = self.record.legs[leg.number]
        if verdict is Verdict.ERROR:
            self._obey(race.leg_failed(leg.number, Reason.ERROR, now_ns))
        else:
            told.token_ns = now_ns
            self._obey(race.leg_token(leg.number, now_ns))
        self._set_timer()

    def leg_done(self, leg: Leg) -> None:
        """An answer is whole."""
        race = self._race
        assert race is not None
        now_ns = self._clock()
        if not self._is_winner(leg) and not self._answers[leg.number].is_stream:
            self.record.legs[leg.number].token_ns = now_ns
            if whole_answer(self._answers[leg.number].content()) is Verdict.ERROR:
                self._obey(race.leg_failed(leg.number, Reason.ERROR, now_ns))
            else:
                self._obey(race.leg_token(leg.number, now_ns))
        if leg.user is not self:
            self._set_timer()
            return  # it was an error
        won, delivery = self._is_winner(leg), self._delivery
        keep_leg = leg.is_reusable and self._body.is_whole
        self._let_go(leg, "won" if won else Reason.EMPTY.value)
        self._obey(race.leg_ended(leg.number, now_ns))
        if keep_leg:
            self._front.world.pool.give_back(leg)
        else:
            leg.close()
        if won and delivery is not None:
            self._finish("complete")
            self.client.answered(delivery.keeps_client and self._body.is_whole)
        else:
            self._set_timer()

    def leg_said_all(self, leg: Leg) -> None:
        """Of its tunnel; the client's half may go on."""
        if self.tunnel is not None and self.tunnel.backend_ends():
            self._tunnel_is_over()

    def _tunnel_is_over(self) -> None:
        assert self._delivery is not None
        assert self._race is not None
        leg = self._delivery.leg
        self._let_go(leg, "won")
        self._obey(self._race.leg_ended(leg.number, self._clock()))
        leg.close()
        self._finish("complete")
        self.client.answered(False)

    def leg_lost(self, leg: Leg, reason: str, clean: bool) -> None:
        """A connection is gone before its answer was whole."""
        race = self._race
        assert race is not None
        told = self.record.legs[leg.number]
        if self.tunnel is not None and self.tunnel.ends.backend:
            self._tunnel_is_over()  # it has said all, and hears nothing more
            return
        if not told.ready_ns:
            self._front.not_connected(self._backend_of(leg), reason)
        kind = failure(leg, told, clean)
        self._front.figures.count("failed_legs", self._front.listener.name, told.backend)
        if not self._is_winner(leg):
            self._let_go(leg, reason)
        self._obey(race.leg_failed(leg.number, kind, self._clock()))
        self._set_timer()

    def leg_writable(self, leg: Leg, writable: bool) -> None:
        """Whether the backend takes more of the body."""
        if self._legs and self._legs[-1] is leg:
            (self.client.resume if writable else self.client.pause)()

    # The end

    def expire(self) -> None:
        """Something is due."""
        self._timer = None
        if self._race is not None:
            self._obey(self._race.expire(self._clock()))
            self._set_timer()

    def silent(self, before_ns: int) -> None:
        """Called now and then: an answer that is silent since ``before_ns`` has broken off."""
        delivery, race = self._delivery, self._race
        if delivery is None and self._timer is None:
            self.expire()
        if delivery is None or race is None or self._finished:
            return
        if self.tunnel is not None:
            if delivery.newest_ns < before_ns and self.tunnel.is_late(before_ns):
                self._front.late(self.client, HALF_CLOSED)
                self.abandon(HALF_LATE, by_reset=True)
            return
        if delivery.newest_ns < before_ns and not self._client_waits:
            delivery.leg.abort()
            self._obey(race.leg_failed(delivery.leg.number, Reason.CRASH, self._clock()))

    def view(self) -> dict[str, Any]:
        """One row of the list of streams."""
        self._note_progress()
        age_s = round((self._clock() - self.record.accepted_ns) / _NS, 3)
        return {**self.record.summary(), "age_s": age_s}

    def _note_progress(self) -> None:
        if self._race is not None:
            self.record.retries = self._race.retries
            self.record.hedges_denied = self._race.hedges_denied
        if self._delivery is not None:
            self.record.tokens, self.record.bytes_out = self._delivery.tokens, self._delivery.sent

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ns = self._race.deadline() if self._race is not None else None
        if due_ns is not None and self._decision is not None:
            left_ns = due_ns - self._clock()
            # The sweep looks for what is far away and no hedge: a timer would cost each request.
            if left_ns < _SWEPT_NS or self._decision.settings.width > 1:
                self._timer = self._loop.call_later(max(0.0, left_ns / _NS), self.expire)

    def _end_legs(self, outcome: str) -> None:
        for leg in self._legs:
            if leg is not None:
                self._let_go(leg, outcome)
                leg.abort()

    def _finish(self, end: str) -> None:
        if self._finished:
            return
        self._finished = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_legs(end)
        if self._decision is not None:
            self._front.tenants.release(self._decision.tenant)
        self._note_progress()
        self.record.ended_ns = self._clock()
        self.record.end = end
        self._front.ended(self.record)
