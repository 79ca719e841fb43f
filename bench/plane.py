# SPDX-License-Identifier: Apache-2.0
"""A data plane without a daemon: the real programs and maps, filled for one benchmark."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from xdp_router import ebpf
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.loader_object import ObjectLoader
from xdp_router.adapters.map_specs import Sizes
from xdp_router.core import abi
from xdp_router.core.model import Forwarding, Mode, Orphans, Reason

from . import programs
from .traffic import BACKEND_ADDR, CLIENT_BASE, NAT, OUR_ADDR, SERVICE_ADDR, Traffic

XDP_PASS = 2
LOOPBACK = 1
MARK = 0x7E57_1234_5678_9ABC
MTU = 1500
WINDOW = 1 << 20
FAR_NS = 1 << 62
"""Never, as a time that something may take."""

_CONFIG = {
    family: struct.Struct(f"=QII{addr}s{addr}s{addr}s{addr}s2s2s6s6s6s6sBB2x")
    for family, addr in ((4, 4), (6, 16))
}


@dataclass(frozen=True, slots=True)
class Place:
    """Interfaces and MAC addresses of both sides; by default all of it is the loopback."""

    client_ifindex: int = LOOPBACK
    backend_ifindex: int = LOOPBACK
    client_side: bytes = bytes.fromhex("025852000001")
    client: bytes = bytes.fromhex("025852000002")
    backend_side: bytes = bytes.fromhex("025852010101")
    backend: bytes = bytes.fromhex("025852010102")


@contextmanager
def data_plane(
    sizes: Sizes, place: Place, traffic: Sequence[Traffic] = (NAT,)
) -> Iterator[DataPlane]:
    """A service with one backend that is up for each of ``traffic``; a heartbeat that never gets
    old. With IPv6 if some traffic is, or ``sizes`` say so."""
    sizes = replace(
        sizes,
        ipv6=sizes.ipv6 or any(each.family == 6 for each in traffic),
        services=len(traffic),
        backends=len(traffic),
    )
    plane = DataPlane.create(ObjectLoader(ebpf.object_bytes(4), ebpf.object_bytes(6)), sizes, None)
    try:
        maps = Maps(plane.maps)
        _configure(maps, place)
        for each in traffic:
            _serve(maps, place, each)
        yield plane
    finally:
        plane.close()


def _configure(maps: Maps, place: Place) -> None:
    maps.control.write(
        abi.ControlValue(
            heartbeat_ns=time.monotonic_ns(),
            heartbeat_stale_ns=FAR_NS,
            reinject_mark=MARK,
            pending_idle_ns=FAR_NS,
            flow_idle_ns=FAR_NS,
            udp_idle_ns=FAR_NS,
            orphan_window_ns=0,
            event_interval_ns=0,
            event_burst_ns=0,
            probe_key=(1, 2),
            abi_version=abi.ABI_VERSION,
            generation=1,
            min_mtu=MTU,
            probe_port_min=61_000,
            probe_port_max=61_999,
        )
    )
    sides = {
        place.backend_ifindex: place.backend_side,
        place.client_ifindex: place.client_side,
    }
    for ifindex, mac in sides.items():
        maps.interfaces.write(
            ifindex, abi.InterfaceValue(mac, bytes(6), abi.IF_BOUNCE_REDIRECT, mtu=MTU)
        )


def _serve(maps: Maps, place: Place, traffic: Traffic) -> None:
    number, backend, budget = traffic.number, traffic.backend, traffic.budget
    stateless = traffic.service if traffic.flags & abi.SERVICE_STATELESS else None
    maps.backends.write(
        number,
        abi.BackendValue(
            addr=backend.addr,
            port=backend.port,
            proto=backend.proto,
            flags=abi.BACKEND_UP | abi.BACKEND_METHOD.get(traffic.method, 0),
            service=number,
            ifindex=place.backend_ifindex,
            probe_addr=traffic.at(OUR_ADDR),
            dmac=place.backend,
            smac=place.backend_side,
            weight=1,
            stateless_addr=stateless.addr if stateless else 0,
            stateless_port=stateless.port if stateless else 0,
        ),
    )
    maps.backend_index.write(backend, number, number)
    for half in (0, 1):
        maps.hash_tables.write(number, half, (number,) * abi.HASH_SLOTS)
    maps.services.write(
        traffic.service,
        abi.ServiceValue(
            deadline_ns=FAR_NS,
            event_interval_ns=budget.interval_ns,
            event_burst_ns=budget.burst_ns,
            flags=traffic.flags,
            id=number,
            first_backend=number,
            backend_count=1,
            fallback=number,
            mode=traffic.mode,
            snapshot_age_ns=FAR_NS,
            forwarding=traffic.method,
            orphans=Orphans.RESET,
            hash_active=0,
        ),
    )


def _flow_flags(traffic: Traffic) -> int:
    if traffic.one_sided:
        return abi.FLOW_ONE_SIDED
    return abi.FLOW_FULLNAT if traffic.method is Forwarding.FULLNAT else 0


def flow_entry(
    place: Place, direction: abi.Direction, traffic: Traffic = NAT
) -> abi.FlowEntryValue:
    """An established flow's entry without its tuple."""
    now_ns = time.monotonic_ns()
    forward = direction is abi.Direction.FORWARD
    return abi.FlowEntryValue(
        last_seen_ns=now_ns,
        packets=0,
        octets=0,
        seq_next=1,
        ack=1,
        window=WINDOW,
        state=abi.TcpState.ESTABLISHED,
        flags=_flow_flags(traffic),
        wscale=0,
        direction=direction,
        new_saddr=0,
        new_daddr=0,
        new_sport=0,
        new_dport=0,
        l3_delta=0,
        l4_delta=0,
        backend=traffic.number,
        ifindex=place.client_ifindex,
        in_mac=place.client_side if forward else place.backend_side,
        dmac=place.client,
        smac=place.client_side,
        mode=Mode.RACE,
        reason=Reason.RACE_WON,
        service=traffic.number,
        seen_ns=now_ns - 1_000_000,
        established_us=0,
        isn=0,
        latency_ns=100_000,
        fppl_ns=150_000,
        synack_us=200,
        first_data_us=300,
    )


