# SPDX-License-Identifier: Apache-2.0
"""A pure model of flows over budget: those of a flood, with entries of their own or with none.

What ``FlowModel`` calls services are here the clients of one service, each with reply tuples of
its own. All else that it knows of flows holds for these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.support.flow_model import FlowModel
from tests.support.flow_parts import (
    ACK,
    FIN,
    PENDING_IDLE_S,
    RST,
    STATELESS_S,
    SYN,
    Backend,
    Forward,
    Half,
    Outcome,
    Reply,
    Seg,
    Talk,
)

K = TypeVar("K", int, str)
V = TypeVar("V", Forward, Reply)


@dataclass(slots=True)
class Window:
    """How long something is yet looked into."""

    left: float = 0

    def extend(self, seconds: float) -> None:
        """As long as that, and an eighth more."""
        if self.left < seconds:
            self.left = seconds * 9 / 8


class Tables(MutableMapping[K, V], Generic[K, V]):
    """The pending flows', and the flood's behind it while that is looked into."""

    def __init__(self, window: Window) -> None:
        self.pending: dict[K, V] = {}
        self.flood: dict[K, V] = {}
        self._window = window

    def _seen(self) -> tuple[dict[K, V], ...]:
        return (self.pending, self.flood) if self._window.left else (self.pending,)

    def __getitem__(self, key: K) -> V:
        for table in self._seen():
            if key in table:
                return table[key]
        raise KeyError(key)

    def __setitem__(self, key: K, value: V) -> None:
        (self.flood if value.flood else self.pending)[key] = value

    def __delitem__(self, key: K) -> None:
        for table in self._seen():
            table.pop(key, None)

    def __iter__(self) -> Iterator[K]:
        return iter({key: None for table in self._seen() for key in table})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def unseen(self) -> list[V]:
        """What is in the flood's table, and not looked at."""
        return [value for key, value in self.flood.items() if self.get(key) is not value]


