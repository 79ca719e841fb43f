# SPDX-License-Identifier: Apache-2.0
"""What flows show of a backend: the time to its first answer, and how many it has open."""

from __future__ import annotations

from typing import Any

from tests.support.frames import ACK, FIN, PSH, RST, Segment
from xdp_router.core import abi

from . import direct, restart, udp_bound, udp_flows
from .case import NOW, Case, Then, forwarded
from .first import held
from .flows import (
    AGE_NS,
    decided,
    established,
    forward_key,
    forward_value,
    put_pending,
    reply_key,
    reply_value,
)
from .handshake import LAST_ACK, SYNACK, promoted_event
from .inline import load
from .isn import CLOSING, OTHER, OTHER_ISN
from .udp import HELLO
from .udp_bound import ANSWER, PROMOTED_EVENT
from .world import (
    B1,
    CLIENT_ISN,
    MS,
    SECOND,
    SERVER_ISN,
    Given,
    Server,
    World,
    from_backend,
    to_backend,
    to_client,
    to_service,
)

SAMPLE = range(AGE_NS - 2 * MS, SECOND)
"""From the SYN's departure, 2 ms after it was seen, until now."""
BEFORE = 8 * MS


def shows(server: Server = B1, **wanted: Any) -> Then:
    """What the program has written of a backend."""

    def look(world: World, started_ns: int) -> None:
        found = world.maps.backend_loads.read(server.id)
        for name, value in wanted.items():
            have = getattr(found, name)
            fits = have in value if isinstance(value, range) else have == value
            assert have >= started_ns if value == NOW else fits, (name, have, value)

    return look


def answered(name: str, *given: Given, segment: Segment = SYNACK, **wanted: Any) -> Case:
    """The backend's segment goes to the client."""
    return forwarded(f"load: {name}", from_backend(segment), to_client(segment), at="backend",
                     given=given, then=(shows(**wanted),))  # fmt: skip


def asked_long_ago(world: World) -> None:
    """The first packet left 2 s ago, and again since."""
    ago_ns = world.now_ns - 2 * SECOND
    put_pending(world, reply_key(), reply_value(world, seen_ns=ago_ns))
    put_pending(world, forward_key(), forward_value(world, packets=2, seen_ns=ago_ns))


