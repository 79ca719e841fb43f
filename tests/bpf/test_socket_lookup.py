# SPDX-License-Identifier: Apache-2.0
"""The program that chooses listening sockets, by either loader, asked by this kernel's stack."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Callable, Iterator

import pytest
from pyroute2 import IPRoute

from tests.support.bpf_programs import LOADERS, SMALL, IdleLoader, real_loader
from tests.support.fresh_netns import in_fresh_netns
from tests.support.privileges import require_root
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import socket_lookup
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.local_routes import LocalRoutes
from xdp_router.adapters.socket_lookup import GatewaySockets, UnfitSocket
from xdp_router.core import abi
from xdp_router.core.address import parse_addr
from xdp_router.core.model import NO_BACKEND, Endpoint, Forwarding, Mode, Orphans

ADDRS = {4: "198.18.100.9", 6: "2001:db8:100::9"}
HOSTS = {4: "127.0.0.1", 6: "::1"}
ANY = {4: "0.0.0.0", 6: "::"}
FAMILIES: dict[int, socket.AddressFamily] = {4: socket.AF_INET, 6: socket.AF_INET6}
RANGE = (8000, 8100)


def value(number: int, flags: int = abi.SERVICE_GATEWAY) -> abi.ServiceValue:
    """A service without backends."""
    return abi.ServiceValue(
        deadline_ns=0, event_interval_ns=0, event_burst_ns=0, id=number,
        first_backend=NO_BACKEND, backend_count=0, fallback=NO_BACKEND, mode=Mode.RACE,
        forwarding=Forwarding.NAT, orphans=Orphans.RESET, hash_active=0, flags=flags,
    )  # fmt: skip


def listen(family: int, host: str = "", port: int = 0, *, share: bool = False) -> socket.socket:
    """A listening socket; without a host on loopback, without a port on any."""
    sock = socket.socket(FAMILIES[family], socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == 6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind((host or HOSTS[family], port))
    sock.listen(64)
    sock.settimeout(0)
    return sock


def accepted(sock: socket.socket) -> list[str]:
    """Where those wanted to go that wait there; they are closed."""
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            peer, _ = sock.accept()
            found.append(f"{peer.getsockname()[0]}:{peer.getsockname()[1]}")
            peer.close()
    return found


def connects(family: int, port: int) -> bool:
    """Whether somebody takes a connection to the service's address; else it is refused."""
    with socket.socket(FAMILIES[family], socket.SOCK_STREAM) as sock:
        sock.settimeout(5)
        try:
            sock.connect((ADDRS[family], port))
        except ConnectionRefusedError:
            return False
        return True


