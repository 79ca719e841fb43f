# SPDX-License-Identifier: Apache-2.0
"""The real program and executor beside ``udp_model``, for each forwarding method."""

from __future__ import annotations

import dataclasses
import random
import time
from types import SimpleNamespace
from typing import Any

from tests.bpf.corpus.case import TICK_NS
from tests.bpf.corpus.flows import forward_entry
from tests.bpf.corpus.fullnat import OURS
from tests.bpf.corpus.udp_flows import ask, back_key, key, pending_key, service
from tests.bpf.corpus.world import (
    B1,
    B2,
    B3,
    CLIENT,
    IN,
    MARK,
    OURS_C,
    PROBE_SOURCE,
    ROUTER_MAC_C,
    SECOND,
    WEB,
    Server,
    World,
    endpoint_of,
    flow_key,
)
from tests.bpf.corpus.world6 import native_key
from tests.support.frames import End, Hop
from tests.support.icmp_frames import PORT, TIME_EXCEEDED, UNREACHABLE, own_error
from tests.support.instants import age, before
from tests.support.program import DROP, PASS, REDIRECT, TX
from tests.support.tunnels import tunneled
from tests.support.udp_frames import PROTOCOL, Datagram
from tests.support.udp_model import UdpModel
from tests.support.udp_parts import (
    ANY,
    DEADLINE_S,
    NEVER_S,
    PENDING_IDLE_S,
    UDP_IDLE_S,
    Entries,
    Method,
    Outcome,
)
from xdp_router.adapters.bpf_maps import FlowTable, PendingFlows
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core import abi
from xdp_router.core.address import format_addr
from xdp_router.core.config import RouterConfig, Settings
from xdp_router.core.flow_hash import flow_hash
from xdp_router.core.model import NO_BACKEND, Backend, Endpoint, Forwarding, Service
from xdp_router.daemon.executor import Executor
from xdp_router.daemon.nat_ports import NatPorts

SERVERS = {"B1": B1, "B2": B2, "B3": B3}
CLIENTS = (CLIENT, End(CLIENT.addr, 40_001), End("198.18.9.5", 40_000))
PORTS = range(20_000, 20_004)
"""Of ours, for fullnat. A flood leaves the last one to the others."""

AWAY = Hop(bytes.fromhex("020000000c77"), ROUTER_MAC_C)
"""From a client by another router."""

ANSWERED = {"unreachable": (UNREACHABLE, PORT), "ttl": (TIME_EXCEEDED, 0)}
VERDICT_OF = {
    "backend": REDIRECT, "client": REDIRECT, "drop": DROP, "pass": PASS,
    "unreachable": TX, "ttl": TX,
}  # fmt: skip
STALE_S, HOUR = 20, 3600 * SECOND
AHEAD_S = 3
"""What has just been is put so far ahead: a stall of the machine is no silence."""


def way(home: bool) -> Hop:
    """By which a client's packets come."""
    return IN if home else AWAY


