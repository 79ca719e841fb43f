# SPDX-License-Identifier: Apache-2.0
"""The daemon's parts over small maps, with the real program where packets are run; attached to
nothing, pinned nowhere."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pyroute2 import IPRoute

from tests.support.bpf_programs import SMALL, IdleLoader, real_loader
from tests.support.cast import BACKENDS, key, service
from tests.support.fresh_netns import Wire, enter_netns, make_wire, open_netns
from tests.support.privileges import require_root
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane, Loader
from xdp_router.adapters.host import LinkInfo, link_info
from xdp_router.adapters.netlink import Path
from xdp_router.adapters.probe_socket import ProbeSocket, ProbeTarget
from xdp_router.adapters.reinject import XDP_DROP, Reinjector
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig, Settings
from xdp_router.core.model import Backend, Decision, Endpoint, Mode, Reason
from xdp_router.daemon.executor import Executor
from xdp_router.daemon.kernel_state import KernelState

CLIENT_MAC = b"\x02\x58\x52\x00\x00\x02"
SETTINGS = Settings(max_flows=SMALL.max_flows)


@dataclass
class SmallRouter:
    """One data plane with the service of ``tests/support/cast.py`` written into its maps."""

    plane: DataPlane
    config: RouterConfig
    state: KernelState
    decisions: list[Decision] = field(default_factory=list)

    @property
    def maps(self) -> Maps:
        """All maps, typed."""
        return self.state.maps

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The service's backends."""
        return self.config.services[0].backends


@contextlib.contextmanager
def small_router(
    count: int = 2,
    settings: Settings = SETTINGS,
    config: RouterConfig | None = None,
    loader: Loader | None = None,
) -> Iterator[SmallRouter]:
    """A router with ``count`` backends, all of them down, its service not opened yet.

    ``config`` replaces all of that. No packet can be run unless a ``loader`` is given.
    """
    require_root()
    plane = DataPlane.create(loader or IdleLoader(), SMALL, None)
    try:
        config = config or RouterConfig((service(count),), settings)
        state = KernelState(plane, config)
        state.write_all()
        yield SmallRouter(plane, config, state)
    finally:
        plane.close()


@dataclass
class WiredRouter:
    """A small router whose backends are behind the wire ``be``, in a namespace of its own.

    Clients come in by ``cl``. Frames are put in by a test run, as if they had arrived there;
    what the daemon sends is received at the wires' far ends.
    """

    router: SmallRouter
    client: LinkInfo
    backend: LinkInfo
    executor: Executor
    sender: ProbeSocket
    at_client: socket.socket
    at_backend: socket.socket
    outside: Reinjector
    wires: tuple[Wire, Wire]

    def path(self) -> Path:
        """The path to every backend."""
        return Path(self.backend.ifindex, b"\2\0\0\0\0\xbe", self.backend.mac, 0xC6120101)

    def bring_up(self, backend: Backend) -> None:
        """Give a backend its path and let it be chosen."""
        path = self.path()
        self.router.state.set_path(backend.id, path)
        self.router.state.set_up(backend.id, True)
        endpoint = backend.endpoint
        self.executor.set_target(backend.id, ProbeTarget(path, endpoint.addr, endpoint.port))

    def syn(self, port: int, isn: int = 1000, ttl: int | None = None) -> bytes:
        """The first packet of client port ``port``, as it arrives on ``cl``."""
        flow = key(port)
        path = Path(0, self.client.mac, CLIENT_MAC, flow.client_addr)
        frame = ProbeTarget(path, flow.service_addr, flow.service_port).probe(port, isn)
        if ttl is not None:
            frame[22] = ttl  # the program does not look at the header's checksum
        return bytes(frame)

    def synack(self, probe: bytes) -> bytes:
        """A backend's answer to a probe, as it arrives on ``be``."""
        source, to = (int.from_bytes(probe[at : at + 4], "big") for at in (26, 30))
        sport, dport = (int.from_bytes(probe[at : at + 2], "big") for at in (34, 36))
        path = Path(0, self.backend.mac, b"\2\0\0\0\0\xbe", to)
        frame = ProbeTarget(path, source, sport).probe(dport, 777_000)
        frame[42:46] = (int.from_bytes(probe[38:42], "big") + 1).to_bytes(4, "big")
        frame[47] = 0x12
        return bytes(frame)

    def arrives(self, frame: bytes, link: LinkInfo) -> int:
        """Run a frame through the program as if it had arrived; its verdict."""
        verdict, _egress, _frame = self.outside.run(frame, link.ifindex)
        return verdict

    def first_packet_arrives(self, port: int) -> None:
        """A SYN comes in, and XDP holds it."""
        assert self.arrives(self.syn(port), self.client) == XDP_DROP


