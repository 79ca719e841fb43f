# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel forwards IPv4 packets that XDP has rewritten and left to it, by each
interface; the mend. Of IPv6: :mod:`.kernel_forwarding_ipv6`.

The kernel judges a packet by the interface that it came in by: ``forwarding`` there, and whether
its source may come from there (``fib_validate_source``): the client's for packets to a backend,
a service's own address for replies. What it would drop must not be left to it.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from xdp_router.core.address import format_addr

from . import sysctl
from .host import Rtnl

_SIOCGIFADDR = 0x8915
_IFREQ = struct.Struct("=16s24x")

Changes = tuple[tuple[str, str], ...]
"""Sysctls with the values that they have to get."""


@dataclass(frozen=True, slots=True)
class InterfaceFacts:
    """What the kernel goes by. ``accept_local`` and ``rp_filter`` are the effective ones."""

    name: str
    ifindex: int
    forwarding: bool
    accept_local: bool
    rp_filter: int
    rp_filter_all: int
    addressed: bool
    """Whether it has an IPv4 address: one without takes no part in the loose rp_filter."""


@dataclass(frozen=True, slots=True)
class SourceRoute:
    """Where this host sends what goes to a service's address."""

    addr: int
    local: bool
    ifindex: int
    """0: nowhere."""
    own: bool = False
    """No service's: what fullnat gives packets for backends."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why packets would be lost, and the sysctls that mend it; ``otherwise``: what else does, in
    words, where no sysctl can. One of the two there must be."""

    text: str
    changes: Changes
    otherwise: str = ""

    def __post_init__(self) -> None:
        if not (self.changes or self.otherwise):
            raise ValueError(f"{self.text}: nothing is said that mends it")

    @property
    def mend(self) -> str:
        """What to do."""
        return how_to_mend((self,))


def mend(changes: Iterable[tuple[str, str]]) -> str:
    """The command that makes changes; empty if there are none."""
    values = [f"{name}={value}" for name, value in dict.fromkeys(changes)]
    return " ".join(["sysctl -w", *values]) if values else ""


def how_to_mend(obstacles: Iterable[Obstacle]) -> str:
    """What an operator can do about all of them: a command, words, or both. Empty: there are
    none."""
    obstacles = tuple(obstacles)
    command = mend(change for each in obstacles for change in each.changes)
    others = dict.fromkeys(each.otherwise for each in obstacles if each.otherwise)
    return "; ".join([*([command] if command else []), *others])


def read_facts(name: str, ifindex: int) -> InterfaceFacts:
    """Look at an interface of the calling thread's namespace. Raises SysctlError."""

    def value(key: str, interface: str = name) -> int:
        return int(sysctl.read(sysctl.of_interface(interface, key)))

    rp_filter_all = value("rp_filter", "all")
    return InterfaceFacts(
        name=name,
        ifindex=ifindex,
        forwarding=value("forwarding") != 0,
        accept_local=bool(value("accept_local") or value("accept_local", "all")),
        rp_filter=max(value("rp_filter"), rp_filter_all),
        rp_filter_all=rp_filter_all,
        addressed=_has_address(name),
    )


def _has_address(name: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            fcntl.ioctl(handle, _SIOCGIFADDR, _IFREQ.pack(name.encode()))
        except OSError:
            return False
    return True


def source_route(rtnl: Rtnl, addr: int) -> SourceRoute:
    """Ask for one service's address. Raises HostError."""
    route = rtnl.route(addr)
    if route is None:
        return SourceRoute(addr, False, 0)
    return SourceRoute(addr, route.local, 0 if route.local else route.ifindex)


def own_source(addr: int) -> SourceRoute:
    """Our address on the way to a fullnat backend: what XDP leaves to the kernel bears it."""
    return SourceRoute(addr, local=True, ifindex=0, own=True)


def forward_obstacles(facts: InterfaceFacts) -> list[Obstacle]:
    """What keeps a client's packets, rewritten, from being forwarded; empty: nothing."""
    if facts.forwarding:
        return []
    name = sysctl.of_interface(facts.name, "forwarding")
    return [
        Obstacle(
            f"forwarding is off on {facts.name}: the kernel drops what comes in there for others",
            ((name, "1"),),
        )
    ]


def reply_obstacles(facts: InterfaceFacts, sources: Collection[SourceRoute]) -> list[Obstacle]:
    """What keeps replies, with services' addresses as sources, from being forwarded."""
    found = forward_obstacles(facts)
    local = [source for source in sources if source.local]
    if local and not facts.accept_local:
        found.append(
            Obstacle(
                f"{_named(local)} is an address of this host, and accept_local is off on "
                f"{facts.name}: the kernel drops replies that bear it as their source",
                ((sysctl.of_interface(facts.name, "accept_local"), "1"),),
            )
        )
    return found + _rp_filter(facts, sources)


def _rp_filter(facts: InterfaceFacts, sources: Iterable[SourceRoute]) -> list[Obstacle]:
    if not facts.rp_filter:
        return []
    own = sysctl.of_interface(facts.name, "rp_filter")
    # Without a way back, loose is as bad as strict.
    nowhere = [
        source for source in sources if not facts.addressed or not (source.local or source.ifindex)
    ]
    elsewhere = [source for source in sources if source.ifindex != facts.ifindex]
    if nowhere:
        changes: Changes = ((own, "0"),)
        if facts.rp_filter_all:
            changes += ((sysctl.of_interface("all", "rp_filter"), "0"),)
        text = (
            f"rp_filter is {facts.rp_filter} on {facts.name}, and this host has no way back to "
            f"{_named(nowhere)} there: the kernel drops replies that bear it as their source"
        )
    elif facts.rp_filter == 1 and elsewhere:
        changes = ((own, "2"),)
        text = (
            f"rp_filter is strict on {facts.name}, and the way to {_named(elsewhere)} does not "
            "lead there: the kernel drops replies that bear it as their source"
        )
    else:
        return []
    return [Obstacle(text, changes)]


def _named(sources: Sequence[SourceRoute]) -> str:
    others = len({source.addr for source in sources}) - 1
    what = "address" if sources[0].own else "service address"
    first = f"{what} {format_addr(sources[0].addr)}"
    return f"{first} (and {others} others)" if others else first


def own_changes(interface: str, obstacles: Iterable[Obstacle]) -> Changes:
    """What may be set to mend obstacles: the interface's own sysctls, nothing of the others', and
    not that an operator has switched a family off.

    Empty when that is not enough.
    """
    obstacles = tuple(obstacles)
    if not all(each.changes for each in obstacles):
        return ()
    prefixes = tuple(sysctl.of_interface(interface, "", ipv6=ipv6) for ipv6 in (False, True))
    changes = tuple(change for obstacle in obstacles for change in obstacle.changes)
    ours = (name.startswith(prefixes) and not name.endswith(".disable_ipv6") for name, _ in changes)
    return changes if all(ours) else ()
