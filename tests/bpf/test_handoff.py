# SPDX-License-Identifier: Apache-2.0
"""What devices and sysctls say reaches the maps and the backends; real wires and real maps."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from pyroute2 import IPRoute
from structlog.testing import capture_logs

from tests.support.cast import BACKENDS, service
from tests.support.fresh_netns import in_fresh_netns
from tests.support.small_router import SETTINGS, WiredRouter, wired_router
from xdp_router.adapters import sysctl
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.host import link_info
from xdp_router.adapters.kernel_forwarding import SourceRoute
from xdp_router.adapters.local_routes import LocalRoutes
from xdp_router.adapters.netlink import Resolution
from xdp_router.adapters.notes import Note, Notes
from xdp_router.adapters.xdp_link import AttachMode, XdpLink
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.events import BackendState, Event
from xdp_router.core.model import Endpoint, Forwarding, KernelHandoff, Service
from xdp_router.daemon.handoff import _JUDGED, _SLICE, REFRESH_S, Handoff, State
from xdp_router.daemon.host_changes import HostChanges
from xdp_router.daemon.kernel_state import KernelState
from xdp_router.daemon.network import Network
from xdp_router.lab import xdp_stub

ADDR = BACKENDS[0].endpoint.addr
CAN = abi.IF_HANDOFF_FORWARD4 | abi.IF_HANDOFF_REPLY4


def write(interface: str, key: str, value: int) -> None:
    Path("/proc/sys/net/ipv4/conf", interface, key).write_text(str(value))


@dataclass
class Stage:
    """A wired router, its two interfaces counted as attached, and what the engine hears."""

    wired: WiredRouter
    mode: KernelHandoff = KernelHandoff.CHECK
    forwarding: Forwarding = Forwarding.NAT
    heard: list[bool] = field(default_factory=list)
    lost: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        router = self.wired.router
        settings = dataclasses.replace(SETTINGS, kernel_handoff=self.mode)
        self.network = Network(router.backends, router.state, self.wired.executor, self._hear)
        self.links = [
            XdpLink(link.name, link.ifindex, -1, AttachMode.NATIVE)
            for link in (self.wired.client, self.wired.backend)
        ]
        self.handoff = Handoff(
            RouterConfig((dataclasses.replace(service(2), forwarding=self.forwarding),), settings),
            HostChanges(Notes(router.plane.maps["notes"])),
            router.state,
            self.network,
            lambda: self.links,
        )
        for link in (self.wired.client, self.wired.backend):
            self.network.attached(link)
        self.network.path_changed(ADDR, self.wired.path(), "")

    def _hear(self, event: Event) -> None:
        if isinstance(event, BackendState):
            self.heard.append(event.up)
            self.lost.append(event.lost)

    def flags(self) -> tuple[int, int]:
        """Of the client's and of the backend's interface, but for how it answers."""
        known = dict(self.wired.router.maps.interfaces.items())
        ends = (self.wired.client, self.wired.backend)
        client, backend = (known[end.ifindex].flags & ~abi.IF_BOUNCE_REDIRECT for end in ends)
        return client, backend

    def backend(self) -> int:
        value = self.wired.router.maps.backends.read(1)
        assert value is not None
        return value.flags


@contextlib.contextmanager
def staged(
    mode: KernelHandoff = KernelHandoff.CHECK,
    forwarding: int = 1,
    forwarding_of: Forwarding = Forwarding.NAT,
) -> Iterator[Stage]:
    write("default", "rp_filter", 0)
    write("all", "rp_filter", 0)
    with wired_router(packets=False) as wired:
        for name in ("cl", "be"):
            write(name, "forwarding", forwarding)
        yield Stage(wired, mode, forwarding_of)


def takes_frames(side: str, stage: Stage) -> None:
    """Put a program at the other end of a wire: then XDP can send there."""
    wire = stage.wired.wires[("cl", "be").index(side)]
    program = xdp_stub.load_constant(xdp_stub.XDP_PASS)
    wire.at_far(lambda ipr: ipr.link("set", index=wire.far, xdp_fd=program))
    os.close(program)


@in_fresh_netns
def test_packets_with_a_source_of_ours() -> None:
    """With fullnat the kernel has to take an address of this host for a source, too."""
    with staged(forwarding_of=Forwarding.FULLNAT) as stage:
        takes_frames("cl", stage)
        takes_frames("be", stage)
        stage.handoff.look()
        assert stage.flags() == (abi.IF_HANDOFF_FORWARD4,) * 2
        for state in stage.handoff.interfaces.values():
            reply = state.of(4).reply
            assert reply
            assert reply[0].text.startswith("address 198.18.1.1 is an address of this host")
        for name in ("cl", "be"):
            write(name, "accept_local", 1)
        stage.handoff.look()
        assert stage.flags() == (CAN,) * 2


@in_fresh_netns
def test_devices_that_take_no_frames() -> None:
    """Flags of both interfaces, of the backend and of control; and all of it back."""
    with staged() as stage:
        stage.handoff.look()
        assert stage.flags() == (CAN | abi.IF_NO_XMIT,) * 2
        assert stage.backend() & abi.BACKEND_KERNEL
        assert stage.wired.router.maps.control.read().flags == abi.CONTROL_NO_XMIT
        assert stage.heard == [True, True]
        assert stage.network.by_kernel == {1}
        assert stage.handoff.view(stage.wired.backend.ifindex) == {
            "takes_xdp_frames": False, "kernel_forwards": True, "kernel_replies": True,
            "kernel_families": {"ipv4": {"forwards": True, "replies": True}},
        }  # fmt: skip
        takes_frames("be", stage)
        stage.handoff.look()
        assert stage.flags() == (CAN | abi.IF_NO_XMIT, CAN)
        assert not stage.backend() & abi.BACKEND_KERNEL
        takes_frames("cl", stage)
        stage.handoff.look()
        # Whether replies can be handed over is asked only where they have to be.
        assert stage.flags() == (abi.IF_HANDOFF_FORWARD4,) * 2
        assert stage.wired.router.maps.control.read().flags == 0


@in_fresh_netns
def test_generic_mode_sends_everywhere() -> None:
    """There frames are sent as the network stack does, which each device can."""
    with staged() as stage:
        stage.links = [dataclasses.replace(each, mode=AttachMode.GENERIC) for each in stage.links]
        stage.handoff.look()
        assert stage.flags() == (abi.IF_HANDOFF_FORWARD4,) * 2
        assert not stage.backend() & abi.BACKEND_KERNEL


@in_fresh_netns
@pytest.mark.parametrize("side", ["cl", "be"])
def test_a_missing_capability_takes_the_backend_down(side: str) -> None:
    """By either direction, with the interface, the cause and the mend; up again when mended."""
    with staged() as stage:
        takes_frames("cl" if side == "cl" else "be", stage)
        write(side, "forwarding", 0)
        with capture_logs() as lines:
            stage.handoff.look()
        target = "be" if side == "cl" else "cl"
        path, reason = stage.network.paths[1]
        assert path is not None
        assert reason == (
            f"{target} takes no XDP frames, and the kernel cannot take over: forwarding is off on "
            f"{side}: the kernel drops what comes in there for others: sysctl -w "
            f"net.ipv4.conf.{side}.forwarding=1"
        )
        assert stage.heard == [True, False]
        (warning,) = [
            each
            for each in lines
            if each["event"] == "handoff_impossible"
            and each["packets"] == ("for backends" if side == "cl" else "replies")
        ]
        assert (warning["log_level"], warning["interface"]) == ("warning", side)
        assert warning["mend"] == (
            f'sysctl -w net.ipv4.conf.{side}.forwarding=1; or kernel_handoff = "set" in [router]'
        )
        write(side, "forwarding", 1)
        stage.handoff.look()
        assert stage.heard[-1]
        with capture_logs() as lines:
            stage.handoff.look()
        assert not lines


@in_fresh_netns
def test_off() -> None:
    """No capability is told to XDP, so nothing is handed over; what is needed still is known."""
    with staged(KernelHandoff.OFF) as stage:
        stage.handoff.look()
        assert stage.flags() == (abi.IF_NO_XMIT,) * 2
        assert stage.heard == [True, False]
        assert stage.network.paths[1][1].endswith(
            'kernel_handoff is "off": kernel_handoff = "check" in [router]'
        )


@in_fresh_netns
def test_set_sets_what_is_needed() -> None:
    """Forwarding at once, what replies take only where they need it; once, and told."""
    with staged(KernelHandoff.SET, forwarding=0) as stage:
        for side in ("cl", "be"):
            takes_frames(side, stage)
        write("be", "rp_filter", 1)
        with capture_logs() as lines:
            stage.handoff.look()
        changed = [(each["sysctl"], each["old"], each["new"]) for each in lines]
        assert changed == [
            ("net.ipv4.conf.cl.forwarding", "0", "1"), ("net.ipv4.conf.be.forwarding", "0", "1"),
        ]  # fmt: skip
        assert stage.flags() == (abi.IF_HANDOFF_FORWARD4,) * 2
        write("cl", "forwarding", 0)
        stage.handoff.look()
        assert stage.flags() == (0, abi.IF_HANDOFF_FORWARD4)


@in_fresh_netns
def test_what_a_successor_has_is_left_alone() -> None:
    """Frozen meanwhile: neither sysctls nor the notes about them are ours any more."""
    with staged(KernelHandoff.SET, forwarding=0) as stage:
        router = stage.wired.router
        router.state.is_lost = lambda: True
        notes = Notes(router.plane.maps["notes"])
        notes.write(Note.SYSCTLS, "net.ipv4.conf.cl.rp_filter 1 2")
        stage.handoff.look()
        assert Path("/proc/sys/net/ipv4/conf/cl/forwarding").read_text() == "0\n"
        assert notes.read(Note.SYSCTLS) == "net.ipv4.conf.cl.rp_filter 1 2"


@in_fresh_netns
def test_a_neighbour_that_is_lost() -> None:
    """Existing flows are the kernel's while only the neighbour is missing; new ones are not."""
    with staged() as stage:
        for side in ("cl", "be"):
            takes_frames(side, stage)
        stage.handoff.look()
        index = stage.wired.backend.ifindex
        found = Resolution(ADDR, None, "no ARP answer", index, "be", ADDR, neighbour_lost=True)
        stage.network.resolution = {ADDR: found}.get
        stage.network.path_changed(ADDR, None, found.reason)
        assert stage.backend() & (abi.BACKEND_KERNEL | abi.BACKEND_UP) == abi.BACKEND_KERNEL
        assert stage.network.paths[1] == (None, "no ARP answer")
        assert stage.lost[-1]
        elsewhere = dataclasses.replace(found, ifindex=999)
        down = dataclasses.replace(found, neighbour_lost=False)
        for other in (elsewhere, down):
            stage.network.resolution = {ADDR: other}.get
            stage.network.path_changed(ADDR, None, other.reason)
            assert not stage.backend() & abi.BACKEND_KERNEL
            assert not stage.lost[-1]
        stage.network.path_changed(ADDR, stage.wired.path(), "")
        assert not stage.backend() & abi.BACKEND_KERNEL
        assert stage.heard[-1]


