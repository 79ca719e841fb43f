# SPDX-License-Identifier: Apache-2.0
"""A stateless service over budget: both directions without an entry, until the backend speaks."""

from __future__ import annotations

import dataclasses
from typing import Any

from pyroute2 import IPRoute

from tests.support.frames import ACK, FIN, PSH, RST, SYN, End, Segment
from tests.support.ipv6_frames import ipv6_addr
from tests.support.program import DROP, PASS
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import sysctl
from xdp_router.core import abi
from xdp_router.core.address import format_addr
from xdp_router.core.model import Endpoint, Mode, Orphans, Reason

from .budget import deep, spend
from .case import NOW, Case, Then, answered, forwarded, has_flow, has_pending, passed, tables_hold
from .degrade import ALL_DOWN, full_ring, hash_table, refusal, rst_to_client
from .first import OPEN, PLAIN
from .flood import left
from .flows import flow_keys, forward, forward_entry, forward_key, put_flow, reply_key, seen
from .fragments import FIRST, FOLLOWED, cut
from .full import full
from .handshake import fill_table
from .orphans import DATA
from .wide import WIDE, affine, counted, noted, ranged, ranges, usage
from .world import (
    B1,
    B2,
    B3,
    CLIENT,
    CLIENT_ISN,
    CLIENT_MAC,
    OURS_C,
    ROUTER_MAC_B,
    ROUTER_MAC_C,
    SECOND,
    SERVER_ISN,
    WEB,
    Given,
    World,
    endpoint_of,
    from_backend,
    to_backend,
    to_client,
    to_service,
)

HOUR = 3600 * SECOND
ID7 = abi.vlan_of(7)
SCALE = 14


def routed(world: World) -> None:
    """The kernel knows the way to the client, and forwards."""
    _routes(world, CLIENT_MAC)


def _routes(world: World, mac: bytes | None, forwarding: str = "1") -> None:
    with IPRoute() as ipr:
        if mac is not None:  # it forgets all neighbours
            ipr.link("set", index=world.wires.client, address=ROUTER_MAC_C.hex(":"))
        for family, addrs in (
            (2, (CLIENT.number, OURS_C.number)),
            (10, (ipv6_addr(CLIENT.number), ipv6_addr(OURS_C.number))),
        ):
            client, ours = map(format_addr, addrs)
            bits = 32 if family == 2 else 128
            ipr.route("replace", dst=f"{client}/{bits}", oif=world.wires.client, family=family)
            ipr.addr("replace", index=world.wires.client, address=ours, prefixlen=bits,
                     family=family)  # fmt: skip
            where = {"dst": client, "ifindex": world.wires.client, "family": family}
            if mac is not None:
                ipr.neigh("replace", lladdr=mac.hex(":"), state="permanent", **where)
            else:
                ipr.neigh("del", **where)
        name = ipr.get_links(world.wires.backend)[0].get_attr("IFLA_IFNAME")
    for protocol in ("ipv4", "ipv6"):
        path = sysctl.of_interface(name, "forwarding").replace("ipv4", protocol, 1)
        with open("/proc/sys/" + path.replace(".", "/"), "w", encoding="ascii") as file:
            file.write(forwarding)


def stateless(until_ns: int = HOUR, **change: Any) -> Given:
    """The service is stateless, and has been over budget."""

    def write(world: World) -> None:
        routed(world)
        world.change_service(**{"flags": abi.SERVICE_STATELESS} | change)
        for server in (B1, B2, B3):
            world.change_server(server, stateless_addr=WEB.number, stateless_port=WEB.port)
        world.write_pressure(stateless_ns=world.now_ns + until_ns, flood_ns=1)

    return write


ON = stateless()
OVER = stateless(until_ns=-1)


def _spent(world: World) -> None:
    stateless(until_ns=-1, event_interval_ns=HOUR, event_burst_ns=2 * HOUR)(world)
    world.maps.tokens.fill(abi.TOKENS_SERVICE, 0, world.now_ns)


def _window(why: abi.Counter) -> Then:
    """Segments without entries are forwarded from now on, and it is said why."""

    def look(world: World, started_ns: int) -> None:
        _, until_ns, counter, _ = abi.unpack_pressure(world.pressure(1))
        ahead_ns = world.control().pending_idle_ns * 9 // 8
        assert 0 <= until_ns - ahead_ns - started_ns < SECOND
        assert counter == why

    return look


