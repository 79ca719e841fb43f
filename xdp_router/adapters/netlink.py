# SPDX-License-Identifier: Apache-2.0
"""Paths to the backends: route, next hop's MAC, our MAC; resolved, watched, kept fresh.

:func:`resolve_paths` answers once, at start. :class:`PathWatcher` listens to the kernel
from the event loop and calls back when a path, or an interface, changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from xdp_router.core.address import format_addr, parse_addr

from .host import (
    NUD_FAILED,
    NUD_INCOMPLETE,
    NUD_STALE,
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_DELNEIGH,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    HostError,
    LinkInfo,
    NoSuchInterface,
    Rtnl,
    link_from_message,
    link_info,
)

__all__ = [
    "BackendRouteError",
    "HostError",
    "LinkEvent",
    "LinkInfo",
    "NoSuchInterface",
    "Path",
    "PathWatcher",
    "Resolution",
    "link_info",
    "require_attached",
    "resolve_paths",
]

# RTMGRP_LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE and RTNLGRP_NEXTHOP.
_GROUPS = 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x80000000
_EVENT_BUFFER_BYTES = 4 << 20
_DATAGRAMS_PER_WAKEUP = 16
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_NDMSG = struct.Struct("=B3xi")  # start of struct ndmsg
_IFADDRMSG = struct.Struct("=B3xI")  # struct ifaddrmsg: family, interface

REFRESH_NS = 3_000_000_000
"""How often every path is checked again and stale neighbours are confirmed."""
REFRESH_AT_ONCE = 512
"""So many of them: a look takes 0.3 ms, and changes are told by the kernel anyway."""
LOSS_GRACE_NS = 1_200_000_000
"""A neighbour may be missing this long before its path counts as lost: an entry that is new,
was flushed or collected is there after one ARP round trip. ARP asks again after 1 s."""
_DEBOUNCE_S = 0.005  # a burst of route changes costs one look
_SLICE_NS = 500_000  # looking at paths holds the event loop no longer than this


class BackendRouteError(HostError):
    """A backend's route does not leave by an attached interface."""


@dataclass(frozen=True, slots=True)
class Path:
    """What a frame to a backend needs. ``source_addr`` is what probes are sent from."""

    ifindex: int
    dmac: bytes
    smac: bytes
    source_addr: int
    subnets: tuple[tuple[int, int], ...] = ()
    """(network, mask) of the interface that the next hop is in: hosts there it answers directly."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What is known about the way to an address; ``reason`` says why ``path`` is None."""

    addr: int
    path: Path | None
    reason: str
    ifindex: int = 0
    interface: str = ""
    next_hop: int = 0
    neighbour_lost: bool = False
    """Only the neighbour is missing: the kernel may find it again at once."""


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """An interface changed. ``what``: created, deleted, up, down, mac, renamed, xdp, mtu,
    address.

    ``link`` is the new state, for ``deleted`` the last one known.
    """

    what: str
    link: LinkInfo


def _resolve(
    rtnl: Rtnl,
    addr: int,
    links: Mapping[int, LinkInfo],
    prefixes: Mapping[int, tuple[tuple[int, int], ...]],
    refresh: bool,
) -> Resolution:
    """Look once; have the kernel resolve a missing neighbour, confirm a stale one."""
    route = rtnl.route(addr)
    if route is None:
        return Resolution(addr, None, f"no route to {format_addr(addr)}")
    link = links.get(route.ifindex)
    if link is None:
        reason = f"interface number {route.ifindex} has just changed"
        return Resolution(addr, None, reason, route.ifindex)

    def unresolved(reason: str, neighbour_lost: bool = False) -> Resolution:
        return Resolution(
            addr, None, reason, link.ifindex, link.name, route.next_hop, neighbour_lost
        )

    if route.local:
        return unresolved(f"{format_addr(addr)} is an address of this host")
    if not link.ethernet:
        return unresolved(f"{link.name} is not an Ethernet interface")
    if not link.up:
        return unresolved(f"interface {link.name} is down")
    if not route.source_addr:
        return unresolved(f"interface {link.name} has no IPv4 address to probe from")
    neighbour = rtnl.neighbour(link.ifindex, route.next_hop)
    if neighbour is None or neighbour.state & NUD_FAILED or not neighbour.mac:
        if neighbour is None or not neighbour.state & NUD_INCOMPLETE:
            rtnl.use_neighbour(link.ifindex, route.next_hop)
        return unresolved(f"no ARP answer from {format_addr(route.next_hop)} on {link.name}", True)
    if refresh and neighbour.state & NUD_STALE:
        rtnl.use_neighbour(link.ifindex, route.next_hop)
    subnets = tuple(
        (network, mask)
        for network, mask in prefixes.get(link.ifindex, ())
        if route.next_hop & mask == network
    )
    path = Path(link.ifindex, neighbour.mac, link.mac, route.source_addr, subnets)
    return Resolution(addr, path, "", link.ifindex, link.name, route.next_hop)