@in_fresh_netns
def test_clients_come_in_by_other_interfaces() -> None:
    """One that only leads to another backend need not forward."""
    with staged() as stage:
        takes_frames("cl", stage)
        client, backend = (link.ifindex for link in stage.links)
        write("cl", "forwarding", 0)
        stage.handoff.look()
        assert "forwarding is off on cl" in stage.handoff.unusable(backend, {backend}, 4)
        write("be", "forwarding", 0)
        write("cl", "forwarding", 1)
        stage.handoff.look()
        assert stage.handoff.unusable(backend, {backend}, 4) == ""
        # All lead to backends: then clients may come in by any.
        assert "forwarding is off on be" in stage.handoff.unusable(backend, {client, backend}, 4)
        write("cl", "forwarding", 0)
        stage.handoff.look()
        assert "forwarding is off on cl" in stage.handoff.unusable(backend, {client, backend}, 4)
        assert stage.handoff.unusable(12345, {backend}, 4) == ""


@in_fresh_netns
def test_a_renamed_interface_is_the_same() -> None:
    """It stays attached, and its sysctls are found under the name that it has now."""
    with staged() as stage, IPRoute() as ipr:
        stage.handoff.look()
        ipr.link("set", index=stage.wired.client.ifindex, ifname="wan0")
        with capture_logs() as lines:
            stage.handoff.look()
        assert stage.flags() == (CAN | abi.IF_NO_XMIT,) * 2
        assert not lines
        assert stage.handoff.interfaces[stage.wired.client.ifindex].name == "wan0"


