# SPDX-License-Identifier: Apache-2.0
"""The real program and executor beside the model of ``flow_model``: same steps, same words."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

from tests.bpf.corpus.flows import (
    flow_keys,
    forward_entry,
    forward_key,
    read_flow,
    read_pending,
    reply_key,
    seen_key,
)
from tests.bpf.corpus.world import (
    B1,
    B2,
    B3,
    CLIENT,
    IN,
    MARK,
    SECOND,
    SHOP,
    SHOP_B1,
    WEB,
    Server,
    World,
    flow_key,
    to_backend,
    to_client,
)
from tests.support.flow_model import FlowModel
from tests.support.flow_parts import (
    ACK,
    DEADLINE_S,
    FLOW_IDLE_S,
    PENDING_IDLE_S,
    RST,
    STATELESS_S,
    Backend,
    Outcome,
    Seg,
)
from tests.support.frames import Segment
from tests.support.instants import before
from tests.support.program import DROP, PASS, REDIRECT, TX
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core import abi, model
from xdp_router.core.events import BindingTaken, BindingWritten, FirstPacket, ReplyTupleTaken
from xdp_router.core.model import NO_BACKEND
from xdp_router.daemon.executor import Executor

SERVICES = (WEB, SHOP)
SERVERS = {"B1": B1, "B2": B2, "B3": B3, "SHOP_B1": SHOP_B1}
BACKENDS = {
    name: Backend(name, server.id, f"{server.end.addr}:{server.end.port}", server.service)
    for name, server in SERVERS.items()
}
HASH_ORDER = (("B2", "B3", "B1"), ("SHOP_B1",))
"""By service: the first of these that is up has every slot of the hash table."""

ISNS = (1_000_000_000, 2_000_000_000, 0xFFFFFFFF)
FAR = 0x30000000
"""Beyond every window, and less than what TCP could ever advertise."""

STALE_S = 20
EXAMPLES = 200
PAYLOAD = b"0123456789"
ANSWERS = {BindingWritten: "written", BindingTaken: "taken", ReplyTupleTaken: "tuple"}


@dataclasses.dataclass(slots=True)
class Held:
    """A first packet that the daemon knows of."""

    service: int
    isn: int
    age: int
    packets: list[FirstPacket]
    """One a world."""


class Side:
    """One world, with the executor that works on its maps."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: list[tuple[int, bytes]] = []
        self.fillers: list[bytes] = []
        world.reset()
        for server in SERVERS.values():
            self.set_up(server, True)
            world.maps.backend_loads.reset(server.id)
        self.write_control(True, 0)
        for number in range(len(SERVICES)):
            world.change_service(number, deadline_ns=DEADLINE_S * SECOND)
        state: Any = SimpleNamespace(
            maps=world.maps, shared={world.native_endpoint(B1.end)}, vlan=lambda _backend: 0
        )
        sender: Any = SimpleNamespace(send_frame=lambda *sent: self.sent.append(sent))
        backends = [
            model.Backend(s.id, name, world.native_endpoint(s.end), s.service)
            for name, s in SERVERS.items()
        ]
        reinjector = Reinjector(world.program.plane.entry, MARK)
        self.executor = Executor(state, backends, reinjector, sender, lambda decision: None)
        world.program.changes()

    def set_up(self, server: Server, up: bool) -> None:
        shared = abi.BACKEND_SHARED if server.end == B1.end else 0
        self.world.change_server(server, flags=shared | (abi.BACKEND_UP if up else 0))

    def write_control(self, alive: bool, silent_s: int, resumed_s: int | None = None) -> None:
        now_ns = time.monotonic_ns()
        resumed_ns = now_ns - resumed_s * SECOND if resumed_s is not None else 0
        self.world.change_control(
            heartbeat_ns=before(now_ns, silent_s * SECOND),
            heartbeat_stale_ns=STALE_S * SECOND,
            resumed_ns=max(resumed_ns, 0),
            pending_idle_ns=PENDING_IDLE_S * SECOND,
            flow_idle_ns=FLOW_IDLE_S * SECOND,
            orphan_window_ns=STATELESS_S * SECOND,
        )

    def fill(self, full: bool) -> None:
        """Other flows take every place of ``flow_table`` that is left, or none."""
        table = self.world.maps.flow_table
        value = abi.pack_flow_entry(forward_entry(self.world))
        while full:
            key = dataclasses.replace(flow_key(), client_port=50_000 + len(self.fillers))
            if table.insert_noexist(abi.pack_flow_key(key), value):
                return
            self.fillers.append(abi.pack_flow_key(key))
        for filler in self.fillers:
            table.delete(filler)
        self.fillers.clear()

    def write_pressure(self, flows: FlowModel) -> None:
        """As the model says. What was just found full is put ahead, out of a stall's reach."""
        now_ns = time.monotonic_ns()
        full_ns = 0
        if flows.full_age is not None:
            full_ns = now_ns - flows.full_age * SECOND if flows.full_age else now_ns + 3600 * SECOND
        table = bpf.BpfMap(self.world.program.plane.maps["pressure"])
        values = [(full_ns, 0)]
        for left_s in flows.stateless.values():
            values.append((0, now_ns + int(left_s * SECOND) if left_s else 0))
        for slot, (full_at_ns, until_ns) in enumerate(values):
            at_ns = max(full_at_ns, 0)
            raw = abi.pack_pressure(at_ns, until_ns, table6_full_ns=at_ns)
            table.write(slot.to_bytes(4, "little"), raw)

    def pressure(self) -> dict[str, object]:
        """What the program has noted, as coarse as the model needs it."""
        now_ns, pressure = time.monotonic_ns(), self.world.maps.pressure
        found: dict[str, object] = {
            "full": self.world.full_ns() > now_ns - 20 * SECOND,
        }
        for number in range(len(SERVICES)):
            left_s = max(0, pressure.stateless_until_ns(number) - now_ns) / SECOND
            found[f"stateless {number}"] = _coarse(left_s)
        return found

    def grow_older(self, seconds: int) -> None:
        """Move every instant in the tables back."""
        by = seconds * SECOND
        names = ("seen_ns", "last_seen_ns")
        for table, unpack, pack in (
            (self.world.program.pending, abi.unpack_pending, abi.pack_pending),
            (self.world.program.flows, abi.unpack_flow_entry, abi.pack_flow_entry),
        ):
            for key in list(table.each_key()):
                raw = table.read(key)
                assert raw is not None
                value: Any = unpack(raw)
                moved = {n: before(getattr(value, n), by) for n in names}
                table.write(key, pack(dataclasses.replace(value, **moved), self.world.family))

    def tables(self) -> dict[str, object]:
        """What the tables say of the client's flows, as the model would say it."""
        found: dict[str, object] = {}
        for number, service in enumerate(SERVICES):
            if seen := read_pending(self.world, seen_key(service)):
                found[f"SEEN {number}"] = seen.isn
            if forward := read_pending(self.world, forward_key(service)):
                closed = bool(forward.flags & abi.PENDING_CLOSED)
                fin, later = forward.flags & abi.PENDING_FIN, forward.seq
                found[f"FORWARD {number}"] = (forward.isn, forward.backend, closed,
                                              *proven_of(forward), bool(fin), later)  # fmt: skip
        for server in (B1, B2, B3):
            name = BACKENDS[name_of(server)].address
            if reply := read_pending(self.world, reply_key(server)):
                known = bool(reply.flags & abi.PENDING_SYNACK)
                owner = _service(reply.new_saddr)
                numbers = (reply.seq, reply.ack) if proven_of(reply)[0] and known else None
                found[f"REPLY {name}"] = (owner, reply.backend, reply.isn if known else None,
                                          *proven_of(reply), numbers)  # fmt: skip
            back = flow_keys(server)[1]
            if entry := read_flow(self.world, back):
                found[f"back {name}"] = (_service(entry.new_saddr), *half_of(entry))
        open_: Counter[int] = Counter()
        for number, service in enumerate(SERVICES):
            if entry := read_flow(self.world, flow_keys(B1, service)[0]):
                open_[entry.backend] += entry.state is not abi.TcpState.CLOSING
                found[f"there {number}"] = (number, *half_of(entry), entry.later_syn)
        tables = (self.world.program.pending, self.world.program.flows)
        size = sum(len(list(table.each_key())) for table in tables) - len(self.fillers)
        assert size == len(found), f"{size} entries, of which {len(found)} are known"
        for name, server in SERVERS.items():
            kept = self.world.maps.backend_loads.open(server.id)
            assert kept == open_[server.id], f"{name} has {open_[server.id]} open flows, not {kept}"
        return found