def _told(world: World, started_ns: int) -> None:
    """It counts for the service."""
    assert sum(asked for _, _, asked in world.buckets(abi.TOKENS_SERVICE)) == 1


EMPTY = tables_hold(0, 0)


def _out(name: str, segment: Segment, *given: Given, why: str = "", then: tuple[Then, ...] = (),
         **rest: Any) -> Case:  # fmt: skip
    counters = {"stateless_forwarded": 1} | ({why: 1} if why else {}) | rest.pop("extra", {})
    return forwarded(f"stateless: {name}", to_service(segment), to_backend(segment, B2),
                     given=given, counters=counters, then=(EMPTY, *then), **rest)  # fmt: skip


TO_BACKEND = [
    _out("over budget, by hash and not to the fallback", OPEN, _spent, why="budget_service",
         then=(_window(abi.Counter.budget_service), _told)),
    _out("budget of all services spent", OPEN, OVER, spend(abi.TOKENS_EVENTS),
         why="budget_global", then=(_window(abi.Counter.budget_global),)),
    _out("too much waits in the ring", OPEN, OVER, deep, why="ring_deep"),
    _out("ring full: no SEEN stays", PLAIN, OVER, full_ring, why="ring_full"),
    _out("a SYN that comes again", OPEN, _spent, why="budget_service"),
    _out("ACK", DATA.but(flags=ACK, payload=b""), ON),
    _out("data", DATA, ON),
    _out("FIN", DATA.but(flags=FIN | ACK), ON),
    _out("the client's RST", DATA.but(flags=RST, payload=b""), ON),
    _out("data, orphans are hashed", DATA, stateless(orphans=Orphans.HASH)),
    _out("the slot's backend is the client itself", DATA, ON, hash_table(B1, B2),
         lambda world: world.change_server(B1, addr=CLIENT.number), extra={"client_is_backend": 1}),
    _out("nine slots are of one that is down", DATA, ON, hash_table(*[B1] * 9, B2),
         lambda world: world.change_server(B1, flags=0)),
    _out("the slot's backend is down", DATA, ON, hash_table(B1, B2),
         lambda world: world.change_server(B1, flags=0)),
    answered("stateless: time is over", to_service(DATA), rst_to_client(DATA.ack, 0, RST),
             given=(OVER,), counters={"orphan_reset": 1}, then=(EMPTY,)),
    answered("stateless: nobody is up", to_service(OPEN), refusal(OPEN), given=(_spent, *ALL_DOWN),
             counters={"budget_service": 1, "refused_no_backend": 1}, then=(EMPTY,)),
    *(
        Case(name=f"stateless: {name}", frame=to_service(DATA.but(flags=flags)), verdict=DROP,
             given=given, counters={"orphan_dropped": 1}, then=(tables_hold(entries, 0),))
        for name, flags, given, entries in (
            ("no segment of a connection", FIN | PSH, (ON,), 0),
            ("RST, and time is over", RST, (OVER,), 0),
            ("data while its SYN is held", PSH | ACK, (ON, seen()), 1),
        )
    ),
    forwarded("stateless: table full, it has entries", to_service(OPEN), to_backend(OPEN, B2),
              given=(OVER, full()), counters={"table_full": 1, "decided_hash": 1},
              then=(tables_hold(2, 0),)),
]  # fmt: skip

SYNACK = Segment(flags=SYN | ACK, seq=SERVER_ISN, ack=CLIENT_ISN + 1, window=60000)
ANSWER = Segment(flags=PSH | ACK, seq=SERVER_ISN + 1, ack=CLIENT_ISN + 9, window=77, payload=b"hi")
BARE = ANSWER.but(flags=ACK, payload=b"")


def _back(name: str, segment: Segment, *given: Given, then: tuple[Then, ...] = (EMPTY,),
          server: Any = B2, extra: dict[str, int] | None = None, **rest: Any) -> Case:  # fmt: skip
    rest = {"at": "backend"} | rest
    out = to_client(rest.pop("out", segment))
    return forwarded(f"stateless reply: {name}", from_backend(segment, server), out,
                     given=given or (ON,), counters={"stateless_replied": 1} | (extra or {}),
                     then=then, **rest)  # fmt: skip


