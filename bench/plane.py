# SPDX-License-Identifier: Apache-2.0
"""A data plane without a daemon: the real programs and maps, filled for one benchmark."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xdp_router import ebpf
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.bpf_syscall import BpfMap
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.loader_object import ObjectLoader
from xdp_router.adapters.map_specs import Sizes
from xdp_router.core import abi
from xdp_router.core.model import Endpoint, Forwarding, Mode, Orphans, Reason

from . import programs

XDP_PASS = 2
SERVICE = Endpoint(abi.parse_addr("198.18.100.1"), 80)
BACKEND = Endpoint(abi.parse_addr("198.19.1.2"), 8080)
CLIENT_BASE = abi.parse_addr("198.18.0.2")
CLIENT_PORT_MIN = 16384
LOOPBACK = 1
MARK = 0x7E57_1234_5678_9ABC
WINDOW = 1 << 20

_CONFIG = struct.Struct("=QIII4s4s2s2s6s6s4x")


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
    sizes: Sizes, place: Place, *, event_interval_ns: int = 0, event_burst_ns: int = 0
) -> Iterator[DataPlane]:
    """One service with one backend that is up, a heartbeat that never gets old."""
    plane = DataPlane.create(ObjectLoader(ebpf.object_bytes()), sizes, None)
    try:
        _configure(Maps(plane.maps), place, event_interval_ns, event_burst_ns)
        yield plane
    finally:
        plane.close()


def _configure(maps: Maps, place: Place, interval_ns: int, burst_ns: int) -> None:
    far = 1 << 62
    maps.control.write(
        abi.ControlValue(
            heartbeat_ns=time.monotonic_ns(),
            heartbeat_stale_ns=far,
            reinject_mark=MARK,
            pending_idle_ns=far,
            flow_idle_ns=far,
            orphan_window_ns=0,
            event_interval_ns=0,
            event_burst_ns=0,
            probe_key=(1, 2),
            abi_version=abi.ABI_VERSION,
            generation=1,
            probe_port_min=61_000,
            probe_port_max=61_999,
        )
    )
    maps.interfaces.write(place.client_ifindex, abi.InterfaceValue(place.client_side, bytes(6), 1))
    if place.backend_ifindex != place.client_ifindex:
        maps.interfaces.write(
            place.backend_ifindex, abi.InterfaceValue(place.backend_side, bytes(6), 1)
        )
    maps.backends.write(
        0,
        abi.BackendValue(
            addr=BACKEND.addr,
            port=BACKEND.port,
            proto=6,
            flags=abi.BACKEND_UP,
            service=0,
            ifindex=place.backend_ifindex,
            probe_addr=abi.parse_addr("198.19.1.1"),
            dmac=place.backend,
            smac=place.backend_side,
            weight=1,
        ),
    )
    maps.backend_index.write(BACKEND, 0, 0)
    for half in (0, 1):
        maps.hash_tables.write(0, half, (0,) * abi.HASH_SLOTS)
    maps.services.write(
        SERVICE,
        abi.ServiceValue(
            deadline_ns=50_000_000,
            event_interval_ns=interval_ns,
            event_burst_ns=burst_ns,
            id=0,
            first_backend=0,
            backend_count=1,
            fallback=0,
            mode=Mode.RACE,
            forwarding=Forwarding.NAT,
            orphans=Orphans.RESET,
            hash_active=0,
        ),
    )


def flow_entry(place: Place, direction: abi.Direction) -> abi.FlowEntryValue:
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
        flags=0,
        wscale=0,
        direction=direction,
        new_saddr=0,
        new_daddr=0,
        new_sport=0,
        new_dport=0,
        l3_delta=0,
        l4_delta=0,
        backend=0,
        ifindex=place.client_ifindex,
        in_mac=place.client_side if forward else place.backend_side,
        dmac=place.client,
        smac=place.client_side,
        mode=Mode.RACE,
        reason=Reason.RACE_WON,
        service=0,
        seen_ns=now_ns - 1_000_000,
        established_ns=now_ns,
        isn=0,
        latency_ns=100_000,
        fppl_ns=150_000,
        synack_us=200,
        first_data_us=300,
    )


class Flows:
    """The flow programs of the benchmark over a data plane's maps."""

    def __init__(self, maps: dict[str, int], place: Place, directory: Path) -> None:
        self.loaded = programs.load("flows", directory, maps)
        self.programs = self.loaded.programs
        self.place = place
        self._target = BpfMap(self.loaded.maps["bench_target"])
        self._config = BpfMap(self.loaded.maps["bench_config"])

    def configure(self, flows: int, first: int = 0) -> None:
        """Set how many flows the drivers draw from, and the first one to insert."""
        place = self.place
        entries = [abi.pack_flow_entry(flow_entry(place, each)) for each in abi.Direction]
        head = _CONFIG.pack(
            time.monotonic_ns() | 1,
            flows,
            first,
            CLIENT_BASE,
            SERVICE.addr.to_bytes(4, "big"),
            BACKEND.addr.to_bytes(4, "big"),
            SERVICE.port.to_bytes(2, "big"),
            BACKEND.port.to_bytes(2, "big"),
            place.client_side,
            place.backend_side,
        )
        self._config.write(bytes(programs.U32), head + b"".join(entries))

    def fill(self, flows: int, first: int = 0) -> None:
        """Insert so many flows, two entries each, and let the drivers draw from them."""
        self.configure(flows, first)
        verdict, _ = programs.Runner(self.programs["fill_flows"], bytes(64)).run(flows)
        if verdict != XDP_PASS:
            raise RuntimeError(f"the flow table did not take {flows} flows")

    def aim(self, prog_fd: int) -> None:
        """Let the drivers go on to a program."""
        self._target.write(bytes(programs.U32), prog_fd.to_bytes(4, "little"))

    def close(self) -> None:
        """Close the programs."""
        self.loaded.close()
