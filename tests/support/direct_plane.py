# SPDX-License-Identifier: Apache-2.0
"""One direct service at a time (``dsr``, ``ipip``) in front of the whole program, either family.

Nobody answers for the daemon: the program decides by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from tests.support.program import Wires
from tests.support.tunnels import tunneled
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.map_specs import Sizes
from xdp_router.adapters.reinject import Reinjector
from xdp_router.core import abi
from xdp_router.core.flow_hash import flow_hash
from xdp_router.core.model import Endpoint, FlowKey, Forwarding, Mode, Orphans

SIZES = Sizes(max_flows=8, pending=64, ring_bytes=4096, ipv6=True)
MARK, SECOND = 0x0123456789ABCDEF, 1_000_000_000
CLIENT_MAC, OUR_MAC_C = "02:00:00:00:0c:01", "02:00:00:00:0c:02"
OUR_MAC_B, BACKEND_MAC = "02:00:00:00:0b:02", "02:00:00:00:0b:11"
CLIENT = {4: "198.18.0.2", 6: "2001:db8::2"}
SERVICE = {4: "198.18.100.1", 6: "2001:db8:100::1"}
BACKEND = {4: "198.18.1.2", 6: "2001:db8:1::2"}
OURS = {4: "198.18.1.1", 6: "2001:db8:1::1"}
PREFIX = {4: ("198.18.200.0", 8), 6: ("2001:db8:c8::", 32)}
PORT, ISN = 40_000, 1_000_000
SYN, ACK, FIN, RST = "S", "A", "FA", "R"


def mac(text: str) -> bytes:
    """A MAC address as the maps have it."""
    return bytes.fromhex(text.replace(":", ""))


@dataclass(frozen=True)
class Setting:
    """A service of ``family`` by ``dsr``, or with an outer header of ``outer``."""

    family: int
    outer: int = 0
    varied: bool = False

    def frame(self, flags: str, seq: int, payload: bytes = b"", ttl: int = 64) -> Packet:
        """The client's frame, its traffic class and flow label set."""
        if self.family == 4:
            head: Packet = IP(src=CLIENT[4], dst=SERVICE[4], ttl=ttl, tos=0xBA, flags="DF")
        else:
            head = IPv6(src=CLIENT[6], dst=SERVICE[6], hlim=ttl, tc=0xBA, fl=0x12345)
        tcp = TCP(sport=PORT, dport=80, flags=flags, seq=seq, ack=7, window=500)
        return Ether(src=CLIENT_MAC, dst=OUR_MAC_C) / head / tcp / Raw(payload)

    def sent(self, flags: str, seq: int, payload: bytes = b"") -> bytes:
        """The same as it has to leave."""
        frame = self.frame(flags, seq, payload, ttl=63)
        frame.src, frame.dst = OUR_MAC_B, BACKEND_MAC
        if not self.outer:
            return bytes(frame)
        return tunneled(bytes(frame), self.source, BACKEND[self.outer], self.hash & 0xFFFFF)

    @property
    def key(self) -> FlowKey:
        """The flow."""
        ends = abi.parse_addr(CLIENT[self.family]), PORT, abi.parse_addr(SERVICE[self.family]), 80
        return FlowKey(*ends)

    @property
    def hash(self) -> int:
        """The flow's."""
        return flow_hash(self.key)

    @property
    def source(self) -> str:
        """Where the outer header says that it comes from."""
        if not self.varied:
            return OURS[self.outer]
        network, bits = PREFIX[self.outer]
        return abi.format_addr(abi.parse_addr(network) | self.hash & (1 << bits) - 1)


class Plane:
    """The whole program with one service of each setting at a time."""

    def __init__(self, plane: DataPlane, wires: Wires) -> None:
        self.plane, self.wires = plane, wires
        self.maps = Maps(plane.maps)
        self._runner = Reinjector(plane.entry, MARK)

    def serve(self, setting: Setting) -> None:
        """Begin anew, with this service."""
        for tables in self.maps.by_family.values():
            for batch in (*tables.pending.batches(64), *tables.flows.batches(64)):
                for key, _ in batch:
                    tables.pending.delete(key)
                    tables.flows.delete(key)
        method = Forwarding.IPIP if setting.outer else Forwarding.DSR
        at = setting.outer or setting.family
        network, bits = PREFIX[at] if setting.varied else ("", 0)
        self.maps.backends.write(0, abi.BackendValue(
            addr=abi.parse_addr(BACKEND[at]), port=80, proto=6,
            flags=abi.BACKEND_UP | abi.BACKEND_METHOD[method], service=0,
            ifindex=self.wires.backend, probe_addr=abi.parse_addr(OURS[at]),
            dmac=mac(BACKEND_MAC), smac=mac(OUR_MAC_B), weight=1,
        ))  # fmt: skip
        self.maps.services.write(
            Endpoint(setting.key.service_addr, 80),
            abi.ServiceValue(
                deadline_ns=SECOND, event_interval_ns=0, event_burst_ns=0, id=0, first_backend=0,
                backend_count=1, fallback=0, mode=Mode.RACE, forwarding=method,
                orphans=Orphans.RESET, hash_active=0, tunnel_bits=bits,
                tunnel_source=abi.parse_addr(network) if network else 0,
            ),
        )  # fmt: skip
        self.maps.hash_tables.write(0, 0, (0,) * abi.HASH_SLOTS)
        sides = (self.wires.client, OUR_MAC_C), (self.wires.backend, OUR_MAC_B)
        for ifindex, own in sides:
            self.maps.interfaces.write(ifindex, abi.InterfaceValue(mac(own), bytes(6), 0, 0, 1500))
        self.maps.control.write(abi.ControlValue(
            heartbeat_ns=0, heartbeat_stale_ns=SECOND, reinject_mark=MARK,  # nobody answers
            pending_idle_ns=10 * SECOND, flow_idle_ns=100 * SECOND, orphan_window_ns=SECOND,
            event_interval_ns=0, event_burst_ns=0, probe_key=(1, 2), abi_version=abi.ABI_VERSION,
            generation=1, probe_port_min=61_000, probe_port_max=61_099,
        ))  # fmt: skip

    def run(self, frame: Packet) -> tuple[int, int, bytes]:
        """Verdict, the interface that the program names, and the frame."""
        return self._runner.run(bytes(frame), self.wires.client)

    def entry(self, setting: Setting) -> abi.FlowEntryValue | None:
        """The flow's entry, if it is established."""
        raw = self.maps.by_family[setting.family].flows.read(abi.pack_flow_key(setting.key))
        return None if raw is None else abi.unpack_flow_entry(raw)


SETTINGS = [
    Setting(family, outer, varied)
    for family in (4, 6)
    for outer in (0, 4, 6)
    for varied in (False, True)
    if outer or not varied
]
