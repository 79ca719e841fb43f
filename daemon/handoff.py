# SPDX-License-Identifier: Apache-2.0
"""Hand-off to the kernel: where it is needed, where the host allows it, and what is done for it.

Sysctls change without a word: they are looked at every few seconds. Of devices the kernel tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import structlog

from xdp_router.adapters.host import HostError, Rtnl
from xdp_router.adapters.kernel_forwarding import (
    InterfaceFacts,
    Obstacle,
    SourceRoute,
    forward_obstacles,
    mend,
    own_changes,
    read_facts,
    reply_obstacles,
    source_route,
)
from xdp_router.adapters.sysctl import SysctlError
from xdp_router.adapters.xdp_link import AttachMode, XdpLink
from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.model import KernelHandoff
from xdp_router.linux.xdp_features import XdpFeatures

from .host_changes import HostChanges
from .kernel_state import KernelState
from .network import Network

REFRESH_S = 2.0
_SLICE = 50
"""Routes that are asked for before the event loop has its turn: about 1 ms."""

_JUDGED = 8
"""Interfaces that are looked at before that: ten sysctls each, about 1 ms."""

_MESSAGES = 64
"""Read at once; the rest with the next turn of the loop."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class State:
    """One attached interface. Reasons are empty where the kernel forwards what comes in there:
    ``forward`` for a backend, ``reply`` with a service's address, which is looked at only while
    an interface takes no frames."""

    name: str
    takes_frames: bool = True
    forward: tuple[Obstacle, ...] = ()
    reply: tuple[Obstacle, ...] | None = None

    @property
    def flags(self) -> int:
        """For the ``interfaces`` map."""
        return (
            (0 if self.takes_frames else abi.IF_NO_XMIT)
            | (0 if self.forward else abi.IF_HANDOFF_FORWARD)
            | (abi.IF_HANDOFF_REPLY if self.reply == () else 0)
        )


_OFF = (Obstacle('kernel_handoff is "off"', ()),)


