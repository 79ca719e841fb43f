# SPDX-License-Identifier: Apache-2.0
"""UDP by ``dsr``: no answers come through here, the client alone is followed.

And what is the same by every method: the daemon's datagrams come before those behind them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.support.frames import Hop
from tests.support.udp_frames import PROTOCOL, Datagram
from xdp_router.core import abi
from xdp_router.core.model import Endpoint, Mode, Reason

from .case import RECENT, Case, Then, forwarded, has_pending, tables_hold
from .degrade import silent
from .direct import DSR
from .direct import entry as tcp_entry
from .flows import put_flow, put_pending, read_flow, reply_value
from .udp import HELLO, later
from .udp_bound import PROMOTED_EVENT
from .udp_flows import ask, asked, decided, forward, has_forward, key, seen, service
from .udp_flows import reply as rewritten_reply
from .world import (
    B1,
    B2,
    CLIENT,
    IN,
    MARK,
    OTHER_MAC,
    ROUTER_MAC_C,
    SECOND,
    WEB,
    Given,
    Server,
    World,
    endpoint_of,
)

REPLY_KEY = abi.pack_reply_key(endpoint_of(WEB, PROTOCOL), key(), abi.Kind.REPLY)
FLOW_KEY = abi.pack_flow_key(key())
SAME: dict[str, Any] = {"new_daddr": WEB.number, "new_dport": WEB.port}
MOVED = Hop(OTHER_MAC, ROUTER_MAC_C)


def sent(datagram: Datagram = HELLO) -> bytes:
    """The client's datagram with B1's MAC, and nothing else changed but its TTL."""
    return datagram.but(ttl=datagram.ttl - 1).frame(CLIENT, WEB, B1.hop)


def _dsr(world: World) -> None:
    """B1 is reached by its MAC."""
    service()(world)
    world.change_server(B1, flags=abi.BACKEND_UP | DSR, port=WEB.port)
    world.maps.backend_index.write(Endpoint(B1.end.number, WEB.port, PROTOCOL), B1.id, 0)


def _reply(server: Server = B1) -> Given:
    """REPLY, which no reply needs; ``server`` is whom its decision was for."""

    def put(world: World) -> None:
        value = dataclasses.replace(reply_value(world, server), isn=0, wscale=abi.NO_WSCALE)
        put_pending(world, REPLY_KEY, value)

    return put


def _pending(packets: int, server: Server = B1, **change: Any) -> tuple[Given, ...]:
    """Decided, and so many datagrams have passed."""
    return _dsr, _reply(server), forward(packets=packets, fppl_ns=2_000_000, **SAME, **change)


def _established(silence_ns: int) -> Given:
    """An established flow that was silent for so long, by the heartbeat."""

    def put(world: World) -> None:
        _dsr(world)
        value = tcp_entry(world, seq_next=0, ack=0, window=0, wscale=0, isn=0, last_seen_ns=1)
        put_flow(world, FLOW_KEY, value)
        world.change_control(heartbeat_ns=1 + silence_ns)

    return put


def has_entry(**wanted: Any) -> Then:
    """The one entry of the flow has these values."""

    def look(world: World, started_ns: int) -> None:
        found = read_flow(world, FLOW_KEY)
        assert found is not None, "no entry"
        wrong = {name: getattr(found, name) for name, value in wanted.items()
                 if getattr(found, name) != value}  # fmt: skip
        assert not wrong, wrong

    return look


def by_dsr(name: str, *then: Then, given: tuple[Given, ...], **rest: Any) -> Case:
    """The client's datagram goes to B1."""
    frame = ask(HELLO, hop=rest.pop("hop", IN))
    return forwarded(f"UDP by dsr: {name}", frame, sent(), given=given, then=then, **rest)


PROMOTED = {"event": PROMOTED_EVENT | {"synack_us": 0}, "counters": {"one_sided_promoted": 1}}
ONE = {"flags": abi.FLOW_ONE_SIDED, "l3_delta": 0, "l4_delta": 0, "backend": B1.id} | SAME
REINJECTED: dict[str, Any] = {"mark": MARK, "egress": "backend", "counters": {"reinjected": 1}}

CASES = [
    by_dsr("XDP decides", has_forward(backend=B1.id, packets=1, last_seen_ns=RECENT, **SAME),
           has_pending("REPLY", REPLY_KEY, mode=Mode.FALLBACK, reason=Reason.NO_HEARTBEAT),
           tables_hold(2, 0), given=(_dsr, silent),
           counters={"heartbeat_stale": 1, "decided_fallback": 1}),
    by_dsr("a held one", has_forward(packets=1), tables_hold(3, 0),
           given=(*_pending(0), seen()), **REINJECTED),
    by_dsr("the next of the held: pending still, another may be held", has_forward(packets=2),
           tables_hold(3, 0), given=(*_pending(1), seen(3)), **REINJECTED),
    later("by dsr: behind those that are held", *_pending(2), seen(3), then=(tables_hold(3, 0),)),
    by_dsr("the second one: established", has_entry(packets=2, **ONE), tables_hold(2, 1),
           given=_pending(1), **PROMOTED),
    by_dsr("a REPLY that another decision has left is no reason to decide anew",
           has_entry(packets=2, **ONE), tables_hold(2, 1), given=_pending(1, B2), **PROMOTED),
    by_dsr("established", has_entry(packets=3, dmac=IN.src, **ONE),
           given=(_established(SECOND // 2),)),
    by_dsr("by another router, while the first is heard",
           has_entry(packets=3, dmac=IN.src, last_seen_ns=1), hop=MOVED,
           given=(_established(SECOND // 2),)),
    by_dsr("by another router, after a silence: it has moved",
           has_entry(packets=3, dmac=OTHER_MAC, last_seen_ns=2 * SECOND + 1), hop=MOVED,
           given=(_established(2 * SECOND),), counters={"client_moved": 1}),
    forwarded("UDP: a held one after an answer: pending still, another may be held", ask(HELLO),
              asked(HELLO), then=(has_forward(packets=2), tables_hold(3, 0)),
              given=(*decided()[:1], seen(3), rewritten_reply(packets=1), forward(packets=1)),
              **REINJECTED),
]  # fmt: skip