def _entries(segment: Segment, pending: int = 0, server: Any = B2) -> tuple[Then, ...]:
    """What stands in flow_table about a flow that began with the backend's segment."""
    common = {"backend": server.id, "service": 0, "mode": Mode.HASH, "reason": Reason.STATELESS,
              "state": abi.TcpState.ESTABLISHED, "wscale": SCALE, "seen_ns": NOW,
              "ifindex": lambda world: world.wires.client, "dmac": CLIENT_MAC,
              "smac": ROUTER_MAC_C}  # fmt: skip
    fin = bool(segment.flags & FIN)
    length = len(segment.payload) + fin

    def look(world: World, started_ns: int) -> None:
        there, back = flow_keys(server)
        want = {
            back: {"new_saddr": WEB.number, "new_sport": WEB.port, "new_daddr": CLIENT.number,
                   "new_dport": CLIENT.port, "direction": abi.Direction.REPLY,
                   "seq_next": segment.seq + length, "ack": segment.ack, "packets": 1,
                   "window": segment.window << SCALE, "in_mac": ROUTER_MAC_B,
                   "flags": abi.FLOW_FIN if fin else 0},
            there: {"new_saddr": CLIENT.number, "new_sport": CLIENT.port,
                    "new_daddr": server.end.number, "new_dport": server.end.port,
                    "direction": abi.Direction.FORWARD, "seq_next": segment.ack,
                    "ack": segment.seq, "packets": 0, "window": 0xFFFF << SCALE,
                    "in_mac": ROUTER_MAC_C, "flags": 0},
        }  # fmt: skip
        for key, own in want.items():
            raw = world.maps.flow_table.read(key)
            assert raw is not None
            entry = abi.unpack_flow_entry(raw)
            for name, value in (common | own).items():
                have = getattr(entry, name)
                value = value(world) if callable(value) else value
                assert have >= started_ns if value == NOW else have == value, name

    return look, tables_hold(pending, 2)


_EVENT = {"type": abi.EventType.ESTABLISHED, "service": 0, "backend": B2.id, "detail": Mode.HASH,
          "reason": Reason.STATELESS, "seq": ANSWER.seq, "seen_ns": NOW,
          "ifindex": lambda world: world.wires.backend}  # fmt: skip


def _promoted(name: str, segment: Segment, *given: Given, **rest: Any) -> Case:
    event = _EVENT | {"seq": segment.seq}
    then = _entries(segment, rest.pop("pending", 0))
    return _back(name, segment, *given, then=then, event=event,
                 extra={"stateless_promoted": 1}, **rest)  # fmt: skip


def _noted(world: World, started_ns: int) -> None:
    """flood_flows is looked into for as long as a flow may be silent."""
    until_ns = abi.unpack_pressure(world.pressure())[1]
    assert until_ns >= started_ns + world.control().orphan_window_ns


def _kernel(**change: Any) -> Given:
    return lambda world: world.change_side("backend", **change)


def _own(name: str, frame: bytes, *given: Given) -> Case:
    return passed(f"stateless reply: {name}", frame, "pass_not_service", given=given, at="backend")


FORWARDS = abi.IF_HANDOFF_REPLY4


def _no_neighbour(world: World) -> None:
    _routes(world, None)