def proven_of(entry: abi.PendingValue) -> tuple[bool]:
    return (bool(entry.flags & abi.PENDING_PROVEN),)


def name_of(server: Server) -> str:
    return next(name for name, each in SERVERS.items() if each == server)


def _service(address: int) -> int:
    return [service.number for service in SERVICES].index(address)


def half_of(entry: abi.FlowEntryValue) -> tuple[object, ...]:
    closing = entry.state == abi.TcpState.CLOSING
    return entry.backend, entry.isn, entry.seq_next, entry.ack, closing, entry.flags


def tables_of(flows: FlowModel) -> dict[str, object]:
    """The same of the model."""
    found: dict[str, object] = {f"SEEN {n}": seen.isn for n, seen in flows.seen.items()}
    for number, forward in flows.forward.items():
        backend = forward.backend.id if forward.backend else NO_BACKEND
        found[f"FORWARD {number}"] = (forward.isn, backend, forward.closed, forward.proven,
                                      forward.fin, forward.later)  # fmt: skip
    for address, reply in flows.reply.items():
        known = reply.proven and reply.isn is not None
        found[f"REPLY {address}"] = (reply.service, reply.backend.id, reply.isn, reply.proven,
                                     (reply.next, reply.ack) if known else None)  # fmt: skip
    halves = [(f"there {n}", half) for n, half in flows.there.items()]
    halves += [(f"back {address}", half) for address, half in flows.back.items()]
    for name, half in halves:
        flags = half.fin * abi.FLOW_FIN | half.rst * abi.FLOW_RST
        later = (half.later,) if name.startswith("there") else ()
        found[name] = (half.service, half.backend.id, half.isn, half.next, half.ack,
                       half.closing, flags, *later)  # fmt: skip
    return found


