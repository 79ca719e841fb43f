# SPDX-License-Identifier: Apache-2.0
"""What on this host would lose packets, or slow them down, although attaching works.

Each finding has its cause and its mend. Offloads are looked at as they are before attaching.
"""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from xdp_router.core.address import format_addr, format_endpoint, is_ipv6
from xdp_router.core.model import Endpoint
from xdp_router.linux.ethtool import active_features

from . import sysctl
from .host import LinkInfo, Rtnl
from .listeners import listening

# A frame shares its page with the headroom (256), skb_shared_info (320), and, counted by the
# strictest driver, Ethernet header, VLAN tag and checksum (22).
NATIVE_MTU_MAX = mmap.PAGESIZE - 598


@dataclass(frozen=True, slots=True)
class HostWarning:
    """One finding. ``certain`` False: it can't be seen from here, ``mend`` says how to look."""

    code: str
    interface: str
    text: str
    mend: str
    certain: bool = True


@dataclass(frozen=True, slots=True)
class InterfaceFacts:
    """What is looked at. ``features`` are those that are on; ``peer`` is a veth's other end, if
    it is in this namespace."""

    link: LinkInfo
    features: frozenset[str] = frozenset()
    vlans: tuple[str, ...] = ()
    peer: LinkInfo | None = None
    peer_features: frozenset[str] | None = None
    merging: tuple[str, ...] = ()
    """Interfaces below that do GRO: ports of a bridge or bond, what a VLAN lies on."""


def check_interface(link: LinkInfo, *, native: bool = True) -> list[HostWarning]:
    """Findings about an interface of this namespace that is about to be attached.

    ``native`` False: generic XDP was asked for. What can't be read gives no finding.
    Raises HostError.
    """
    with Rtnl() as rtnl:
        links = rtnl.links()
    peer = None
    if link.kind == "veth" and link.lower and not link.lower_elsewhere:
        peer = next((other for other in links if other.ifindex == link.lower), None)
    facts = InterfaceFacts(
        link=link,
        features=_features(link.name) or frozenset(),
        vlans=tuple(
            other.name
            for other in links
            if other.kind == "vlan" and other.lower == link.ifindex and not other.lower_elsewhere
        ),
        peer=peer,
        peer_features=_features(peer.name) if peer is not None else None,
        merging=tuple(
            other.name
            for other in links
            if _is_below(other, link) and "rx-gro" in (_features(other.name) or ())
        ),
    )
    return judge_interface(facts, native=native)


def _is_below(other: LinkInfo, link: LinkInfo) -> bool:
    if link.kind == "veth":
        return False  # its ``lower`` is the other end
    stacked = link.lower == other.ifindex and not link.lower_elsewhere
    return other.master == link.ifindex or stacked


def _features(name: str) -> frozenset[str] | None:
    try:
        return active_features(name)
    except OSError:
        return None  # no ethtool for it, or it has just gone


def judge_interface(facts: InterfaceFacts, *, native: bool = True) -> list[HostWarning]:
    """Findings that follow from the facts; asks the kernel nothing."""
    found = _merging(facts) if native else []  # generic XDP switches these off by itself
    found += _vlans(facts)
    found += _merged_below(facts, native)
    if native:
        found += _mtu(facts)
    if facts.link.kind == "veth":
        found += _veth(facts, native)
    return found


def _merging(facts: InterfaceFacts) -> list[HostWarning]:
    name = facts.link.name
    return [
        HostWarning(
            code,
            name,
            f"{what} is on: the hardware merges segments into frames that cannot be forwarded, "
            "or the driver refuses native XDP",
            f"ethtool -K {name} {switch} off",
        )
        for code, feature, what, switch in (
            ("lro_on", "rx-lro", "LRO", "lro"),
            ("gro_hw_on", "rx-gro-hw", "GRO_HW", "rx-gro-hw"),
        )
        if feature in facts.features
    ]


