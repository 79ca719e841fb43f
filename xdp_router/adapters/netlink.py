# SPDX-License-Identifier: Apache-2.0
"""Paths to the backends, watched and kept fresh.

:class:`PathWatcher` listens to the kernel from the event loop and calls back when a path, or an
interface, changes. :mod:`.paths` looks at them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .host import (
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
    addr_from_text,
    link_from_message,
    link_info,
)
from .interface_address import read_address
from .paths import (
    LOSS_GRACE_NS,
    BackendRouteError,
    Path,
    Resolution,
    require_attached,
    resolve,
    resolve_paths,
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

# RTMGRP_LINK, NEIGH, IPV4_IFADDR, IPV4_ROUTE, IPV4_RULE, IPV6_IFADDR, IPV6_ROUTE, and
# RTNLGRP_IPV6_RULE and NEXTHOP.
_GROUPS = 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 1 << 18 | 0x80000000
_EVENT_BUFFER_BYTES = 4 << 20
_DATAGRAMS_PER_WAKEUP = 16
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_NDMSG = struct.Struct("=B3xi")  # start of struct ndmsg

REFRESH_NS = 3_000_000_000
"""How often every path is checked again and stale neighbours are confirmed."""
REFRESH_AT_ONCE = 512
"""So many of them: a look takes 0.3 ms, and changes are told by the kernel anyway."""
_DEBOUNCE_S = 0.005  # a burst of route changes costs one look
_ADDRESS_DEBOUNCE_S = 0.05
"""The same for IPv6 addresses of an interface, of which all are looked at: 1 ms for 1,000."""
_SLICE_NS = 500_000  # looking at paths holds the event loop no longer than this


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """An interface changed. ``what``: created, deleted, up, down, mac, renamed, xdp, mtu,
    address.

    ``link`` is the new state, for ``deleted`` the last one known.
    """

    what: str
    link: LinkInfo


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
        self._readdressed: set[int] = set()  # interfaces whose IPv6 addresses are to be looked at
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
                resolution = resolve(self._rtnl, addr, self._links, self._prefixes, refresh)
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
        address = read_address(data[_HEADER.size :])
        link = self._links.get(address.ifindex) if address is not None else None
        if link is None or address is None:
            return
        if address.family == socket.AF_INET:
            self._link_changed(self._rtnl.with_address(link, link.addr6), gone=False)
        elif self._loop is not None and link.ifindex not in self._readdressed:
            self._readdressed.add(link.ifindex)
            self._loop.call_later(_ADDRESS_DEBOUNCE_S, self._look_at_addresses, link.ifindex)

    def _look_at_addresses(self, ifindex: int) -> None:
        self._readdressed.discard(ifindex)
        link = self._links.get(ifindex)
        if link is not None and self._loop is not None:
            self._link_changed(self._rtnl.with_address(link), gone=False)

    def _neighbour_event(self, data: bytes) -> None:
        family, ifindex = _NDMSG.unpack_from(data, _HEADER.size)
        if family not in (socket.AF_INET, socket.AF_INET6):
            return
        # Parsing costs far more than this: a busy segment has many neighbours.
        concerned = [r for r in self._latest.values() if r is not None and r.ifindex == ifindex]
        if not concerned:
            return
        for message in self._rtnl.parse(data):
            dst = addr_from_text(message.get_attr("NDA_DST"))
            for resolution in concerned:
                if resolution.next_hop == dst:
                    self._mark(resolution.addr)

    def _link_event(self, data: bytes, gone: bool) -> None:
        for message in self._rtnl.parse(data):
            # AF_BRIDGE messages tell about a bridge port, not about the interface.
            if message["family"] != socket.AF_UNSPEC:
                continue
            link = link_from_message(message)
            known = self._links.get(link.ifindex)
            # What changes an IPv6 address is told of by an event of its own.
            addr6 = known.addr6 if known is not None else None
            self._link_changed(self._rtnl.with_address(link, addr6), gone)

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
    if (old.addr, old.addr6) != (new.addr, new.addr6):
        changes.append("address")
    if (old.xdp_prog_id, old.xdp_mode) != (new.xdp_prog_id, new.xdp_mode):
        changes.append("xdp")
    if old.up != new.up:
        changes.append("up" if new.up else "down")
    return changes
