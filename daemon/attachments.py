# SPDX-License-Identifier: Apache-2.0
"""The attachments of a router, and what becomes of them as interfaces go and come back.

An interface is known by the name that ``attach`` was given. One that is deleted, or moved to
another network namespace, is let go; whichever comes under that name is attached again, in the
mode that was asked for. One that is only renamed stays attached.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import xdp_link
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.host import LinkInfo, NoSuchInterface, link_info
from xdp_router.adapters.netlink import LinkEvent
from xdp_router.adapters.pins import link_pin
from xdp_router.adapters.xdp_link import AttachMode, XdpLink
from xdp_router.core.errors import XdpRouterError

from .network import Network

RETRY_S = 10.0
"""How often an attachment that failed is tried again when nothing is heard of its interface."""

_log = structlog.get_logger()


@dataclass(slots=True)
class _Place:
    """One interface of ``attach``. ``reason`` says why it has no link."""

    interface: str
    link: XdpLink | None = None
    reason: str = ""
    former: set[int] = field(default_factory=set)
    """Numbers that it had before: flows may still name them."""


@dataclass(frozen=True, slots=True)
class Attached:
    """One interface as ``status`` shows it; ``mode`` None: not attached, for ``reason``."""

    name: str
    ifindex: int
    mode: AttachMode | None
    reason: str


class Attachments:
    """Attaches the entry program of ``plane``, and keeps it attached.

    ``links`` holds those that there are now. ``network`` is told which interfaces are ours;
    ``on_back`` gets each one that is back, with the numbers that it had before.
    """

    def __init__(
        self,
        plane: DataPlane,
        interfaces: Iterable[str],
        mode: AttachMode | None,
        replace: bool,
    ) -> None:
        self._plane = plane
        self._mode = mode
        self._replace = replace
        self._places = {name: _Place(name) for name in interfaces}
        self._network: Network | None = None
        self._on_back: Callable[[LinkInfo, Collection[int]], None] = lambda _link, _former: None
        self.links: list[XdpLink] = []

    def __iter__(self) -> Iterator[Attached]:
        """Every interface, in the order of the command."""
        for name, place in self._places.items():
            link = place.link
            if link is None:
                yield Attached(name, 0, None, place.reason)
                continue
            shown = self._network.interface_name(link.ifindex) if self._network else name
            yield Attached(shown, link.ifindex, link.mode, "")

    def __str__(self) -> str:
        """For people: ``eth0 (native), eth1 (gone)``."""
        return ", ".join(
            f"{each.name} ({each.mode.value if each.mode else 'not attached'})" for each in self
        )

    # From nothing to attached, and to nothing again

    def adopt(self, links: Iterable[XdpLink]) -> None:
        """Take over attachments that are there."""
        for link in links:
            self._hold(self._places[link.interface], link)

    def remember(self, known: Mapping[int, bytes], found: Collection[LinkInfo]) -> None:
        """Tell which numbers interfaces had that were made anew while no daemon was there.

        ``known``: numbers and MACs of the interfaces that the adopted data plane knows.
        """
        present = {link.ifindex for link in found}
        stale = {number: mac for number, mac in known.items() if number not in present}
        anew = [link for link in found if self._places[link.name].link is None]
        for link in anew:
            # By MAC, unless there is only one that it can be.
            self._places[link.name].former |= {
                number for number, mac in stale.items() if mac == link.mac or len(anew) == 1
            }

    def attach(self, link: LinkInfo) -> None:
        """Attach to an interface for the first time, unless it was adopted.

        Raises AlreadyAttached, AttachFailed or BpfError.
        """
        place = self._places[link.name]
        if place.link is None:
            self._attach(place, link)

    def close(self, *, detach: bool) -> None:
        """Let go of all; without ``detach`` what is pinned stays attached."""
        for link in self.links:
            if detach:
                link.detach()
            link.close()
        self.links.clear()
        for place in self._places.values():
            place.link = None

    def _attach(self, place: _Place, found: LinkInfo) -> None:
        attached = xdp_link.attach(
            self._plane.entry, found.name, found.ifindex, self._mode, self._replace
        )
        try:
            assert self._plane.pin_dir is not None
            attached.pin(link_pin(self._plane.pin_dir, place.interface))
        except BaseException:
            attached.detach()
            attached.close()
            raise
        self._hold(place, attached)
        if attached.fallback_reason:
            _log.warning(
                "generic_mode",
                interface=found.name,
                reason=attached.fallback_reason,
                consequence="every packet takes the slower path through the network stack",
            )

    def _hold(self, place: _Place, link: XdpLink) -> None:
        place.link, place.reason = link, ""
        self.links.append(link)

    # What happens to interfaces

    def watch(self, network: Network, on_back: Callable[[LinkInfo, Collection[int]], None]) -> None:
        """From here on ``link_changed`` and ``run`` act. Raises HostError."""
        self._network, self._on_back = network, on_back
        for place in self._places.values():
            if place.link is not None and place.former:
                self._tell_back(place, link_info(place.interface))

    def link_changed(self, event: LinkEvent) -> None:
        """An interface changed, appeared or went. Raises nothing that a host can cause."""
        assert self._network is not None
        if not self._plane.owns_pins():
            return  # frozen until now: the interfaces are a successor's, its programs on them
        for place in self._places.values():
            if place.link is not None and place.link.ifindex == event.link.ifindex:
                if event.what == "deleted":
                    self._let_go(place, place.link, event.link.name)
                else:
                    self._network.link_changed(event)
                return
        named = self._places.get(event.link.name)
        if named is not None and named.link is None and event.what != "deleted":
            self._take_back(named)

    async def run(self) -> None:
        """Try again what is not attached, until cancelled: not all that helps is an event."""
        while True:
            await asyncio.sleep(RETRY_S)
            if not self._plane.owns_pins():
                continue
            for place in self._places.values():
                if place.link is not None and not _exists(place.link.ifindex):
                    self._let_go(place, place.link, place.interface)
                if place.link is None:
                    self._take_back(place)

    def _let_go(self, place: _Place, link: XdpLink, name: str) -> None:
        assert self._network is not None
        how = "it was deleted"
        try:
            if bpf.link_info(link.fd).ifindex:
                how = "it was moved to another network namespace"
                # There the program would go on, with the interface numbers of this one.
                link.detach()
            if self._plane.owns_pins() and self._plane.pin_dir is not None:
                link_pin(self._plane.pin_dir, place.interface).unlink(missing_ok=True)
        except OSError as error:  # a BpfError, too
            _log.error("detach_failed", interface=name, error=str(error))
        link.close()
        self.links.remove(link)
        place.link, place.reason = None, how
        place.former.add(link.ifindex)
        self._network.interface_gone(link.ifindex, name)
        _log.error(
            "interface_gone",
            interface=name,
            reason=how,
            consequence="clients and backends that are reached by it are cut off; the "
            "connections are kept",
            mend=f"none here: it is attached again when there is an interface {place.interface}",
        )

    def _take_back(self, place: _Place) -> None:
        """Attach again, if it can be; tell why not, unless that was told."""
        assert self._network is not None
        try:
            found = link_info(place.interface)  # the event may be older than what is there now
            if not found.ethernet:
                raise xdp_link.AttachFailed(f"{found.name}: is not an Ethernet interface")
            # First: from its first packet on the program must know the interface for ours.
            self._network.interface_coming(found)
            try:
                self._attach(place, found)
            except BaseException:
                self._network.interface_not_coming(found)
                raise
        except NoSuchInterface:
            return
        except (XdpRouterError, OSError) as error:
            if place.reason != str(error):
                place.reason = str(error)
                _log.error(
                    "interface_not_attached",
                    interface=place.interface,
                    reason=place.reason,
                    consequence="its traffic goes past the router",
                    tried_again=f"when the interface changes, and every {RETRY_S:.0f} s",
                )
            return
        assert place.link is not None
        self._network.attached(found)
        _log.info(
            "interface_back",
            interface=found.name,
            ifindex=found.ifindex,
            mode=place.link.mode.value,
        )
        self._tell_back(place, found)

    def _tell_back(self, place: _Place, found: LinkInfo) -> None:
        former, place.former = place.former, set()
        self._on_back(found, former - {found.ifindex})


def _exists(ifindex: int) -> bool:
    try:
        socket.if_indextoname(ifindex)
    except OSError:
        return False
    return True