class UdpSide:
    """A world with one UDP service of a method, and the executor that works on its maps."""

    def __init__(self, world: World, method: Method, seed: int) -> None:
        self.world, self.method = world, method
        self.sent: list[tuple[int, bytes]] = []
        self.fillers: list[bytes] = []
        self._keys = self._entries()
        self._settled_ns = 0
        world.reset()
        forwarding = Forwarding[method.name]
        self._service = {"forwarding": forwarding, "deadline_ns": DEADLINE_S * SECOND}
        self._flags = abi.BACKEND_METHOD.get(forwarding, 0) if method.one_sided else 0
        self.spend(False)
        for server in SERVERS.values():
            self.set_up(server, True)
            if method.one_sided:
                world.maps.backend_index.write(self._end(server), server.id, 0)
        self.write_control(0)
        world.write_pressure()
        state: Any = SimpleNamespace(maps=world.maps, shared=frozenset(), vlan=lambda _backend: 0)
        sender: Any = SimpleNamespace(send_frame=lambda *sent: self.sent.append(sent))
        backends = tuple(
            Backend(server.id, name, dataclasses.replace(
                world.native_endpoint(self._server(server).end), proto=PROTOCOL), 0,
                forwarding=forwarding)
            for name, server in SERVERS.items()
        )  # fmt: skip
        web = Service(0, "web", dataclasses.replace(world.native_endpoint(WEB), proto=PROTOCOL),
                      backends, forwarding=forwarding)  # fmt: skip
        settings = Settings(nat_port_min=PORTS[0], nat_port_max=PORTS[-1])
        ports = NatPorts(
            RouterConfig((web,), settings),
            lambda _backend: world.native_addr(OURS.number),
            random.Random(seed).getrandbits,
        )
        self.executor = Executor(
            state,
            backends,
            Reinjector(world.program.plane.entry, MARK, world.program.plane.maps["leaving"]),
            sender,
            lambda _decision: None,
            ports if method is Method.FULLNAT else None,
        )
        world.program.changes()

    def _server(self, server: Server) -> Server:
        """A backend with the port that it has by this method."""
        if not self.method.one_sided:
            return server
        return dataclasses.replace(server, end=End(server.end.addr, WEB.port))

    def _end(self, server: Server) -> Endpoint:
        return endpoint_of(self._server(server).end, PROTOCOL)

    # --- the world around --------------------------------------------------------------------

    def spend(self, spent: bool) -> None:
        """Leave nothing of the service's budget, or have it unlimited."""
        limits = {"event_interval_ns": HOUR, "event_burst_ns": 2 * HOUR} if spent else {}
        service(**self._service, **limits)(self.world)
        self.world.maps.tokens.fill(abi.TOKENS_SERVICE, 0, time.monotonic_ns())

    def set_up(self, server: Server, up: bool) -> None:
        """A backend is up, or down."""
        flags = self._flags | (abi.BACKEND_UP if up else 0)
        self.world.change_server(server, flags=flags, port=self._server(server).end.port)

    def write_control(self, silent_s: float) -> None:
        """The daemon's newest sign of life is so old."""
        self.heartbeat_ns = before(time.monotonic_ns(), int(silent_s * SECOND))
        self.world.change_control(
            heartbeat_ns=self.heartbeat_ns,
            heartbeat_stale_ns=STALE_S * SECOND,
            pending_idle_ns=PENDING_IDLE_S * SECOND,
            udp_idle_ns=UDP_IDLE_S * SECOND,
            nat_port_min=PORTS[0] if self.method is Method.FULLNAT else 0,
            nat_port_max=PORTS[-1] if self.method is Method.FULLNAT else 0,
        )

    def publish(self, backend: str) -> None:
        """All slots of the hash table are a backend's, or nobody's."""
        number = SERVERS[backend].id if backend else NO_BACKEND
        self.world.change_hash((number,) * abi.HASH_SLOTS)

    def fill(self, full: bool) -> None:
        """Other flows take every place of ``flow_table`` that is left, or none."""
        table = self.world.maps.flow_table
        value = abi.pack_flow_entry(forward_entry(self.world))
        while full:
            which = dataclasses.replace(flow_key(), client_port=50_000 + len(self.fillers))
            if table.insert_noexist(abi.pack_flow_key(which), value):
                return
            self.fillers.append(abi.pack_flow_key(which))
        for filler in self.fillers:
            table.delete(filler)
        self.fillers.clear()

    # --- frames -------------------------------------------------------------------------------

    def asked(self, who: int, datagram: Datagram, home: bool) -> bytes:
        """A client's frame."""
        return self.world.native(ask(datagram, CLIENTS[who], hop=way(home)))

    def at_backend(self, who: int, datagram: Datagram, backend: str, port: int) -> bytes:
        """The same as it has to come to a backend."""
        server, sent = SERVERS[backend], datagram.but(ttl=datagram.ttl - 1)
        if self.method is Method.NAT:
            return self.world.native(sent.frame(CLIENTS[who], server.end, server.hop))
        if self.method is Method.FULLNAT:
            ours = End(OURS.addr, port)
            return self.world.native(sent.frame(ours, server.end, server.hop))
        frame = self.world.native(sent.frame(CLIENTS[who], WEB, server.hop))
        if self.method is Method.DSR:
            return frame
        outer, end = (
            format_addr(self.world.native_addr(each.number)) for each in (PROBE_SOURCE, server.end)
        )
        label = flow_hash(self.world.native_key(key(CLIENTS[who]))) & 0xFFFFF
        return tunneled(frame, outer, end, label)

    def answered(self, backend: str, port: int, datagram: Datagram) -> bytes:
        """A backend's frame, to a client by number, or to a port of ours."""
        server = self._server(SERVERS[backend])
        ours = End(OURS.addr, port)
        to = ours if self.method is Method.FULLNAT else CLIENTS[port]
        return self.world.native(datagram.frame(server.end, to, server.hop.back))

    def at_client(self, who: int, datagram: Datagram, home: bool) -> bytes:
        """The same as it has to come to a client."""
        sent = datagram.but(ttl=datagram.ttl - 1)
        return self.world.native(sent.frame(WEB, CLIENTS[who], way(home).back))

    def made_of(self, who: int, datagram: Datagram, home: bool, outcome: Outcome) -> bytes:
        """What a client's datagram must become."""
        if outcome.what == "backend":
            return self.at_backend(who, datagram, outcome.backend, outcome.port)
        if outcome.what not in ANSWERED:
            return self.asked(who, datagram, home)
        frame = ask(datagram, CLIENTS[who], hop=way(home))
        return self.world.native(own_error(*ANSWERED[outcome.what], frame, OURS_C))

    # --- tables -------------------------------------------------------------------------------

    def _reply_key(self, backend: str, port: int, kind: abi.Kind) -> bytes:
        client = CLIENTS[port] if self.method is not Method.FULLNAT else CLIENT
        if self.method.one_sided:
            return abi.pack_reply_key(endpoint_of(WEB, PROTOCOL), key(client), kind)
        if self.method is Method.NAT:
            return back_key(SERVERS[backend], kind, client)
        ours = endpoint_of(End(OURS.addr, port), PROTOCOL)
        end = endpoint_of(SERVERS[backend].end, PROTOCOL)
        return abi.pack_reply_key(end, key(client), kind, ours)

    def places(self) -> list[tuple[str, int]]:
        """Every place that a flow may have; a one-sided one's names no backend."""
        names = ("",) if self.method.one_sided else tuple(SERVERS)
        ports = PORTS if self.method is Method.FULLNAT else range(len(CLIENTS))
        return [(name, port) for name in names for port in ports]

    def delete(
        self, kind: str, who: int, flood: bool, place: tuple[str, int] | None = None
    ) -> None:
        """Evict an entry of either table of pending flows; a REPLY's place."""
        if place:
            which = self._reply_key(*place, abi.Kind.REPLY)
        else:
            which = pending_key(abi.Kind[kind], CLIENTS[who])
        table = self._table("flood" if flood else "pending")
        assert table.delete(which) == 0

    def port_taken(self, who: int, flood: bool) -> int:
        """The port of ours that a decision has."""
        table = self._table("flood" if flood else "pending")
        raw = table.read(pending_key(abi.Kind.FORWARD, CLIENTS[who]))
        assert raw is not None
        return abi.unpack_pending(raw).new_sport

    def _table(self, name: str) -> PendingFlows | FlowTable:
        tables = self.world.maps.by_family[self.world.family]
        if name == "flows":
            return tables.flows
        assert tables.flood is not None
        return tables.flood if name == "flood" else tables.pending

    def _entries(self) -> dict[str, tuple[bytes, str]]:
        """Every key that an entry of the model may have, and the table that it is in."""
        found = {}
        for who, client in enumerate(CLIENTS):
            found[f"SEEN {who}"] = pending_key(abi.Kind.SEEN, client), "pending"
            found[f"there {who}"] = abi.pack_flow_key(key(client)), "flows"
            for table in ("pending", "flood"):
                which = pending_key(abi.Kind.FORWARD, client)
                found[f"FORWARD {who} {table}"] = which, table
        for backend, port in self.places():
            for table in ("pending", "flood"):
                which = self._reply_key(backend, port, abi.Kind.REPLY)
                found[f"REPLY {backend} {port} {table}"] = which, table
            which = self._reply_key(backend, port, abi.Kind.NONE)
            found[f"back {backend} {port}"] = which, "flows"
        return found

    def is_window_as(self, left: float) -> bool:
        """Whether the flood is looked at for so long, from some instant since ``settle`` on."""
        until_ns = abi.unpack_pressure(self.world.pressure())[1]
        if left == NEVER_S:
            return until_ns == 0
        return self._settled_ns <= until_ns - int(left * SECOND) <= time.monotonic_ns()

    def tables(self, since_ns: int) -> dict[str, object]:
        """What the tables say, as ``told`` says it of the model."""
        found: dict[str, object] = {}
        now_ns = time.monotonic_ns()
        for name, (which, table) in self._keys.items():
            raw = self._table(table).read(which)
            if raw is None:
                continue
            bound = table == "flows"
            value: Any = abi.unpack_flow_entry(raw) if bound else abi.unpack_pending(raw)
            found[name] = (*self._read(name, value), self._age(value, since_ns, now_ns, bound))
        tables = (self.world.program.pending, self.world.program.flows, self.world.program.flood)
        size = sum(len(list(table.each_key())) for table in tables) - len(self.fillers)
        assert size == len(found), f"{size} entries, of which {len(found)} are known"
        return found

    def _age(self, value: Any, since_ns: int, now_ns: int, bound: bool) -> object:
        age_ns = age(now_ns, value.last_seen_ns)
        if not bound and age_ns <= now_ns - since_ns + TICK_NS:
            return "now"
        return coarse(age_ns / SECOND)

    def _read(self, name: str, value: Any) -> tuple[object, ...]:
        kind = name.split()[0]
        if kind == "SEEN":
            return (value.packets,)
        home = value.dmac == way(True).src
        if kind == "FORWARD":
            refused = bool(value.flags & abi.PENDING_REFUSED)
            port = value.new_sport if self.method is Method.FULLNAT and not refused else 0
            return (value.backend, port, value.packets, bool(value.flags & abi.PENDING_PROVEN))
        if kind == "REPLY":
            rests = bool(value.flags & abi.PENDING_CLOSED)
            proven = bool(value.flags & abi.PENDING_PROVEN)
            backend = 0 if self.method.one_sided else value.backend
            return (self._client(value), backend, value.packets, proven, rests or home, rests)
        if kind == "there":
            port = value.new_sport if self.method is Method.FULLNAT else 0
            return (value.backend, port, value.packets, home)
        return (self._client(value), value.backend, value.packets, home)

    def _client(self, value: Any) -> int:
        ends = [(client.number, client.port) for client in CLIENTS]
        return ends.index((value.new_daddr, value.new_dport))

    def told(self, model: UdpModel) -> dict[str, object]:
        """What the model says of the tables."""
        number = {name: server.id for name, server in SERVERS.items()} | {"": NO_BACKEND}
        ours = self.method is Method.FULLNAT
        told: dict[str, object] = {}
        for who, seen in model.seen.items():
            told[f"SEEN {who}"] = (seen.held, _fresh(seen.age))
        for table, entries in _both(model):
            for who, forward in entries.forward.items():
                port = forward.port if ours and forward.backend else 0
                told[f"FORWARD {who} {table}"] = (
                    number[forward.backend], port, forward.packets, forward.proven,
                    _fresh(forward.idle),
                )  # fmt: skip
            for (backend, port), reply in entries.reply.items():
                assert port != ANY
                told[f"REPLY {backend} {port} {table}"] = (
                    reply.client, number[backend] if backend else 0, reply.packets, reply.proven,
                    reply.rests or reply.home, reply.rests, _fresh(reply.idle),
                )  # fmt: skip
        for who, bound in model.bound.items():
            told[f"there {who}"] = (number[bound.backend], bound.port if ours else 0,
                                    bound.packets, bound.home, coarse(bound.idle))  # fmt: skip
            if not self.method.one_sided:
                told[f"back {bound.backend} {bound.port}"] = (
                    who, number[bound.backend], bound.back_packets, bound.home,
                    coarse(bound.back_idle),
                )  # fmt: skip
        return told

    def settle(self, model: UdpModel) -> None:
        """Make every instant in the tables as old as the model has it."""
        self._settled_ns = now_ns = time.monotonic_ns()
        self.world.write_pressure(
            full_ns=0 if model.full_age is None else self._instant(model.full_age, now_ns),
            flood_ns=0 if model.left == NEVER_S else now_ns + int(model.left * SECOND),
        )
        ages = self._ages(model)
        program = self.world.program
        tables = {"pending": program.pending, "flood": program.flood, "flows": program.flows}
        for name, (which, table) in self._keys.items():
            native = native_key(which) if self.world.family == 6 else which
            raw = tables[table].read(native)
            if raw is None:
                continue
            bound = table == "flows"
            value: Any = abi.unpack_flow_entry(raw) if bound else abi.unpack_pending(raw)
            then = self._instant(ages[name], now_ns)
            if name.startswith("SEEN"):
                value = dataclasses.replace(value, seen_ns=then)
            pack: Any = abi.pack_flow_entry if bound else abi.pack_pending
            value = dataclasses.replace(value, last_seen_ns=then)
            tables[table].write(native, pack(value, self.world.family))

    @staticmethod
    def _instant(age_s: float, now_ns: int) -> int:
        ahead = AHEAD_S if not age_s else 0
        return before(now_ns + ahead * SECOND, int(age_s * SECOND))

    def _ages(self, model: UdpModel) -> dict[str, float]:
        ages = {f"SEEN {who}": seen.age for who, seen in model.seen.items()}
        for table, entries in _both(model):
            forwards, replies = entries.forward.items(), entries.reply.items()
            ages |= {f"FORWARD {who} {table}": each.idle for who, each in forwards}
            ages |= {f"REPLY {b} {port} {table}": each.idle for (b, port), each in replies}
        ages |= {f"there {who}": bound.idle for who, bound in model.bound.items()}
        return ages | {f"back {b.backend} {b.port}": b.back_idle for b in model.bound.values()}


def _both(model: UdpModel) -> tuple[tuple[str, Entries], ...]:
    return ("pending", model.pending), ("flood", model.flood)


def coarse(age: float) -> int:
    """An age in steps that a stall of the machine does not change."""
    return int((age + AHEAD_S) // 20)


def _fresh(age: float) -> object:
    return coarse(age) if age else "now"
