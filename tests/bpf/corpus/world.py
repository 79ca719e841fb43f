# SPDX-License-Identifier: Apache-2.0
"""The world that every case lives in: two services, four backends, one client, two wires.

`World` writes the configuration as the daemon does, and flows as the program would have left
them, with numbers that the cases know.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.frames import End, Hop, Segment
from tests.support.program import LoadedProgram, Outcome, Wires
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.core import abi
from xdp_router.core.model import (
    Endpoint,
    FlowKey,
    Forwarding,
    Mode,
    Orphans,
)

SECOND, MS = 1_000_000_000, 1_000_000

CLIENT = End("198.18.0.2", 40000)
WEB = End("198.18.100.1", 80)
SHOP = End("198.18.100.2", 80)
"""A second service, whose only backend has the address of the first one's B1."""
PROBE_SOURCE = End("198.18.1.1", 61005)
OURS_C, OURS_B = End("198.18.0.1", 0), End("198.18.1.1", 0)
"""Our addresses on the client's and on the backends' side."""
JUMBO = 9000
"""MTU of both sides, unless a case says otherwise."""

CLIENT_MAC = bytes.fromhex("020000000c01")
ROUTER_MAC_C = bytes.fromhex("020000000c02")
ROUTER_MAC_B = bytes.fromhex("020000000b02")
VIRTUAL_MAC = bytes.fromhex("00005e000101")
OTHER_MAC = bytes.fromhex("02000000dead")

IN = Hop(CLIENT_MAC, ROUTER_MAC_C)
"""From the client to us."""

MARK = 0x5EC2E75EC2E75EC2
PROBE_KEY = (0x01234567, 0x89ABCDEF)
PROBE_PORTS = (61000, 61099)
NAT_PORT = 20000
"""The only source port of fullnat, unless a case says otherwise."""


@dataclass(frozen=True, slots=True)
class Server:
    """A backend as the program knows it, and its wire."""

    id: int
    end: End
    mac: bytes
    service: int = 0

    @property
    def hop(self) -> Hop:
        """From us to it."""
        return Hop(ROUTER_MAC_B, self.mac)


B1 = Server(0, End("198.18.1.2", 8080), bytes.fromhex("020000000b11"))
B2 = Server(1, End("198.18.2.2", 8080), bytes.fromhex("020000000b12"))
B3 = Server(2, End("198.18.3.2", 8081), bytes.fromhex("020000000b13"))
SHOP_B1 = Server(3, B1.end, B1.mac, 1)
SERVERS = (B1, B2, B3, SHOP_B1)

CLIENT_ISN, SERVER_ISN = 1_000_000_000, 3_000_000_000
CLIENT_SCALE, SERVER_SCALE = 7, 8


# --- frames: in, and as they have to come out ---------------------------------------------


def to_service(segment: Segment, service: End = WEB, client: End = CLIENT, hop: Hop = IN) -> bytes:
    """A frame of the client."""
    return segment.frame(client, service, hop)


def to_backend(segment: Segment, server: Server = B1, client: End = CLIENT) -> bytes:
    """The client's frame on its way to a backend."""
    return segment.but(ttl=segment.ttl - 1).frame(client, server.end, server.hop)


def from_backend(segment: Segment, server: Server = B1, client: End = CLIENT) -> bytes:
    """A frame of a backend for a client."""
    return segment.frame(server.end, client, server.hop.back)


def to_client(segment: Segment, service: End = WEB, client: End = CLIENT) -> bytes:
    """The backend's frame on its way to the client."""
    return segment.but(ttl=segment.ttl - 1).frame(service, client, IN.back)


def flow_key(service: End = WEB, client: End = CLIENT) -> FlowKey:
    """The flow of a client with a service."""
    return FlowKey(client.number, client.port, service.number, service.port)


def ones_delta(old: bytes, new: bytes) -> int:
    """What replacing bytes adds to a one's complement sum of little-endian words."""
    total = 0
    for at in range(0, len(old), 2):
        total += 0xFFFF - int.from_bytes(old[at : at + 2], "little")
        total += int.from_bytes(new[at : at + 2], "little")
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def deltas_of(
    old: tuple[int, int], new: tuple[int, int], ports: tuple[int, int, int, int]
) -> tuple[int, int]:
    """``l3_delta`` and ``l4_delta`` of other addresses (source, destination) and ports."""
    size = 16 if max(*old, *new) >> 32 else 4
    before, after = (b"".join(a.to_bytes(size, "big") for a in pair) for pair in (old, new))
    numbers = [port.to_bytes(2, "big") for port in ports]
    return (
        ones_delta(before, after),
        ones_delta(before + numbers[0] + numbers[1], after + numbers[2] + numbers[3]),
    )


