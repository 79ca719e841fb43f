# SPDX-License-Identifier: Apache-2.0
"""Services at the gateway: routes, program and sockets as they come and go, in a real kernel."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from pyroute2 import IPRoute

from tests.support.bpf_programs import real_loader
from tests.support.descriptors import open_descriptors
from tests.support.fresh_netns import in_fresh_netns, make_wire
from tests.support.small_router import SETTINGS, SmallRouter, small_router
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import socket_lookup
from xdp_router.adapters.local_routes import LocalRoutes
from xdp_router.adapters.notes import Note
from xdp_router.core.address import parse_addr
from xdp_router.core.config import RouterConfig
from xdp_router.core.model import Endpoint, Service
from xdp_router.daemon.gateway.sharing import SocketSharing
from xdp_router.daemon.steering import LOOK_S, Steering

ADDRS = ("198.18.100.9", "2001:db8:100::9")
WAIT_S = 30.0


def service(number: int, text: str, port: int = 80, listener: str = "web") -> Service:
    return Service(number, f"up{number}", Endpoint(parse_addr(text), port), (), listener=listener)


def config(*services: Service) -> RouterConfig:
    return RouterConfig(services, SETTINGS)


BOTH = config(service(0, ADDRS[0]), service(1, ADDRS[1], listener="web6"))
NONE = config()


@contextlib.contextmanager
def steered(control: Path, first: RouterConfig = BOTH) -> Iterator[tuple[SmallRouter, Steering]]:
    """A router's steering with these services, as after a start."""
    with IPRoute() as ipr:
        ipr.link("set", index=1, state="up")
    with small_router(config=first) as router:
        router.state.open_services()
        yield router, begin(router, control, first)


def begin(
    router: SmallRouter, control: Path, first: RouterConfig, *, adopted: bool = False
) -> Steering:
    found = Steering(
        router.plane, router.state, lambda: real_loader("object"), control, adopted=adopted
    )
    found.prepare(first)
    found.change(first)
    return found


def local() -> list[bool]:
    with LocalRoutes() as routes:
        return [routes.is_local(parse_addr(text)) for text in ADDRS]


def taken(router: SmallRouter, steering: Steering) -> tuple[set[int], str]:
    return router.maps.services.taken_up(), steering.notes.read(Note.LOCAL_ROUTES)


@in_fresh_netns
def test_routes_come_and_go(tmp_path: Path) -> None:
    """With the services; each address is noted, and said to be taken up, as long as it is."""
    with steered(tmp_path / "gw") as (router, steering):
        assert local() == [True, True]
        assert taken(router, steering) == (set(map(parse_addr, ADDRS)), " ".join(ADDRS))
        assert socket_lookup.is_attached(router.plane.lookup_link)
        one = config(BOTH.services[0], service(1, ADDRS[0], 443))
        steering.change(one)
        assert local() == [True, False]
        assert taken(router, steering) == ({parse_addr(ADDRS[0])}, ADDRS[0])
        steering.change(NONE)
        assert local() == [False, False]
        assert taken(router, steering) == (set(), "")
        assert router.plane.lookup_link == -1
        steering.prepare(BOTH)
        steering.change(BOTH)
        assert local() == [True, True]
        steering.close()
        assert local() == [False, False]


@in_fresh_netns
def test_an_address_of_an_interface_stays_as_it_is(tmp_path: Path) -> None:
    """No route of ours, and what else listens there is not refused; also if it gets there later."""
    with IPRoute() as ipr:
        make_wire(ipr, "v0", ADDRS[0], "198.18.100.10")
        with steered(tmp_path / "gw") as (router, steering):
            assert taken(router, steering) == ({parse_addr(ADDRS[1])}, ADDRS[1])
            index = ipr.link_lookup(ifname="v0")[0]
            ipr.addr("add", index=index, address=ADDRS[1], prefixlen=128)
            steering.change(BOTH)
            assert taken(router, steering) == (set(), "")
            assert local() == [True, True]
            ipr.addr("del", index=index, address=ADDRS[0], prefixlen=24)
            steering.change(BOTH)
            assert taken(router, steering) == ({parse_addr(ADDRS[0])}, ADDRS[0])
            steering.close()
            assert local() == [False, True]


