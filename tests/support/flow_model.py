# SPDX-License-Identifier: Apache-2.0
"""A pure model of one client tuple's flows: what each packet must become, by the rules.

One client speaks from one port with two services that share a backend's address, so that their
reply tuples collide. Nothing here knows maps, frames or clocks: ages are seconds that pass when
they are told to. What a segment carries is said by what it is ("honest": the next one of its
sender; else a guess from outside), not by window arithmetic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
MASK = 0xFFFFFFFF

DEADLINE_S, PENDING_IDLE_S, FLOW_IDLE_S = 30, 60, 130
PAUSES_S = (40, 80, 150)
"""Steps of time: no sum of them comes near a limit, so the real clock plays no part."""


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend; two of them may have one ``address``."""

    name: str
    id: int
    address: str
    service: int


@dataclass(frozen=True, slots=True)
class Seg:
    """The TCP part of a packet. ``honest``: the sender's own next one."""

    flags: int
    seq: int
    ack: int = 0
    payload: int = 0
    honest: bool = True

    @property
    def length(self) -> int:
        """Sequence space that it takes."""
        return self.payload + bool(self.flags & SYN) + bool(self.flags & FIN)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a packet becomes: "backend", "client", "drop", "rst" or "pass", and what is counted.

    ``backend`` and ``service`` say where a forwarded packet goes and whose address it bears.
    """

    what: str
    counters: Counter[str]
    backend: Backend | None = None
    service: int | None = None


@dataclass(slots=True)
class Seen:
    """A held first packet."""

    isn: int
    age: int = 0


@dataclass(slots=True)
class Forward:
    """The decision. ``backend`` None: refused."""

    isn: int
    backend: Backend | None
    idle: int = 0
    sent: bool = False
    closed: bool = False


@dataclass(slots=True)
class Reply:
    """Who owns a reply tuple before the flow is established; the server's ISN once known."""

    service: int
    backend: Backend
    isn: int | None = None


@dataclass(slots=True)
class Half:
    """One direction of an established flow."""

    service: int
    backend: Backend
    isn: int
    next: int
    ack: int
    idle: int = 0
    closing: bool = False
    fin: bool = False
    rst: bool = False


@dataclass(slots=True)
class Talk:
    """What two honest hosts know of their connection: only they can send what comes next."""

    client_isn: int
    client_next: int = 0
    server_next: int = 0

    def __post_init__(self) -> None:
        self.client_next = self.client_isn + 1 & MASK
        self.server_next = self.server_isn + 1 & MASK

    @property
    def server_isn(self) -> int:
        """The number that the backend chose."""
        return self.client_isn ^ 0x55555555


