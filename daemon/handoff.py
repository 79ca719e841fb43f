# SPDX-License-Identifier: Apache-2.0
"""Hand-off to the kernel: where it is needed, where the host allows it, and what is done for it.

Sysctls change without a word: they are looked at every few seconds. Of devices the kernel tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from xdp_router.adapters import kernel_forwarding_ipv6
from xdp_router.adapters.host import HostError, Rtnl
from xdp_router.adapters.kernel_forwarding import (
    Obstacle,
    SourceRoute,
    forward_obstacles,
    how_to_mend,
    own_changes,
    own_source,
    read_facts,
    reply_obstacles,
    source_route,
)
from xdp_router.adapters.sysctl import SysctlError
from xdp_router.adapters.xdp_link import AttachMode, XdpLink
from xdp_router.core import abi
from xdp_router.core.address import family_of, is_ipv6
from xdp_router.core.config import RouterConfig
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.model import Backend, Forwarding, KernelHandoff
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
class Ways:
    """What the kernel does with packets of one family. Reasons are empty where it forwards what
    comes in: ``forward`` for a backend, ``reply`` with a service's address, which is looked at
    only while an interface takes no frames."""

    forward: tuple[Obstacle, ...] = ()
    reply: tuple[Obstacle, ...] | None = None


@dataclass(frozen=True, slots=True)
class State:
    """One attached interface. ``ways``: by address family, of those that there are flows of."""

    name: str
    takes_frames: bool = True
    ways: Mapping[int, Ways] = field(default_factory=dict)

    def of(self, family: int) -> Ways:
        """As far as is known: what nobody has looked at is no obstacle."""
        return self.ways.get(family, Ways())

    @property
    def flags(self) -> int:
        """For the ``interfaces`` map."""
        flags = 0 if self.takes_frames else abi.IF_NO_XMIT
        for family, ways in self.ways.items():
            if not ways.forward:
                flags |= abi.IF_HANDOFF_FORWARD[family]
            if ways.reply == ():
                flags |= abi.IF_HANDOFF_REPLY[family]
        return flags


_OFF = (Obstacle('kernel_handoff is "off"', (), 'kernel_handoff = "check" in [router]'),)

_LOOK = "ip link show {name}: where it is there, it is looked at again by itself"
_SET = 'kernel_handoff = "set" in [router]'


class Handoff:
    """Knows all attached interfaces, and brings what is new about one to maps and paths."""

    def __init__(
        self,
        config: RouterConfig,
        changes: HostChanges,
        state: KernelState,
        network: Network,
        links: Callable[[], Collection[XdpLink]],
        retired: Iterable[Backend] = (),
    ) -> None:
        """``links``: what is attached at the moment. ``retired``: backends that only flows have."""
        self.change(config, retired)
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

    def change(self, config: RouterConfig, retired: Iterable[Backend]) -> None:
        """Look for these services and backends from the next look on."""
        self._mode = config.settings.kernel_handoff
        # Of those that the gateway takes up the kernel forwards no replies: it makes them.
        addrs = {service.endpoint.addr for service in config.services if not service.listener}
        self._sources = sorted(addr for addr in addrs if not is_ipv6(addr))
        """Of IPv4: the kernel looks at no source of IPv6."""
        known = (*addrs, *(backend.endpoint.addr for backend in retired))
        self._families = sorted(set(map(family_of, known)))
        self._fullnat = [
            backend.id
            for service in config.services
            if service.forwarding is Forwarding.FULLNAT
            for backend in service.backends
        ]
        """Backends whose packets bear a source of ours, which may be left to the kernel, too."""
        self._own_families = {
            family_of(service.endpoint.addr)
            for service in config.services
            if service.forwarding is Forwarding.FULLNAT
        }
        """Families that these are of."""

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
                    async with asyncio.timeout(REFRESH_S):
                        await changed.wait()
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

    def unusable(self, egress: int, egresses: Collection[int], family: int) -> str:
        """Why new flows of a family must not go to a backend behind ``egress``; empty: they may.

        ``egresses``: the interfaces of all backends. Clients come in by the others, or, if there
        are none, by any. Where one end takes no frames the kernel has to forward from the other.
        """
        here = self.interfaces.get(egress)
        if here is None:
            return ""
        clients = self.interfaces.keys() - set(egresses) or self.interfaces.keys()
        for ifindex in sorted(clients):
            there = self.interfaces[ifindex]
            ways = there.of(family)
            forward = ways.forward or (ways.reply if family in self._own_families else None) or ()
            for target, obstacles in ((here, forward), (there, here.of(family).reply or ())):
                if not target.takes_frames and obstacles:
                    return _reason(target, obstacles)
        return ""

    def view(self, ifindex: int) -> dict[str, Any]:
        """For ``status``: what XDP, and the kernel in its place, can do with an interface.

        ``kernel_families``: of each family that there are flows of; the two before: of all.
        """
        state = self.interfaces.get(ifindex, State(""))
        families = {
            # Replies are asked for only where it is needed.
            f"ipv{family}": {"forwards": not ways.forward, "replies": not ways.reply}
            for family, ways in sorted(state.ways.items())
        }
        return {
            "takes_xdp_frames": state.takes_frames,
            "kernel_forwards": all(each["forwards"] for each in families.values()),
            "kernel_replies": all(each["replies"] for each in families.values()),
            "kernel_families": families,
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
                wanted = self._fullnat or not all(takes.values())
                if not wanted or self._mode is KernelHandoff.OFF:
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
                    sources += self._own_sources()
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

    def _own_sources(self) -> Iterator[SourceRoute]:
        paths = (self._network.paths.get(backend, (None, ""))[0] for backend in self._fullnat)
        for addr in sorted({path.source_addr for path in paths if path is not None}):
            if not is_ipv6(addr):
                yield own_source(addr)

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
            return State(name, takes, dict.fromkeys(self._families, Ways(_OFF, _OFF)))
        try:
            found = self._obstacles(name, ifindex, sources)
            if self._mode is KernelHandoff.SET and self._mend(name, found):
                found = self._obstacles(name, ifindex, sources)
        except (SysctlError, ValueError) as error:  # it has just gone
            gone = (Obstacle(str(error), (), _LOOK.format(name=name)),)
            return State(name, takes, dict.fromkeys(self._families, Ways(gone, gone)))
        return State(
            name,
            takes,
            {
                family: Ways(tuple(forward), None if sources is None else tuple(reply))
                for family, (forward, reply) in found.items()
            },
        )

    def _obstacles(
        self, name: str, ifindex: int, sources: list[SourceRoute] | None
    ) -> dict[int, tuple[list[Obstacle], list[Obstacle]]]:
        """Those of packets for backends, and of replies, by family."""
        found = {}
        if 4 in self._families:
            facts = read_facts(name, ifindex)
            found[4] = forward_obstacles(facts), reply_obstacles(facts, sources or ())
        if 6 in self._families:
            both = kernel_forwarding_ipv6.obstacles(kernel_forwarding_ipv6.read_facts(name))
            found[6] = both, both
        return found

    def _mend(self, name: str, found: Mapping[int, tuple[list[Obstacle], list[Obstacle]]]) -> bool:
        changed = False
        for obstacles in itertools.chain(*found.values()):
            why = "; ".join(each.text for each in obstacles)
            for key, value in own_changes(name, obstacles):
                changed |= self._changes.set(key, value, why)
        return changed

    def _accept(self, found: dict[int, State]) -> None:
        if found == self.interfaces:
            return
        # First, or what failed would not be tried again.
        self._state.set_handoff({ifindex: state.flags for ifindex, state in found.items()})
        before, self.interfaces = self.interfaces, found
        needed = not all(state.takes_frames for state in found.values())
        for ifindex, state in found.items():
            was = before.get(ifindex, State(state.name))
            _report(was, state, needed, checks=self._mode is KernelHandoff.CHECK)
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
    text = "; ".join(each.text for each in obstacles)
    return (
        f"{target.name} takes no XDP frames, and the kernel cannot take over: {text}: "
        f"{how_to_mend(obstacles)}"
    )


def _report(before: State, state: State, needed: bool, *, checks: bool) -> None:
    """``checks``: the router may be told to set what it takes."""
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
    for family in sorted(before.ways.keys() | state.ways.keys()):
        _report_family(family, before.of(family), state, needed, checks)


def _mend_of(interface: str, obstacles: tuple[Obstacle, ...], checks: bool) -> str:
    """What the operator can do, or have done where the router may."""
    how = how_to_mend(obstacles)
    return f"{how}; or {_SET}" if checks and own_changes(interface, obstacles) else how


def _report_family(family: int, before: Ways, state: State, needed: bool, checks: bool) -> None:
    ways, ip = state.of(family), f"IPv{family}"
    for what, old, new in (
        ("for backends", before.forward, ways.forward),
        ("replies", before.reply or (), ways.reply or ()),
    ):
        if new and new != old and new != _OFF:
            (_log.warning if needed else _log.info)(
                "handoff_impossible",
                interface=state.name,
                family=ip,
                packets=what,
                reason="; ".join(each.text for each in new),
                mend=_mend_of(state.name, new, checks),
            )
        elif old and not new:
            _log.info("handoff_possible", interface=state.name, family=ip, packets=what)
