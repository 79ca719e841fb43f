# SPDX-License-Identifier: Apache-2.0
"""The ISN rule: which SYN is a retransmit, which a new connection, which changes nothing."""

from __future__ import annotations

from typing import Any

from tests.support.program import DROP
from xdp_router.core import abi
from xdp_router.core.model import Mode, Reason

from .case import (
    NOW,
    Case,
    answered,
    flow_untouched,
    forwarded,
    has_flow,
    has_pending,
    tables_hold,
)
from .degrade import ALL_DOWN, bound, full_ring, refusal, silent
from .first import OPEN, given_up, held
from .flows import (
    AGE_NS,
    decided,
    established,
    flow_keys,
    forward,
    forward_entry,
    forward_key,
    put_flow,
    refused,
    reply,
    reply_entry,
    reply_key,
    seen,
    seen_key,
)
from .world import (
    B1,
    B2,
    B3,
    CLIENT_ISN,
    CLIENT_MAC,
    MS,
    ROUTER_MAC_C,
    SHOP,
    Given,
    World,
    to_backend,
    to_service,
)

GATEWAY = bytes.fromhex("020000000c77")
OTHER_ISN = CLIENT_ISN + 0x40000000
SAME, OTHER = OPEN, OPEN.but(seq=OTHER_ISN)
CLOSING: dict[str, Any] = {"state": abi.TcpState.CLOSING}
LENGTH = len(to_service(OPEN)) - 14


def goes_on(name: str, segment: Any, counter: str, *given: Given, **rest: Any) -> Case:
    """The SYN goes to the bound backend."""
    return forwarded(name, to_service(segment), to_backend(segment), given=given,
                     counters={counter: 1} | rest.pop("extra", {}), **rest)  # fmt: skip


def reopens(name: str, *given: Given, segment: Any = OTHER, entries: int = 1, **rest: Any) -> Case:
    """The SYN is a first packet again, and what was known of the old flow is gone."""
    then = (
        has_pending("SEEN", seen_key(), isn=segment.seq, seen_ns=NOW),
        tables_hold(entries, rest.pop("flow_entries", 0)),
    )
    counters = {"syn_reopened": 1, "first_packet": 1}
    return held(name, to_service(segment), {"seq": segment.seq}, given=given, counters=counters,
                then=then, **rest)  # fmt: skip