class Flows:
    """The flow programs of the benchmark over a data plane's maps, for one sort of traffic."""

    def __init__(
        self, maps: dict[str, int], place: Place, directory: Path, traffic: Traffic = NAT
    ) -> None:
        self.loaded = programs.load("flows", directory, maps, family=traffic.family)
        self.traffic = traffic
        self.programs = self.loaded.programs
        self.place = place
        self._target = BpfMap(self.loaded.maps["bench_target"])
        self._config = BpfMap(self.loaded.maps["bench_config"])

    def configure(self, flows: int, first: int = 0) -> None:
        """Set how many flows the drivers draw from, and the first one to insert."""
        place, traffic = self.place, self.traffic
        entries = [
            abi.pack_flow_entry(flow_entry(place, each, traffic), traffic.family)
            for each in abi.Direction
        ]
        head = _CONFIG[traffic.family].pack(
            time.monotonic_ns() | 1,
            flows,
            first,
            *(self._raw(addr) for addr in (CLIENT_BASE, SERVICE_ADDR, BACKEND_ADDR, OUR_ADDR)),
            traffic.service.port.to_bytes(2, "big"),
            traffic.backend.port.to_bytes(2, "big"),
            place.client,
            place.client_side,
            place.backend,
            place.backend_side,
            traffic.proto,
            traffic.method,
        )
        self._config.write(bytes(programs.U32), head + b"".join(entries))

    def _raw(self, addr: int) -> bytes:
        """An address of this family, as on the wire."""
        family = self.traffic.family
        return self.traffic.at(addr).to_bytes(4 if family == 4 else 16, "big")

    def frame(self, *, first: bool = False) -> bytes:
        """A client's frame for a run: see ``Traffic.frame``."""
        return self.traffic.frame(self.place.client_side, self.place.client, first=first)

    def fill(self, flows: int, first: int = 0) -> None:
        """Insert so many flows, two entries each, and let the drivers draw from them."""
        self.configure(flows, first)
        self._each("fill_flows", flows, "take")

    def remove(self, flows: int, first: int = 0) -> None:
        """Undo ``fill``."""
        self.configure(flows, first)
        self._each("remove_flows", flows, "have")

    def _each(self, program: str, flows: int, what: str) -> None:
        verdict, _ = programs.Runner(self.programs[program], bytes(64)).run(flows)
        if verdict != XDP_PASS:
            raise RuntimeError(f"the flow table did not {what} {flows} flows of {self.traffic}")

    def aim(self, prog_fd: int) -> None:
        """Let the drivers go on to a program."""
        self._target.write(bytes(programs.U32), prog_fd.to_bytes(4, "little"))

    def close(self) -> None:
        """Close the programs."""
        self.loaded.close()