HALF_SAMPLE = range(BEFORE + (AGE_NS - 2 * MS - BEFORE) // 8, BEFORE + (SECOND - BEFORE) // 8)
ANSWERS = [
    answered("the first sample is the average", load(B1), *decided(), ewma_ns=SAMPLE,
             last_ns=NOW),
    answered("an eighth of it is of the newest", load(B1, BEFORE), *decided(),
             ewma_ns=HALF_SAMPLE, last_ns=NOW),
    answered("an old average is forgotten", load(B1, BEFORE, old=True), *decided(),
             ewma_ns=SAMPLE, last_ns=NOW),
    answered("nobody waits any more", load(B1, BEFORE, waiting_ns=MS), *decided(), waiting_ns=0),
    answered("a SYN-ACK that is sent again says nothing", load(B1, BEFORE, waiting_ns=0),
             *decided(synack=True), ewma_ns=BEFORE),
    answered("a SYN that was sent again says nothing of the time, but that one lives",
             load(B1, BEFORE, waiting_ns=MS), asked_long_ago, ewma_ns=BEFORE, waiting_ns=0),
    answered("a refusal is no answer", load(B1, BEFORE, waiting_ns=2 * SECOND), *decided(),
             segment=SYNACK.but(flags=RST | ACK, options=()), ewma_ns=BEFORE,
             waiting_ns=range(1, 1 << 62)),
    udp_bound.answers("load: the first answer", ANSWER, shows(ewma_ns=SAMPLE, last_ns=NOW),
                      given=(load(B1), *udp_flows.decided())),
    udp_bound.answers("load: another answer says nothing", ANSWER, shows(ewma_ns=BEFORE),
                      given=(load(B1, BEFORE), *udp_flows.decided(1, 1))),
]  # fmt: skip

# --- open flows -------------------------------------------------------------------------------

SOME = load(B1, BEFORE, open_=10)
FIN_SEEN = {"flags": abi.FLOW_FIN}
END = Segment(flags=FIN | ACK, seq=CLIENT_ISN + 1, ack=SERVER_ISN + 1)
MORE = Segment(flags=PSH | ACK, seq=CLIENT_ISN + 1, ack=SERVER_ISN + 1, payload=b"more")


def counts(name: str, segment: Segment, *given: Given, opened: int = 10, closed: int = 0,
           **rest: Any) -> Case:  # fmt: skip
    """The client's segment; so many flows have come and gone after it."""
    return forwarded(f"open: {name}", to_service(segment), to_backend(segment),
                     given=(SOME, *given), then=(shows(opened=opened, closed=closed),),
                     **rest)  # fmt: skip


OPEN = [
    counts("a flow that is established", LAST_ACK, *decided(synack=True), opened=11,
           counters={"promoted": 1}, event=promoted_event()),
    counts("one side has said goodbye", END, established(), closed=0),
    counts("both have", END, established({}, FIN_SEEN), closed=1),
    counts("again, when it is counted already", END,
           established(FIN_SEEN | CLOSING, FIN_SEEN | CLOSING)),
    counts("a RST", END.but(flags=RST), established(), closed=1),
    counts("a RST that is not believed", END.but(flags=RST, seq=CLIENT_ISN + 99), established(),
           counters={"rst_inexact": 1}),
    counts("it lives on", MORE, established(CLOSING, CLOSING), opened=11,
           counters={"closing_revoked": 1}),
    forwarded("open: both have, the backend last", from_backend(END.but(
        seq=SERVER_ISN + 1, ack=CLIENT_ISN + 1)), to_client(END.but(
            seq=SERVER_ISN + 1, ack=CLIENT_ISN + 1)), at="backend",
        given=(SOME, established(FIN_SEEN)), then=(shows(opened=10, closed=1),)),
    held("open: one that was over goes with the SYN of another, and is not counted twice",
         to_service(OTHER), {"seq": OTHER.seq}, given=(SOME, established(CLOSING, CLOSING)),
         counters={"syn_reopened": 1, "first_packet": 1},
         then=(shows(opened=10, closed=0),)),
    held("open: one that was idle goes with the SYN of another", to_service(OTHER),
         {"seq": OTHER.seq}, given=(SOME, established(), lambda world: world.change_control(
             flow_idle_ns=AGE_NS // 2)),
         counters={"syn_reopened": 1, "first_packet": 1}, then=(shows(opened=10, closed=1),)),
    restart.hears("open: begun anew while it was open", restart.NEW,
                  shows(opened=10, closed=0), given=(SOME, restart.NOTED),
                  counters={"flow_restarted": 1}),
    restart.hears("open: begun anew when it was over", restart.NEW, shows(opened=11, closed=0),
                  given=(SOME, established(
                      restart.CLOSED | CLOSING | {"later_syn": OTHER_ISN},
                      restart.CLOSED | CLOSING | {"later_syn": 9})),
                  counters={"flow_restarted": 1}),
    udp_bound.sends("open: established", HELLO, shows(opened=11),
                    given=(SOME, *udp_flows.decided(1, 1)), counters={"promoted": 1},
                    event=PROMOTED_EVENT),
]  # fmt: skip

ONE_SIDED = [
    direct.dsr(f"open: {name}", segment, given=(SOME, direct.by(direct.DSR), *given),
               then=(shows(opened=opened, closed=closed),), **rest)
    for name, segment, given, opened, closed, rest in (
        ("a FIN", direct.FIRST_ACK.but(flags=FIN | ACK), (direct.established(),), 10, 1, {}),
        ("a RST", direct.FIRST_ACK.but(flags=RST), (direct.established(),), 10, 1, {}),
        ("data behind a FIN", direct.DATA,
         (direct.established(**CLOSING, flags=abi.FLOW_ONE_SIDED | abi.FLOW_FIN),), 11, 0,
         {"counters": {"closing_revoked": 1}}),
    )
]  # fmt: skip

CASES = [*ANSWERS, *OPEN, *ONE_SIDED]
