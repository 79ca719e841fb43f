# SPDX-License-Identifier: Apache-2.0
"""Routes, addresses, ports and other packet handling of this network namespace."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.nftables.main import NFTables

from xdp_router.core.address import format_addr, format_endpoint, is_ipv6
from xdp_router.core.model import Endpoint

from . import listeners, sysctl
from .doctor_finding import Finding, fail, from_warning, ok, warn
from .doctor_target import Named
from .gateway_checks import check_gateway
from .host import LinkInfo, Route, Rtnl
from .host_checks import check_service
from .netlink import Resolution, resolve_paths

_IPV6_FORWARDING = "net.ipv6.conf.all.forwarding"
_LOCAL_PORTS = sysctl.LOCAL_PORTS
NOTHING: Mapping[str, Collection[tuple[int, int]]] = {}


def check_forwarding(endpoints: Collection[Named] = ()) -> Iterator[Finding]:
    """Whether the kernel routes what XDP leaves to it, and tracks connections.

    ``endpoints``: services and backends, which need not be of one family.
    """
    if any(is_ipv6(endpoint.addr) for _, endpoint in endpoints):
        yield _ipv6_forwarding()
    if sysctl.read("net.ipv4.ip_forward") == "1":
        yield ok("ip_forward", "host", "the kernel forwards what XDP leaves to it")
    else:
        yield warn(
            "ip_forward",
            "host",
            "net.ipv4.ip_forward is 0: only traffic of the services passes this box",
            "sysctl -w net.ipv4.ip_forward=1",
        )
    if sysctl.exists("net.netfilter.nf_conntrack_count"):
        entries = sysctl.read("net.netfilter.nf_conntrack_count")
        yield ok(
            "conntrack",
            "host",
            f"connection tracking is loaded ({entries} entries): redirected flows and probes never "
            "reach it, so nftables rules do not filter, count or translate them",
        )


def _ipv6_forwarding() -> Finding:
    if not sysctl.exists(_IPV6_FORWARDING):
        return fail(
            "no_ipv6",
            "host",
            "this kernel runs without IPv6: no neighbour of an IPv6 backend can be found",
            "boot it without ipv6.disable=1",
        )
    if sysctl.read(_IPV6_FORWARDING) != "0":
        return ok("ipv6_forwarding", "host", "the kernel forwards what XDP leaves to it of IPv6")
    return warn(
        "ipv6_forwarding",
        "host",
        f"{_IPV6_FORWARDING} is 0: of IPv6 only traffic of the services passes this box",
        f"sysctl -w {_IPV6_FORWARDING}=1 (interfaces that take their addresses from router "
        "advertisements need accept_ra=2 then)",
    )


def check_ipv6(endpoints: Collection[Named], attached: Collection[LinkInfo]) -> Iterator[Finding]:
    """Whether neighbours of IPv6 are found and answered on the interfaces.

    ``endpoints``: services and backends, which need not be of one family.
    """
    if not any(is_ipv6(endpoint.addr) for _, endpoint in endpoints):
        return
    for link in attached:
        name = sysctl.of_interface(link.name, "disable_ipv6", ipv6=True)
        if sysctl.exists(name) and sysctl.read(name) != "0":
            yield fail(
                "ipv6_off",
                link.name,
                "IPv6 is off: nobody behind it is found by neighbour discovery, nor finds this box",
                f"sysctl -w {name}=0, then give it its addresses again",
            )
        elif not link.addr6:
            yield warn(
                "no_ipv6_address",
                link.name,
                "has no global IPv6 address: backends behind it cannot be probed, and ICMP errors "
                "about IPv6 packets that come in by it are not sent",
                f"ip addr add ADDRESS/64 dev {link.name}",
            )


def check_ports(first: int, last: int, attached: bool) -> Iterator[Finding]:
    """The range of probe source ports (inclusive). ``attached``: it should be reserved by now."""
    yield from _check_reserved("probe", "answers to probes", first, last, attached)


def check_nat_ports(first: int, last: int, attached: bool) -> Iterator[Finding]:
    """The same of fullnat's source ports."""
    yield from _check_reserved("nat", "packets of the router's flows", first, last, attached)


def _check_reserved(
    what: str, taken_for: str, first: int, last: int, attached: bool
) -> Iterator[Finding]:
    subject = f"ports {first}-{last}"
    listening = listeners.in_range(first, last)
    if listening:
        named = ", ".join(f"{proto.upper()} port {port}" for proto, port in listening[:5])
        yield warn(
            f"{what}_port_in_use",
            subject,
            f"a local socket listens on {named}, inside the range of {what}_ports: "
            f"what its clients' hosts send may be taken for {taken_for}",
            f"choose another {what}_ports range, or move the listener",
        )
    low, high = map(int, sysctl.read(_LOCAL_PORTS).split())
    open_ports = sysctl.ports_to_reserve(first, last)
    if attached and open_ports:
        yield warn(
            f"{what}_ports_not_reserved",
            subject,
            f"not reserved any more ({sysctl.format_ports(open_ports)}): somebody has set "
            f"{sysctl.RESERVED_PORTS} anew, so local connections may get these ports",
            f"sysctl -w {sysctl.RESERVED_PORTS}={first}-{last} (with what else belongs there)",
        )
    elif open_ports and sysctl.read_only(sysctl.RESERVED_PORTS):
        ports = sysctl.format_ports(open_ports)
        yield fail(
            f"{what}_ports_read_only",
            subject,
            f"attach cannot reserve {ports}: /proc/sys is read-only here, as in a container",
            f"from outside: sysctl -w {sysctl.RESERVED_PORTS}={ports} (with what else belongs "
            "there)",
        )
    elif low <= last and first <= high and not attached:
        yield ok(
            f"{what}_ports",
            subject,
            f"overlap {_LOCAL_PORTS} ({low}-{high}); attach reserves them while it runs",
        )
    else:
        yield ok(f"{what}_ports", subject, "no local connection gets them")