def _merged_below(facts: InterfaceFacts, native: bool) -> list[HostWarning]:
    # A bond hands a native program down to its ports; the others have generic XDP only.
    if native and facts.link.kind == "bond":
        return []
    return [
        HostWarning(
            "gro_below",
            facts.link.name,
            f"GRO is on at {name}, below {facts.link.name}: segments are merged before generic "
            "XDP sees them, and merged ones are too long to be forwarded (too_big_dropped), so "
            "large transfers hang",
            f"ethtool -K {name} gro off; or attach {name} itself",
        )
        for name in facts.merging
    ]


def _vlans(facts: InterfaceFacts) -> list[HostWarning]:
    name = facts.link.name
    if "rx-vlan-hw-parse" not in facts.features or not facts.vlans:
        return []
    return [
        HostWarning(
            "vlan_offload_on",
            name,
            f"RX VLAN offload is on while {', '.join(facts.vlans)} is on {name}: the tag is taken "
            "out of the frame before XDP sees it, so tagged packets count as untagged ones",
            f"ethtool -K {name} rxvlan off",
        )
    ]


def _mtu(facts: InterfaceFacts) -> list[HostWarning]:
    # Of a veth the driver compares the other end's.
    link = facts.peer or facts.link
    if link.mtu <= NATIVE_MTU_MAX:
        return []
    return [
        HostWarning(
            "mtu_too_large",
            facts.link.name,
            f"the MTU of {link.name} is {link.mtu}; drivers refuse native XDP from about "
            f"{NATIVE_MTU_MAX} on, and generic XDP is slower",
            f"ip link set dev {link.name} mtu {NATIVE_MTU_MAX} (1500 is common), or accept "
            "--xdp-mode generic",
        )
    ]


def _veth(facts: InterfaceFacts, native: bool) -> list[HostWarning]:
    name = facts.link.name
    if facts.peer is None or facts.peer_features is None:
        return [
            HostWarning(
                "veth_peer_unseen",
                name,
                "the other end of this veth is in another network namespace: if TX checksum "
                "offload is on there, forwarded packets are lost without a counter; if GRO is "
                "off, the kernel has to forward them",
                "in that namespace: ethtool -K PEER tx off gro on",
                certain=False,
            )
        ]
    peer = facts.peer.name
    found = []
    if "tx-checksum-ip-generic" in facts.peer_features:
        found.append(
            HostWarning(
                "veth_peer_checksum_offload",
                name,
                f"TX checksum offload is on at {peer}, the other end of this veth: its packets "
                "carry unfinished checksums, which are wrong for good once they are rewritten "
                "and forwarded, so receivers drop them",
                f"ethtool -K {peer} tx off",
            )
        )
    if native and "rx-gro" not in facts.peer_features and facts.peer.xdp_mode != "native":
        found.append(
            HostWarning(
                "veth_peer_gro_off",
                name,
                f"GRO is off at {peer}, the other end of this veth, and no XDP program runs "
                "there: XDP cannot send by this end. The kernel has to forward instead, which is "
                "slower; before Linux 6.3 nobody can tell, and frames vanish without a counter",
                f"ethtool -K {peer} gro on",
            )
        )
    return found


def merge_uncertain(findings: Iterable[HostWarning]) -> list[HostWarning]:
    """Uncertain findings of one kind as one that names all interfaces; the others as they are."""
    merged: dict[object, HostWarning] = {}
    for finding in findings:
        key: object = finding if finding.certain else finding.code
        before = merged.get(key)
        if before is not None and not finding.certain:
            names = f"{before.interface} {finding.interface}"
            finding = dataclasses.replace(before, interface=names)
        merged[key] = finding
    return list(merged.values())