def flows_idle(world: World) -> None:
    """An established flow is idle sooner than the entries are old."""
    world.change_control(flow_idle_ns=AGE_NS // 2)


def flows_idle_unattended(world: World) -> None:
    """The same, but the daemon, whose heartbeat last_seen goes by, has died."""
    world.change_control(
        flow_idle_ns=AGE_NS // 2, heartbeat_ns=world.now_ns - AGE_NS, heartbeat_stale_ns=MS
    )


def _one_side_idle(side: str) -> Given:
    """One direction was silent, the other one has just been heard of."""

    def put(world: World) -> None:
        fresh = {"last_seen_ns": world.now_ns}
        sides = ({}, fresh) if side == "client" else (fresh, {})
        established(*sides)(world)
        world.change_control(flow_idle_ns=AGE_NS - 1)

    return put


def _without_peer(**change: Any) -> Given:
    return lambda world: put_flow(world, flow_keys()[0], forward_entry(world, **change))


def _peer_of_another(world: World) -> None:
    """Closing, and the reply tuple belongs to a flow of the second service."""
    put_flow(world, flow_keys()[0], forward_entry(world, **CLOSING))
    put_flow(world, flow_keys()[1], reply_entry(world, service=SHOP))


ELSEWHERE: dict[str, Any] = {"dmac": GATEWAY, "smac": GATEWAY, "ifindex": 1}
HERE: dict[str, Any] = {"dmac": CLIENT_MAC, "smac": ROUTER_MAC_C,
                        "ifindex": lambda world: world.wires.client}  # fmt: skip


def _moved(seq_next: int) -> Given:
    """The flow's client was reached by another way until now."""
    return established({"dmac": GATEWAY, "ifindex": 1, "seq_next": seq_next}, ELSEWHERE)


FLOW = established()
OVER = established(CLOSING, CLOSING)

ESTABLISHED = [
    goes_on("same number on a live flow", SAME, "syn_retransmit", FLOW,
            then=(flow_untouched("there", packets=3, octets=100 + LENGTH),
                  flow_untouched("back"), tables_hold(0, 2))),
    goes_on("another number on a live flow", OTHER, "syn_on_live_flow", FLOW,
            then=(flow_untouched("there", packets=3, octets=100 + LENGTH, later_syn=OTHER_ISN),
                  flow_untouched("back", later_syn=7), tables_hold(0, 2))),
    goes_on("same number by another next hop, nothing sent yet: the answer follows", SAME,
            "syn_retransmit", _moved(CLIENT_ISN + 1), extra={"client_moved": 1},
            then=(has_flow("back", **HERE), has_flow("there", dmac=CLIENT_MAC))),
    goes_on("same number by another next hop, late", SAME, "syn_retransmit",
            _moved(CLIENT_ISN + 2), then=(has_flow("back", **ELSEWHERE),)),
    goes_on("another number on a live flow by another next hop", OTHER, "syn_on_live_flow",
            _moved(CLIENT_ISN + 1), then=(has_flow("back", **ELSEWHERE),)),
    goes_on("same number on a closing flow", SAME, "syn_retransmit", OVER,
            then=(tables_hold(0, 2),)),
    goes_on("another number on an idle flow while the daemon is silent: no time to go by", OTHER,
            "syn_on_live_flow", FLOW, flows_idle_unattended),
    goes_on("same number on an idle flow", SAME, "syn_retransmit", FLOW, flows_idle),
    goes_on("another number while the backend still speaks", OTHER, "syn_on_live_flow",
            _one_side_idle("client")),
    goes_on("another number while the client still speaks", OTHER, "syn_on_live_flow",
            _one_side_idle("backend")),
    goes_on("another number on a live flow that lost its other half", OTHER, "syn_on_live_flow",
            _without_peer()),
    reopens("another number on a closing flow", OVER),
    reopens("another number on a flow that a RST closed",
            established(CLOSING | {"flags": abi.FLOW_RST}, CLOSING)),
    reopens("another number on an idle flow", FLOW, flows_idle),
    goes_on("another number on a flow that seems idle, but the heartbeat had a gap", OTHER,
            "syn_on_live_flow", FLOW, flows_idle,
            lambda world: world.change_control(resumed_ns=world.now_ns - MS)),
    reopens("another number on half a closing flow", _without_peer(**CLOSING)),
    reopens("another number on a closing flow; the reply entry of another flow stays",
            _peer_of_another, flow_entries=1),
    reopens("another number on a closing flow that is pending, too", OVER, *decided(synack=True)),
    reopens("another number on a closing flow, pending on another backend", OVER,
            *decided(server=B2)),
    reopens("another number on a closing flow; another flow's REPLY stays", OVER, forward(),
            reply(B1, SHOP), entries=2),
    forwarded("another number on a closing flow, daemon silent", to_service(OTHER),
              to_backend(OTHER), given=(OVER, *decided(synack=True), silent),
              counters={"syn_reopened": 1, "heartbeat_stale": 1, "decided_fallback": 1},
              then=(tables_hold(2, 0),
                    has_pending("FORWARD", forward_key(), isn=OTHER_ISN, packets=1),
                    has_pending("REPLY", reply_key(), flags=0, isn=0))),
    answered("another number on a closing flow, nobody up", to_service(OTHER), refusal(OTHER),
             given=(OVER, silent, *ALL_DOWN), then=(tables_hold(0, 0),),
             counters={"syn_reopened": 1, "heartbeat_stale": 1, "refused_no_backend": 1}),
]  # fmt: skip

CLOSED = (seen(), reply(), forward(flags=abi.PENDING_CLOSED))

PENDING = [
    goes_on("another number on a pending flow", OTHER, "syn_on_live_flow", *decided(),
            then=(has_pending("FORWARD", forward_key(), isn=CLIENT_ISN, packets=2, seq=OTHER_ISN,
                              ack=7,
                              last_seen_ns=lambda world: world.now_ns - AGE_NS),
                  tables_hold(3, 0))),
    goes_on("another number on an answered flow", OTHER, "syn_on_live_flow",
            *decided(synack=True)),
    reopens("another number on a pending flow without REPLY", seen(), forward()),
    reopens("another number on a pending flow whose REPLY is another flow's", seen(), forward(),
            reply(B1, SHOP), entries=2),
    goes_on("another number on a pending flow whose backend still speaks", OTHER,
            "syn_on_live_flow", seen(), forward(),
            lambda world: reply(last_seen_ns=world.now_ns)(world), given_up),
    goes_on("same number on a flow that was reset", SAME, "syn_retransmit", *CLOSED),
    reopens("another number on a flow that was reset", *CLOSED),
    reopens("another number on a refused flow", seen(), refused()),
    reopens("another number on an idle pending flow", *decided(), given_up),
    reopens("another number on an idle pending flow with its answer", *decided(synack=True),
            given_up),
    reopens("same number, REPLY was evicted", seen(), forward(), segment=SAME),
    reopens("same number, REPLY is another flow's", seen(), forward(), reply(B1, SHOP),
            segment=SAME, entries=2),
    goes_on("same number by another next hop: the answer follows", SAME, "syn_retransmit",
            seen(), reply(dmac=GATEWAY, smac=GATEWAY, ifindex=1), forward(),
            extra={"client_moved": 1},
            then=(has_pending("REPLY", reply_key(), dmac=CLIENT_MAC, smac=ROUTER_MAC_C,
                              ifindex=lambda world: world.wires.client),)),
    goes_on("another number by another next hop: the answer stays", OTHER, "syn_on_live_flow",
            seen(), reply(dmac=GATEWAY, smac=GATEWAY, ifindex=1), forward(),
            then=(has_pending("REPLY", reply_key(), dmac=GATEWAY, smac=GATEWAY, ifindex=1),)),
    goes_on("same number on an idle pending flow is still a retransmit", SAME, "syn_retransmit",
            *decided(), given_up),
    forwarded("REPLY was evicted, daemon silent: decided anew", to_service(SAME),
              to_backend(SAME), given=(seen(), forward(B2), silent),
              counters={"syn_reopened": 1, "heartbeat_stale": 1, "decided_fallback": 1},
              then=(*bound(B1, Mode.FALLBACK, Reason.NO_HEARTBEAT), tables_hold(2, 0))),
    forwarded("REPLY was evicted, ring full: decided anew", to_service(SAME),
              to_backend(SAME, B2), given=(seen(), forward(B3), full_ring),
              counters={"syn_reopened": 1, "ring_full": 1, "decided_hash": 1, "flood_entry": 1},
              then=(*bound(B2, Mode.HASH, Reason.RING_FULL), tables_hold(0, 0, flood=2))),
    held("FORWARD was evicted, SEEN, too: a first packet", to_service(SAME), given=(reply(),),
         then=(tables_hold(2, 0),)),
    Case(name="FORWARD was evicted, SEEN not: still held", frame=to_service(SAME), verdict=DROP,
         counters={"syn_held_again": 1}, given=(seen(), reply())),
]  # fmt: skip

CASES = [*ESTABLISHED, *PENDING]