def resolve_paths(addrs: Iterable[int], timeout_ns: int = LOSS_GRACE_NS) -> dict[int, Resolution]:
    """Resolve addresses now, waiting for ARP no longer than the timeout.

    Blocks. What could not be resolved is in the result with its reason. Raises HostError.
    """
    deadline_ns = time.monotonic_ns() + timeout_ns
    found: dict[int, Resolution] = {}
    waiting = list(dict.fromkeys(addrs))
    with Rtnl() as rtnl:
        links = {link.ifindex: link for link in rtnl.links()}
        prefixes = rtnl.prefixes()
        while True:
            for addr in waiting:
                found[addr] = _resolve(rtnl, addr, links, prefixes, refresh=True)
            waiting = [addr for addr in waiting if found[addr].neighbour_lost]
            if not waiting or time.monotonic_ns() >= deadline_ns:
                return found
            time.sleep(0.005)


def require_attached(
    resolutions: Iterable[Resolution], attached: Collection[int], names: Mapping[int, str]
) -> None:
    """Raise BackendRouteError if a backend's route leaves by an interface not in ``attached``.

    ``attached`` holds interface numbers, ``names`` backend names by address. A backend
    without any route passes: it is down until it has one.
    """
    faults: list[str] = []
    missing: list[str] = []
    for resolution in resolutions:
        if not resolution.interface or resolution.ifindex in attached:
            continue
        addr = format_addr(resolution.addr)
        name = names.get(resolution.addr, addr)
        if resolution.interface == "lo":
            raise BackendRouteError(
                f"backend {name} ({addr}) is an address of this host; with forwarding nat a "
                "backend must be another host: use its own address"
            )
        faults.append(f"backend {name} ({addr}): its route leaves by {resolution.interface}")
        if resolution.interface not in missing:
            missing.append(resolution.interface)
    if faults:
        raise BackendRouteError(
            f"{'; '.join(faults)}, which is not attached, so replies would return untranslated: "
            f"add {' '.join(missing)} to the attach command"
        )