@contextlib.contextmanager
def wired_router(
    count: int = 2,
    settings: Settings = SETTINGS,
    log_decision: Callable[[Decision], None] | None = None,
    *,
    packets: bool = True,
) -> Iterator[WiredRouter]:
    """A wired router in the calling thread's namespace, which must be a fresh one.

    Without ``packets`` none can arrive.
    """
    loader = real_loader("object") if packets else None
    with (
        small_router(count, settings, loader=loader) as router,
        contextlib.ExitStack() as undo,
        IPRoute() as ipr,
    ):
        client = make_wire(ipr, "cl", None, None)
        undo.callback(os.close, client.far_ns)
        backend = make_wire(ipr, "be", None, None)
        undo.callback(os.close, backend.far_ns)
        client_link, backend_link = link_info("cl"), link_info("be")
        for link in (client_link, backend_link):
            router.state.set_interface(link)
        sender = ProbeSocket()
        undo.callback(sender.close)
        executor = Executor(
            router.state,
            router.backends,
            Reinjector(router.plane.entry, router.state.reinject_mark),
            sender,
            log_decision or router.decisions.append,
        )
        yield WiredRouter(
            router,
            client_link,
            backend_link,
            executor,
            sender,
            at_client=undo.enter_context(_tap(client)),
            at_backend=undo.enter_context(_tap(backend)),
            # Another mark than the router's: the program takes such frames for new ones.
            outside=Reinjector(router.plane.entry, 1),
            wires=(client, backend),
        )


def _tap(wire: Wire) -> socket.socket:
    """A socket that receives all IPv4 frames at the far end, within three seconds."""
    here = open_netns()
    try:
        enter_netns(wire.far_ns)
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
        tap.bind((f"{wire.near_name}p", 0x0800))
        tap.settimeout(3)
        return tap
    finally:
        enter_netns(here)
        os.close(here)


def flow_entries(
    port: int,
    last_seen_ns: int,
    *,
    reply_seen_ns: int | None = None,
    state: abi.TcpState = abi.TcpState.ESTABLISHED,
    seen_ns: int = 1,
    backend: Endpoint = BACKENDS[0].endpoint,
) -> dict[bytes, abi.FlowEntryValue]:
    """Both ``flow_table`` entries of client port ``port``, forward first."""
    flow = key(port)
    forward = abi.FlowEntryValue(
        last_seen_ns=last_seen_ns,
        packets=3,
        octets=300,
        seq_next=0,
        ack=0,
        window=0,
        state=state,
        flags=0,
        wscale=0,
        direction=abi.Direction.FORWARD,
        new_saddr=flow.client_addr,
        new_daddr=backend.addr,
        new_sport=flow.client_port,
        new_dport=backend.port,
        l3_delta=0,
        l4_delta=0,
        backend=BACKENDS[0].id,
        ifindex=2,
        in_mac=bytes(6),
        dmac=bytes(6),
        smac=bytes(6),
        mode=Mode.RACE,
        reason=Reason.RACE_WON,
        service=0,
        seen_ns=seen_ns,
        established_us=1,
        isn=port,
        latency_ns=400_000,
        fppl_ns=450_000,
        synack_us=900,
        first_data_us=1_000,
    )
    reply = replace(
        forward,
        last_seen_ns=last_seen_ns if reply_seen_ns is None else reply_seen_ns,
        packets=2,
        octets=2000,
        direction=abi.Direction.REPLY,
        new_saddr=flow.service_addr,
        new_daddr=flow.client_addr,
        new_sport=flow.service_port,
        new_dport=flow.client_port,
        first_data_us=1_500,
    )
    return {abi.pack_flow_key(flow): forward, abi.pack_reply_key(backend, flow): reply}


def put_flow(maps: Maps, entries: dict[bytes, abi.FlowEntryValue]) -> tuple[bytes, bytes]:
    """Insert a flow's entries; their keys, forward first."""
    for raw, value in entries.items():
        assert maps.flow_table.insert_noexist(raw, abi.pack_flow_entry(value)) == 0
    forward, reply = entries
    return forward, reply
