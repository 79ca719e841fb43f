# SPDX-License-Identifier: Apache-2.0
"""After a change of size: flows that are still in the table of before are moved, and served."""

from __future__ import annotations

import dataclasses

from tests.support.frames import ACK, FIN, RST, SYN
from tests.support.udp_frames import Datagram
from xdp_router.core import abi

from . import (
    bound,
    closing,
    credible,
    direct,
    fragments,
    fullnat,
    icmp,
    isn,
    killed,
    restart,
    takeover,
    udp,
    udp_bound,
    udp_direct,
    udp_flows,
    vlan,
)
from .bound import BACK, FLOW, LENGTH, THERE
from .case import Case, Then, answered, forwarded, has_flow, only, tables_hold
from .degrade import rst_to_client
from .first import OPEN
from .first import held as first_held
from .flows import flow_keys, forward_entry
from .handshake import fill_table
from .udp import SERVICE
from .world import Given, World, from_backend, to_backend, to_client, to_service


def before(world: World) -> None:
    """All flows that are there are in the table of before."""
    world.program.put_before()


def holds(entries: int) -> Then:
    """So many entries are in the table of before."""

    def look(world: World, _started_ns: int) -> None:
        assert len(list(world.program.before.each_key())) == entries

    return look


def _is_of_established(case: Case) -> bool:
    return any(step.__qualname__.startswith("established.") for step in case.given)


def _moved(case: Case) -> Case:
    """All comes out as if the flow had been in ``flow_table``, where it is afterwards."""
    counters = {**case.counters, "flow_moved": 1}
    given, then = (*case.given, before), (*case.then, holds(0))
    return dataclasses.replace(
        case, name=f"before: {case.name}", given=given, then=then, counters=counters
    )


def _read(case: Case) -> Case:
    """The same, but the flow stays where it is: the packet is none that keeps it alive."""
    given, then = (*case.given, before), (tables_hold(0, 0),)
    return dataclasses.replace(case, name=f"before: {case.name}", given=given, then=then)


def _put_back(world: World, _started_ns: int) -> None:
    """For looks at ``flow_table``."""
    world.program.put_back()


def _in_place(case: Case, name: str, *why: Given, **counted: int) -> Case:
    """All comes out as if the flow were in ``flow_table``, but it stays in the table of before."""
    return dataclasses.replace(
        case,
        name=f"before: {name}: {case.name}",
        given=(*case.given, *why),
        then=(_put_back, *case.then),
        counters={**case.counters, **counted},
    )


def _stays(case: Case) -> bool:
    """Is it about a flow that somebody else's packet says nothing of?"""
    told = {"pass_other_mac", "icmp_translated", "fragment_followed"}
    about_others = "pending" in case.name or "a later fragment" in case.name
    return bool(told.intersection(case.counters)) or about_others


def _in_one(case: Case, number: int) -> Case:
    wanted = 6 if number % 2 else 4
    return only(wanted, [case])[0] if wanted in case.families else case


MOVED = [
    _moved(case)
    for module in (bound, closing, direct, isn, killed, restart, takeover, udp_bound, udp_direct)
    for case in module.CASES
    if _is_of_established(case)
    and not _stays(case)
    and not case.name.startswith("ipip:")
    and "belongs to another flow" not in case.name  # that half stays
]
MOVED += [
    _moved(case)
    for case in (*vlan.CASES, *fragments.CASES, *fullnat.CASES)
    if _is_of_established(case)
    and not _stays(case)
    and case.counters.get("fragment_first", 1)
    and ("vlan_changed" in case.counters or "fullnat" in case.name or "first" in case.name)
    and "of 16 bytes" not in case.name
    and "its first " not in case.name
    and "later one of" not in case.name
]
READ = [
    _read(case)
    for case in (*bound.CASES, *fragments.CASES, *icmp.CASES)
    if _is_of_established(case)
    and _stays(case)
    and ("type 3" not in case.name or "code 1" in case.name)
    and "icmp" not in case.program
]

FULL, ONE_LEFT = (before, fill_table(0)), (before, fill_table(1))
NOT_MOVED = {"flow_not_moved": 1}
HELD = (before, lambda world: world.limit(flags=abi.CONTROL_HOLD))
HELLO = Datagram(payload=b"hello again")


def in_place(world: World, _started_ns: int) -> None:
    """The client's packet was counted, and followed, where the flow is."""
    raw = world.program.before.read(_native_key(world, flow_keys()[0]))
    assert raw is not None
    found, was = abi.unpack_flow_entry(raw), forward_entry(world)
    assert found.packets == was.packets + 1
    assert found.seq_next == THERE.seq + LENGTH


def _native_key(world: World, key: bytes) -> bytes:
    return abi.pack_flow_key(world.native_key(abi.flow_key_from_bytes(key)))


