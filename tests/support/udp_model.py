# SPDX-License-Identifier: Apache-2.0
"""A pure model of UDP flows with one service: what each datagram must become, by the rules.

Nothing here knows maps, frames or clocks. Clients, backends and ports are numbers; what the
forwarding method changes is said by ``Method``, and the address family changes nothing at all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.support.udp_parts import (
    A_RUN,
    ANY,
    BY_HASH,
    DEADLINE_S,
    EVERY_TRY,
    FULL_S,
    HELD_MAX,
    LEAVES_S,
    MOVES_S,
    NEVER_S,
    PENDING_IDLE_S,
    REST_S,
    TOO_LONG,
    UDP_IDLE_S,
    Bound,
    Entries,
    Forward,
    Method,
    Outcome,
    Packet,
    Place,
    Reply,
    Seen,
    Why,
)


@dataclass(slots=True)
class UdpModel:
    """All flows of a service. Clients are numbers; see ``Outcome``."""

    method: Method
    fallback: str
    ports: frozenset[int]
    """Of ours, for fullnat."""
    up: set[str] = field(default_factory=set)
    hashed: str = ""
    alive: bool = True
    spent: bool = False
    full: bool = False
    full_age: float | None = None
    heartbeat_age: float = 0
    seen: dict[int, Seen] = field(default_factory=dict)
    pending: Entries = field(default_factory=Entries)
    flood: Entries = field(default_factory=Entries)
    """What was decided over budget."""
    left: float = NEVER_S
    """For how long yet the flood's entries are looked at, by a daemon that is alive."""
    bound: dict[int, Bound] = field(default_factory=dict)
    incarnation: Counter[int] = field(default_factory=Counter)
    """Rises whenever a client's flow has to be decided anew."""
    wanted: tuple[int, Entries] | None = None
    """The client whose FORWARD, in that table, waits to hear which port its flow got."""

    # --- what happens around the packets ---------------------------------------------------

    def pass_time(self, seconds: float) -> float:
        """Everything grows older; by how much, so that nothing is near a limit."""
        limits = (LEAVES_S, MOVES_S, DEADLINE_S, PENDING_IDLE_S, UDP_IDLE_S, REST_S)
        while self._is_window_near(seconds) or any(
            abs(age + seconds - at) < min(at * 0.3, 5) for age in self._ages() for at in limits
        ):
            seconds += 6
        for seen in self.seen.values():
            seen.age += seconds
        for half in (*self.pending.halves(), *self.flood.halves()):
            half.idle += seconds
        for bound in self.bound.values():
            bound.idle += seconds
            bound.back_idle += seconds
        self.left -= seconds
        if self.full_age is not None:
            self.full_age += seconds
        if not self.alive:
            self.heartbeat_age += seconds
        return seconds

    def _is_window_near(self, seconds: float) -> bool:
        """Whether it ends then, with a daemon or without one, or is just to be extended."""
        lefts = (self.left - seconds, self.left + self.heartbeat_age)
        return any(abs(left - at) < 5 for left in lefts for at in (0, PENDING_IDLE_S, UDP_IDLE_S))

    def _ages(self) -> set[float]:
        ages = {0.0, self.heartbeat_age, self.full_age or 0.0} | {
            seen.age for seen in self.seen.values()
        }
        ages |= {half.idle for half in (*self.pending.halves(), *self.flood.halves())}
        return ages | {age for b in self.bound.values() for age in (b.idle, b.back_idle)}

    def evict(self, kind: str, who: int, flood: bool = False) -> Place | None:
        """An entry of either table gives way to newer ones; the place of the REPLY."""
        entries = self.flood if flood else self.pending
        self.incarnation[who] += 1
        forward = entries.forward.get(who)
        if kind == "SEEN":
            self.seen.pop(who, None)
        elif kind == "FORWARD":
            entries.forward.pop(who, None)
        elif forward and self.own(who, entries):
            del entries.reply[self.place(forward)]
            return self.place(forward)
        return None

    def is_anything_over(self) -> bool:
        """Whether the ager would find something."""
        return max(self._ages()) > UDP_IDLE_S

    def sweep(self) -> None:
        """The daemon's ager: who was silent for its time is gone, and no port is lost by that."""
        for who, bound in list(self.bound.items()):
            silent = bound.idle if self.method.one_sided else min(bound.idle, bound.back_idle)
            if silent > UDP_IDLE_S:
                del self.bound[who]
                self.incarnation[who] += 1
        for who, seen in list(self.seen.items()):
            if seen.age > UDP_IDLE_S:
                del self.seen[who]
        for entries in (self.pending, self.flood):
            over = [who for who in entries.forward if self._is_silent(who, entries)]
            for place, reply in list(entries.reply.items()):
                pair = reply is self.own(reply.client, entries)
                if reply.idle > UDP_IDLE_S and (not pair or reply.client in over):
                    del entries.reply[place]
            for who in over:
                del entries.forward[who]
                self.incarnation[who] += 1

    def _is_silent(self, who: int, entries: Entries) -> bool:
        """Both ways."""
        reply = self.own(who, entries)
        return min(entries.forward[who].idle, reply.idle if reply else UDP_IDLE_S * 2) > UDP_IDLE_S

    def daemon_decides(self, who: int, age: float, backend: str, home: bool) -> str:
        """Its answer to a first datagram of ``age``: "written", "taken" or "tuple"."""
        port = who
        if backend and self.method is Method.FULLNAT:
            if not self._free(backend, (self.pending, self.flood)):
                return "tuple"
            port = ANY
        ours, theirs = Forward(backend, port, idle=age), self.pending.forward.get(who)
        if not theirs and who in self.flood.forward:
            if self.flood_lately:
                return "taken"
            del self.flood.forward[who]
        if not theirs:
            self.pending.forward[who] = ours
            self._waits_for_port(who, ours, self.pending)
        if backend and (not theirs or (theirs.backend and self.place(theirs) == self.place(ours))):
            self.pending.reply.setdefault(self.place(ours), Reply(who, idle=age, home=home))
        return "taken" if theirs else "written"

    # --- the tables ------------------------------------------------------------------------

    @property
    def flood_lately(self) -> bool:
        """Whether the flood's entries are looked at: without a daemon, for longer."""
        return self.left + self.heartbeat_age > 0

    def _looked_at(self) -> tuple[Entries, ...]:
        return (self.pending, self.flood) if self.flood_lately else (self.pending,)

    def _extend(self, seconds: float) -> None:
        if self.left < seconds:
            self.left = seconds * 9 / 8

    def decision(self, who: int) -> Forward | None:
        """Whatever of a client's is looked at."""
        found = (entries.forward.get(who) for entries in self._looked_at())
        return next((forward for forward in found if forward), None)

    def is_up_to_chance(self, who: int) -> bool:
        """Whether the flood may find the very port that an entry of its own has lost."""
        forward = self.flood.forward.get(who)
        return (
            self.method is Method.FULLNAT
            and forward is not None
            and who in self.pending.forward
            and not self.own(who, self.flood)
        )

    def place(self, flow: Forward | Bound) -> Place:
        """Where a flow's replies come from."""
        return "" if self.method.one_sided and flow.backend else flow.backend, flow.port

    def _waits_for_port(self, who: int, forward: Forward, entries: Entries) -> None:
        self.wanted = (who, entries) if forward.port == ANY else None

    def chosen(self, port: int) -> None:
        """Which port of ours the newest decision got: one that nobody had."""
        assert self.wanted is not None, "no decision waits for a port"
        who, entries = self.wanted
        forward = entries.forward[who]
        others = (self.pending, self.flood) if entries is self.flood else self._looked_at()
        free = self._free(forward.backend, others, entries is self.flood)
        assert port in free, f"port {port} is somebody's, or rests"
        self.wanted = None
        entries.reply[forward.backend, port] = entries.reply.pop((forward.backend, ANY))
        forward.port = port

    def _free(self, backend: str, looked: tuple[Entries, ...], flood: bool = False) -> set[int]:
        """Ports that a backend knows nobody by. A flood leaves the last quarter to the others."""
        ports = sorted(self.ports)
        taken = {port for entries in looked for name, port in entries.reply if name == backend}
        taken |= {bound.port for bound in self.bound.values() if bound.backend == backend}
        return set(ports[: len(ports) - len(ports) // 4] if flood else ports) - taken

    # --- a client's datagram ---------------------------------------------------------------

    def from_client(
        self, who: int, length: int = 100, home: bool = True, held: bool = False, ttl: int = 64
    ) -> Outcome:
        """One of a frame of ``length`` bytes. ``held``: the daemon sends it again."""
        counted: Counter[str] = Counter()
        how = Packet(who, length, home, held, ttl, counted)
        return self._established(how) if who in self.bound else self._without_place(how)

    def _without_place(self, how: Packet) -> Outcome:
        """One of no established flow."""
        who, counted = how.who, how.counted
        forward = self.pending.forward.get(who)
        if forward and not forward.backend:
            if forward.idle <= PENDING_IDLE_S:
                return self._refused(how, "refused_by_daemon")
            self._forget(who, self.pending)
        elif forward:
            if self._belongs(how, forward, self.pending):
                return self._decided(how, forward)
            self._forget(who, self.pending)
        elif self.flood_lately and who in self.flood.forward:
            return self._flooded(how)
        if how.held:
            return how.dropped("datagram_dropped")
        seen = self.seen.get(who)
        if seen and seen.age > PENDING_IDLE_S:
            del self.seen[who]
            seen = None
        if not seen:
            self.incarnation[who] += 1
            return self._hold(how, None)
        if seen.age > DEADLINE_S:
            counted["deadline_passed"] += 1
            return self._xdp_decides(how, Why.DEADLINE)
        if seen.held >= HELD_MAX:
            counted["datagrams_over"] += 1
            return self._xdp_decides(how, Why.DATAGRAMS)
        return self._hold(how, seen)

    def _flooded(self, how: Packet) -> Outcome:
        """One of a flow that was decided over budget."""
        forward = self.flood.forward[how.who]
        if not self._belongs(how, forward, self.flood):
            self._forget(how.who, self.flood)
            return self._without_place(how)
        self._extend(UDP_IDLE_S)
        return self._sent(how, forward, self.flood.reply[self.place(forward)])

    def _belongs(self, how: Packet, forward: Forward, entries: Entries) -> bool:
        """Whether the decision still holds, and its answers come back."""
        place = self.place(forward)
        reply = entries.reply.get(place)
        if not reply and not self._is_others(place, how.who, entries):
            reply = entries.reply[place] = Reply(how.who, proven=forward.proven, home=how.home)
        if not reply or reply.client != how.who or reply.rests:
            return False
        return min(forward.idle, reply.idle) <= UDP_IDLE_S

    def _is_others(self, place: Place, who: int, entries: Entries) -> bool:
        """Whether another client's flow has it, established or in the table beside."""
        beside = [each for each in self._looked_at() if each is not entries]
        clients = [each.reply[place].client for each in beside if place in each.reply]
        clients += [w for w, bound in self.bound.items() if self.place(bound) == place]
        return any(client != who for client in clients)

    def own(self, who: int, entries: Entries) -> Reply | None:
        """The REPLY that belongs to the client's FORWARD."""
        forward = entries.forward.get(who)
        reply = entries.reply.get(self.place(forward)) if forward and forward.backend else None
        return reply if reply and reply.client == who and not reply.rests else None

    def _forget(self, who: int, entries: Entries) -> None:
        """Nothing is left of the flow there, but for a port, which rests."""
        reply = self.own(who, entries)
        forward = entries.forward.pop(who)
        self.seen.pop(who, None)
        self.incarnation[who] += 1
        if reply and self.method is Method.FULLNAT:
            reply.rests, reply.idle, reply.proven = True, 0, False
        elif reply:
            del entries.reply[self.place(forward)]

    def _why_not(self, how: Packet) -> Why | None:
        """What is in the way of the daemon's being asked."""
        for is_so, counter, why in (
            (self._full_within(FULL_S), "table_full", Why.TABLE_FULL),
            (not self.alive, "heartbeat_stale", Why.NO_HEARTBEAT),
            (how.length > TOO_LONG, "frame_too_long", Why.FRAME_TOO_LONG),
            (self.spent, "budget_service", Why.BUDGET),
        ):
            if is_so:
                how.counted[counter] += 1
                return why
        return None

    def _hold(self, how: Packet, seen: Seen | None) -> Outcome:
        if how.ttl <= 1:
            return how.expired()
        why = self._why_not(how)
        if why:
            return self._xdp_decides(how, why)
        if not seen:
            self.seen[how.who] = Seen()
            return how.dropped("datagram_first", "first")
        seen.held += 1
        return how.dropped("datagram_held", "later")

    def _xdp_decides(self, how: Packet, why: Why) -> Outcome:
        """Fallback, if up; else by hash; else nobody."""
        who, counted, tried = how.who, how.counted, ""
        chain = [(self.fallback, "decided_fallback"), (self.hashed, "decided_hash")]
        chain, flood = chain[why in BY_HASH :], why is Why.BUDGET
        entries = self.flood if flood else self.pending
        if not self.flood_lately:  # of an earlier one
            self.flood.forward.pop(who, None)
        if flood:
            self._extend(PENDING_IDLE_S)
        if self.flood_lately and who in self.flood.forward:
            return self._stands_already(how, chain[0][0], flood)
        looked = (self.pending, self.flood) if flood else self._looked_at()
        for backend, counter in chain:
            if not backend or backend not in self.up or backend == tried:
                continue
            tried = backend
            forward = Forward(backend, who, why)
            if self.method is Method.FULLNAT:
                if not self._free(backend, looked, flood):
                    counted["nat_ports_exhausted"] += 1
                    counted["nat_port_taken"] += EVERY_TRY
                    continue
                forward.port = ANY
                self._waits_for_port(who, forward, entries)
            entries.forward[who] = forward
            self._begin_reply(how, forward, entries)
            counted[counter] += 1
            if flood:
                counted["flood_entry"] += 1
            if who in self.seen:
                how.events.append("decided")
            return self._flooded(how) if flood else self._decided(how, forward)
        self.seen.pop(who, None)
        return self._refused(how, "refused_no_backend")

    def _begin_reply(self, how: Packet, forward: Forward, entries: Entries) -> None:
        """Of what an earlier flow has left there, only what was heard stays."""
        reply = entries.reply.setdefault(self.place(forward), Reply(how.who, home=how.home))
        seen = self.seen.get(how.who)
        if reply.idle > (seen.age if seen else 0):
            reply.idle, reply.home = 0, how.home

    def _stands_already(self, how: Packet, backend: str, flood: bool) -> Outcome:
        """An entry of the flood has come to light behind another one: whatever is chosen, it is.

        The choice may be its own, and what it had lost be there again.
        """
        theirs, chosen = self.flood.forward[how.who], Forward(backend, how.who)
        entries = self.flood if flood else self.pending
        usable = backend in self.up
        if usable and self.method is Method.FULLNAT:
            looked = (self.pending, self.flood) if flood else self._looked_at()
            if not self._free(backend, looked, flood):
                how.counted["nat_port_taken"] += A_RUN
        elif usable and (
            (flood and theirs.backend == backend) or self.place(chosen) in entries.reply
        ):
            self._begin_reply(how, chosen, entries)
        return self._flooded(how) if flood else self._without_place(how)

    def _decided(self, how: Packet, forward: Forward) -> Outcome:
        reply = self.pending.reply[self.place(forward)]
        seen = self._waits_behind(how, forward, reply)
        if seen:
            if how.ttl <= 1:
                return how.expired()
            if not self._why_not(how):
                seen.held += 1
                return how.dropped("datagram_held", "later")
        return self._sent(how, forward, reply)

    def _sent(self, how: Packet, forward: Forward, reply: Reply) -> Outcome:
        if self._goes_on(how, forward, reply):
            outcome = self._promote(how, forward, reply)
            if outcome:
                return outcome
        if forward.idle > MOVES_S and reply.home != how.home:
            reply.home = how.home
            how.counted["client_moved"] += 1
        forward.idle = 0
        forward.packets += 1
        return how.sent(forward.backend, forward.port)

    def _waits_behind(self, how: Packet, forward: Forward, reply: Reply) -> Seen | None:
        """Those that the daemon holds come first, unless nobody will send them."""
        seen = self.seen.get(how.who)
        if how.held or not seen or not self.alive or forward.why not in (
            Why.DAEMON, Why.DEADLINE
        ):  # fmt: skip
            return None
        if forward.packets > seen.held or seen.held >= HELD_MAX or seen.age > DEADLINE_S:
            return None
        if forward.packets == seen.held and (reply.packets or forward.idle > LEAVES_S):
            return None
        return seen

    def _full_within(self, seconds: float) -> bool:
        return self.full_age is not None and self.full_age <= seconds

    def _goes_on(self, how: Packet, forward: Forward, reply: Reply) -> bool:
        """Whether it is as much of a handshake as UDP has, and nothing is overtaken by it."""
        heard = forward.packets if self.method.one_sided else reply.packets
        if how.held or not heard or reply.home != how.home:
            return False
        return not (forward.proven and reply.proven and self._full_within(LEAVES_S))

    def _promote(self, how: Packet, forward: Forward, reply: Reply) -> Outcome | None:
        if self.full:
            how.counted["promote_table_full"] += 1
            self.full_age = 0
            forward.proven = reply.proven = True
            return None
        late = forward.proven and reply.proven and not self.method.one_sided
        how.counted["one_sided_promoted" if self.method.one_sided else "promoted"] += 1
        if late:
            how.counted["promoted_late"] += 1
        if late or self.method.one_sided:
            forward.proven = reply.proven = False
        self.bound[how.who] = Bound(
            forward.backend, forward.port, how.home, 0, forward.packets, 0, reply.packets
        )
        how.events.append("established")
        return self._established(how)

    def _established(self, how: Packet) -> Outcome:
        bound = self.bound[how.who]
        bound.packets += 1
        if bound.home != how.home and bound.idle - self.heartbeat_age > MOVES_S:
            bound.home = how.home
            how.counted["client_moved"] += 1
        if bound.home == how.home:
            bound.idle = self.heartbeat_age
        return how.sent(bound.backend, bound.port)

    @staticmethod
    def _refused(how: Packet, counter: str) -> Outcome:
        how.counted[counter] += 1
        how.counted["unreachable_sent"] += 1
        return Outcome("unreachable", how.counted, tuple(how.events))

    # --- a backend's ------------------------------------------------------------------------

    def from_backend(self, backend: str, port: int) -> tuple[Outcome, int | None]:
        """One to a client's own port, or to one of ours; and whose it is."""
        counted: Counter[str] = Counter()
        place = backend, port
        for who, bound in self.bound.items():
            if (bound.backend, bound.port) == place and not self.method.one_sided:
                bound.back_idle = self.heartbeat_age
                bound.back_packets += 1
                return Outcome("client", counted, home=bound.home), who
        reply, flood = None, False
        for entries in self._looked_at():
            if not reply and not self.method.one_sided:
                reply, flood = entries.reply.get(place), entries is self.flood
        ours = self.method is Method.FULLNAT
        if reply and ours:
            forward = self.decision(reply.client)
            moved = forward is not None and forward.port != port
            reply = None if reply.rests or moved else reply
        if not reply:
            counted["nat_reply_unknown" if ours else "pass_not_service"] += 1
            return Outcome("drop" if ours else "pass", counted), None
        if flood:
            self._extend(UDP_IDLE_S)
        reply.packets += 1
        reply.idle = 0
        return Outcome("client", counted, home=reply.home), reply.client
