# SPDX-License-Identifier: Apache-2.0
"""Flows whose backend has died: their clients are told, segment by segment, and come back anew."""

from __future__ import annotations

from typing import Any

from tests.support.frames import ACK, FIN, RST, Segment
from tests.support.program import DROP
from xdp_router.core import abi

from . import direct, udp, udp_flows
from .bound import BACK, LENGTH, THERE
from .case import Case, answered, forwarded, has_flow, tables_hold
from .degrade import down, no_path, rst_to_client
from .first import OPEN, held
from .flows import decided, established
from .foreign import without_stage
from .fragments import LONG, came, cut
from .world import (
    B1,
    CLIENT,
    CLIENT_ISN,
    CLIENT_SCALE,
    SERVER_ISN,
    Given,
    from_backend,
    to_client,
    to_service,
)

DEAD = down(B1, abi.BACKEND_DEAD)
KILLED: dict[str, Any] = {
    "state": abi.TcpState.CLOSING,
    "flags": abi.FLOW_KILLED | abi.FLOW_RST,
}
BOTH_KILLED = (has_flow("there", **KILLED), has_flow("back", **KILLED), tables_hold(0, 2))
FLOW, KILLED_FLOW = established(), established(KILLED, KILLED)


def told(name: str, segment: Segment, *given: Given, **rest: Any) -> Case:
    """The client's segment is answered by a RST at what it acknowledges."""
    rest = {"counters": {"killed_reset": 1}, "then": BOTH_KILLED} | rest
    return answered(f"killed: {name}", to_service(segment), rst_to_client(segment.ack, 0, RST),
                    given=given, **rest)  # fmt: skip


def answer_to_backend(segment: Segment) -> bytes:
    """The RST that a backend gets for a segment."""
    reset = Segment(flags=RST, seq=segment.ack, ack=0, window=0, ttl=64, ident=0, payload=b"")
    return reset.frame(CLIENT, B1.end, B1.hop)


def later(name: str, pieces: tuple[bytes, bytes], *given: Given) -> Case:
    """A later fragment goes nowhere: neither to the backend nor to the host."""
    return Case(name=f"killed: a later fragment {name}", frame=pieces[1], verdict=DROP,
                counters={"fragment_followed": 1, "fragment_dropped": 1},
                given=(*given, came(pieces[0]), DEAD))  # fmt: skip


THERE_CUT = cut(to_service(LONG))
LONG_ASK = udp.HELLO.but(payload=bytes(200), dont_fragment=False)
BOTH = {"killed": 1, "killed_reset": 1}
BEGINS_ANEW = {"killed_anew": 1, "first_packet": 1}
OF_NOBODY = (tables_hold(1, 0),)

CASES = [
    told("data of an established flow", THERE, DEAD, FLOW, counters=BOTH),
    told("a bare acknowledgement", THERE.but(flags=ACK, payload=b""), DEAD, FLOW, counters=BOTH),
    told("a FIN", THERE.but(flags=FIN | ACK), DEAD, FLOW, counters=BOTH,
         then=(has_flow("there", **KILLED | {"flags": KILLED["flags"] | abi.FLOW_FIN}),
               has_flow("back", **KILLED))),
    told("the next one", THERE, DEAD, KILLED_FLOW),
    told("the backend is back: it is over all the same", THERE, KILLED_FLOW),
    Case(name="killed: a RST is never answered", frame=to_service(THERE.but(flags=RST)),
         verdict=DROP, given=(DEAD, KILLED_FLOW), counters={"orphan_dropped": 1},
         then=BOTH_KILLED),
    forwarded("killed: what the backend says before the client speaks passes", from_backend(BACK),
              to_client(BACK), given=(DEAD, FLOW), at="backend"),
    answered("killed: a backend that is back is told, too", from_backend(BACK),
             answer_to_backend(BACK), given=(KILLED_FLOW,), at="backend",
             counters={"killed_reset": 1}, then=BOTH_KILLED),
    held("killed: a new connection of the same port", to_service(OPEN.but(seq=CLIENT_ISN + 9)),
         {"seq": CLIENT_ISN + 9}, given=(DEAD, KILLED_FLOW), then=OF_NOBODY,
         counters={"syn_reopened": 1, "first_packet": 1}),
    held("killed: its SYN again, and it was never told", to_service(OPEN), given=(DEAD, FLOW),
         then=OF_NOBODY, counters=BEGINS_ANEW | {"syn_retransmit": 1}),
    held("killed: SYN of a flow without answer", to_service(OPEN), given=(DEAD, *decided()),
         then=OF_NOBODY, counters=BEGINS_ANEW | {"syn_retransmit": 1}),
    held("a SYN again whose backend has lost its way: decided anew", to_service(OPEN),
         given=(*decided(), no_path(B1)), then=OF_NOBODY,
         counters={"syn_reopened": 1, "first_packet": 1}),
    Case(name="a SYN again of an established flow without a way waits for it",
         frame=to_service(OPEN), verdict=DROP, given=(FLOW, no_path(B1)),
         counters={"syn_retransmit": 1, "no_path": 1}, then=(tables_hold(0, 2),)),
    told("handshake done, no place yet",
         THERE.but(flags=ACK, payload=b"", seq=CLIENT_ISN + 77, ack=SERVER_ISN + 77), DEAD,
         *decided(synack=True), then=(tables_hold(3, 0),)),
    answered("killed: by dsr", to_service(THERE), rst_to_client(THERE.ack, 0, RST),
             given=(direct.by(abi.BACKEND_DEAD | abi.BACKEND_ONE_SIDED), direct.established()),
             counters=BOTH,
             then=(direct.has_entry(flags=abi.FLOW_ONE_SIDED | KILLED["flags"],
                                    state=KILLED["state"], open=0, seq_next=THERE.seq + LENGTH,
                                    window=THERE.window << CLIENT_SCALE),)),
    udp.first("killed: the next datagram is a first one", given=(
        *udp.SERVICE, udp_flows.established(), DEAD), then=(tables_hold(1, 0),),
        counters={"killed_anew": 1, "datagram_first": 1}),
    udp.first("killed: likewise of a flow that is not established", given=(
        *udp_flows.decided(), DEAD), then=(tables_hold(1, 0),),
        counters={"killed_anew": 1, "datagram_first": 1}),
    answered("killed: a first fragment has the answer for all", THERE_CUT[0],
             rst_to_client(THERE.ack, 0, RST), given=(FLOW, DEAD),
             counters=BOTH | {"fragment_first": 1}, then=BOTH_KILLED),
    later("of a flow", THERE_CUT, FLOW),
    Case(name="killed: a later fragment of one that was told, and the backend is back",
         frame=THERE_CUT[1], verdict=DROP, counters={"fragment_dropped": 1},
         given=(KILLED_FLOW, came(THERE_CUT[0]))),
    later("of a pending flow", THERE_CUT, *decided()),
    later("of UDP", cut(udp_flows.ask(LONG_ASK)), *udp.SERVICE, udp_flows.established()),
    Case(name="killed: without its stage", frame=to_service(THERE), verdict=DROP,
         given=(DEAD, FLOW, without_stage(abi.Stage.KILLED)), counters={"tail_call_missed": 1}),
]  # fmt: skip