def deltas(old: tuple[End, End], new: tuple[End, End]) -> tuple[int, int]:
    """``l3_delta`` and ``l4_delta`` of rewriting (source, destination)."""
    return deltas_of(
        (old[0].number, old[1].number),
        (new[0].number, new[1].number),
        (old[0].port, old[1].port, new[0].port, new[1].port),
    )


def _families_swapped(flags: int) -> int:
    """Flags of an interface, what is IPv4's as IPv6's and the other way round."""
    fours = abi.IF_HANDOFF_FORWARD4 | abi.IF_HANDOFF_REPLY4
    sixes = abi.IF_HANDOFF_FORWARD6 | abi.IF_HANDOFF_REPLY6
    return (
        flags & ~(fours | sixes)
        | (abi.IF_HANDOFF_FORWARD6 if flags & abi.IF_HANDOFF_FORWARD4 else 0)
        | (abi.IF_HANDOFF_REPLY6 if flags & abi.IF_HANDOFF_REPLY4 else 0)
        | (abi.IF_HANDOFF_FORWARD4 if flags & abi.IF_HANDOFF_FORWARD6 else 0)
        | (abi.IF_HANDOFF_REPLY4 if flags & abi.IF_HANDOFF_REPLY6 else 0)
    )


class World:
    """One loaded program with configuration and flows. ``reset`` before each case.

    Cases say everything in IPv4; the ``native`` functions give what is meant in this world.
    """

    family = 4

    def __init__(self, program: LoadedProgram, wires: Wires) -> None:
        self.program = program
        self.maps = program.maps
        self.wires = wires
        self.now_ns = 0
        self.flooded = False
        """Whether the case's flows were moved to ``flood_flows``."""
        self.missing = frozenset[abi.Stage]()
        program.restore_stages()  # whatever a world before has left
        self._dirty = True
        self._control = self.control()

    # Configuration

    def reset(self, missing: frozenset[abi.Stage] = frozenset()) -> None:
        """The world as it is when a case begins: no flows, everything up, budget unlimited.

        ``missing``: stages that are not there. To take one away costs the kernel 0.1 s: those that
        are gone already stay so.
        """
        self.program.changes()  # what a test before has counted is not of the next run
        self.program.clear_flows()
        self.program.clear_fragments()
        self.flooded = False
        if self._dirty:
            self._configure()
            self._dirty = False
        if missing != self.missing:
            self.program.restore_stages()
            for stage in missing:
                slot = int(stage) + (abi.STAGES_IPV6 if self.family == 6 else 0)
                assert self.program.stages.delete(slot.to_bytes(4, "little")) == 0
            self.missing = missing
        self.now_ns = time.monotonic_ns()
        self._write_service(WEB, self.service())
        self._write_service(SHOP, self.service(1))
        self.write_pressure()
        self._control = self.control()
        self.maps.control.write(self._control)
        self.maps.event_shares.write([0] * bpf.possible_cpus())

    def service(self, number: int = 0) -> abi.ServiceValue:
        """A service's value at the start."""
        return abi.ServiceValue(
            deadline_ns=100 * SECOND,
            event_interval_ns=0,
            event_burst_ns=0,
            id=number,
            first_backend=3 * number,
            backend_count=1 if number else 3,
            fallback=3 * number,
            mode=Mode.RACE,
            forwarding=Forwarding.NAT,
            orphans=Orphans.RESET,
            hash_active=number,
        )

    def control(self) -> abi.ControlValue:
        """The control value at the start: the daemon is alive and stays so."""
        return abi.ControlValue(
            heartbeat_ns=self.now_ns,
            heartbeat_stale_ns=3600 * SECOND,
            reinject_mark=MARK,
            pending_idle_ns=100 * SECOND,
            flow_idle_ns=1000 * SECOND,
            udp_idle_ns=1000 * SECOND,
            orphan_window_ns=50 * SECOND,
            event_interval_ns=0,
            event_burst_ns=0,
            probe_key=PROBE_KEY,
            abi_version=abi.ABI_VERSION,
            generation=1,
            probe_port_min=PROBE_PORTS[0],
            probe_port_max=PROBE_PORTS[1],
            nat_port_min=NAT_PORT,
            nat_port_max=NAT_PORT,
        )

    def server(self, server: Server) -> abi.BackendValue:
        """A backend's value at the start: up, with a path."""
        return abi.BackendValue(
            addr=server.end.number,
            port=server.end.port,
            proto=6,
            flags=abi.BACKEND_UP,
            service=server.service,
            ifindex=self.wires.backend,
            probe_addr=PROBE_SOURCE.number,
            dmac=server.mac,
            smac=ROUTER_MAC_B,
            weight=1,
        )

    def change_service(self, number: int = 0, **change: Any) -> None:
        """Write a service with other values."""
        value = dataclasses.replace(self.service(number), **change)
        self._write_service(SHOP if number else WEB, value)

    def write_pressure(
        self, full_ns: int = 0, stateless_ns: int = 0, flood_ns: int = 0, other_full_ns: int = 0
    ) -> None:
        """Write when the table was last found full (``other_full_ns``: that of the other family),
        until when services are stateless, and until when ``flood_flows`` is looked into.
        """
        table = bpf.BpfMap(self.program.plane.maps["pressure"])
        for number in (0, 1):
            slot = (1 + number).to_bytes(4, "little")
            table.write(slot, abi.pack_pressure(0, stateless_ns))
        table.write((0).to_bytes(4, "little"), self._all(full_ns, flood_ns, other_full_ns))

    def _all(self, full_ns: int, flood_ns: int, other_full_ns: int = 0) -> bytes:
        full4_ns, full6_ns = (full_ns, other_full_ns)[:: -1 if self.family == 6 else 1]
        return abi.pack_pressure(full4_ns, flood_ns, table6_full_ns=full6_ns)

    def full_ns(self) -> int:
        """When the table was last found full."""
        return self.maps.pressure.table_full_ns(self.family)

    def pressure(self, slot: int = 0) -> bytes:
        """What the program noticed: about all services, or about service ``slot - 1``."""
        table = bpf.BpfMap(self.program.plane.maps["pressure"])
        return table.read(slot.to_bytes(4, "little")) or b""

    def move_to_flood(self) -> None:
        """Move each FORWARD and REPLY to ``flood_flows``, and say that it is looked into."""
        pending, flood = self.program.pending, self.program.flood
        for key in list(pending.each_key()):
            value = pending.read(key)
            if value is not None and abi.key_kind(key) is not abi.Kind.SEEN:
                assert flood.insert(key, value) == pending.delete(key) == 0
        self.flooded = True
        table, slot = bpf.BpfMap(self.program.plane.maps["pressure"]), (0).to_bytes(4, "little")
        table.write(slot, self._all(self.full_ns(), self.now_ns + 3600 * SECOND))

    def change_control(self, **change: Any) -> None:
        """Write control with other values."""
        self.maps.control.write(dataclasses.replace(self.control(), **change))

    def limit(self, **change: Any) -> None:
        """Change limits in control, on top of those that were changed so before."""
        self._control = dataclasses.replace(self._control, **change)
        self.maps.control.write(self._control)

    def change_server(self, server: Server, **change: Any) -> None:
        """Write a backend with other values."""
        self._dirty = True
        value = dataclasses.replace(self.server(server), **change)
        self.maps.backends.write(server.id, value)

    def change_backend(self, number: int, value: abi.BackendValue) -> None:
        """Write a backend that is none of the servers."""
        self._dirty = True
        self.maps.backends.write(number, value)

    def change_hash(self, slots: tuple[int, ...], service: int = 0) -> None:
        """Write the hash table that a service uses."""
        self._dirty = True
        self.maps.hash_tables.write(service, service, slots)

    def interface(self, side: str) -> abi.InterfaceValue:
        """An interface's value at the start."""
        mac, addr = {"client": (ROUTER_MAC_C, OURS_C), "backend": (ROUTER_MAC_B, OURS_B)}[side]
        return abi.InterfaceValue(mac, bytes(6), 0, addr.number, JUMBO)

    def change_interface(
        self, mac: bytes, virtual_mac: bytes = bytes(6), flags: int = 0, **change: Any
    ) -> None:
        """Write the client side's interface."""
        change = {"mac": mac, "virtual_mac": virtual_mac, "flags": flags} | change
        self.change_side("client", **change)

    def change_side(self, side: str, **change: Any) -> None:
        """Write the interface of the "client" or the "backend" side.

        Flags of hand-off are told as in IPv4, the other family's as IPv6's.
        """
        self._dirty = True
        if self.family == 6 and "flags" in change:
            change["flags"] = _families_swapped(change["flags"])
        value = dataclasses.replace(self.interface(side), **change)
        self.maps.interfaces.write(self.ingress(side), value)

    def buckets(self, slot: int) -> list[tuple[int, int, int]]:
        """Credit and time of each CPU's bucket of an event budget."""
        raw = bpf.BpfMap(self.program.plane.maps["tokens"]).read(slot.to_bytes(4, "little")) or b""
        size = abi.TOKEN_BUCKET_SIZE
        return [abi.unpack_token_bucket(raw[at : at + size]) for at in range(0, len(raw), size)]

    def touch(self) -> None:
        """Say that maps were written directly: the next reset writes all of them."""
        self._dirty = True

    def _configure(self) -> None:
        for endpoint, _ in list(self.maps.services.items()):
            self.maps.services.delete(endpoint)
        for endpoint, _ in list(self.maps.backend_index.items()):
            self.maps.backend_index.delete(endpoint)
        self.maps.probe_index.replace({})
        self.maps.service_ranges.replace({})
        self.maps.source_rules.keep_only(set())
        for sources in (self.maps.affinity, self.maps.companions):
            sources.forget(lambda _service, _backend: False)
        for number in (0, 1):
            self.maps.usage.reset(number)
            self.maps.pick_tables.reset(number)
        for server in reversed(SERVERS):  # of two with one address the first one stays
            self.maps.backends.write(server.id, self.server(server))
            self.maps.backend_loads.reset(server.id)
            self.maps.backend_index.write(endpoint_of(server.end), server.id, server.service)
        for half in (0, 1):  # the table that is not in use would lead astray
            self.maps.hash_tables.write(0, half, ((B2.id, B3.id)[half],) * abi.HASH_SLOTS)
            self.maps.hash_tables.write(1, half, ((B2.id, SHOP_B1.id)[half],) * abi.HASH_SLOTS)
        for side in ("client", "backend"):
            self.maps.interfaces.write(self.ingress(side), self.interface(side))

    def _write_service(self, end: End, value: abi.ServiceValue) -> None:
        self.maps.services.write(endpoint_of(end), value)

    # What is said in IPv4, and meant

    def native(self, frame: bytes) -> bytes:
        """The frame of this world. Raises ValueError: it has no such frame."""
        return frame

    def native_addr(self, addr: int) -> int:
        """The address of this world."""
        return addr

    def native_endpoint(self, end: End) -> Endpoint:
        """One side of a conversation of this world."""
        return Endpoint(self.native_addr(end.number), end.port)

    def native_key(self, key: FlowKey) -> FlowKey:
        """The tuple of this world."""
        return key

    def number_probes(self, key: tuple[int, int]) -> None:
        """Say by which key probes are numbered in what follows."""

    def native_probe(self, seq: int, key: FlowKey) -> int:
        """The number of a probe in this world; ``key`` is its answer's."""
        return seq

    # Running

    def run(
        self, frame: bytes, at: str = "client", meta: bytes = b"", program: str = "xdp_router"
    ) -> Outcome:
        """Run a frame, said in IPv4, that arrives on the "client" or the "backend" side.

        What comes out is of this world.
        """
        return self.run_native(self.native(frame), at, meta, program)

    def run_native(
        self, frame: bytes, at: str = "client", meta: bytes = b"", program: str = "xdp_router"
    ) -> Outcome:
        """The same with a frame of this world."""
        return self.program.run(frame, self.ingress(at), meta, program)

    def ingress(self, at: str) -> int:
        """Index of the interface on a side."""
        return self.wires.client if at == "client" else self.wires.backend


def endpoint_of(end: End, proto: int = 6) -> Endpoint:
    """The same as the maps' key."""
    return Endpoint(end.number, end.port, proto)


Given = Callable[[World], object]
"""One step that brings the world into the state that a case begins with."""


@dataclass(frozen=True, slots=True)
class WithoutStage:
    """A step: the stage is missing, by what the world was reset to."""

    stage: abi.Stage

    def __call__(self, world: World) -> None:
        assert self.stage in world.missing
