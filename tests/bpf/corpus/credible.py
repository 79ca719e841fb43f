# SPDX-License-Identifier: Apache-2.0
"""Which segments move what is tracked: those that follow on, or that the other side bears out."""

from __future__ import annotations

from typing import Any

from tests.support.frames import ACK, FIN, Segment
from xdp_router.core import abi

from .bound import LENGTH, THERE, there
from .case import Case, forwarded, has_flow
from .flows import established, flow_keys, forward_entry, put_flow
from .world import (
    CLIENT_ISN,
    CLIENT_MAC,
    CLIENT_SCALE,
    ROUTER_MAC_C,
    SERVER_ISN,
    Given,
    World,
    to_backend,
    to_service,
)

START, ACKED = CLIENT_ISN + 1, SERVER_ISN + 1
OFFERED, ROOM = 1000, 500
"""What the client has offered the backend to send, and the backend the client."""

STAYED = {"seq_next": START, "ack": ACKED, "window": OFFERED, "first_data_us": 0}
MOVED = {
    "seq_next": START + LENGTH,
    "window": THERE.window << CLIENT_SCALE,
    "first_data_us": range(5_000, 60_000_000),
}


def _case(
    name: str, change: dict[str, Any], after: dict[str, Any], sent: int = 0, **client: Any
) -> Case:
    """The backend has sent ``sent`` bytes that the client has not acknowledged."""
    there_before = {"window": OFFERED} | client
    back_before = {"window": ROOM, "seq_next": ACKED + sent}
    return there(
        f"tracking: {name}",
        THERE.but(**change),
        given=(established(there_before, back_before),),
        then=(has_flow("there", **after),),
    )


def _alone(world: World) -> None:
    """The backend's direction was aged out."""
    put_flow(world, flow_keys()[0], forward_entry(world))


def _fin(name: str, change: dict[str, Any], after: dict[str, Any]) -> Case:
    return _case(f"FIN {name}", {"flags": FIN | ACK} | change, after | {"flags": abi.FLOW_FIN})


GATEWAY = bytes.fromhex("020000000c77")


def _moved(name: str, follows: bool, segment: Segment, *given: Given) -> Case:
    """A segment of the client's that comes in by another next hop than before."""
    frame = to_service(segment)
    hop = GATEWAY if follows else CLIENT_MAC
    return forwarded(
        f"client's next hop: {name}",
        frame[:6] + GATEWAY + frame[12:],
        to_backend(segment),
        counters={"client_moved": 1} if follows else {},
        given=given or (established({"window": OFFERED}),),
        then=(has_flow("there", dmac=hop), has_flow("back", dmac=hop, smac=ROUTER_MAC_C)),
    )


def _came_elsewhere(world: World) -> None:
    """Its frames used to come by another interface."""
    established({"window": OFFERED, "ifindex": 1}, {"ifindex": 1})(world)


CASES = [
    _moved("the segment that comes next moves it", True, THERE),
    _moved("a gap does not", False, THERE.but(seq=START + 1)),
    _moved("what was sent before does not", False, THERE.but(seq=START - LENGTH)),
    _moved("an acknowledgement beyond what was offered does not", False,
           THERE.but(ack=ACKED + OFFERED + 1)),
    there("client's interface: replies follow", THERE, counters={"client_moved": 1},
          given=(_came_elsewhere,),
          then=(lambda world, _at: has_flow("back", ifindex=world.wires.client)(world, _at),)),
    _fin("that follows on", {}, MOVED | {"seq_next": START + LENGTH + 1, "ack": ACKED}),
    _fin("with an invented acknowledgement moves nothing", {"ack": ACKED + (1 << 29)}, STAYED),
    _fin("guessed into the window with one moves nothing",
         {"seq": START + 100, "ack": ACKED + (1 << 29)}, STAYED),
    _case("the next bytes", {}, MOVED | {"ack": ACKED}),
    _case("a gap for which there is room", {"seq": START + 200},
          MOVED | {"seq_next": START + 200 + LENGTH}),
    _case("a gap up to the last byte of the room", {"seq": START + ROOM},
          MOVED | {"seq_next": START + ROOM + LENGTH}),
    _case("a gap beyond the room moves nothing", {"seq": START + ROOM + 1}, STAYED),
    _case("bytes that were sent before", {"seq": START - LENGTH},
          {"seq_next": START, "window": MOVED["window"]}),
    _case("bytes of which some are new", {"seq": START - 4},
          MOVED | {"seq_next": START - 4 + LENGTH}),
    _case("acknowledges all that was offered", {"ack": ACKED + OFFERED},
          MOVED | {"ack": ACKED + OFFERED}),
    _case("acknowledges more than was offered, which moves nothing",
          {"ack": ACKED + OFFERED + 1}, STAYED),
    _case("acknowledges more than was offered, and it was sent",
          {"ack": ACKED + OFFERED + 1}, MOVED | {"ack": ACKED + OFFERED + 1}, OFFERED + 1),
    _case("a gap, and an acknowledgement of the last byte sent",
          {"seq": START + 200, "ack": ACKED + 7}, MOVED | {"seq_next": START + 200 + LENGTH,
                                                           "ack": ACKED + 7}, 7),
    # As of a flow whose first segments here were copies of earlier ones: both sides are behind.
    _case("a gap, and an acknowledgement of what was not seen, but was offered room for",
          {"seq": START + 200, "ack": ACKED + OFFERED},
          MOVED | {"seq_next": START + 200 + LENGTH, "ack": ACKED + OFFERED}, 7),
    _case("a gap, and an acknowledgement of what was neither seen nor offered, moves nothing",
          {"seq": START + 200, "ack": ACKED + OFFERED + 1}, STAYED, 7),
    _case("an old acknowledgement by a segment that follows", {"ack": ACKED - 100},
          {"seq_next": START + LENGTH, "ack": ACKED, "window": OFFERED}),
    _case("forged numbers far away move nothing",
          {"seq": START + (1 << 29), "ack": ACKED + (1 << 29)}, STAYED),
    _case("forged acknowledgement half way round moves nothing that counts",
          {"ack": ACKED + (1 << 31)}, {"ack": ACKED, "window": OFFERED}),
    _case("forged number behind moves nothing", {"seq": START - (1 << 30), "ack": ACKED + 5000},
          STAYED),
    _case("bytes that were acknowledged long ago", {"seq": START - LENGTH - 90},
          {"seq_next": START, "window": MOVED["window"]}),
    there("tracking: a segment that follows needs no word of the other side",
          THERE.but(ack=ACKED - 1), given=(_alone,),
          then=(has_flow("there", seq_next=START + LENGTH, ack=ACKED),)),
    there("tracking: a gap that nobody can bear out moves nothing", THERE.but(seq=START + 1),
          given=(_alone,), then=(has_flow("there", seq_next=START, ack=ACKED),)),
]  # fmt: skip