@dataclass(slots=True)
class FlowModel:
    """The flows of one client tuple. Keys: service number, or a backend's address."""

    fallback: dict[int, Backend]
    up: set[str]
    seen: dict[int, Seen] = field(default_factory=dict)
    forward: dict[int, Forward] = field(default_factory=dict)
    reply: dict[str, Reply] = field(default_factory=dict)
    there: dict[int, Half] = field(default_factory=dict)
    back: dict[str, Half] = field(default_factory=dict)
    talk: dict[int, Talk] = field(default_factory=dict)
    hashed: dict[int, Backend | None] = field(default_factory=dict)
    alive: bool = True
    heartbeat_age: int = 0
    resumed_age: int = 10_000
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

    def daemon_decides(self, service: int, isn: int, age: int, backend: Backend | None) -> str:
        """The daemon's answer to a first packet of ``age``: "written", "taken" or "tuple"."""
        own = False
        if backend is not None:
            owner = self.reply.get(backend.address)
            if owner and owner.service != service:
                return "tuple"
            if not owner:
                self.reply[backend.address] = Reply(service, backend)
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
                return self._to_backend(service, bound.backend, counted, "syn_on_live_flow")
            del self.back[bound.backend.address], self.there[service]
            self._forget(service, counted)
            return self._first_packet(service, seg, counted)
        if opens:
            return self._syn(service, seg, counted)
        return self._segment(service, seg, counted)

    def _syn(self, service: int, seg: Seg, counted: Counter[str]) -> Outcome:
        """RFC 5961 in short: only the number of the entry, or the end of it, says something."""
        forward, seen = self.forward.get(service), self.seen.get(service)
        if forward and forward.isn == seg.seq:
            if not forward.backend:
                return self._refusal(seg, counted, "refused_by_daemon")
            if self._own_reply(service, forward):
                if forward.sent:
                    counted["syn_retransmit"] += 1
                return self._pending(service, forward, seg, counted)
        elif forward and forward.backend and not forward.closed and forward.idle <= PENDING_IDLE_S:
            counted["syn_on_live_flow"] += 1
            return self._pending(service, forward, seg, counted)
        elif not forward and seen:
            if seen.isn == seg.seq and seen.age > DEADLINE_S:
                counted["deadline_passed"] += 1
                return self._xdp_decides(service, seg, counted)
            if seen.isn == seg.seq or seen.age <= PENDING_IDLE_S:
                counted["syn_held_again"] += 1
                return Outcome("drop", counted)
        if forward or seen:
            self._forget(service, counted)
        return self._first_packet(service, seg, counted)

    def _first_packet(self, service: int, seg: Seg, counted: Counter[str]) -> Outcome:
        self.incarnation[service] += 1
        self.talk[service] = Talk(seg.seq)
        if not self.alive:
            counted["heartbeat_stale"] += 1
            return self._xdp_decides(service, seg, counted)
        self.seen[service] = Seen(seg.seq)
        counted["first_packet"] += 1
        return Outcome("drop", counted)

    def _xdp_decides(self, service: int, seg: Seg, counted: Counter[str]) -> Outcome:
        """Fallback, if up; else by hash; else nobody. A taken reply tuple: the next one."""
        tried = None
        for backend, counter in (
            (self.fallback[service], "decided_fallback"),
            (self.hashed[service], "decided_hash"),
        ):
            if not backend or backend.name not in self.up or backend is tried:
                continue
            tried = backend
            owner = self.reply.get(backend.address)
            if (owner and owner.service != service) or self._in_use(service, backend):
                counted["pending_reply_taken"] += 1
                continue
            if not owner:
                self.reply[backend.address] = Reply(service, backend)
            self.strays.discard(backend.address)
            forward = self.forward[service] = Forward(seg.seq, backend)
            counted[counter] += 1
            return self._pending(service, forward, seg, counted)
        self.seen.pop(service, None)
        return self._refusal(seg, counted, "refused_no_backend")

    def _segment(self, service: int, seg: Seg, counted: Counter[str]) -> Outcome:
        """A segment, not a SYN, of a flow that is not established."""
        forward = self.forward.get(service)
        if not forward:
            return self._refusal(seg, counted, "orphan_reset")
        if not forward.backend:
            return self._refusal(seg, counted, "refused_by_daemon")
        reply = self._own_reply(service, forward)
        if reply and self._proves(seg, forward, reply) and self._promote(service, forward, seg):
            counted["promoted"] += 1
            bound = self.there[service]
            return self._established(bound, self.back[bound.backend.address], seg, counted)
        if seg.flags & RST and seg.seq == forward.isn + 1 & MASK:
            forward.closed = True
        return self._pending(service, forward, seg, counted)

    @staticmethod
    def _proves(seg: Seg, forward: Forward, reply: Reply) -> bool:
        """Only who saw the SYN-ACK knows the server's number."""
        return (
            seg.flags & (ACK | RST) == ACK
            and reply.isn is not None
            and (seg.seq, seg.ack) == (forward.isn + 1 & MASK, reply.isn + 1 & MASK)
        )

    def _promote(self, service: int, forward: Forward, seg: Seg) -> bool:
        backend = forward.backend
        assert backend is not None
        assert backend.address not in self.back, "its REPLY would not have been given away"
        isn = seg.ack - 1 & MASK
        self.there[service] = Half(service, backend, forward.isn, seg.seq, seg.ack)
        self.back[backend.address] = Half(service, backend, isn, seg.ack, seg.seq)
        return True

    # --- packets of a backend -------------------------------------------------------------

    def from_backend(self, backend: Backend, seg: Seg) -> Outcome:
        """A packet of a backend for the client."""
        counted: Counter[str] = Counter()
        bound = self.back.get(backend.address)
        if bound:
            return self._established(bound, self.there[bound.service], seg, counted)
        reply = self.reply.get(backend.address)
        if not reply:
            counted["pass_not_service"] += 1
            return Outcome("pass", counted)
        forward = self.forward.get(reply.service)
        if forward and seg.flags & ACK and seg.ack == forward.isn + 1 & MASK:
            if seg.flags & RST:
                forward.closed = True
            elif seg.flags & SYN:
                reply.isn = seg.seq
        return Outcome("client", counted, service=reply.service)

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
        if not seg.honest:
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
        elif half.closing and seg.payload and seg.seq == half.next:
            for each in (half, peer):
                each.closing = each.fin = each.rst = False
            counted["closing_revoked"] += 1
        if seg.seq == half.next:
            half.next = half.next + seg.length & MASK
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

    def _own_reply(self, service: int, forward: Forward) -> Reply | None:
        reply = self.reply.get(forward.backend.address) if forward.backend else None
        return reply if reply and reply.service == service else None

    def _in_use(self, service: int, backend: Backend) -> bool:
        owner = self.back.get(backend.address)
        return owner is not None and owner.service != service

    def _forget(self, service: int, counted: Counter[str]) -> None:
        counted["syn_reopened"] += 1
        forward = self.forward.pop(service, None)
        if forward and forward.backend and self._own_reply(service, forward):
            del self.reply[forward.backend.address]
        self.seen.pop(service, None)