@dataclass
class FloodModel(FlowModel):
    """The flows of a service's clients. ``without``: over budget it makes no entries at all."""

    window: Window = field(default_factory=Window)
    """For how long yet the flood's table is looked into."""
    without: bool = False
    spent: bool = False
    """The service's budget."""

    def __post_init__(self) -> None:
        self.forward, self.reply = self.forwards, self.replies = (
            Tables[int, Forward](self.window),
            Tables[str, Reply](self.window),
        )

    def pass_time(self, seconds: int) -> None:
        unseen: list[Forward | Reply] = [*self.forwards.unseen(), *self.replies.unseen()]
        super().pass_time(seconds)
        for entry in unseen:
            entry.idle += seconds
        self.window.left = max(0, self.window.left - seconds)

    def lose(self, kind: str, who: int, backend: Backend, flood: bool) -> None:
        """A table gives an entry away."""
        if kind == "SEEN":
            self.seen.pop(who, None)
        elif kind == "FORWARD":
            (self.forwards.flood if flood else self.forwards.pending).pop(who, None)
        else:
            table = self.replies.flood if flood else self.replies.pending
            table.pop(backend.address, None)
        self.incarnation[who] += 1

    def daemon_decides(
        self, service: int, isn: int, age: int, backend: Backend | None, take_over: bool = False
    ) -> str:
        if not self.window.left and service not in self.forwards.pending:
            self.forwards.flood.pop(service, None)  # an earlier flood's
        if service in self.forwards.pending or service not in self.forwards.flood:
            held = self.forwards.flood, self.replies.flood
            self.forwards.flood, self.replies.flood = {}, {}
            answer = super().daemon_decides(service, isn, age, backend)
            self.forwards.flood, self.replies.flood = held
            return answer
        return "taken"

    # --- which table ----------------------------------------------------------------------

    def _left_of(self, service: int) -> list[Reply]:
        both = [*self.replies.pending.values(), *self.replies.flood.values()]
        return [reply for reply in both if reply.service == service]

    def _of_syn(self, service: int) -> Forward | None:
        """While there is a flood most are the flood's."""
        flood = self.forwards.flood.get(service) if self.window.left else None
        return flood or self.forwards.pending.get(service)

    def _reply_of(self, forward: Forward) -> Reply | None:
        """A flow's halves are in one table."""
        table = self.replies.flood if forward.flood else self.replies.pending
        return table.get(forward.backend.address) if forward.backend else None

    def _forward_of(self, reply: Reply) -> Forward | None:
        table = self.forwards.flood if reply.flood else self.forwards.pending
        return table.get(reply.service)

    def _forget(self, service: int, counted: Counter[str]) -> None:
        counted["syn_reopened"] += 1
        forward = self._of_syn(service)
        if forward and forward.backend:
            self.reply.pop(forward.backend.address, None)
        self.forward.pop(service, None)
        self.seen.pop(service, None)

    def _pending(self, service: int, forward: Forward, seg: Seg, counted: Counter[str]) -> Outcome:
        """It is sent as the pending one says, if there are both."""
        forward = self.forward.get(service, forward)
        if not forward.backend:
            return self._refusal(seg, counted, "refused_by_daemon")
        return super()._pending(service, forward, seg, counted)

    # --- packets of the clients ---------------------------------------------------------

    def _first_packet(self, service: int, seg: Seg, counted: Counter[str]) -> Outcome:
        self.incarnation[service] += 1
        self.talk[service] = Talk(seg.seq)
        if self.full_age == 0:
            counted["table_full"] += 1
            return self._xdp_decides(service, seg, counted, stateless=True)
        if not self.alive:
            counted["heartbeat_stale"] += 1
            return self._xdp_decides(service, seg, counted)
        if not self.spent:
            return self._hold(service, seg, counted)
        counted["budget_service"] += 1
        self._hash_for(PENDING_IDLE_S)
        if self.without:
            return self._without_entry(service, seg, counted)
        return self._binds(service, seg, counted, Forward(seg.seq, None, flood=True))

    def _xdp_decides(
        self,
        service: int,
        seg: Seg,
        counted: Counter[str],
        stateless: bool = False,
        orphan: bool = False,
    ) -> Outcome:
        how = Forward(seg.seq, None, stateless=stateless, orphan=orphan)
        how.flood = orphan and bool(self.window.left)
        return self._binds(service, seg, counted, how)

    def _binds(self, who: int, seg: Seg, counted: Counter[str], forward: Forward) -> Outcome:
        """Fallback, unless the hash has to find the flow again; else by hash; else nobody."""
        chain = [(self.fallback[who], "decided_fallback"), (self.hashed[who], "decided_hash")]
        if not self.window.left:  # of an earlier flood
            self.forwards.flood.pop(who, None)
        if forward.flood:
            self.window.extend(PENDING_IDLE_S)
        for backend, counter in chain[forward.flood or forward.stateless :]:
            if not backend or backend.name[:2] not in self.up:
                continue
            forward.backend, forward.syn_data = backend, seg.payload
            table = self.replies.flood if forward.flood else self.replies.pending
            reply = table.get(backend.address)
            if not reply:
                table[backend.address] = Reply.of(forward, who)
            elif reply.before or not counted["deadline_passed"]:
                reply.begin(forward)
            self.forward[who] = forward
            counted[counter] += 1
            if forward.flood:
                counted["flood_entry"] += 1
            return self._pending(who, forward, seg, counted)
        self.seen.pop(who, None)
        return self._refusal(seg, counted, "refused_no_backend")

    def _without_entry(self, who: int, seg: Seg, counted: Counter[str]) -> Outcome:
        backend = self.hashed[who]
        if not backend:
            if not self.window.left:
                self.forwards.flood.pop(who, None)
            self.window.extend(PENDING_IDLE_S)  # as if it were decided
            self.seen.pop(who, None)
            return self._refusal(seg, counted, "refused_no_backend")
        counted["stateless_forwarded"] += 1
        return Outcome("backend", counted, backend=backend, service=who)

    def _orphan(self, service: int, seg: Seg, counted: Counter[str]) -> Outcome:
        if not self.without or not self.stateless[service]:
            return super()._orphan(service, seg, counted)
        seen = self.seen.get(service)
        if service not in self.forward and seen and seen.age <= PENDING_IDLE_S:
            counted["orphan_dropped"] += 1
            return Outcome("drop", counted)
        if seen:
            self._lose(service)
        return self._without_entry(service, seg, counted)

    def _speaks(self, service: int) -> None:
        self._hash_for(STATELESS_S)
        self.window.extend(STATELESS_S)

    def _extend(self, service: int) -> None:
        self._hash_for(STATELESS_S)
        if self.window.left:
            self.window.extend(STATELESS_S)

    def _hash_for(self, seconds: float) -> None:
        for service, left in self.stateless.items():
            if left < seconds:
                self.stateless[service] = seconds * 9 / 8

    # --- packets of the backends --------------------------------------------------------

    def from_backend(self, backend: Backend, seg: Seg) -> Outcome:
        if backend.address in self.back or backend.address in self.reply:
            return super().from_backend(backend, seg)
        who, counted = backend.service, Counter[str]()
        there, forward = self.there.get(who), self.forward.get(who)
        bound = there or forward
        stale = bound.backend != backend if bound else who in self.seen
        if not self.without or not self.stateless[who] or stale:
            counted["pass_not_service"] += 1
            return Outcome("pass", counted)
        if seg.flags & (ACK | SYN | RST) == ACK:
            if seg.payload or seg.flags & FIN:
                self._promote_by(backend, seg, counted)
            else:
                self._note(backend, seg, counted)
        counted["stateless_replied"] += 1
        return Outcome("client", counted, service=who)

    def _promote_by(self, backend: Backend, seg: Seg, counted: Counter[str]) -> None:
        """The backend speaks on the connection: it knows that the client is real."""
        who = backend.service
        if self.full:
            counted["promote_table_full"] += 1
            self.full_age = 0
            self._hash_for(STATELESS_S)
            return
        self.incarnation[who] += 1
        back = Half(who, backend, 0, seg.seq + seg.length & 0xFFFFFFFF, seg.ack)
        back.fin = bool(seg.flags & FIN)
        self.back[backend.address] = back
        self.there[who] = Half(who, backend, 0, seg.ack, seg.seq)
        counted["stateless_promoted"] += 1

    def _note(self, backend: Backend, seg: Seg, counted: Counter[str]) -> None:
        """It answers somebody: the client has to show that it knows the number."""
        who, address = backend.service, backend.address
        if not self.window.left:  # of an earlier flood
            self.forwards.flood.pop(who, None)
            self.replies.flood.pop(address, None)
        self.window.extend(STATELESS_S)
        if who in self.forwards.flood:
            return
        self.replies.flood[address] = Reply(
            who, backend, isn=0, proven=True, next=seg.seq, ack=seg.ack, flood=True, noted=True
        )
        self.forwards.flood[who] = Forward(0, backend, sent=False, proven=True, flood=True,
                                           noted=True)  # fmt: skip
        counted["flood_entry"] += 1
        if who not in self.forwards.pending:
            self.incarnation[who] += 1

    def _promote(
        self, service: int, forward: Forward, reply: Reply, seg: Seg, counted: Counter[str]
    ) -> Outcome:
        if forward.noted:
            counted["stateless_promoted"] += 1
        return super()._promote(service, forward, reply, seg, counted)