class PathWatcher:
    """Keeps the paths of a set of addresses up to date, from the running event loop.

    ``on_change(addr, path, reason)`` is called for every address once after ``start`` and
    then on each change; ``path`` None comes with the reason. ``on_link(event)`` is called
    for each change of any interface. Both run in the loop and must not raise.
    """

    def __init__(
        self,
        on_change: Callable[[int, Path | None, str], None],
        on_link: Callable[[LinkEvent], None] | None = None,
        *,
        refresh_ns: int = REFRESH_NS,
        loss_grace_ns: int = LOSS_GRACE_NS,
    ) -> None:
        self._on_change = on_change
        self._on_link = on_link
        self._refresh_s = refresh_ns / 1e9
        self._grace_ns = loss_grace_ns
        self._links: dict[int, LinkInfo] = {}
        self._prefixes: dict[int, tuple[tuple[int, int], ...]] | None = None
        self._latest: dict[int, Resolution | None] = {}
        self._reported: dict[int, Resolution] = {}
        self._lost_ns: dict[int, int] = {}
        self._round: list[int] = []  # addresses that are still to be refreshed
        # addr -> confirm its neighbour if stale
        self._dirty: dict[int, bool] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._refresh_timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cleanup = contextlib.ExitStack()
        self.overruns = 0
        """How often the kernel dropped events (ENOBUFS); each time everything is looked at anew."""

    def start(self, addrs: Iterable[int]) -> None:
        """Begin to watch, in the current network namespace. Raises HostError."""
        self._loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            self._rtnl = undo.enter_context(Rtnl())
            self._events = undo.enter_context(_event_socket())
            self._links = {link.ifindex: link for link in self._rtnl.links()}
            self._loop.add_reader(self._events.fileno(), self._readable)
            undo.callback(self._loop.remove_reader, self._events.fileno())
            self._cleanup = undo.pop_all()
        self.watch(addrs)
        self._refresh_timer = self._loop.call_later(self._refresh_s, self._refresh)

    def close(self) -> None:
        """Stop watching and close the sockets. Calling it again does nothing."""
        for timer in (self._timer, self._refresh_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._refresh_timer = None
        self._loop = None
        self._cleanup.close()

    def watch(self, addrs: Iterable[int]) -> None:
        """Replace the set of addresses; those that stay are not reported again."""
        wanted = set(addrs)
        for addr in self._latest.keys() - wanted:
            del self._latest[addr]
            self._reported.pop(addr, None)
            self._dirty.pop(addr, None)
            self._lost_ns.pop(addr, None)
        for addr in wanted - self._latest.keys():
            self._latest[addr] = None
            self._dirty[addr] = True
        self._schedule(0.0)

    def resolution(self, addr: int) -> Resolution | None:
        """The newest knowledge about an address; None before the first look."""
        return self._latest.get(addr)

    def links(self) -> Mapping[int, LinkInfo]:
        """Every interface by number, as last reported by the kernel."""
        return self._links

    def _schedule(self, delay_s: float) -> None:
        if self._timer is None and self._loop is not None and self._dirty:
            self._timer = self._loop.call_later(delay_s, self._look)

    def _refresh(self) -> None:
        assert self._loop is not None
        if not self._round:
            self._round = list(self._latest)
        some, self._round = self._round[:REFRESH_AT_ONCE], self._round[REFRESH_AT_ONCE:]
        for addr in some:
            if addr in self._latest:
                self._dirty[addr] = True
        self._schedule(0.0)
        self._refresh_timer = self._loop.call_later(self._refresh_s, self._refresh)

    def _look(self) -> None:
        self._timer = None
        until_ns = time.monotonic_ns() + _SLICE_NS
        while self._dirty and self._loop is not None:
            addr = next(iter(self._dirty))
            refresh = self._dirty.pop(addr)
            try:
                if self._prefixes is None:
                    self._prefixes = self._rtnl.prefixes()
                resolution = _resolve(self._rtnl, addr, self._links, self._prefixes, refresh)
            except (HostError, OSError) as error:
                resolution = Resolution(addr, None, f"netlink: {error}")
            self._accept(resolution)
            if time.monotonic_ns() >= until_ns:
                break
        self._schedule(0.0)

    def _accept(self, new: Resolution) -> None:
        addr = new.addr
        self._latest[addr] = new
        old = self._reported.get(addr)
        if new.neighbour_lost and (old is None or old.path is not None):
            now_ns = time.monotonic_ns()
            left_ns = self._lost_ns.setdefault(addr, now_ns) + self._grace_ns - now_ns
            same_way = old is None or (old.ifindex, old.next_hop) == (new.ifindex, new.next_hop)
            if same_way and left_ns > 0:
                assert self._loop is not None
                self._loop.call_later(left_ns / 1e9, self._mark, addr)
                return
        self._lost_ns.pop(addr, None)
        self._reported[addr] = new
        if old is None or (old.path, old.reason) != (new.path, new.reason):
            self._on_change(addr, new.path, new.reason)

    def _mark(self, addr: int) -> None:
        if addr in self._latest:
            self._dirty.setdefault(addr, False)
            self._schedule(0.0)

    def _mark_all(self) -> None:
        for addr in self._latest:
            self._dirty.setdefault(addr, False)
        self._schedule(_DEBOUNCE_S)

    def _readable(self) -> None:
        for _ in range(_DATAGRAMS_PER_WAKEUP):
            try:
                data = self._events.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.overruns += 1
                self._prefixes = None
                self._resync_links()
                self._mark_all()
                continue
            self._dispatch(data)
            if self._loop is None:
                return

    def _dispatch(self, data: bytes) -> None:
        offset = 0
        while offset + _HEADER.size <= len(data):
            length, kind, _flags, _seq, _pid = _HEADER.unpack_from(data, offset)
            if length < _HEADER.size:
                return
            message = data[offset : offset + length]
            offset += (length + 3) & ~3
            if kind in (RTM_NEWNEIGH, RTM_DELNEIGH):
                self._neighbour_event(message)
            elif kind in (RTM_NEWLINK, RTM_DELLINK):
                self._link_event(message, kind == RTM_DELLINK)
            else:
                if kind in (RTM_NEWADDR, RTM_DELADDR):
                    self._prefixes = None
                    self._address_event(message)
                self._mark_all()

    def _address_event(self, data: bytes) -> None:
        link = self._links.get(_IFADDRMSG.unpack_from(data, _HEADER.size)[1])
        if link is not None:
            self._link_changed(self._rtnl.with_address(link), gone=False)

    def _neighbour_event(self, data: bytes) -> None:
        family, ifindex = _NDMSG.unpack_from(data, _HEADER.size)
        if family != socket.AF_INET:
            return
        # Parsing costs far more than this: a busy segment has many neighbours.
        concerned = [r for r in self._latest.values() if r is not None and r.ifindex == ifindex]
        if not concerned:
            return
        for message in self._rtnl.parse(data):
            text = message.get_attr("NDA_DST")
            dst = parse_addr(text) if text else 0
            for resolution in concerned:
                if resolution.next_hop == dst:
                    self._mark(resolution.addr)

    def _link_event(self, data: bytes, gone: bool) -> None:
        for message in self._rtnl.parse(data):
            # AF_BRIDGE messages tell about a bridge port, not about the interface.
            if message["family"] != socket.AF_UNSPEC:
                continue
            self._link_changed(self._rtnl.with_address(link_from_message(message)), gone)

    def _link_changed(self, link: LinkInfo, gone: bool) -> None:
        old = self._links.get(link.ifindex)
        if gone:
            if old is None:
                return
            del self._links[link.ifindex]
            self._report_link("deleted", old)
        else:
            self._links[link.ifindex] = link
            if old == link:
                return
            for what in _differences(old, link):
                self._report_link(what, link)
        self._mark_all()

    def _report_link(self, what: str, link: LinkInfo) -> None:
        if self._on_link is not None:
            self._on_link(LinkEvent(what, link))

    def _resync_links(self) -> None:
        now = {link.ifindex: link for link in self._rtnl.links()}
        for ifindex in list(self._links.keys() - now.keys()):
            self._link_changed(self._links[ifindex], gone=True)
        for link in now.values():
            self._link_changed(link, gone=False)


def _event_socket() -> socket.socket:
    try:
        events = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 0
        )
        with contextlib.suppress(OSError):
            # SO_RCVBUFFORCE; without the privilege the default has to do.
            events.setsockopt(socket.SOL_SOCKET, 33, _EVENT_BUFFER_BYTES)
        events.bind((0, _GROUPS))
    except OSError as error:
        raise HostError(f"cannot watch the network by netlink: {error.strerror}") from error
    return events


def _differences(old: LinkInfo | None, new: LinkInfo) -> list[str]:
    if old is None:
        return ["created"]
    changes: list[str] = []
    if old.name != new.name:
        changes.append("renamed")
    if old.mac != new.mac:
        changes.append("mac")
    if old.mtu != new.mtu:
        changes.append("mtu")
    if old.addr != new.addr:
        changes.append("address")
    if (old.xdp_prog_id, old.xdp_mode) != (new.xdp_prog_id, new.xdp_mode):
        changes.append("xdp")
    if old.up != new.up:
        changes.append("up" if new.up else "down")
    return changes