@in_fresh_netns
def test_what_was_set_is_put_back_under_the_new_name() -> None:
    """Whoever bears the old name by then is not touched; nor is it set again meanwhile."""
    with staged(KernelHandoff.SET, forwarding=0) as stage, IPRoute() as ipr:
        stage.handoff.look()
        ipr.link("set", index=stage.wired.client.ifindex, ifname="wan0")
        ipr.link("add", ifname="cl", kind="veth", peer="clx")
        write("cl", "forwarding", 1)
        stage.handoff.look()
        write("be", "forwarding", 0)
        stage.handoff.look()
        notes = Notes(stage.wired.router.plane.maps["notes"])
        HostChanges(notes, adopted=True).restore(Path("/nonexistent"), Path("/nonexistent/own"))
        names = ("wan0", "cl", "be")
        read = [sysctl.read(sysctl.of_interface(name, "forwarding")) for name in names]
        assert read == ["0", "1", "0"]


@in_fresh_netns
def test_an_interface_that_was_made_anew_is_set_again() -> None:
    """Nobody has set it back: it is another one, with the sysctls of a new interface."""
    with staged(KernelHandoff.SET, forwarding=0) as stage, IPRoute() as ipr:
        stage.handoff.look()
        gone = stage.links.pop()
        stage.network.interface_gone(gone.ifindex, gone.interface)
        ipr.link("del", index=gone.ifindex)
        ipr.link("add", ifname="be", kind="veth", peer="bex")
        write("be", "forwarding", 0)
        anew = link_info("be")
        stage.links.append(dataclasses.replace(gone, ifindex=anew.ifindex))
        stage.network.attached(anew)
        stage.handoff.look()
        assert anew.ifindex != gone.ifindex
        known = dict(stage.wired.router.maps.interfaces.items())
        assert known[anew.ifindex].flags & abi.IF_HANDOFF_FORWARD4


