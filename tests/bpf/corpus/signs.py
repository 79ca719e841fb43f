# SPDX-License-Identifier: Apache-2.0
"""What flows show of a backend's health: who is answered, served, refused, cut, unreachable."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.frames import ACK, FIN, RST, Segment
from tests.support.icmp_frames import FRAG_NEEDED, TIME_EXCEEDED, UNREACHABLE
from xdp_router.core import abi
from xdp_router.core.model import Signs

from . import direct, udp_bound, udp_flows
from .bound import BACK
from .case import Case, Then, forwarded, has_pending
from .flows import (
    decided,
    established,
    forward_key,
    forward_value,
    put_pending,
    reply_key,
    reply_value,
)
from .handshake import SYNACK
from .icmp import TO_BACKEND, TO_CLIENT
from .isn import SAME, goes_on
from .udp_bound import ANSWER
from .world import (
    B1,
    CLIENT_ISN,
    IN,
    SECOND,
    SERVER_ISN,
    Given,
    World,
    from_backend,
    to_backend,
    to_client,
    to_service,
)


def fresh(world: World) -> None:
    """Nothing was seen yet."""
    world.maps.backend_signs.reset(B1.id)


def shows(**wanted: int) -> Then:
    """Just that was seen of the backend; of what is bad, of how many sources."""

    def look(world: World, _started_ns: int) -> None:
        found = world.maps.backend_signs.read(B1.id)
        assert dataclasses.replace(found, source=0) == Signs(**wanted), found
        assert bool(found.source) is bool(found.sources)

    return look


def old(*, reply: dict[str, Any] | None = None, **forward: Any) -> Given:
    """A flow that was decided a second ago, its SYN sent on."""

    def put(world: World) -> None:
        ago_ns = world.now_ns - SECOND
        put_pending(world, reply_key(), reply_value(world, seen_ns=ago_ns, **(reply or {})))
        put_pending(world, forward_key(), forward_value(world, seen_ns=ago_ns, **forward))

    return put


def says(name: str, segment: Segment, *given: Given, counters: dict[str, int] | None = None,
         **wanted: int) -> Case:  # fmt: skip
    """The backend's segment goes to the client, and so much is noted."""
    return forwarded(f"signs: {name}", from_backend(segment), to_client(segment), at="backend",
                     given=(fresh, *given), then=(shows(**wanted),),
                     counters=counters or {})  # fmt: skip


def again(name: str, *given: Given, then: tuple[Then, ...] = (), **wanted: int) -> Case:
    """The client's SYN comes again."""
    return goes_on(f"signs: {name}", SAME, "syn_retransmit", fresh, *given,
                   then=(shows(**wanted), *then))  # fmt: skip


REFUSAL = SYNACK.but(flags=RST | ACK, options=(), seq=0)
NOTED = (has_pending("FORWARD", forward_key(), flags=abi.PENDING_AGAIN, packets=2),)

HANDSHAKES = [
    says("a SYN-ACK", SYNACK, *decided(), answered=1),
    says("it comes again", SYNACK, *decided(synack=True)),
    says("a refusal", REFUSAL, *decided(), refused=1, sources=1),
    says("a refusal comes again, for the client's next SYN", REFUSAL,
         old(flags=abi.PENDING_CLOSED)),
    says("somebody's guess at a refusal", REFUSAL.but(ack=CLIENT_ISN + 99), *decided()),
    says("a RST behind the SYN-ACK", REFUSAL.but(seq=SERVER_ISN + 1), *decided(synack=True),
         cut=1, sources=1),
    again("a SYN that is not answered comes again", old(), unanswered=1, sources=1, then=NOTED),
    again("and once more: each flow says it once", old(flags=abi.PENDING_AGAIN)),
    again("it was refused", old(flags=abi.PENDING_CLOSED)),
    again("too soon: somebody's copy", *decided()),
    again("the SYN-ACK was lost behind us", old(
        reply={"flags": abi.PENDING_SYNACK, "isn": SERVER_ISN})),
    direct.dsr("signs: of one-sided flows nobody sees the answer", SAME,
               given=(fresh, *direct.PENDING), counters={"syn_retransmit": 1}, then=(shows(),)),
]  # fmt: skip

END = Segment(flags=RST, seq=SERVER_ISN + 1, ack=CLIENT_ISN + 1)
GONE = {"flags": abi.FLOW_FIN}


def leaves(name: str, *given: Given, **wanted: int) -> Case:
    """The client's RST goes to the backend."""
    segment = END.but(seq=CLIENT_ISN + 1, ack=0)
    return forwarded(f"signs: {name}", to_service(segment), to_backend(segment),
                     given=(fresh, *given), then=(shows(**wanted),))  # fmt: skip


def long_ago(world: World) -> None:
    """The flow has begun 2 s ago."""
    begun = {"seen_ns": world.now_ns - 2 * SECOND}
    established(begun, begun)(world)


ESTABLISHED = [
    says("accepted, and reset before a word", END, established(), cut=1, sources=1),
    says("reset after a word", END, established({}, {"first_data_us": 9})),
    says("reset after a while", END, long_ago),
    says("reset when its client had left", END, established(GONE)),
    says("reset once more", END, established({}, {"flags": abi.FLOW_RST})),
    says("reset behind its FIN", END, established({}, GONE)),
    says("somebody's guess at a RST", END.but(seq=SERVER_ISN + 99), established(),
         counters={"rst_inexact": 1}),
    leaves("the client has reset", established()),
    says("its first word", BACK, established(), served=1),
    says("its next word", BACK, established({}, {"first_data_us": 9})),
    says("a bare acknowledgement", BACK.but(payload=b"", flags=ACK), established()),
    says("a FIN is no word", BACK.but(payload=b"", flags=FIN | ACK), established()),
    udp_bound.answers("signs: the first answer", ANSWER, shows(answered=1),
                      given=(fresh, *udp_flows.decided())),
    udp_bound.answers("signs: another one", ANSWER, shows(),
                      given=(fresh, *udp_flows.decided(1, 1))),
    udp_bound.answers("signs: the first word of a flow", ANSWER, shows(served=1),
                      given=(fresh, udp_flows.established())),
]  # fmt: skip

ELSEWHERE = dataclasses.replace(TO_BACKEND, at="client", came=IN)

ERRORS = [
    TO_BACKEND.translated("signs: unreachable", UNREACHABLE, 1, given=(fresh, established()),
                          then=(shows(unreachable=1, sources=1),)),
    TO_BACKEND.translated("signs: its port is closed", UNREACHABLE, 3,
                          given=(fresh, *decided()), then=(shows(unreachable=1, sources=1),)),
    TO_BACKEND.translated("signs: on the way", TIME_EXCEEDED, 0, given=(fresh, established()),
                          then=(shows(),)),
    TO_BACKEND.translated("signs: too big", UNREACHABLE, FRAG_NEEDED,
                          given=(fresh, established()), then=(shows(),)),
    TO_CLIENT.translated("signs: the client is unreachable", UNREACHABLE, 1,
                         given=(fresh, established()), then=(shows(),)),
    ELSEWHERE.translated("signs: not by the backend's own way", UNREACHABLE, 1,
                         given=(fresh, established()), then=(shows(),)),
]  # fmt: skip

CASES = [*HANDSHAKES, *ESTABLISHED, *ERRORS]
