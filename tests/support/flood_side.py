# SPDX-License-Identifier: Apache-2.0
"""The real program and executor beside the model of ``flood_model``."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

from tests.bpf.corpus.flows import flow_keys, forward_key, reply_key, seen_key
from tests.bpf.corpus.world import (
    B1,
    B2,
    B3,
    CLIENT,
    IN,
    SECOND,
    WEB,
    Server,
    World,
    to_backend,
    to_client,
)
from tests.support.flood_model import FloodModel
from tests.support.flow_model import FlowModel
from tests.support.flow_parts import ACK, DEADLINE_S, RST, Backend, Outcome, Seg
from tests.support.flow_sides import Side, half_of, proven_of, segment_of
from tests.support.frames import End, Segment
from tests.support.instants import before
from tests.support.program import DROP, PASS, REDIRECT, TX
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.core import abi
from xdp_router.core.model import NO_BACKEND, Reason

CLIENTS = (CLIENT, End(CLIENT.addr, CLIENT.port + 1))
SERVERS = {"B1": B1, "B2": B2, "B3": B3}
PLACES = {
    f"{name}@{who}": Backend(f"{name}@{who}", server.id, f"{name} {who}", who)
    for who in range(len(CLIENTS))
    for name, server in SERVERS.items()
}
"""A backend as a client's flow has it: with a reply tuple of its own."""

HASH_ORDER = ("B2", "B3", "B1")
HOUR = 3600 * SECOND


def server_of(place: str) -> Server:
    """Whose place that is."""
    return SERVERS[place[:2]]


