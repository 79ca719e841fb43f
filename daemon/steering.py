# SPDX-License-Identifier: Apache-2.0
"""Services with ``handler = "gateway"``: what the router does so that they are taken up here.

    lookup program attached -> address noted -> local route -> sockets, as the gateway has them

In this order, and back in the reverse one: an address is never local without the program that
refuses everything but its services, so nothing else that listens on this host comes to be offered
there. An address that is local anyway, because an interface has it, is left as it is.

The link of the program and the map of sockets are pinned with the data plane: they go on without
this daemon, and the kernel takes out sockets that are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import socket_lookup
from xdp_router.adapters.bpf_ctypes import BpfError
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.host import HostError
from xdp_router.adapters.loader import make_loader
from xdp_router.adapters.local_routes import LocalRoutes, format_addresses, parse_addresses
from xdp_router.adapters.notes import Note, Notes
from xdp_router.adapters.socket_lookup import GatewaySockets, LookupLoader, UnfitSocket
from xdp_router.core.address import format_addr
from xdp_router.core.config import RouterConfig
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.model import Service

from .gateway.child import control_of
from .gateway.sharing import SharingError, seen
from .kernel_state import KernelState

if TYPE_CHECKING:
    from socket import socket

    from .app import Router

LOOK_S: Final = 2.0
"""How often routes and the link are looked at: others may remove them."""
AGAIN_S: Final = 0.1
"""How long after a gateway has gone, or was not there, it is looked for again."""

_log = structlog.get_logger()


def begin_steering(router: Router, undo: contextlib.AsyncExitStack, *, adopted: bool) -> Steering:
    """For ``router``, whose data plane is loaded. Raises XdpRouterError if services want it and
    it cannot be done."""
    options = router.options
    steering = Steering(
        router.plane,
        router.state,
        lambda: make_loader(options.loader),
        control_of(options),
        adopted=adopted,
    )
    steering.prepare(router.config)
    undo.callback(lambda: steering.close() if router.takes_away() else None)
    return steering


class Steering:
    """Of one router. ``change`` says for which services."""

    def __init__(
        self,
        plane: DataPlane,
        state: KernelState,
        loader: Callable[[], LookupLoader],
        control: Path,
        *,
        adopted: bool = False,
    ) -> None:
        """``control``: the gateway's control socket. ``adopted``: there may be routes of a former
        daemon's, and its link."""
        self._plane = plane
        self._state = state
        self._loader = loader
        self._control = control
        self.notes = Notes(plane.maps["notes"])
        self._sockets = GatewaySockets(plane.maps["gateway_sockets"])
        self._services: dict[int, Service] = {}
        self._wanted = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._listeners: frozenset[str] | None = None
        self._reason = "not looked for yet"
        self._fault = ""
        self._taken: set[int] = set()
        self._current = not adopted
        if adopted:
            with contextlib.suppress(ValueError):
                self._taken = parse_addresses(self.notes.read(Note.LOCAL_ROUTES))
            for addr in self._taken:  # it was noted before it was said
                state.maps.services.take_up(addr, True)

    # What is wanted

    def prepare(self, config: RouterConfig) -> None:
        """Have the program attached, if a service wants it. Raises XdpRouterError: nothing has
        changed then. Reading the program may take some time."""
        if any(service.listener for service in config.services):
            self._attach()

    def change(self, config: RouterConfig) -> None:
        """These are the services from now on; they are in the maps, and ``prepare`` was called.
        Raises BpfError."""
        before = self._services
        self._services = {each.id: each for each in config.services if each.listener}
        for number in self._sockets.services():
            was, now = before.get(number), self._services.get(number)
            # Of a former daemon's it is not known which listener's socket they have.
            if now is None or (was is not None and was.listener != now.listener):
                self._sockets.remove(number)
        self._look()
        if self._services:
            self._wanted.set()
            if self._services != before and self._follower is not None:
                self._follower.cancel()  # sockets are not kept, so it has to see them again
        else:
            self._wanted.clear()
            self._plane.drop_lookup()

    def view(self, service: Service) -> dict[str, Any] | None:
        """For ``services``: who takes it up; None: it has backends."""
        if not service.listener:
            return None
        cookie = self._sockets.cookie(service.id)
        return {
            "listener": service.listener,
            "sockets": cookie is not None,
            "reason": "" if cookie is not None else self._absence(service),
            "route": service.endpoint.addr in self._taken,
        }

    def close(self) -> None:
        """Give back what is there for these services."""
        self._services = {}
        self._look()
        self._plane.drop_lookup()

    # The program

    def _attach(self) -> None:
        plane = self._plane
        attached = plane.lookup_link >= 0 and socket_lookup.is_attached(plane.lookup_link)
        if attached and self._current:
            return
        program = socket_lookup.load(self._loader(), plane.maps)
        try:
            if attached:  # a former daemon's, over maps that may be others now
                bpf.link_update(plane.lookup_link, program)
            else:
                link = socket_lookup.attach(program)
                try:
                    plane.hold_lookup(link)
                except BaseException:
                    os.close(link)
                    raise
        finally:
            os.close(program)
        self._current = True

    # The routes

    def _look(self) -> None:
        """Have routes for the services' addresses and no other. What fails is tried again."""
        if self._state.is_lost():
            return
        wanted = {each.endpoint.addr for each in self._services.values()}
        if not wanted and not self._taken:
            return
        try:
            with LocalRoutes() as routes:
                # The kernel makes the route of an interface's address by and by: it is no one's
                # to make meanwhile.
                wanted -= routes.on_interfaces()
                self._leave(routes, wanted)
                self._take(routes, wanted)
        except HostError as error:
            if str(error) != self._fault:
                _log.error("service_not_taken_up", reason=str(error), consequence="tried again")
            self._fault = str(error)
        else:
            self._fault = ""

    def _leave(self, routes: LocalRoutes, wanted: set[int]) -> None:
        for addr in sorted(self._taken - wanted):
            routes.remove(addr)
            self._state.maps.services.take_up(addr, False)
            self._taken.discard(addr)
            self._note(self._taken)
            _log.info("local_route_removed", address=format_addr(addr))

    def _take(self, routes: LocalRoutes, wanted: set[int]) -> None:
        for addr in sorted(wanted):
            if addr in self._taken:
                if routes.add(addr):
                    _log.warning("local_route_was_gone", address=format_addr(addr))
                continue
            if routes.is_local(addr):
                continue
            self._note({*self._taken, addr})
            self._state.maps.services.take_up(addr, True)
            try:
                routes.add(addr)
            except HostError:
                self._state.maps.services.take_up(addr, False)
                self._note(self._taken)
                raise
            self._taken.add(addr)
            _log.info("local_route_added", address=format_addr(addr))

    def _note(self, addrs: set[int]) -> None:
        self.notes.write(Note.LOCAL_ROUTES, format_addresses(addrs))

    async def look(self, every_s: float = LOOK_S) -> None:
        """Look at link and routes again and again, until cancelled."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(every_s)
            if not self._services or self._state.is_lost():
                continue
            try:
                self._attach()
            except XdpRouterError as error:
                _log.error("lookup_not_attached", reason=str(error), consequence="tried again")
            self._look()

    # The sockets

    async def follow(self) -> None:
        """Have the sockets that the gateway has, until cancelled."""
        while True:
            await self._wanted.wait()
            follower = self._follower = asyncio.create_task(self._follow(), name="shown sockets")
            try:
                await asyncio.wait({follower})
            finally:
                follower.cancel()
                self._follower = None
            if not follower.cancelled():
                follower.result()
                await asyncio.sleep(AGAIN_S)

    async def _follow(self) -> None:
        try:
            async with contextlib.aclosing(seen(self._control)) as shown:
                async for sockets in shown:
                    try:
                        if not self._state.is_lost():
                            self._place(sockets)
                    finally:
                        # Or what the gateway closes would be open still, and nobody accept there.
                        for each in sockets.values():
                            each.close()
            self._reason = f"the gateway at {self._control} has ended"
        except SharingError as error:
            self._reason = str(error)
        finally:
            # What is open still may be a successor's: the kernel takes out what is not.
            self._listeners = None

    def _place(self, sockets: Mapping[str, socket]) -> None:
        self._listeners = frozenset(sockets)
        for number, service in self._services.items():
            sock = sockets.get(service.listener)
            if sock is None:
                self._sockets.remove(number)
                continue
            try:
                self._sockets.put(number, sock, service.endpoint.addr)
            except (UnfitSocket, BpfError) as error:
                self._sockets.remove(number)
                _log.error("service_without_socket", service=service.name, reason=str(error))

    def _absence(self, service: Service) -> str:
        if self._listeners is None:
            return self._reason
        if service.listener not in self._listeners:
            return f"the gateway at {self._control} has no listener {service.listener!r}"
        return "its listener's socket will not do: see the log"
