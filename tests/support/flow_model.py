# SPDX-License-Identifier: Apache-2.0
"""A pure model of one client tuple's flows: what each packet must become, by the rules.

One client speaks from one port with two services that share a backend's address, so that their
reply tuples collide. Nothing here knows maps, frames or clocks: ages are seconds that pass when
they are told to. What a segment carries is said by what it is ("honest": the next one of its
sender; else a guess from outside), not by window arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace

from tests.support.flow_parts import (
    ACK,
    DEADLINE_S,
    FIN,
    FLOW_IDLE_S,
    MASK,
    PENDING_IDLE_S,
    RST,
    STATELESS_S,
    SYN,
    Backend,
    Forward,
    Half,
    Outcome,
    Reply,
    Seen,
    Seg,
    Talk,
    near,
    proves,
    takes_later,
)


@dataclass(slots=True)
class FlowModel:
    """The flows of one client tuple. Keys: service number, or a backend's address."""

    fallback: dict[int, Backend]
    up: set[str]
    seen: dict[int, Seen] = field(default_factory=dict)
    forward: MutableMapping[int, Forward] = field(default_factory=dict)
    reply: MutableMapping[str, Reply] = field(default_factory=dict)
    there: dict[int, Half] = field(default_factory=dict)
    back: dict[str, Half] = field(default_factory=dict)
    talk: dict[int, Talk] = field(default_factory=dict)
    hashed: dict[int, Backend | None] = field(default_factory=dict)
    alive: bool = True
    heartbeat_age: int = 0
    resumed_age: int = 10_000
    full: bool = False
    """``flow_table`` has no room."""
    full_age: int | None = None
    """How long ago a flow found that; None: never."""
    stateless: dict[int, float] = field(default_factory=lambda: {0: 0.0, 1: 0.0})
    """For how long yet segments without a binding are hashed."""
    incarnation: Counter[int] = field(default_factory=Counter)
    """Rises whenever a service's flow has to be decided anew."""
    strays: set[str] = field(default_factory=set)
    """Addresses whose REPLY lost its FORWARD by eviction: it is left to age."""

    # --- what happens around the packets ------------------------------------------------

    def pass_time(self, seconds: int) -> None:
        """Everything grows older; a daemon that lives goes on giving signs of it."""
        for seen in self.seen.values():
            seen.age += seconds
        for forward in self.forward.values():
            forward.idle += seconds
        for reply in self.reply.values():
            reply.idle += seconds
        if self.full_age is not None:
            self.full_age += seconds
        for service, left in self.stateless.items():
            self.stateless[service] = max(0.0, left - seconds)
        for half in (*self.there.values(), *self.back.values()):
            half.idle += seconds
        self.resumed_age += seconds
        if not self.alive:
            self.heartbeat_age += seconds

    def die(self, seconds: int) -> None:
        """The daemon stops; its silence is noticed after ``seconds``."""
        self.alive = False
        self.pass_time(seconds)

    def come_back(self) -> None:
        """The daemon lives again: what was seen meanwhile is not known."""
        self.alive, self.heartbeat_age, self.resumed_age = True, 0, 0

    def evict(self, kind: str, service: int) -> None:
        """An entry of ``pending_flows`` gives way to newer ones."""
        forward = self.forward.get(service)
        if kind == "SEEN":
            self.seen.pop(service, None)
        elif kind == "FORWARD" and forward:
            del self.forward[service]
            if forward.backend and self._own_reply(service, forward):
                self.strays.add(forward.backend.address)
        elif kind == "REPLY" and forward and self._own_reply(service, forward):
            assert forward.backend is not None
            del self.reply[forward.backend.address]
        self.incarnation[service] += 1

    def daemon_decides(
        self, service: int, isn: int, age: int, backend: Backend | None, take_over: bool = False
    ) -> str:
        """The daemon's answer to a first packet of ``age``: "written", "taken" or "tuple"."""
        own = False
        if backend is not None:
            if take_over:
                self._free(service, backend)
            owner = self.reply.get(backend.address)
            if owner and owner.service != service:
                return "tuple"
            if not owner:
                self.reply[backend.address] = Reply(service, backend, idle=age)
                own = True
            if self._in_use(service, backend):
                if own:
                    del self.reply[backend.address]
                return "tuple"
        theirs = self.forward.get(service)
        if theirs:
            if own and backend and theirs.backend != backend:
                del self.reply[backend.address]
            return "taken"
        self.forward[service] = Forward(isn, backend, idle=age)
        if backend:
            self.strays.discard(backend.address)
        return "written"

    def _free(self, service: int, backend: Backend) -> int:
        """Take the reply tuple from the other service's flow, if that one is over: how often."""
        address, freed, over = backend.address, 0, None
        back, reply = self.back.get(address), self.reply.get(address)
        if back and back.service != service:
            if not self._is_over(self.there[back.service]):
                return 0
            over = back.service
            del self.back[address], self.there[over]
            self._lose(over)
            freed = 1
        if not reply or reply.service == service:
            return freed
        if reply.service != over:
            forward = self.forward.get(reply.service)
            if not self._pending_is_over(forward, reply):
                return freed
            if forward and forward.backend == reply.backend:
                self._lose(reply.service)
            freed += 1
        del self.reply[address]
        self.strays.discard(address)
        return freed

    def _lose(self, service: int) -> None:
        """FORWARD and SEEN are gone: the flow would have to be decided anew."""
        forward = self.forward.pop(service, None)
        if forward and forward.backend and self._own_reply(service, forward):
            self.strays.add(forward.backend.address)  # to age, unless its tuple is taken now
        self.seen.pop(service, None)
        self.incarnation[service] += 1

    # --- packets of the client ------------------------------------------------------------

    def from_client(self, service: int, seg: Seg) -> Outcome:
        """A packet of the client for a service."""
        counted: Counter[str] = Counter()
        opens = seg.flags & (SYN | ACK | RST | FIN) == SYN
        bound = self.there.get(service)
        if bound and not opens:
            return self._established(bound, self.back[bound.backend.address], seg, counted)
        if bound:
            if seg.seq == bound.isn:
                return self._to_backend(service, bound.backend, counted, "syn_retransmit")
            if not self._is_over(bound):
                bound.later = seg.seq
                return self._to_backend(service, bound.backend, counted, "syn_on_live_flow")
            del self.back[bound.backend.address], self.there[service]
            self._forget(service, counted)
            return self._first_packet(service, seg, counted)
        if opens:
            return self._syn(service, seg, counted)
        return self._segment(service, seg, counted)

    def _syn(self, service: int, seg: Seg, counted: Counter[str]) -> Outcome:
        """RFC 5961 in short: only the number of the entry, or the end of it, says something."""
        forward, seen = self._of_syn(service), self.seen.get(service)
        reply = self._own_reply(service, forward) if forward else None
        if forward and not forward.backend and forward.isn == seg.seq:
            return self._refusal(seg, counted, "refused_by_daemon")
        if forward and reply and forward.isn == seg.seq:
            if forward.sent:
                counted["syn_retransmit"] += 1
            return self._pending(service, forward, seg, counted)
        if forward and reply and not self._pending_is_over(forward, reply):
            counted["syn_on_live_flow"] += 1
            forward.later = seg.seq
            return self._pending(service, forward, seg, counted)
        if not forward and seen:
            if seen.isn == seg.seq and seen.age > DEADLINE_S:
                counted["deadline_passed"] += 1
                return self._xdp_decides(service, seg, counted)
            if seen.isn == seg.seq or seen.age <= PENDING_IDLE_S:
                counted["syn_held_again"] += 1
                return Outcome("drop", counted)
        if forward or seen:
            self._forget(service, counted)
        return self._first_packet(service, seg, counted)

    def _of_syn(self, service: int) -> Forward | None:
        """The FORWARD that a SYN is measured by."""
        return self.forward.get(service)

    def _first_packet(self, service: int, seg: Seg, counted: Counter[str]) -> Outcome:
        self.incarnation[service] += 1
        self.talk[service] = Talk(seg.seq)
        if self.full_age == 0:
            counted["table_full"] += 1
            return self._xdp_decides(service, seg, counted, stateless=True)
        if not self.alive:
            counted["heartbeat_stale"] += 1
            return self._xdp_decides(service, seg, counted)
        return self._hold(service, seg, counted)

    def _hold(self, service: int, seg: Seg, counted: Counter[str]) -> Outcome:
        self.seen[service] = Seen(seg.seq)
        for reply in self._left_of(service):
            reply.before = True
        counted["first_packet"] += 1
        return Outcome("drop", counted)

    def _left_of(self, service: int) -> list[Reply]:
        return [reply for reply in self.reply.values() if reply.service == service]

    def _xdp_decides(
        self,
        service: int,
        seg: Seg,
        counted: Counter[str],
        stateless: bool = False,
        orphan: bool = False,
    ) -> Outcome:
        """Fallback, if up; else by hash; else nobody. A taken reply tuple: the next one.

        If all are taken: once more, and whose flow is over gives way.
        """
        chain = ((self.fallback[service], "decided_fallback"),
                 (self.hashed[service], "decided_hash"))  # fmt: skip
        taken = False
        for take_over in (False, True):
            tried = None
            for backend, counter in chain[stateless:]:
                if not backend or backend.name not in self.up or backend is tried:
                    continue
                tried = backend
                if take_over and taken and (freed := self._free(service, backend)):
                    counted["reply_tuple_freed"] += freed
                owner = self.reply.get(backend.address)
                if (owner and owner.service != service) or self._in_use(service, backend):
                    if not take_over:
                        counted["pending_reply_taken"] += 1
                        taken = True
                    continue
                self.strays.discard(backend.address)
                forward = self.forward[service] = Forward(
                    seg.seq, backend, syn_data=seg.payload, stateless=stateless, orphan=orphan
                )
                if not owner:
                    self.reply[backend.address] = Reply.of(forward, service)
                elif owner.before or not counted["deadline_passed"]:
                    owner.begin(forward)
                counted[counter] += 1
                return self._pending(service, forward, seg, counted)
        self.seen.pop(service, None)
        return self._refusal(seg, counted, "refused_no_backend")

    def _segment(self, service: int, seg: Seg, counted: Counter[str]) -> Outcome:
        """A segment, not a SYN, of a flow that is not established."""
        forward = self.forward.get(service)
        if not forward:
            return self._orphan(service, seg, counted)
        if not forward.backend:
            return self._refusal(seg, counted, "refused_by_daemon")
        reply = self._reply_of(forward)
        if not reply and not self._in_use(service, forward.backend):
            reply = self.reply[forward.backend.address] = Reply.of(forward, service)
        if not reply or reply.service != service:
            return self._orphan(service, seg, counted)
        proven = forward.proven and reply.proven
        asks = reply.tells(seg) and self.full_age != 0
        if asks if proven else proves(seg, forward, reply):
            if not self.full:
                return self._promote(service, forward, reply, seg, counted)
            counted["promote_table_full"] += 1
            self.full_age = 0
            self._extend(service)
            if not proven and reply.isn is not None:
                proven = forward.proven = reply.proven = True
                reply.next, reply.ack = reply.isn + 1 & MASK, seg.seq
        if proven:
            reply.hear_client(seg, forward)
        elif seg.flags & RST and seg.seq == forward.isn + 1 & MASK:
            forward.closed = True
        return self._pending(service, forward, seg, counted)

    def _orphan(self, service: int, seg: Seg, counted: Counter[str]) -> Outcome:
        if seg.flags & RST or not self.stateless[service]:
            return self._refusal(seg, counted, "orphan_reset")
        seen = self.seen.get(service)
        if service not in self.forward and seen and seen.age <= PENDING_IDLE_S:
            counted["orphan_dropped"] += 1
            return Outcome("drop", counted)
        self.forward.pop(service, None)
        self.seen.pop(service, None)
        self.incarnation[service] += 1
        outcome = self._xdp_decides(service, seg, counted, stateless=True, orphan=True)
        if outcome.what == "backend":
            counted["orphan_hashed"] += 1
        return outcome

    def _speaks(self, service: int) -> None:
        """The backend of a flow without a place has said something."""
        self._extend(service)

    def _extend(self, service: int) -> None:
        """Flows without a place live on: as long as one may be silent, and an eighth more."""
        if self.stateless[service] < STATELESS_S:
            self.stateless[service] = STATELESS_S * 9 / 8

    def _promote(
        self, service: int, forward: Forward, reply: Reply, seg: Seg, counted: Counter[str]
    ) -> Outcome:
        backend = forward.backend
        assert backend is not None
        assert backend.address not in self.back, "its REPLY would not have been given away"
        assert reply.isn is not None
        late = forward.proven and reply.proven
        sent, taken = (reply.next, reply.ack) if late else (seg.ack, seg.seq)
        self.there[service] = Half(service, backend, forward.isn, seg.seq, seg.ack)
        self.back[backend.address] = Half(service, backend, reply.isn, sent, taken)
        self.there[service].fin, self.back[backend.address].fin = forward.fin, reply.fin
        counted["promoted"] += 1
        if late:
            counted["promoted_late"] += 1
            forward.proven = reply.proven = False
        bound = self.there[service]
        return self._established(bound, self.back[backend.address], seg, counted)

    # --- packets of a backend -------------------------------------------------------------

    def from_backend(self, backend: Backend, seg: Seg) -> Outcome:
        """A packet of a backend for the client."""
        counted: Counter[str] = Counter()
        bound = self.back.get(backend.address)
        if bound:
            there = self.there[bound.service]
            if takes_later(seg, there.later) and seg.ack != there.isn + 1 & MASK:
                counted["flow_restarted"] += 1
                isn = there.later
                self.there[bound.service] = Half(bound.service, there.backend, isn, seg.ack,
                                                 seg.seq + 1 & MASK)  # fmt: skip
                bound = Half(bound.service, there.backend, seg.seq, seg.seq + 1 & MASK, seg.ack)
                self.back[backend.address] = bound
                self.talk[bound.service] = Talk(isn)
            return self._established(bound, self.there[bound.service], seg, counted)
        reply = self.reply.get(backend.address)
        if not reply:
            counted["pass_not_service"] += 1
            return Outcome("pass", counted)
        forward = self._forward_of(reply)
        if forward and forward.backend == reply.backend:
            self._answer(forward, reply, seg, counted)
        if not seg.flags & RST and (reply.proven or reply.stateless) and not reply.noted:
            self._speaks(reply.service)
        reply.idle, reply.before = 0, False
        return Outcome("client", counted, service=reply.service)

    def _answer(self, forward: Forward, reply: Reply, seg: Seg, counted: Counter[str]) -> None:
        answers = bool(seg.flags & ACK) and forward.is_answered_by(seg.ack)
        if not answers and takes_later(seg, forward.later):
            counted["flow_restarted"] += 1
            isn = forward.later
            data = seg.ack - 1 - isn & MASK
            self.forward[reply.service] = replace(
                forward, isn=isn, idle=0, syn_data=data, closed=False, later=0, proven=False,
                fin=False,
            )  # fmt: skip
            self.talk[reply.service] = Talk(isn)
            reply.isn, reply.proven, reply.fin = seg.seq, False, False
        elif reply.begins_as_orphan(seg, forward) or (forward.proven and reply.proven):
            reply.hear_backend(seg, forward)
        elif answers and seg.flags & RST:
            forward.closed = True
        elif answers and seg.flags & SYN:
            reply.isn, reply.proven, reply.fin = seg.seq, False, False

    # --- both -----------------------------------------------------------------------------

    def _established(self, half: Half, peer: Half, seg: Seg, counted: Counter[str]) -> Outcome:
        """Whatever a segment says, it goes to the one peer; only honest ones change the state."""
        if not seg.flags & SYN:
            half.idle = self.heartbeat_age
            self._track(half, peer, seg, counted)
        if half is self.there.get(half.service):
            return Outcome("backend", counted, backend=half.backend, service=half.service)
        return Outcome("client", counted, service=half.service)

    @staticmethod
    def _track(half: Half, peer: Half, seg: Seg, counted: Counter[str]) -> None:
        exact = seg.seq in (peer.ack, half.next)  # else a RST cannot be told from a guess
        if not seg.honest or (seg.flags & RST and not exact):
            if seg.flags & RST:
                counted["rst_inexact"] += 1
            elif seg.flags & FIN:
                counted["fin_outside_window"] += 1
            return
        if seg.flags & RST:
            half.rst = half.closing = peer.closing = True
            return
        if seg.flags & FIN:
            half.fin = True
            if peer.fin:
                half.closing = peer.closing = True
        elif half.closing and seg.payload and near(seg.seq + seg.length - half.next) > 0:
            for each in (half, peer):
                each.closing = each.fin = each.rst = False
            counted["closing_revoked"] += 1
        # What comes next; or later, when it was a retransmission that got the flow its place.
        if near(seg.seq + seg.length - half.next) > 0:
            half.next = seg.seq + seg.length & MASK
        if near(seg.ack - half.ack) > 0:
            half.ack = seg.ack

    def _to_backend(
        self, service: int, backend: Backend, counted: Counter[str], counter: str
    ) -> Outcome:
        counted[counter] += 1
        return Outcome("backend", counted, backend=backend, service=service)

    def _pending(self, service: int, forward: Forward, seg: Seg, counted: Counter[str]) -> Outcome:
        if not seg.flags & SYN or seg.seq == forward.isn:
            forward.idle = 0
        forward.sent = True
        return Outcome("backend", counted, backend=forward.backend, service=service)

    @staticmethod
    def _refusal(seg: Seg, counted: Counter[str], counter: str) -> Outcome:
        if seg.flags & RST:
            counted["orphan_dropped"] += 1
            return Outcome("drop", counted)
        counted[counter] += 1
        return Outcome("rst", counted)

    def _is_over(self, there: Half) -> bool:
        back = self.back[there.backend.address]
        if there.closing:
            return True
        if not self.alive or self.resumed_age <= FLOW_IDLE_S:
            return False  # nobody knows how long it was silent
        return min(there.idle, back.idle) > FLOW_IDLE_S

    @staticmethod
    def _pending_is_over(forward: Forward | None, reply: Reply) -> bool:
        if not forward or forward.backend != reply.backend or forward.closed:
            return True
        limit_s = FLOW_IDLE_S if forward.proven else PENDING_IDLE_S
        return min(forward.idle, reply.idle) > limit_s

    def _own_reply(self, service: int, forward: Forward) -> Reply | None:
        reply = self._reply_of(forward)
        return reply if reply and reply.service == service else None

    def _reply_of(self, forward: Forward) -> Reply | None:
        return self.reply.get(forward.backend.address) if forward.backend else None

    def _forward_of(self, reply: Reply) -> Forward | None:
        return self.forward.get(reply.service)

    def _in_use(self, service: int, backend: Backend) -> bool:
        owner = self.back.get(backend.address)
        return owner is not None and owner.service != service

    def _forget(self, service: int, counted: Counter[str]) -> None:
        counted["syn_reopened"] += 1
        forward = self.forward.pop(service, None)
        if forward and forward.backend and self._own_reply(service, forward):
            del self.reply[forward.backend.address]
        self.seen.pop(service, None)