def pressure_of(flows: FlowModel) -> dict[str, object]:
    """The same of the model."""
    found: dict[str, object] = {"full": flows.full_age == 0}
    for number, left_s in flows.stateless.items():
        found[f"stateless {number}"] = _coarse(left_s)
    return found


def _coarse(left_s: float) -> int:
    """A time that is left, which is 56, 16 or 0 seconds: a stall of 15 changes nothing."""
    return math.ceil(left_s / 20)


def segment_of(seg: Seg) -> Segment:
    return Segment(flags=seg.flags, seq=seg.seq, ack=seg.ack, payload=PAYLOAD[: seg.payload],
                   window=60_000)  # fmt: skip


def made_of(seg: Seg, outcome: Outcome) -> tuple[int, bytes | None]:
    """Verdict and outgoing frame that an outcome stands for; None: as it came."""
    segment = segment_of(seg)
    if outcome.what == "backend":
        assert outcome.backend is not None
        return REDIRECT, to_backend(segment, SERVERS[outcome.backend.name])
    if outcome.what == "client":
        assert outcome.service is not None
        return REDIRECT, to_client(segment, SERVICES[outcome.service])
    return {"drop": DROP, "pass": PASS, "rst": TX}[outcome.what], None


def rst_for(service: int, seg: Seg) -> bytes:
    """The RST that answers a client's segment."""
    if seg.flags & ACK:
        made = Segment(flags=RST, seq=seg.ack, window=0, ident=0)
    else:
        made = Segment(flags=RST | ACK, ack=seg.seq + seg.length, window=0, ident=0)
    return made.frame(SERVICES[service], CLIENT, IN.back)
