# SPDX-License-Identifier: Apache-2.0
"""What the model of ``flow_model`` speaks of: segments, outcomes, entries of the tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
MASK = 0xFFFFFFFF
WINDOW = 60_000
"""What every segment offers, without scaling."""

SYN_DATA_MAX = 1520
"""A SYN has less data than this."""

DEADLINE_S, PENDING_IDLE_S, FLOW_IDLE_S, STATELESS_S = 30, 60, 130, 50
PAUSES_S = (40, 80, 150)
"""Steps of time: no sum of them comes near a limit, so the real clock plays no part."""


def near(distance: int) -> int:
    """A distance of two sequence numbers, with its sign."""
    return (distance + (1 << 31) & MASK) - (1 << 31)


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
    """The decision. ``backend`` None: refused. ``stateless``: the hash has to find it again.

    ``flood``: in the flood's table. ``noted``: of a flow whose client has proven nothing yet.
    """

    isn: int
    backend: Backend | None
    idle: int = 0
    sent: bool = False
    closed: bool = False
    syn_data: int = 0
    later: int = 0
    stateless: bool = False
    orphan: bool = False
    proven: bool = False
    fin: bool = False
    flood: bool = False
    noted: bool = False

    def is_answered_by(self, ack: int) -> bool:
        """Whether this number acknowledges its SYN, with or without its data."""
        return (ack - 1 - self.isn) & MASK in (0, self.syn_data)


@dataclass(slots=True)
class Reply:
    """Who owns a reply tuple before the flow is established; the server's ISN once known.

    ``next``, ``ack``: of a proven flow, what the backend sends next, and what it has taken.
    """

    service: int
    backend: Backend
    isn: int | None = None
    idle: int = 0
    stateless: bool = False
    orphan: bool = False
    blank: bool = False
    """Made anew: it knows no numbers."""
    proven: bool = False
    fin: bool = False
    next: int = 0
    ack: int = 0
    flood: bool = False
    noted: bool = False
    before: bool = False
    """Nothing was heard of it since its client's newest first packet."""

    def begin(self, forward: Forward) -> None:
        """An earlier flow has left it: what is not known by the backend's answers is this one's."""
        self.idle, self.before, self.noted = 0, False, False
        self.stateless, self.orphan = forward.stateless, forward.orphan

    @classmethod
    def of(cls, forward: Forward, service: int) -> Reply:
        """One made anew, as far as the decision knows it."""
        assert forward.backend is not None
        return cls(
            service, forward.backend, stateless=forward.stateless, proven=forward.proven,
            orphan=forward.orphan, blank=forward.proven, flood=forward.flood, noted=forward.noted,
        )  # fmt: skip

    def takes(self, seg: Seg) -> bool:
        """Whether a client's segment is in the window of a proven flow's backend."""
        return near(seg.seq + seg.length - self.ack) >= 0 and near(seg.seq - self.ack) <= WINDOW * (
            not self.blank
        )

    def tells(self, seg: Seg) -> bool:
        """Whether the numbers of a client's segment fit what its backend has sent and taken."""
        return (
            self.isn is not None
            and seg.flags & (ACK | RST | SYN) == ACK
            and self.takes(seg)
            and 0 <= near(self.next - seg.ack) < 1 << 30
            and (seg.ack == self.next or (seg.seq == self.ack and not self.noted))
        )

    def begins_as_orphan(self, seg: Seg, forward: Forward) -> bool:
        """The backend knows an orphan's connection: from now on it is as good as proven."""
        begins = self.blank if forward.proven and self.proven else self.orphan
        if not begins or forward.closed or seg.flags & (ACK | SYN | RST) != ACK:
            return False
        self.blank = False
        forward.proven = self.proven = True
        self.next, self.ack = seg.seq, seg.ack
        return True

    def hear_client(self, seg: Seg, forward: Forward) -> None:
        """A client's segment of a proven flow that stays one."""
        if seg.flags & RST:
            over = seg.seq == self.ack
        else:
            ends = bool(seg.flags & FIN) and self.takes(seg)
            forward.fin |= ends
            over = ends and self.fin
        if over:
            forward.proven, self.proven, forward.closed = False, False, True

    def hear_backend(self, seg: Seg, forward: Forward) -> None:
        """Its backend's segment."""
        if seg.flags & SYN:
            return
        over = bool(seg.flags & RST) and seg.seq == self.next
        if not seg.flags & RST:
            end = seg.seq + seg.length & MASK
            if 0 <= near(end - self.next) < 1 << 30:
                self.next = end
            if seg.flags & ACK and 0 <= near(seg.ack - self.ack) < 1 << 30:
                self.ack = seg.ack
            self.fin |= bool(seg.flags & FIN)
            over = bool(seg.flags & FIN) and forward.fin
        if over:
            forward.proven, self.proven, forward.closed = False, False, True


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
    later: int = 0


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


def proves(seg: Seg, forward: Forward, reply: Reply) -> bool:
    """Only who saw the SYN-ACK knows the server's number."""
    return (
        seg.flags & (ACK | RST) == ACK
        and reply.isn is not None
        and forward.is_answered_by(seg.seq)
        and seg.ack == reply.isn + 1 & MASK
    )


def takes_later(seg: Seg, isn: int) -> bool:
    """Whether it is the SYN-ACK to a SYN of this number; 0: there was none."""
    opens = seg.flags & (SYN | ACK | RST | FIN) == SYN | ACK
    return bool(opens and isn) and (seg.ack - 1 - isn & MASK) < SYN_DATA_MAX