class FloodSide(Side):
    """One world with a service that may be over budget; ``without``: that is stateless then."""

    def __init__(self, world: World, without: bool) -> None:
        self.without = without
        super().__init__(world)
        self.spend(False)

    def set_up(self, server: Server, up: bool) -> None:
        stateless = {"stateless_addr": WEB.number, "stateless_port": WEB.port}
        self.world.change_server(
            server, flags=abi.BACKEND_UP if up else 0, **stateless if self.without else {}
        )

    def spend(self, spent: bool) -> None:
        """Leave nothing of the service's budget, or have it unlimited."""
        limits = {"event_interval_ns": HOUR, "event_burst_ns": 2 * HOUR} if spent else {}
        flags = abi.SERVICE_STATELESS if self.without else 0
        self.world.change_service(deadline_ns=DEADLINE_S * SECOND, flags=flags, **limits)
        self.world.maps.tokens.fill(abi.TOKENS_SERVICE, 0, time.monotonic_ns())

    def write_pressure(self, flows: FlowModel) -> None:
        assert isinstance(flows, FloodModel)
        now_ns = time.monotonic_ns()
        full_ns = 0
        if flows.full_age is not None:
            full_ns = now_ns - flows.full_age * SECOND if flows.full_age else now_ns + HOUR
        table = bpf.BpfMap(self.world.program.plane.maps["pressure"])
        lefts = (flows.window.left, flows.stateless[0])
        # 1: long ago, not never
        until = [now_ns + int(left * SECOND) if left else 1 for left in lefts]
        full_ns = max(full_ns, 0)
        everybody = abi.pack_pressure(full_ns, until[0], table6_full_ns=full_ns)
        for slot, raw in enumerate((everybody, abi.pack_pressure(0, until[1]))):
            table.write(slot.to_bytes(4, "little"), raw)

    def pressure(self) -> dict[str, object]:
        now_ns, found = time.monotonic_ns(), {}
        for name, slot in (("flood", 0), ("stateless", 1)):
            until_ns = abi.unpack_pressure(self.world.pressure(slot))[1]
            found[name] = coarse(max(0, until_ns - now_ns) / SECOND)
        full = self.world.full_ns() > now_ns - 20 * SECOND
        return {"full": full, **found}

    def grow_older(self, seconds: int) -> None:
        super().grow_older(seconds)
        by = seconds * SECOND
        table = self.world.program.flood
        for key in list(table.each_key()):
            value = abi.unpack_pending(table.read(key) or b"")
            moved: dict[str, Any] = {
                name: before(getattr(value, name), by) for name in ("seen_ns", "last_seen_ns")
            }
            moved_value = dataclasses.replace(value, **moved)
            table.write(key, abi.pack_pending(moved_value, self.world.family))

    def _pending_in(self, flood: bool, key: bytes) -> abi.PendingValue | None:
        tables = self.world.maps.by_family[self.world.family]
        table = tables.flood if flood else tables.pending
        assert table is not None
        raw = table.read(key)
        return None if raw is None else abi.unpack_pending(raw)

    def delete(self, kind: str, who: int, backend: Backend, flood: bool) -> None:
        """Evict an entry."""
        key = {
            "SEEN": seen_key(client=CLIENTS[who]),
            "FORWARD": forward_key(client=CLIENTS[who]),
            "REPLY": reply_key(server_of(backend.name), CLIENTS[who]),
        }[kind]
        tables = self.world.maps.by_family[self.world.family]
        table = tables.flood if flood else tables.pending
        assert table is not None
        table.delete(key)

    def tables(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for who, client in enumerate(CLIENTS):
            if seen := self._pending_in(False, seen_key(client=client)):
                found[f"SEEN {who}"] = seen.isn
            for flood in (False, True):
                if entry := self._pending_in(flood, forward_key(client=client)):
                    found[f"FORWARD {who} {flood}"] = forward_of(entry)
        for name, place in PLACES.items():
            client, server = CLIENTS[place.service], server_of(name)
            for flood in (False, True):
                if entry := self._pending_in(flood, reply_key(server, client)):
                    assert (entry.new_daddr, entry.new_dport) == (client.number, client.port)
                    found[f"REPLY {place.address} {flood}"] = reply_of(entry)
            there, back = flow_keys(server, client=client)
            for at, key in ((f"there {place.service}", there), (f"back {place.address}", back)):
                if raw := self.world.maps.flow_table.read(key):
                    half = abi.unpack_flow_entry(raw)
                    later = (half.later_syn,) if at.startswith("there") else ()
                    found[at] = (*half_of(half), *later)
        tables = (self.world.program.pending, self.world.program.flows, self.world.program.flood)
        size = sum(len(list(table.each_key())) for table in tables) - len(self.fillers)
        assert size == len(found), f"{size} entries, of which {len(found)} are known"
        return found


def forward_of(entry: abi.PendingValue) -> tuple[object, ...]:
    """What of FORWARD the model knows, too."""
    flags = entry.flags
    return (entry.isn, entry.backend, bool(flags & abi.PENDING_CLOSED), *proven_of(entry),
            bool(flags & abi.PENDING_FIN), entry.seq,
            entry.reason == Reason.STATELESS)  # fmt: skip


def reply_of(entry: abi.PendingValue) -> tuple[object, ...]:
    """The same of REPLY."""
    known = bool(entry.flags & abi.PENDING_SYNACK)
    numbers = (entry.seq, entry.ack) if proven_of(entry)[0] and known else None
    return (entry.backend, entry.isn if known else None, *proven_of(entry), numbers,
            entry.reason == Reason.STATELESS)  # fmt: skip


def told(flows: FloodModel) -> dict[str, object]:
    """What the model says of the tables."""
    found: dict[str, object] = {f"SEEN {who}": seen.isn for who, seen in flows.seen.items()}
    for flood in (False, True):
        forwards = flows.forwards.flood if flood else flows.forwards.pending
        for who, forward in forwards.items():
            backend = forward.backend.id if forward.backend else NO_BACKEND
            found[f"FORWARD {who} {flood}"] = (
                forward.isn, backend, forward.closed, forward.proven, forward.fin, forward.later,
                forward.noted,
            )  # fmt: skip
        replies = flows.replies.flood if flood else flows.replies.pending
        for address, reply in replies.items():
            known = reply.proven and reply.isn is not None
            found[f"REPLY {address} {flood}"] = (
                reply.backend.id, reply.isn, reply.proven,
                (reply.next, reply.ack) if known else None, reply.noted,
            )  # fmt: skip
    halves = [(f"there {who}", half) for who, half in flows.there.items()]
    halves += [(f"back {address}", half) for address, half in flows.back.items()]
    for name, half in halves:
        flags = half.fin * abi.FLOW_FIN | half.rst * abi.FLOW_RST
        later = (half.later,) if name.startswith("there") else ()
        found[name] = (half.backend.id, half.isn, half.next, half.ack, half.closing, flags, *later)
    return found


def told_pressure(flows: FloodModel) -> dict[str, object]:
    """The same of what the program notes."""
    return {"full": flows.full_age == 0, "flood": coarse(flows.window.left),
            "stateless": coarse(flows.stateless[0])}  # fmt: skip


def coarse(left: float) -> int:
    """67, 56, 27, 16 or no seconds: a stall of some changes nothing."""
    return math.ceil(left / 20)


def made_of(who: int, seg: Seg, outcome: Outcome) -> tuple[int, bytes | None]:
    """Verdict and outgoing frame; None: as it came."""
    segment, client = segment_of(seg), CLIENTS[who]
    if outcome.what == "backend":
        assert outcome.backend is not None
        return REDIRECT, to_backend(segment, server_of(outcome.backend.name), client)
    if outcome.what == "client":
        return REDIRECT, to_client(segment, WEB, client)
    if outcome.what != "rst":
        return {"drop": DROP, "pass": PASS}[outcome.what], None
    if seg.flags & ACK:
        made = Segment(flags=RST, seq=seg.ack, window=0, ident=0)
    else:
        made = Segment(flags=RST | ACK, ack=seg.seq + seg.length, window=0, ident=0)
    return TX, made.frame(WEB, client, IN.back)
