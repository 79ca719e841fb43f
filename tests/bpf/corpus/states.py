# SPDX-License-Identifier: Apache-2.0
"""Each kind of state that a frame can meet, with the segment that is at home there."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.frames import ACK, PSH, SYN, End, Segment
from xdp_router.core import abi

from .degrade import ALL_DOWN, full_ring, overdue, silent
from .first import OPEN
from .flows import decided, established, refused, seen
from .handoff import CAN_FORWARD, CAN_REPLY, by_kernel
from .orphans import hash_orphans
from .probes import ANSWER
from .world import (
    B1,
    B2,
    CLIENT,
    CLIENT_ISN,
    IN,
    PROBE_SOURCE,
    SERVER_ISN,
    WEB,
    Given,
    World,
)

THERE = Segment(flags=PSH | ACK, seq=CLIENT_ISN + 1, ack=SERVER_ISN + 1, payload=b"there")
BACK = Segment(flags=PSH | ACK, seq=SERVER_ISN + 1, ack=CLIENT_ISN + 1, payload=b"and back")
SYNACK = Segment(flags=SYN | ACK, seq=SERVER_ISN, ack=CLIENT_ISN + 1, options=OPEN.options)
OVER = {"state": abi.TcpState.CLOSING, "flags": abi.FLOW_FIN}


@dataclass(frozen=True, slots=True)
class State:
    """``bound``: backends whose packets for the client are ours, as the tables then are."""

    name: str
    given: tuple[Given, ...]
    segment: Segment
    at: str = "client"
    source: End = CLIENT
    target: End = WEB
    bound: tuple[End, ...] = ()

    def prepare(self, world: World) -> None:
        """Bring a world into this state."""
        world.reset()
        for step in self.given:
            step(world)

    def frame(self) -> bytes:
        """The segment in its frame."""
        hop = IN if self.at == "client" else B1.hop.back
        return self.segment.frame(self.source, self.target, hop)


def _from_client(name: str, segment: Segment, *given: Given, bound: tuple[End, ...] = ()) -> State:
    return State(name, given, segment, bound=bound)


def _from_backend(
    name: str, segment: Segment, *given: Given, bound: tuple[End, ...] = (B1.end,)
) -> State:
    return State(name, given, segment, "backend", B1.end, CLIENT, bound)


AT_B1 = (B1.end,)
STATES = [
    _from_client("first packet", OPEN),
    _from_client("first packet, daemon silent", OPEN, silent),
    _from_client("first packet, daemon silent, nobody up", OPEN, silent, *ALL_DOWN),
    _from_client("first packet, ring full", OPEN, full_ring),
    _from_client("held", OPEN, seen()),
    _from_client("held too long", OPEN, overdue),
    _from_client("orphan", THERE),
    _from_client("orphan, hashed", THERE, hash_orphans),
    _from_client("decided, SYN", OPEN, *decided(), bound=AT_B1),
    _from_client("decided on another backend", OPEN, *decided(server=B2), bound=(B2.end,)),
    _from_client("decided, data", THERE, *decided(), bound=AT_B1),
    _from_client("answered", THERE, *decided(synack=True), bound=AT_B1),
    _from_client("refused", OPEN, refused()),
    _from_client("established", THERE, established(), bound=AT_B1),
    _from_client("established, SYN", OPEN, established(), bound=AT_B1),
    _from_client(
        "established, handed over", THERE, established(), by_kernel(), CAN_FORWARD, bound=AT_B1
    ),
    _from_client("closing", THERE, established(OVER, OVER), bound=AT_B1),
    _from_client("closing, SYN", OPEN.but(seq=7), established(OVER, OVER), bound=AT_B1),
    _from_backend("SYN-ACK", SYNACK, *decided()),
    _from_backend("pending, from the backend", BACK, *decided(synack=True)),
    _from_backend("established, from the backend", BACK, established()),
    _from_backend("established, from the backend, handed over", BACK, established(), CAN_REPLY),
    _from_backend("closing, from the backend", BACK, established(OVER, OVER)),
    _from_backend("no state, from the backend", BACK, bound=()),
    State("answer to a probe", (), ANSWER, "backend", B1.end, PROBE_SOURCE),
    State("other traffic", (established(),), THERE, target=End("198.18.9.9", 80), bound=AT_B1),
]