FROM_BACKEND = [
    _back("SYN-ACK", SYNACK),
    _back("RST", SYNACK.but(flags=RST)),
    _back("RST with ACK", SYNACK.but(flags=RST | ACK)),
    _back("with a VLAN tag", SYNACK.but(tags=((0x8100, 5),))),
    _promoted("data", ANSWER, ON),
    _promoted("FIN", ANSWER.but(flags=FIN | ACK, payload=b""), ON),
    _promoted("a FORWARD without its REPLY does not keep it", ANSWER, ON, forward(B2), pending=1),
    _back("a bare ACK is noted only", BARE, ON, extra={"flood_entry": 1},
          then=(tables_hold(0, 0, flood=2), _noted,
                has_pending("REPLY", reply_key(B2), seq=BARE.seq, ack=BARE.ack,
                            reason=Reason.STATELESS, dmac=CLIENT_MAC, smac=ROUTER_MAC_C,
                            flags=abi.PENDING_SYNACK | abi.PENDING_PROVEN),
                has_pending("FORWARD", forward_key(), backend=B2.id, reason=Reason.STATELESS,
                            flags=abi.PENDING_PROVEN))),
    _back("a bare ACK is noted, whatever an earlier flood has left", BARE,
          lambda world: (left(B2)(world), ON(world)), extra={"flood_entry": 1},
          then=(tables_hold(0, 0, flood=2),
                has_pending("REPLY", reply_key(B2), seq=BARE.seq, reason=Reason.STATELESS),
                has_pending("FORWARD", forward_key(), isn=0, reason=Reason.STATELESS))),
    _back("data that came by another way makes no entry", ANSWER, ON, _kernel(flags=0),
          lambda world: world.change_server(B2, ifindex=world.wires.client,
                                            stateless_addr=WEB.number, stateless_port=WEB.port)),
    _back("table full: it stays without entries", ANSWER, ON, fill_table(0), then=(),
          extra={"promote_table_full": 1}),
    _back("table full for the second one", ANSWER, ON, fill_table(1), then=(),
          extra={"promote_table_full": 1}),
    _own("time is over", from_backend(SYNACK, B2), OVER),
    _own("not of a stateless service", from_backend(SYNACK, B2),
         lambda world: world.write_pressure(stateless_ns=world.now_ns + HOUR)),
    _own("the client's flow is another backend's", from_backend(SYNACK, B2), ON, forward(B1)),
    _own("the client's established flow is another backend's", from_backend(ANSWER, B2), ON,
         lambda world: put_flow(world, flow_keys(B1)[0], forward_entry(world))),
    _own("the client's flow is being decided", from_backend(SYNACK, B2), ON, seen()),
    _own("to an address of ours", from_backend(ANSWER, B2, client=dataclasses.replace(
        OURS_C, port=4000)), ON),
    _own("nobody knows the way", from_backend(ANSWER, B2, client=dataclasses.replace(
        CLIENT, addr="198.19.77.1")), ON),
    Case(name="stateless reply: no neighbour, and the kernel does not forward",
         frame=from_backend(ANSWER, B2), verdict=DROP, given=(ON, _no_neighbour), at="backend",
         counters={"no_path": 1, "stateless_replied": 1}, then=(EMPTY,)),
    Case(name="stateless reply: forwarding is off", frame=from_backend(ANSWER, B2), verdict=DROP,
         given=(ON, lambda world: _routes(world, CLIENT_MAC, "0")), at="backend",
         counters={"no_path": 1}, then=(EMPTY,)),
    Case(name="stateless reply: no neighbour, the kernel asks", frame=from_backend(SYNACK, B2),
         verdict=PASS, out=SYNACK.frame(WEB, CLIENT, B2.hop.back), at="backend",
         given=(ON, _no_neighbour, _kernel(flags=FORWARDS)),
         counters={"handed_to_kernel": 1, "stateless_replied": 1}, then=(EMPTY,)),
    Case(name="stateless reply: the client's side takes no frames",
         frame=from_backend(SYNACK, B2), verdict=PASS, at="backend",
         out=SYNACK.frame(WEB, CLIENT, B2.hop.back),
         given=(ON, _kernel(flags=FORWARDS),
                lambda world: world.change_side("client", flags=abi.IF_NO_XMIT)),
         counters={"handed_to_kernel": 1, "stateless_replied": 1}, then=(EMPTY,)),
]  # fmt: skip


def _bare_ack(world: World) -> None:
    """The backend has acknowledged the client's data, and said nothing itself."""
    ON(world)
    world.run(world.native(from_backend(BARE, B2)), "backend")
    world.flooded = False


NEXT = Segment(flags=PSH | ACK, seq=BARE.ack, ack=BARE.seq, window=99, payload=b"more")
KNOWS = [
    forwarded("stateless: the client knows the backend's number", to_service(NEXT),
              to_backend(NEXT, B2), given=(_bare_ack,),
              counters={"promoted": 1, "promoted_late": 1, "stateless_promoted": 1},
              event={"type": abi.EventType.ESTABLISHED, "service": 0, "backend": B2.id,
                     "detail": Mode.HASH, "reason": Reason.STATELESS, "seq": NEXT.seq,
                     "seen_ns": lambda world: range(world.now_ns, world.now_ns + HOUR),
                     "ifindex": lambda world: world.wires.client},
              then=(tables_hold(0, 2, flood=2),
                    has_flow("there", backend=B2.id, reason=Reason.STATELESS, wscale=SCALE,
                             seq_next=NEXT.seq + 4, ack=NEXT.ack))),
    *(
        forwarded(f"stateless: the client {name}", to_service(segment), to_backend(segment, B2),
                  given=(_bare_ack,), then=(tables_hold(0, 0, flood=2),))
        for name, segment in (
            ("does not know it", NEXT.but(ack=BARE.seq - 1)),
            ("does not know where it is itself", NEXT.but(seq=BARE.ack + (1 << 30))),
            ("says no number", NEXT.but(flags=PSH)),
        )
    ),
]  # fmt: skip