class Plane:
    """Two services of each family: 80 (ids 0 and 2), and a range without 8080 (ids 1 and 3)."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane, self.maps = plane, Maps(plane.maps)
        self.sockets = GatewaySockets(plane.maps["gateway_sockets"])
        self.link = -1
        ranges = {}
        for number, text in ((0, ADDRS[4]), (2, ADDRS[6])):
            addr = parse_addr(text)
            self.maps.services.write(Endpoint(addr, 80), value(number))
            wide = Endpoint(addr, RANGE[0], ranged=True, last=RANGE[1])
            self.maps.services.write(wide, value(number + 1))
            self.maps.services.write(Endpoint(addr, 8080), value(number + 1, flags=0))
            ranges[addr, 6] = [RANGE]
        self.maps.service_ranges.replace(ranges)
        control = self.maps.control.read()
        self.maps.control.write(dataclasses.replace(control, flags=abi.CONTROL_RANGES))

    def attach(self, loader: str) -> None:
        """The program, in this namespace, where the addresses are local from now on."""
        program = socket_lookup.load(real_loader(loader), self.plane.maps)
        self.link = socket_lookup.attach(program)
        os.close(program)
        with LocalRoutes() as routes:
            assert all(routes.add(parse_addr(addr)) for addr in ADDRS.values())

    @contextlib.contextmanager
    def counted(self) -> Iterator[Callable[[], dict[str, int]]]:
        """Gives what the program has counted since, or nothing."""
        before = self.maps.counters.read()
        yield lambda: {
            name: count - before[name]
            for name, count in self.maps.counters.read().items()
            if count != before[name]
        }


@pytest.fixture(scope="module", params=LOADERS)
def loaded(request: pytest.FixtureRequest) -> Iterator[tuple[str, DataPlane]]:
    """A data plane, and how its programs are loaded."""
    require_root()
    plane = DataPlane.create(IdleLoader(), SMALL, None)
    yield request.param, plane
    plane.close()


@contextlib.contextmanager
def attached(loaded: tuple[str, DataPlane]) -> Iterator[Plane]:
    with IPRoute() as ipr:
        ipr.link("set", index=1, state="up")
    found = Plane(loaded[1])
    found.attach(loaded[0])
    try:
        yield found
    finally:
        os.close(found.link)
        for number in found.sockets.services():
            found.sockets.remove(number)
        for addr in ADDRS.values():
            found.maps.services.take_up(parse_addr(addr), False)


@pytest.mark.parametrize("family", [4, 6])
@in_fresh_netns
def test_who_gets_a_connection(loaded: tuple[str, DataPlane], family: int) -> None:
    """The service's ports are the gateway's, wherever it listens; all others are as they were."""
    number = {4: 0, 6: 2}[family]
    addr = parse_addr(ADDRS[family])
    with (
        attached(loaded) as plane,
        listen(family) as gateway,
        listen(family, ANY[family], 80) as web,
        listen(family, ANY[family], 8080) as left_out,
    ):
        # No gateway: not the host's own server, which would have it else.
        with plane.counted() as counted:
            assert not connects(family, 80)
            assert counted() == {"gateway_absent": 1}
        assert accepted(web) == []
        plane.sockets.put(number, gateway, addr)
        plane.sockets.put(number + 1, gateway, addr)
        assert plane.sockets.cookie(number) == plane.sockets.cookie(number + 1) != 0
        with plane.counted() as counted:
            assert connects(family, 80)
            assert connects(family, RANGE[0])
            assert connects(family, RANGE[1])
            assert counted() == {"gateway_steered": 3}
        where = ADDRS[family]
        assert accepted(gateway) == [f"{where}:80", f"{where}:8000", f"{where}:8100"]
        # A port that the range leaves out, ports outside, other addresses.
        assert connects(family, 8080)
        assert accepted(left_out) == [f"{where}:8080"]
        assert not connects(family, 8101)
        with socket.create_connection((HOSTS[family], 80), 5):
            assert accepted(web) == [f"{HOSTS[family]}:80"]
        assert accepted(gateway) == []


@pytest.mark.parametrize("family", [4, 6])
@in_fresh_netns
def test_an_address_that_is_taken_up_offers_nothing_else(
    loaded: tuple[str, DataPlane], family: int
) -> None:
    """Neither TCP nor UDP: what listens on this host was not to be found there before."""
    number, addr = {4: 0, 6: 2}[family], parse_addr(ADDRS[family])
    with (
        attached(loaded) as plane,
        listen(family) as gateway,
        listen(family, ANY[family], 22) as ssh,
    ):
        plane.sockets.put(number, gateway, addr)
        assert connects(family, 22)
        assert len(accepted(ssh)) == 1
        plane.maps.services.take_up(addr, True)
        assert plane.maps.services.taken_up() == {addr}
        assert addr not in {at.addr for at, _ in plane.maps.services.items() if not at.port}
        with plane.counted() as counted:
            assert not connects(family, 22)
            assert not connects(family, 8080)
            with socket.socket(FAMILIES[family], socket.SOCK_DGRAM) as dns:
                dns.bind((ANY[family], 53))
                dns.settimeout(5)
                with socket.socket(FAMILIES[family], socket.SOCK_DGRAM) as client:
                    client.settimeout(5)
                    client.connect((ADDRS[family], 53))
                    client.send(b"?")
                    with pytest.raises(ConnectionRefusedError):
                        client.recv(10)
            assert counted() == {"taken_up_refused": 3}
        assert connects(family, 80)
        plane.maps.services.take_up(addr, False)
        assert connects(family, 22)


@in_fresh_netns
def test_workers_share_connections(loaded: tuple[str, DataPlane]) -> None:
    """One socket leads to all that share its port; when it is closed there is none."""
    with attached(loaded) as plane, listen(4, share=True) as first:
        port = first.getsockname()[1]
        others = [listen(4, port=port, share=True) for _ in range(3)]
        plane.sockets.put(0, first, parse_addr(ADDRS[4]))
        for _ in range(64):
            assert connects(4, 80)
        counts = [len(accepted(each)) for each in (first, *others)]
        assert sum(counts) == 64
        assert all(counts)
        first.close()
        assert plane.sockets.cookie(0) is None
        assert plane.sockets.services() == set()
        assert not connects(4, 80)
        plane.sockets.put(0, others[0], parse_addr(ADDRS[4]))
        assert connects(4, 80)
        for each in others:
            each.close()


@in_fresh_netns
def test_sockets_that_nobody_can_be_led_to(loaded: tuple[str, DataPlane]) -> None:
    """The map would take some of them, and the kernel refuse the connection then."""
    with attached(loaded) as plane, listen(4) as good, listen(6) as other:
        sockets, addr = plane.sockets, parse_addr(ADDRS[4])
        with pytest.raises(UnfitSocket, match="AF_INET6, not AF_INET"):
            sockets.put(0, other, addr)
        with socket.create_connection(good.getsockname()) as connected:
            with pytest.raises(UnfitSocket, match="does not listen"):
                sockets.put(0, connected, addr)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            with pytest.raises(UnfitSocket, match="does not listen"):
                sockets.put(0, udp, addr)
        unix, end = socket.socketpair()
        with unix, end, pytest.raises(UnfitSocket):
            sockets.put(0, unix, addr)
        assert sockets.services() == set()
        sockets.put(0, good, addr)
        sockets.remove(0)
        sockets.remove(0)
        assert not connects(4, 80)


@in_fresh_netns
def test_a_link_says_whether_it_is_attached(loaded: tuple[str, DataPlane]) -> None:
    """Of this namespace; a detached one leads nobody."""
    with attached(loaded) as plane, listen(4) as gateway:
        plane.sockets.put(0, gateway, parse_addr(ADDRS[4]))
        assert socket_lookup.is_attached(plane.link)
        assert connects(4, 80)
        bpf.link_detach(plane.link)
        assert not socket_lookup.is_attached(plane.link)
        assert not connects(4, 80)