class Handoff:
    """Knows all attached interfaces, and brings what is new about one to maps and paths."""

    def __init__(
        self,
        config: RouterConfig,
        changes: HostChanges,
        state: KernelState,
        network: Network,
        links: Callable[[], Collection[XdpLink]],
    ) -> None:
        """``links``: what is attached at the moment."""
        self._mode = config.settings.kernel_handoff
        self._sources = sorted({service.endpoint.addr for service in config.services})
        self._links = links
        self._changes = changes
        self._state = state
        self._network = network
        network.handoff = self
        self._fault = ""
        self._routes: list[SourceRoute] | None = None  # of the last look that asked for them
        self._changed = asyncio.Event()
        self.interfaces: dict[int, State] = {}
        """By interface number."""

    def look(self, *, briefly: bool = False) -> None:
        """Look at everything now. Blocks.

        ``briefly``: no longer than a millisecond for the ways to the services' addresses. If
        there are many of them, those of the last look are taken, and ``run`` looks at once.
        """
        for _ in self._steps(briefly and len(self._sources) > _SLICE):
            pass

    async def run(self) -> None:
        """Look again and again, and when the kernel says that a device has changed."""
        loop, changed = asyncio.get_running_loop(), self._changed
        with contextlib.ExitStack() as undo:
            changes = None
            with contextlib.suppress(OSError), XdpFeatures() as features:
                changes = features.changes()
            if changes is not None:
                undo.enter_context(changes)
                loop.add_reader(changes, _read_empty, changes, changed)
                undo.callback(loop.remove_reader, changes)
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), REFRESH_S)
                changed.clear()
                try:
                    for _ in self._steps():
                        await asyncio.sleep(0)
                except XdpRouterError as error:  # a map refuses
                    self._failed(error)

    # What follows from it for the backends

    def takes_frames(self, ifindex: int) -> bool:
        """Whether frames can be redirected to an interface, as far as is known."""
        state = self.interfaces.get(ifindex)
        return state is None or state.takes_frames

    def unusable(self, egress: int, egresses: Collection[int]) -> str:
        """Why new flows must not go to a backend behind ``egress``; empty: they may.

        ``egresses``: the interfaces of all backends. Clients come in by the others, or, if there
        are none, by any. Where one end takes no frames the kernel has to forward from the other.
        """
        here = self.interfaces.get(egress)
        if here is None:
            return ""
        clients = self.interfaces.keys() - set(egresses) or self.interfaces.keys()
        for ifindex in sorted(clients):
            there = self.interfaces[ifindex]
            for target, obstacles in ((here, there.forward), (there, here.reply or ())):
                if not target.takes_frames and obstacles:
                    return _reason(target, obstacles)
        return ""

    def view(self, ifindex: int) -> dict[str, bool]:
        """For ``status``: what XDP, and the kernel in its place, can do with an interface."""
        state = self.interfaces.get(ifindex, State(""))
        return {
            "takes_xdp_frames": state.takes_frames,
            "kernel_forwards": not state.forward,
            # Asked only where it is needed.
            "kernel_replies": not state.reply,
        }

    # Looking

    def _steps(self, by_last_routes: bool = False) -> Iterator[None]:
        if self._state.is_lost():
            return  # the sysctls, too, are a successor's, and the notes about them
        links = list(self._links())
        numbers = {link.ifindex for link in links}
        with contextlib.ExitStack() as undo:
            try:
                features = undo.enter_context(XdpFeatures())
                rtnl = undo.enter_context(Rtnl())
                native = any(link.mode is AttachMode.NATIVE for link in links)
                takes = {
                    link.ifindex: not native or features.takes_frames(link.ifindex) is not False
                    for link in links
                }
                sources: list[SourceRoute] | None = None
                if all(takes.values()) or self._mode is KernelHandoff.OFF:
                    pass
                elif by_last_routes:
                    sources = self._routes
                    self._changed.set()
                else:
                    sources = []
                    for number, addr in enumerate(self._sources, 1):
                        sources.append(source_route(rtnl, addr))
                        if not number % _SLICE:
                            yield
                    self._routes = sources
            except (HostError, OSError) as error:
                self._failed(error)
                return
        self._fault = ""
        for ifindex in self.interfaces.keys() - numbers:
            self._changes.interface_gone(self.interfaces[ifindex].name)
        found = {}
        for number, link in enumerate(links, 1):
            found[link.ifindex] = self._judge(link, takes[link.ifindex], sources)
            if not number % _JUDGED:
                yield
        if numbers == {link.ifindex for link in self._links()}:
            self._accept(found)
        else:  # interfaces have come or gone meanwhile
            self._changed.set()

    def _failed(self, error: Exception) -> None:
        """Tell it, once; ``run`` tries again."""
        if str(error) != self._fault:
            _log.error("handoff_not_checked", error=str(error))
        self._fault = str(error)

    def _judge(self, link: XdpLink, takes: bool, sources: list[SourceRoute] | None) -> State:
        name, ifindex = link.interface, link.ifindex
        with contextlib.suppress(OSError):
            name = socket.if_indextoname(ifindex)  # it may have another by now
        before = self.interfaces.get(ifindex)
        if before is not None and before.name != name:
            self._changes.interface_renamed(before.name, name)
        if self._mode is KernelHandoff.OFF:
            return State(name, takes, _OFF, _OFF)
        try:
            facts = read_facts(name, ifindex)
            if self._mode is KernelHandoff.SET and self._mend(facts, sources):
                facts = read_facts(name, ifindex)
        except (SysctlError, ValueError) as error:  # it has just gone
            gone = (Obstacle(str(error), ()),)
            return State(name, takes, gone, gone)
        return State(
            name,
            takes,
            tuple(forward_obstacles(facts)),
            None if sources is None else tuple(reply_obstacles(facts, sources)),
        )

    def _mend(self, facts: InterfaceFacts, sources: list[SourceRoute] | None) -> bool:
        changed = False
        for obstacles in (forward_obstacles(facts), reply_obstacles(facts, sources or ())):
            why = "; ".join(each.text for each in obstacles)
            for name, value in own_changes(facts, obstacles):
                changed |= self._changes.set(name, value, why)
        return changed

    def _accept(self, found: dict[int, State]) -> None:
        if found == self.interfaces:
            return
        # First, or what failed would not be tried again.
        self._state.set_handoff({ifindex: state.flags for ifindex, state in found.items()})
        before, self.interfaces = self.interfaces, found
        needed = not all(state.takes_frames for state in found.values())
        for ifindex, state in found.items():
            _report(before.get(ifindex, State(state.name)), state, needed)
        self._network.reconsider()


def _read_empty(changes: socket.socket, changed: asyncio.Event) -> None:
    changed.set()
    for _ in range(_MESSAGES):
        try:
            changes.recv(1 << 12)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # some were lost: the look is at all of it
                raise


def _reason(target: State, obstacles: tuple[Obstacle, ...]) -> str:
    changes = tuple(change for each in obstacles for change in each.changes)
    text = "; ".join(each.text for each in obstacles)
    how = f": {mend(changes)}" if changes else ""
    return f"{target.name} takes no XDP frames, and the kernel cannot take over: {text}{how}"


def _report(before: State, state: State, needed: bool) -> None:
    if before.takes_frames != state.takes_frames:
        if state.takes_frames:
            _log.info("takes_xdp_frames", interface=state.name)
        else:
            _log.warning(
                "takes_no_xdp_frames",
                interface=state.name,
                consequence="what leaves by it is handed to the kernel, which is slower, or "
                "dropped (no_path) where the kernel would lose it",
                mend="another driver, queues enough for all CPUs; on veth GRO on at its other "
                "end: ethtool -K PEER gro on",
            )
    for what, old, new in (
        ("for backends", before.forward, state.forward),
        ("replies", before.reply or (), state.reply or ()),
    ):
        if new and new != old and new != _OFF:
            (_log.warning if needed else _log.info)(
                "handoff_impossible",
                interface=state.name,
                packets=what,
                reason="; ".join(each.text for each in new),
                mend=mend(change for each in new for change in each.changes),
            )
        elif old and not new:
            _log.info("handoff_possible", interface=state.name, packets=what)