def _affine(world: World) -> None:
    affine(B1)(world)
    value = world.service(0)
    stateless(flags=abi.SERVICE_STATELESS | abi.SERVICE_AFFINITY, affinity_ns=value.affinity_ns)(
        world
    )


def _wide(world: World) -> None:
    """Ports 8000 to 8100 but 8022, to backends that keep them."""
    ON(world)
    wide = ranged(8000, 8100)
    ranges((wide, 1), (Endpoint(WEB.number, 8022), None))(world)
    value = dataclasses.replace(world.service(1), flags=abi.SERVICE_STATELESS)
    world.maps.services.write(wide, value)
    backend = world.server(B2)
    world.change_backend(
        B2.id,
        dataclasses.replace(
            backend, port=0, service=1, stateless_addr=WEB.number, stateless_port=0
        ),
    )
    world.maps.backend_index.write(Endpoint(B2.end.number, 0), B2.id, 1)
    world.maps.backend_index.delete(endpoint_of(B2.end))
    world.change_hash((B2.id,) * abi.HASH_SLOTS, 1)
    table = bpf.BpfMap(world.program.plane.maps["pressure"])
    table.write((2).to_bytes(4, "little"), abi.pack_pressure(0, world.now_ns + HOUR))


def _tagged(tag: int) -> Given:
    """The kernel reaches the backend by a tag, and the client without one."""
    return lambda world: world.change_server(
        B2, vlan=tag, flags=abi.BACKEND_UP | abi.BACKEND_STAGE,
        stateless_addr=WEB.number, stateless_port=WEB.port,
    )  # fmt: skip


WIDE_B2 = End(B2.end.addr, WIDE.port)
LONG = ANSWER.but(payload=bytes(range(200)), fragment=0, ident=78)
FIRST_BACK, REST_BACK = cut(from_backend(LONG, B2))
FIRST_OUT, REST_OUT = cut(to_client(LONG))


def _began(world: World) -> None:
    """The backend's first fragment has made the entries."""
    ON(world)
    world.run(FIRST_BACK, "backend")


BESIDE = [
    forwarded("stateless reply: data: and is counted once", from_backend(ANSWER, B2),
              to_client(ANSWER), given=(usage(3), ON), at="backend", event=_EVENT,
              counters={"stateless_replied": 1, "stateless_promoted": 1}, then=(counted(4, 0),)),
    forwarded("stateless reply: data: its client's flows go there", from_backend(ANSWER, B2),
              to_client(ANSWER), given=(_affine,), at="backend", event=_EVENT,
              counters={"stateless_replied": 1, "stateless_promoted": 1}, then=(noted(B2),)),
    forwarded("stateless: one of many ports", to_service(DATA, WIDE),
              DATA.but(ttl=DATA.ttl - 1).frame(CLIENT, WIDE_B2, B2.hop), given=(_wide,),
              counters={"stateless_forwarded": 1}, then=(EMPTY,)),
    forwarded("stateless reply: from one of many ports", SYNACK.frame(WIDE_B2, CLIENT, B2.hop.back),
              to_client(SYNACK, WIDE), given=(_wide,), at="backend",
              counters={"stateless_replied": 1}, then=(EMPTY,)),
    *(
        _own(f"from a port that {why}", SYNACK.frame(
            End(B2.end.addr, port), CLIENT, B2.hop.back), _wide)
        for why, port in (("is left out", 8022), ("the service does not have", 22))
    ),
    _back("the kernel's tag is taken off", SYNACK.but(tags=((0x8100, 7),)), ON, _tagged(ID7),
          out=SYNACK, extra={"vlan_changed": 1}),
    forwarded("stateless reply: the first fragment", FIRST_BACK, FIRST_OUT, given=(ON,),
              at="backend", event=_EVENT, then=(tables_hold(0, 2),),
              counters={"stateless_replied": 1, "stateless_promoted": 1} | FIRST),
    forwarded("stateless reply: a later fragment", REST_BACK, REST_OUT, given=(_began,),
              at="backend", counters=FOLLOWED),
]  # fmt: skip

CASES = [*TO_BACKEND, *FROM_BACKEND, *KNOWS, *BESIDE]