def _served(name: str, *given: Given, **counters: int) -> list[Case]:
    """Both directions, and a SYN, of a flow that stays in the table of before."""
    both = {"given": (*FLOW, *given), "counters": counters}
    return [
        forwarded(f"before: {name}: there", to_service(THERE), to_backend(THERE),
                  then=(in_place, holds(2)), **both),
        forwarded(f"before: {name}: back", from_backend(BACK), to_client(BACK), at="backend",
                  then=(holds(2),), **both),
        forwarded(f"before: {name}: a FIN", to_service(THERE.but(flags=FIN | ACK)),
                  to_backend(THERE.but(flags=FIN | ACK)), then=(holds(2),), **both),
        forwarded(f"before: {name}: a SYN", to_service(OPEN), to_backend(OPEN),
                  then=(holds(2),), **both),
        forwarded(f"before: {name}: a SYN-ACK", from_backend(BACK.but(flags=SYN | ACK)),
                  to_client(BACK.but(flags=SYN | ACK)), at="backend", then=(holds(2),), **both),
        forwarded(f"before: {name}: a datagram", udp_flows.ask(HELLO), udp_flows.asked(HELLO),
                  given=(*SERVICE, udp_flows.established(), *given), counters=counters,
                  then=(holds(2),)),
    ]  # fmt: skip


FOLLOWED = [
    case
    for case in (*closing.CASES, *credible.CASES, *bound.CASES, *udp_bound.CASES)
    if _is_of_established(case)
    and not _stays(case)
    and not case.name.startswith(("ipip:", "dsr:"))
    and "belongs to another flow" not in case.name
    and not any(each in case.name for each in ("half", "numbers go round", "RST with ACK"))
    and ({"client_moved", "closing_revoked"} & case.counters.keys() or "FIN" in case.name
         or "RST" in case.name)
]  # fmt: skip
"""What is noted in both entries of a flow, or judged by the other one."""
IN_PLACE = [
    _in_place(case, "no room at all", *FULL, **NOT_MOVED)
    if at % 2
    else _in_place(case, "while programs are changed", *HELD)
    for at, case in enumerate(FOLLOWED)
]


def half_moved(world: World) -> None:
    """REPLY is in the new table already, as after a daemon that was killed there."""
    key = next(each for each in world.program.flows.each_key() if _is_reply(world, each))
    value = world.program.flows.read(key)
    before(world)
    assert value is not None
    assert world.program.flows.insert(key, value) == 0


def in_both(world: World) -> None:
    """Both are, and the former ones were not removed."""
    flows = world.program.flows
    kept = {key: flows.read(key) or b"" for key in flows.each_key()}
    before(world)
    for key, value in kept.items():
        assert flows.insert(key, value) == 0


def _is_reply(world: World, key: bytes) -> bool:
    value = world.program.flows.read(key)
    return value is not None and abi.unpack_flow_entry(value).direction is abi.Direction.REPLY


OTHERS = [
    *_served("no room at all", *FULL, **NOT_MOVED),
    *_served("room for half of it", *ONE_LEFT, **NOT_MOVED),
    *_served("while programs are changed", *HELD),
    forwarded("before: half of it was moved", to_service(THERE), to_backend(THERE),
              given=(*FLOW, half_moved), counters={"flow_moved": 1},
              then=(holds(1), tables_hold(0, 2), has_flow("there", seq_next=THERE.seq + LENGTH))),
    forwarded("before: half of it was moved: a reply is a bound flow's", from_backend(BACK),
              to_client(BACK), at="backend", given=(*FLOW, half_moved),
              then=(holds(2), tables_hold(0, 1))),
    forwarded("before: it is in both: the new one counts", to_service(THERE), to_backend(THERE),
              given=(*FLOW, in_both), then=(holds(2), tables_hold(0, 2),
                                            has_flow("there", seq_next=THERE.seq + LENGTH))),
]  # fmt: skip

DEAD = killed.DEAD


def is_killed(world: World, _started_ns: int) -> None:
    """Both directions are, where the flow is."""
    for key in flow_keys():
        raw = world.program.before.read(_native_key(world, key))
        assert raw is not None
        entry = abi.unpack_flow_entry(raw)
        assert entry.flags == abi.FLOW_KILLED | abi.FLOW_RST
        assert entry.state is abi.TcpState.CLOSING


def _killed(name: str, *given: Given, **counters: int) -> list[Case]:
    """The backend of a flow that stays in the table of before has died."""
    anew = counters | killed.BEGINS_ANEW
    return [
        answered(f"before: killed: {name}: there", to_service(THERE),
                 rst_to_client(THERE.ack, 0, RST), given=(*FLOW, DEAD, *given),
                 counters=counters | killed.BOTH, then=(is_killed, holds(2))),
        first_held(f"before: killed: {name}: a SYN", to_service(OPEN), given=(*FLOW, DEAD, *given),
                   counters=anew, then=(holds(0),)),
        udp.first(f"before: killed: {name}: a datagram", counters=counters | {
            "killed_anew": 1, "datagram_first": 1}, given=(
            *SERVICE, udp_flows.established(), DEAD, *given), then=(holds(0),)),
    ]  # fmt: skip


CASES = [
    # One family each is enough: what follows upon the move is as ever.
    *(_in_one(each, at) for at, each in enumerate((*MOVED, *READ, *IN_PLACE))),
    *OTHERS,
    *_killed("no room", *FULL, **NOT_MOVED),
    *_killed("while programs are changed", *HELD),
]