@in_fresh_netns
def test_a_slow_look_does_not_go_over_a_newer_one() -> None:
    """Interfaces that came meanwhile keep what was found of them."""
    with staged() as stage:
        client, backend = stage.links
        stage.links[:] = [client] * _JUDGED
        slow = stage.handoff._steps()
        next(slow)
        stage.links[:] = [client, backend]
        stage.handoff.look()
        for _ in slow:
            pass
        assert stage.handoff.interfaces.keys() == {client.ifindex, backend.ifindex}


@in_fresh_netns
def test_a_brief_look_asks_for_few_routes() -> None:
    """10,000 services' addresses would hold the loop: those of the last look are taken, and
    ``run`` looks at once."""

    class Asked(Handoff):
        def _judge(self, link: XdpLink, takes: bool, sources: list[SourceRoute] | None) -> State:
            told.append(sources)
            return super()._judge(link, takes, sources)

    told: list[list[SourceRoute] | None] = []
    with staged() as stage:
        services = tuple(
            dataclasses.replace(service(2), endpoint=Endpoint(0xC6130000 + number, 80))
            for number in range(_SLICE + 1)
        )
        handoff = Asked(
            RouterConfig(services, SETTINGS),
            HostChanges(Notes(stage.wired.router.plane.maps["notes"])),
            stage.wired.router.state,
            stage.network,
            lambda: stage.links,
        )
        handoff.look(briefly=True)
        assert told == [None, None]

        async def main() -> None:
            work = asyncio.create_task(handoff.run())
            await asyncio.sleep(REFRESH_S / 2)
            work.cancel()

        asyncio.run(main())
        assert told[2] is not None
        assert len(told[2]) == _SLICE + 1
        handoff.look(briefly=True)
        assert told[-1] is told[2]


@in_fresh_netns
def test_a_map_that_refuses_ends_nothing() -> None:
    """What could not be written is told, and written with the next look."""
    with staged() as stage, capture_logs() as lines:
        state = stage.wired.router.state
        refused: list[dict[int, int]] = []

        class Refusing:
            is_lost = staticmethod(lambda: False)

            def set_handoff(self, flags: dict[int, int]) -> None:
                if not refused:
                    refused.append(flags)
                    raise BpfError(28, "interfaces")
                state.set_handoff(flags)

        stage.handoff._state = cast(KernelState, Refusing())

        async def main() -> None:
            work = asyncio.create_task(stage.handoff.run())
            for _ in range(2):
                stage.handoff._changed.set()
                await asyncio.sleep(0.1)
            assert not work.done()
            work.cancel()

        asyncio.run(main())
        assert stage.flags() == (CAN | abi.IF_NO_XMIT,) * 2
        assert [each["event"] for each in lines].count("handoff_not_checked") == 1


@in_fresh_netns
def test_addresses_that_the_gateway_takes_up() -> None:
    """The kernel makes their replies itself: that they are local is in nobody's way. It is in that
    of another service at the same address."""
    with staged() as stage, LocalRoutes() as routes, IPRoute() as netlink:
        netlink.link("set", index=1, state="up")
        for name in ("cl", "be"):
            write(name, "accept_local", 0)
        routed = service(2)
        addr = routed.endpoint.addr
        there = Service(1, "up", Endpoint(addr, 443), (), listener="web")
        elsewhere = Service(2, "up2", Endpoint(addr + 1, 443), (), listener="web")
        settings = dataclasses.replace(SETTINGS, kernel_handoff=KernelHandoff.CHECK)
        stage.handoff.change(RouterConfig((routed, there, elsewhere), settings), ())
        assert routes.add(addr + 1)
        stage.handoff.look()
        assert all(each.of(4).reply == () for each in stage.handoff.interfaces.values())
        assert routes.add(addr)
        stage.handoff.look()
        for state in stage.handoff.interfaces.values():
            (obstacle,) = state.of(4).reply or ()
            assert "accept_local is off" in obstacle.text
