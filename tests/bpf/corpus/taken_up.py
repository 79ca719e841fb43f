# SPDX-License-Identifier: Apache-2.0
"""Services that the gateway of this host takes up: their packets are left to the kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.frames import ACK, FIN, PSH, RST, SYN, End, Segment
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.core import abi
from xdp_router.core.model import Endpoint

from .case import Case, forwarded, passed, tables_hold
from .first import OPEN, held
from .flows import established
from .wide import ALL, RANGE, WIDE, at, ranged, ranges
from .world import (
    CLIENT_ISN,
    SERVER_ISN,
    WEB,
    Given,
    World,
    flow_key,
    to_backend,
    to_service,
)

DATA = Segment(flags=PSH | ACK, seq=CLIENT_ISN + 1, ack=SERVER_ISN + 1, payload=b"data")
GATEWAY: dict[str, Any] = {"backend_count": 0, "flags": abi.SERVICE_GATEWAY}


def is_taken_up(world: World) -> None:
    """The first service has no backends: the gateway has it."""
    world.change_service(**GATEWAY)


def ranges_taken_up(*ranged_: tuple[Endpoint, int | None]) -> Given:
    """As ``ranges``, and all of them are the gateway's."""

    def write(world: World) -> None:
        ranges(*ranged_)(world)
        maps: Maps = world.maps
        for endpoint, number in ranged_:
            if number is not None:
                there = dataclasses.replace(endpoint, addr=world.native_addr(endpoint.addr))
                maps.services.write(there, dataclasses.replace(world.service(number), **GATEWAY))

    return write


def left(name: str, segment: Segment, *given: Given, to: End = WEB) -> Case:
    """It passes as it is, is counted, and leaves no entry."""
    then = (tables_hold(0, 0),)
    return passed(
        f"gateway: {name}", to_service(segment, to), "pass_gateway", given=given, then=then
    )


CASES = [
    left("a SYN", OPEN, is_taken_up),
    left("a segment", DATA, is_taken_up),
    left("a FIN", Segment(flags=FIN | ACK, seq=CLIENT_ISN + 1, ack=1), is_taken_up),
    left("a RST", Segment(flags=RST, seq=CLIENT_ISN + 1), is_taken_up),
    left("a SYN-ACK, which is no client's", Segment(flags=SYN | ACK, ack=1), is_taken_up),
    left("though nobody answers for the daemon", OPEN, is_taken_up,
         lambda world: world.limit(heartbeat_ns=1)),
    left("one of a range", OPEN, ranges_taken_up((RANGE, 1)), to=WIDE),
    left("a segment of a range", DATA, ranges_taken_up((RANGE, 1)), to=WIDE),
    left("one of a whole address", OPEN, ranges_taken_up((ALL, 1)), to=at(4000)),
    left("a port in the range of another service", OPEN, is_taken_up, ranges((ALL, 1))),
    held("gateway: a port beside it, of another service", to_service(OPEN, WIDE),
         {"service": 1, "key": flow_key(WIDE)}, given=(is_taken_up, ranges((ALL, 1)))),
    held("gateway: a range with backends in one of the gateway's", to_service(OPEN, WIDE),
         {"service": 1, "key": flow_key(WIDE)},
         given=(ranges_taken_up((ALL, 0)), ranges((RANGE, 1), (ALL, None)))),
    passed("gateway: a port that its range leaves out", to_service(OPEN, at(8050)),
           "pass_not_service",
           given=(ranges_taken_up((ranged(8050, 8050), None), (RANGE, 1)),)),
    forwarded("gateway: a flow that had a backend before", to_service(DATA), to_backend(DATA),
              given=(established(), is_taken_up)),
]  # fmt: skip