@in_fresh_netns
def test_a_successor_has_what_was_left(tmp_path: Path) -> None:
    """Routes, link and sockets; what its configuration has not goes."""
    control = tmp_path / "gw"
    with steered(control) as (router, _), listener(4) as sock:
        sockets = socket_lookup.GatewaySockets(router.plane.maps["gateway_sockets"])
        sockets.put(0, sock, parse_addr(ADDRS[0]))
        router.maps.services.take_up(parse_addr(ADDRS[0]), False)  # killed in between
        link = bpf.link_info(router.plane.lookup_link)
        new = begin(router, control, BOTH, adopted=True)
        assert taken(router, new) == (set(map(parse_addr, ADDRS)), " ".join(ADDRS))
        assert sockets.services() == {0}
        now = bpf.link_info(router.plane.lookup_link)
        assert now.id == link.id
        assert now.prog_id != link.prog_id
        newest = begin(router, control, config(BOTH.services[1]), adopted=True)
        assert local() == [False, True]
        assert sockets.services() == set()
        newest.close()


def listener(family: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if family == 6 else socket.AF_INET)
    if family == 6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind(("::1" if family == 6 else "127.0.0.1", 0))
    sock.listen()
    return sock


@contextlib.asynccontextmanager
async def running(steering: Steering, every_s: float = LOOK_S) -> AsyncIterator[None]:
    """What goes on beside the event loop's own work."""
    tasks = [asyncio.create_task(each) for each in (steering.look(every_s), steering.follow())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)


@in_fresh_netns
def test_sockets_are_those_that_the_gateway_shows(tmp_path: Path) -> None:
    """Of each service its listener's; closed ones go by themselves; the reason is told."""
    control = tmp_path / "gw"

    def there(steering: Steering, *services: Service) -> list[bool]:
        return [bool((steering.view(each) or {})["sockets"]) for each in services]

    async def run(router: SmallRouter, steering: Steering) -> None:
        both = BOTH.services
        view = steering.view(both[0])
        assert view is not None
        assert view["route"]
        assert steering.view(service(5, ADDRS[0], listener="")) is None
        async with running(steering):
            await until(lambda: "no gateway shows" in str(steering.view(both[0])))
            with listener(4) as web, listener(6) as web6:
                offered = {"web": web, "web6": web6}
                shared = SocketSharing(control, lambda: offered)
                shared.start()
                await until(lambda: there(steering, *both) == [True, True])
                assert (steering.view(both[0]) or {})["reason"] == ""
                # Of another family than the service: refused, not led astray.
                offered["web"] = web6
                shared.tell()
                await until(lambda: there(steering, *both) == [False, True])
                assert "will not do" in (steering.view(both[0]) or {})["reason"]
                del offered["web"]
                shared.tell()
                await until(lambda: "has no listener 'web'" in str(steering.view(both[0])))
                offered["web"] = web
                shared.tell()
                await until(lambda: there(steering, *both) == [True, True])
                # Another service, for which the gateway has a socket already.
                more = config(*both, service(2, ADDRS[0], 443))
                steering.change(more)
                await until(lambda: there(steering, *more.services) == [True, True, True])
                web.close()  # nobody here has kept it open while it was shown
                await until(lambda: there(steering, *more.services) == [False, True, False])
                shared.close()
                await until(lambda: steering._listeners is None)
                assert there(steering, *both) == [False, True]  # that one is open still
            await until(lambda: there(steering, *both) == [False, False])

    with steered(control) as (router, steering):
        asyncio.run(run(router, steering))
        steering.close()


@in_fresh_netns
def test_what_others_remove_comes_back(tmp_path: Path) -> None:
    """A route, the program's link."""

    async def run(router: SmallRouter, steering: Steering) -> None:
        async with running(steering, 0.05):
            with LocalRoutes() as routes:
                assert routes.remove(parse_addr(ADDRS[0]))
            bpf.link_detach(router.plane.lookup_link)
            await until(
                lambda: (
                    local() == [True, True] and socket_lookup.is_attached(router.plane.lookup_link)
                )
            )

    with steered(tmp_path / "gw") as (router, steering):
        asyncio.run(run(router, steering))
        steering.close()
        before = len(open_descriptors())
        steering.close()
        assert len(open_descriptors()) == before