def check_services(
    services: Collection[Named],
    attached: Collection[LinkInfo],
    left_out: Mapping[str, Collection[tuple[int, int]]] = NOTHING,
    taken_up: Collection[str] = (),
) -> Iterator[Finding]:
    """Whether packets for the services come here, and no others; names of those that the gateway
    has are in ``taken_up``. Raises HostError, SysctlError."""
    at_gateway = [endpoint for name, endpoint in services if name in taken_up]
    for warning in check_gateway(at_gateway, attached):
        yield from_warning(warning)
    for name, endpoint in services:
        gateway = name in taken_up
        warnings = check_service(endpoint, attached, left_out.get(name, ()), taken_up=gateway)
        for warning in warnings:
            yield from_warning(warning)
        if not warnings:
            yield ok("service", name, f"{format_endpoint(endpoint)}: nothing speaks against it")


def check_backends(
    services: Collection[Named],
    backends: Collection[Named],
    attached: Collection[LinkInfo],
    on_link: Collection[str] = (),
) -> Iterator[Finding]:
    """Ways to the backends, and whether their answers come back. Waits for neighbours.

    Raises HostError. ``services``: those whose replies must come back through us. ``attached``
    empty: it is not known which interfaces will be. ``on_link``: names of backends that have to be
    neighbours.
    """
    resolutions = resolve_paths(endpoint.addr for _, endpoint in backends)
    interfaces = {link.ifindex: link.name for link in attached}
    for name, endpoint in backends:
        found = resolutions[endpoint.addr]
        if name in on_link and found.next_hop not in (0, endpoint.addr):
            yield behind_gateway(name, found)
        else:
            yield judge_backend(name, endpoint, found, interfaces.values())
    with Rtnl() as rtnl:
        yield from same_subnet(services, backends, rtnl.route)


def judge_backend(
    name: str, endpoint: Endpoint, found: Resolution, attached: Collection[str]
) -> Finding:
    """One backend; asks the kernel nothing."""
    where = format_endpoint(endpoint)
    if found.interface == "lo":
        return fail(
            "backend_local",
            name,
            f"{where} is an address of this host: a backend must be another host",
            "use the backend's own address; or let the gateway of this host take the service up "
            '(handler = "gateway")',
        )
    if found.interface and attached and found.interface not in attached:
        return fail(
            "backend_not_attached",
            name,
            f"{where}: its route leaves by {found.interface}, which is not attached: XDP would "
            "neither send there nor see what comes from there",
            f"add {found.interface} to the attach command",
        )
    if found.path is None:
        return warn(
            "backend_unreachable",
            name,
            f"{where}: {found.reason}: it is down for the router",
            f"ip route get {format_addr(endpoint.addr)}; ping {format_addr(endpoint.addr)}",
        )
    hop = "" if found.next_hop == endpoint.addr else f" via {format_addr(found.next_hop)}"
    return ok("backend", name, f"{where} is reached by {found.interface}{hop}")


def behind_gateway(name: str, found: Resolution) -> Finding:
    """A backend that has to be a neighbour, and is none."""
    return fail(
        "backend_behind_gateway",
        name,
        f"its route goes by gateway {format_addr(found.next_hop)}, which would send packets of "
        "forwarding dsr back to this host: attach refuses that",
        'forwarding = "ipip"; or put it on a link of this host',
    )


def same_subnet(
    services: Collection[Named],
    backends: Collection[Named],
    route: Callable[[int], Route | None],
) -> Iterator[Finding]:
    """Backends in a subnet that clients ask for a service in: their replies go past this box."""
    for name, endpoint in services:
        to_service = route(endpoint.addr)
        if to_service is None or to_service.next_hop != endpoint.addr or to_service.local:
            continue
        inside = []
        for backend, at in backends:
            way = route(at.addr)
            if way and way.ifindex == to_service.ifindex and way.next_hop == at.addr:
                inside.append(backend)
        if inside:
            yield warn(
                "clients_in_backend_subnet",
                name,
                f"its address lies in the subnet of {', '.join(inside)}: a client in there gets "
                "the backend's replies directly, untranslated, and its connection fails",
                'forwarding = "fullnat"; or put the backends into a subnet of their own behind '
                "this router",
            )


def check_firewall() -> Iterator[Finding]:
    """Tables of nftables and of legacy iptables. Raises OSError when nobody may ask."""
    tables = _nftables()
    legacy = Path("/proc/thread-self/net/ip_tables_names")
    if legacy.exists():
        tables += [f"iptables {name}" for name in legacy.read_text().split()]
    if tables:
        yield ok(
            "firewall",
            "host",
            f"{', '.join(tables)}: packets of the services do not come to these rules (XDP is "
            "before them), all other traffic does",
        )


def _nftables() -> list[str]:
    try:
        with NFTables() as netlink:
            return [f"nftables {each.get_attr('NFTA_TABLE_NAME')}" for each in netlink.get_tables()]
    except NetlinkError as error:
        if error.code in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EINVAL):
            return []  # not in this kernel
        raise OSError(error.code, f"tables of nftables: {os.strerror(error.code)}") from error
