# SPDX-License-Identifier: Apache-2.0
"""Tags of backends that have one of their own: put on, replaced, taken off, and back again."""

from __future__ import annotations

from typing import Any

from tests.support.frames import RST, Hop
from tests.support.icmp_frames import UNREACHABLE, icmp_error
from tests.support.program import DROP
from xdp_router.core import abi

from .bound import BACK, FLOW, THERE
from .case import Case, Then, answered, forwarded, has_flow, has_pending
from .degrade import rst_to_client, silent
from .first import OPEN
from .flows import decided, established, reply, reply_key
from .fragments import FOLLOWED, LONG, LONG_BACK, came, cut, narrow
from .handshake import LAST_ACK, SYNACK, daemon_decided, promoted_event
from .icmp import TO_BACKEND, TO_CLIENT, Side
from .orphans import DATA
from .world import (
    B1,
    CLIENT,
    CLIENT_MAC,
    MARK,
    OTHER_MAC,
    ROUTER_MAC_B,
    ROUTER_MAC_C,
    WEB,
    Given,
    from_backend,
    to_backend,
    to_client,
    to_service,
)

Tags = tuple[tuple[int, int], ...]
CHANGED = {"vlan_changed": 1}
ID7, NONE = abi.vlan_of(7), abi.VLAN_NONE
PRIO = 0xA000
"""Priority 5 in a tag."""
Q, AD = 0x8100, 0x88A8


def backend_vlan(vlan: int) -> Given:
    """What the backend's frames have for a tag."""
    flags = abi.BACKEND_UP | abi.BACKEND_STAGE
    return lambda world: world.change_server(B1, vlan=vlan, flags=flags)


def client_vlan(vlan: int, **rest: Any) -> Given:
    """An established flow whose client has this tag."""
    return established(server_side={"vlan": vlan, "flags": abi.FLOW_STAGE} | rest)


def there(name: str, vlan: int, before: Tags, after: Tags, counters: dict[str, int] = CHANGED,
          **rest: Any) -> Case:  # fmt: skip
    """The client's segment with its tags goes to the backend with others."""
    frame, out = to_service(THERE.but(tags=before)), to_backend(THERE.but(tags=after))
    rest = {"given": (*FLOW, backend_vlan(vlan))} | rest
    return forwarded(f"VLAN: {name}", frame, out, counters=counters, **rest)


def back(name: str, vlan: int, before: Tags, after: Tags, counters: dict[str, int] = CHANGED,
         **rest: Any) -> Case:  # fmt: skip
    """The backend's segment goes to the client likewise."""
    frame, out = from_backend(BACK.but(tags=before)), to_client(BACK.but(tags=after))
    rest = {"given": (client_vlan(vlan),)} | rest
    return forwarded(f"VLAN: {name}", frame, out, counters=counters, at="backend", **rest)


TAG, PUSH, SERVICE = abi.VLAN_TAG, abi.VLAN_PUSH, abi.VLAN_SERVICE
TO_BACKENDS = [
    there("put on", ID7, (), ((Q, 7),)),
    there("replaced, priority stays", ID7, ((Q, PRIO | 5),), ((Q, PRIO | 7),)),
    there("replaced, and stays an 802.1ad one", ID7, ((AD, 5),), ((AD, 7),)),
    there("only the outer one replaced", ID7, ((AD, 5), (Q, 6)), ((AD, 7), (Q, 6))),
    there("it has it already", ID7, ((Q, PRIO | 7),), ((Q, PRIO | 7),), {}),
    there("taken off", NONE, ((Q, PRIO | 5),), ()),
    there("only the outer one taken off", NONE, ((AD, 5), (Q, 6)), ((Q, 6),)),
    there("nothing to take off", NONE, (), (), {}),
    there("largest id", abi.vlan_of(4094), ((Q, 1),), ((Q, 4094),)),
    there("nothing said, though it goes by the stage", 0, ((Q, 5),), ((Q, 5),), {}),
]  # fmt: skip
TO_CLIENTS = [
    back("back: taken off", NONE, ((Q, 7),), ()),
    back("back: replaced", TAG | 5, ((Q, PRIO | 7),), ((Q, PRIO | 5),)),
    back("back: replaced by one of 802.1ad", TAG | SERVICE | 5, ((Q, 7),), ((AD, 5),)),
    back("back: put on", TAG | 5, (), ((Q, 5),)),
    back("back: one of 802.1ad put on", TAG | SERVICE | 5, (), ((AD, 5),)),
    back("back: put in front of another one", TAG | SERVICE | PUSH | 5, ((Q, 6),),
         ((AD, 5), (Q, 6))),
    back("back: the flag alone changes nothing", 0, ((Q, 7),), ((Q, 7),), {}),
    Case(name="VLAN: back: two tags are more than fits", verdict=DROP, at="backend",
         frame=from_backend(BACK.but(payload=bytes(1280 - 40), tags=((Q, 6),))),
         out=to_client(BACK.but(payload=bytes(1280 - 40), tags=((AD, 5), (Q, 6))))
         .replace(CLIENT_MAC + ROUTER_MAC_C, ROUTER_MAC_B + B1.mac),
         given=(client_vlan(TAG | SERVICE | PUSH | 5), narrow("client")),
         counters=CHANGED | {"too_big_dropped": 1}),
]  # fmt: skip


def reply_is(vlan: int) -> Then:
    """REPLY has the client's tag."""
    return has_pending("REPLY", reply_key(), vlan=vlan)


