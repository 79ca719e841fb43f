# SPDX-License-Identifier: Apache-2.0
"""Paths to the backends, looked at once: route, next hop's MAC, our MAC.

:class:`xdp_router.adapters.netlink.PathWatcher` keeps them up to date.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from xdp_router.core.address import family_name, format_addr, in_subnet, is_ipv6

from .host import NUD_FAILED, NUD_INCOMPLETE, NUD_STALE, HostError, LinkInfo, Rtnl
from .interface_address import is_link_local

LOSS_GRACE_NS = 1_200_000_000
"""A neighbour may be missing this long before its path counts as lost: an entry that is new,
was flushed or collected is there after one round trip of ARP or neighbour discovery. Both ask
again after 1 s."""


class BackendRouteError(HostError):
    """A backend's route does not leave by an attached interface."""


_ETH_P_8021Q = 0x8100


@dataclass(frozen=True, slots=True)
class Tag:
    """The interface that a VLAN interface lies on, and the tag that frames have there."""

    ifindex: int
    vlan: int


@dataclass(frozen=True, slots=True)
class Path:
    """What a frame to a backend needs. ``source_addr`` is what probes are sent from."""

    ifindex: int
    dmac: bytes
    smac: bytes
    source_addr: int
    subnets: tuple[tuple[int, int], ...] = ()
    """(network, mask) of the interface that the next hop is in: hosts there it answers directly."""
    gateway: int = 0
    """Address of the next hop, where that is not the host itself."""
    vlan: int | None = None
    """Id of the tag that frames need, 0: they must have none; None: nothing is known of it."""
    below: Tag | None = None
    """The way by the interface below, if ``ifindex`` is a VLAN interface."""

    def tag(self, configured: int | None) -> int | None:
        """``vlan`` for a backend whose configuration says ``configured``.

        A VLAN interface puts its own tag on: a second one would be within that.
        """
        if configured is None:
            return self.vlan
        return configured if self.below is None else 0

    def by_interface_below(self) -> Path:
        """The same way past the VLAN interface: tagged, by what it lies on."""
        assert self.below is not None
        return replace(self, ifindex=self.below.ifindex, vlan=self.below.vlan, below=None)

    def ethernet_header(self, ethertype: int) -> bytes:
        """Of a frame that takes this path, with its tag."""
        tag = b""
        if self.vlan:
            tag = _ETH_P_8021Q.to_bytes(2, "big") + self.vlan.to_bytes(2, "big")
        return self.dmac + self.smac + tag + ethertype.to_bytes(2, "big")


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
    below: Tag | None = None
    """As ``Path.below``."""


def resolve(
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

    below = tag_of(link, links)

    def unresolved(reason: str, neighbour_lost: bool = False) -> Resolution:
        return Resolution(
            addr, None, reason, link.ifindex, link.name, route.next_hop, neighbour_lost, below
        )

    if route.local:
        return unresolved(f"{format_addr(addr)} is an address of this host")
    if not link.ethernet:
        return unresolved(f"{link.name} is not an Ethernet interface")
    if not link.up:
        return unresolved(f"interface {link.name} is down")
    if not route.source_addr:
        kind = f"{'global ' if is_ipv6(addr) else ''}{family_name(addr)}"
        return unresolved(f"interface {link.name} has no {kind} address to probe from")
    neighbour = rtnl.neighbour(link.ifindex, route.next_hop)
    if neighbour is None or neighbour.state & NUD_FAILED or not neighbour.mac:
        if neighbour is None or not neighbour.state & NUD_INCOMPLETE:
            rtnl.use_neighbour(link.ifindex, route.next_hop)
        answer = "neighbour advertisement" if is_ipv6(route.next_hop) else "ARP answer"
        return unresolved(f"no {answer} from {format_addr(route.next_hop)} on {link.name}", True)
    if refresh and neighbour.state & NUD_STALE:
        rtnl.use_neighbour(link.ifindex, route.next_hop)
    subnets = tuple(
        subnet
        for subnet in prefixes.get(link.ifindex, ())
        if in_subnet(route.next_hop, *subnet)
        # A gateway that is known by its link-local address has one of the link's others too.
        or (is_link_local(route.next_hop) and is_ipv6(subnet[1]))
    )
    gateway = route.next_hop if route.next_hop != addr else 0
    path = Path(
        link.ifindex, neighbour.mac, link.mac, route.source_addr, subnets, gateway, below=below
    )
    return Resolution(addr, path, "", link.ifindex, link.name, route.next_hop, below=below)


def tag_of(link: LinkInfo, links: Mapping[int, LinkInfo]) -> Tag | None:
    """The way past a VLAN interface, if frames for its own MAC are for the one below as well.

    One level only: a VLAN interface on another one would mean two tags.
    """
    lower = links.get(link.lower) if link.vlan and not link.lower_elsewhere else None
    if lower is None or lower.vlan or not lower.ethernet or lower.mac != link.mac:
        return None
    return Tag(lower.ifindex, link.vlan)


def resolve_paths(addrs: Iterable[int], timeout_ns: int = LOSS_GRACE_NS) -> dict[int, Resolution]:
    """Resolve addresses now, waiting for neighbours no longer than the timeout.

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
                found[addr] = resolve(rtnl, addr, links, prefixes, refresh=True)
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
        if resolution.below is not None and resolution.below.ifindex in attached:
            continue
        addr = format_addr(resolution.addr)
        name = names.get(resolution.addr, addr)
        if resolution.interface == "lo":
            raise BackendRouteError(
                f"backend {name} ({addr}) is an address of this host, but a backend "
                "must be another host: use its own address"
            )
        faults.append(f"backend {name} ({addr}): its route leaves by {resolution.interface}")
        if resolution.interface not in missing:
            missing.append(resolution.interface)
    if faults:
        raise BackendRouteError(
            f"{'; '.join(faults)}, which is not attached: XDP would neither send there nor "
            f"see what comes from there: add {' '.join(missing)} to the attach command"
        )