def check_service(
    endpoint: Endpoint,
    attached: Collection[LinkInfo],
    except_ports: Collection[tuple[int, int]] = (),
    *,
    taken_up: bool = False,
) -> list[HostWarning]:
    """Findings about a service address, seen from the attached interfaces. Raises HostError.

    ``except_ports``: first and last of those that a service of many ports leaves out.
    ``taken_up``: the gateway of this host has it, so that the address will be local.
    """
    with Rtnl() as rtnl:
        route = rtnl.route(endpoint.addr)
        if route is not None and route.local and endpoint.ranged:
            return _taken_from_host(endpoint, attached, except_ports)
        if route is None or route.local or route.next_hop != endpoint.addr:
            return []
        if taken_up and not is_ipv6(endpoint.addr):
            return []  # ARP is answered for what is local by a route alone
        link = next((link for link in attached if link.ifindex == route.ifindex), None)
        if link is None or _answers_for_others(rtnl, link, endpoint.addr):
            return []
    addr = format_addr(endpoint.addr)
    if is_ipv6(endpoint.addr):
        # Deprecated from the start: never what this host's own packets, probes too, come from.
        question, length, options = "neighbour solicitations", 128, " nodad preferred_lft 0"
    else:
        question, length, options = "ARP", 32, ""
    return [
        HostWarning(
            "service_not_answered_for",
            link.name,
            f"service {format_endpoint(endpoint)}: {addr} lies in a subnet of {link.name} and is "
            f"no address of this host, so nobody answers {question} for it: clients in that "
            "subnet cannot reach it",
            f"ip addr add {addr}/{length} dev {link.name}{options}; or take an address "
            "outside that subnet, with a route to this host on the clients' router",
        )
    ]


def _taken_from_host(
    endpoint: Endpoint,
    attached: Collection[LinkInfo],
    except_ports: Collection[tuple[int, int]],
) -> list[HostWarning]:
    """What this host has on an address of its own that a service of many ports takes over."""

    def taken(port: int) -> bool:
        return endpoint.port <= port <= endpoint.last and not any(
            first <= port <= last for first, last in except_ports
        )

    where = f"service {format_endpoint(endpoint)}"
    addr = format_addr(endpoint.addr)
    own = "an address of its own for the service"
    name = next((x.name for x in attached if endpoint.addr in (x.addr, x.addr6)), "lo")
    found = []
    ports = [port for port in listening(endpoint.addr, endpoint.proto) if taken(port)]
    if ports:
        shown = ", ".join(map(str, ports))
        found.append(
            HostWarning(
                "service_hides_listeners",
                name,
                f"{where}: {addr} is an address of this host, whose own programs listen on ports "
                f"{shown} of it: what comes for them by an attached interface is the service's",
                f"except_ports = [{shown}] at the service; or {own}",
            )
        )
    low, high = map(int, sysctl.read(sysctl.LOCAL_PORTS).split())
    if name != "lo" and (taken(low) or taken(high)):
        found.append(
            HostWarning(
                "service_hides_connections",
                name,
                f"{where}: {addr} is what this host's own connections come from, with ports "
                f"{low}-{high}: answers to them would be the service's",
                f'except_ports = ["{low}-{high}"] at the service; or {own}',
            )
        )
    return found


def _answers_for_others(rtnl: Rtnl, link: LinkInfo, addr: int) -> bool:
    """Whether the kernel answers for an address of the interface's own subnet by proxy."""
    if is_ipv6(addr):
        # For an address that it was told, as long as it forwards.
        switches = ("proxy_ndp", "forwarding")
        return rtnl.proxied(link.ifindex, addr) and all(
            _is_on(link.name, key, ipv6=True) for key in switches
        )
    return _is_on(link.name, "proxy_arp_pvlan", ipv6=False)


def _is_on(interface: str, key: str, *, ipv6: bool) -> bool:
    for name in (interface, "all"):
        try:
            if sysctl.read(sysctl.of_interface(name, key, ipv6=ipv6)) == "1":
                return True
        except sysctl.SysctlError:
            continue
    return False