def _decided(name: str, vlan: int, before: Tags, after: Tags, noted: int) -> Case:
    """XDP decides, and the SYN goes with the backend's tag."""
    frame, out = to_service(OPEN.but(tags=before)), to_backend(OPEN.but(tags=after))
    counters = {"heartbeat_stale": 1, "decided_fallback": 1}
    return forwarded(f"VLAN: decided, {name}", frame, out, given=(silent, backend_vlan(vlan)),
                     counters=counters | (CHANGED if before != after else {}),
                     then=(reply_is(noted),))  # fmt: skip


DECIDED = [
    _decided("untagged", ID7, (), ((Q, 7),), NONE),
    _decided("tagged", ID7, ((Q, PRIO | 5),), ((Q, PRIO | 7),), TAG | 5),
    _decided("same tag", ID7, ((Q, 7),), ((Q, 7),), TAG | 7),
    _decided("802.1ad", ID7, ((AD, 5), (Q, 6)), ((AD, 7), (Q, 6)), TAG | SERVICE | 5),
    _decided("taken off", NONE, ((Q, 5),), (), TAG | 5),
    _decided("one of two taken off", NONE, ((AD, 5), (Q, 6)), ((Q, 6),), TAG | SERVICE | PUSH | 5),
    _decided("kept", 0, ((Q, 5),), ((Q, 5),), 0),
]


def _reply_value(vlan: int) -> tuple[Given, ...]:
    """A pending flow whose client has this tag, the backend 7."""
    seen, _, forward = decided()
    return seen, reply(synack=True, vlan=vlan), forward, backend_vlan(ID7)


PENDING = [
    forwarded("VLAN: SYN-ACK of a pending flow", from_backend(SYNACK.but(tags=((Q, 7),))),
              to_client(SYNACK.but(tags=((Q, 5),))), at="backend", counters=CHANGED,
              given=_reply_value(TAG | 5)),
    forwarded("VLAN: promotion notes the tag", to_service(LAST_ACK.but(tags=((Q, 5),))),
              to_backend(LAST_ACK.but(tags=((Q, 7),))), counters=CHANGED | {"promoted": 1},
              given=_reply_value(TAG | 5), event=promoted_event(),
              then=(has_flow("back", vlan=TAG | 5, flags=abi.FLOW_STAGE),
                    has_flow("there", vlan=0, flags=0))),
    forwarded("VLAN: a held SYN comes again", to_service(OPEN), to_backend(OPEN.but(
              tags=((Q, 7),))), mark=MARK, egress="backend",
              given=(daemon_decided(), backend_vlan(ID7)), counters=CHANGED | {"reinjected": 1}),
    forwarded("VLAN: a held SYN comes again without its tag", to_service(OPEN.but(
              tags=((Q, 5),))), to_backend(OPEN), mark=MARK, egress="backend",
              given=(daemon_decided(), backend_vlan(NONE)), counters=CHANGED | {"reinjected": 1}),
    answered("VLAN: an answer of ours has the request's tag",
             to_service(DATA.but(tags=((Q, 5),))), rst_to_client(DATA.ack, 0, RST, ((Q, 5),)),
             given=(backend_vlan(ID7),), counters={"orphan_reset": 1}),
]  # fmt: skip

MOVED = Hop(OTHER_MAC, ROUTER_MAC_C)
MOVES = [
    forwarded("VLAN: a client comes by another tag", THERE.but(tags=((Q, 6),)).frame(
              CLIENT, WEB, MOVED), to_backend(THERE.but(tags=((Q, 7),))),
              given=(client_vlan(TAG | 5), backend_vlan(ID7)),
              counters=CHANGED | {"client_moved": 1},
              then=(has_flow("back", vlan=TAG | 6, dmac=OTHER_MAC),)),
]  # fmt: skip


def _error(name: str, side: Side, given: tuple[Given, ...], before: Tags, after: Tags) -> Case:
    """An error about a flow's packet, translated, gets the other side's tag."""
    frame = side.error(UNREACHABLE, 1, side.embedded(side.there), tags=before)
    out = icmp_error(UNREACHABLE, 1, side.embedded(side.here), side.hop, side.here[0].addr,
                     side.goes, ttl=63, tags=after)  # fmt: skip
    return forwarded(f"VLAN: error about {name}", frame, out, at=side.at, given=given,
                     counters=CHANGED | {"icmp_translated": 1})  # fmt: skip


THERE_CUT = cut(to_service(LONG.but(tags=((Q, 5),))))
BACK_CUT = cut(from_backend(LONG_BACK.but(tags=((Q, 7),))))
REST = [
    _error("the backend's side", TO_BACKEND, (client_vlan(TAG | 5),), ((Q, 7),), ((Q, 5),)),
    _error("the client's side", TO_CLIENT, (*FLOW, backend_vlan(ID7)), (), ((Q, 7),)),
    forwarded("VLAN: later fragment to a backend", THERE_CUT[1],
              cut(to_backend(LONG.but(tags=((Q, 7),))))[1], counters=FOLLOWED | CHANGED,
              given=(*FLOW, backend_vlan(ID7), came(THERE_CUT[0]))),
    forwarded("VLAN: later fragment to a client", BACK_CUT[1],
              cut(to_client(LONG_BACK))[1], counters=FOLLOWED | CHANGED, at="backend",
              given=(client_vlan(NONE), came(BACK_CUT[0], "backend"))),
]  # fmt: skip

CASES = [*TO_BACKENDS, *TO_CLIENTS, *DECIDED, *PENDING, *MOVES, *REST]
