# SPDX-License-Identifier: Apache-2.0
"""Routes, addresses, ports and other packet handling of this network namespace."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.nftables.main import NFTables

from xdp_router.core.address import format_addr, format_endpoint
from xdp_router.core.model import Endpoint

from . import sysctl
from .doctor_finding import Finding, fail, from_warning, ok, warn
from .doctor_target import Named
from .host import LinkInfo, Route, Rtnl
from .host_checks import check_service
from .netlink import Resolution, resolve_paths

_LOCAL_PORTS = "net.ipv4.ip_local_port_range"


def check_forwarding() -> Iterator[Finding]:
    """Whether the kernel routes what XDP leaves to it, and tracks connections."""
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


def check_ports(first: int, last: int, attached: bool) -> Iterator[Finding]:
    """The range of probe source ports (inclusive). ``attached``: it should be reserved by now."""
    subject = f"ports {first}-{last}"
    listening = sysctl.listening_ports(first, last)
    if listening:
        named = ", ".join(map(str, listening[:5]))
        yield warn(
            "probe_port_in_use",
            subject,
            f"a local socket listens on TCP port {named}, inside the range of probe ports: "
            "answers to its clients may be taken for answers to probes",
            "choose another probe_ports range, or move the listener",
        )
    low, high = map(int, sysctl.read(_LOCAL_PORTS).split())
    open_ports = sysctl.ports_to_reserve(first, last)
    if attached and open_ports:
        yield warn(
            "probe_ports_not_reserved",
            subject,
            f"not reserved any more ({sysctl.format_ports(open_ports)}): somebody has set "
            f"{sysctl.RESERVED_PORTS} anew, so local connections may get these ports",
            f"sysctl -w {sysctl.RESERVED_PORTS}={first}-{last} (with what else belongs there)",
        )
    elif open_ports and sysctl.read_only(sysctl.RESERVED_PORTS):
        ports = sysctl.format_ports(open_ports)
        yield fail(
            "probe_ports_read_only",
            subject,
            f"attach cannot reserve {ports}: /proc/sys is read-only here, as in a container",
            f"from outside: sysctl -w {sysctl.RESERVED_PORTS}={ports} (with what else belongs "
            "there)",
        )
    elif low <= last and first <= high and not attached:
        yield ok(
            "probe_ports",
            subject,
            f"overlap {_LOCAL_PORTS} ({low}-{high}); attach reserves them while it runs",
        )
    else:
        yield ok("probe_ports", subject, "no local connection gets them")


def check_services(
    services: Collection[Named], attached: Collection[LinkInfo]
) -> Iterator[Finding]:
    """Whether packets for the services come here. Raises HostError."""
    for name, endpoint in services:
        warnings = check_service(endpoint, attached)
        for warning in warnings:
            yield from_warning(warning)
        if not warnings:
            yield ok("service", name, f"{format_endpoint(endpoint)}: nothing speaks against it")


def check_backends(
    services: Collection[Named], backends: Collection[Named], attached: Collection[LinkInfo]
) -> Iterator[Finding]:
    """Ways to the backends, and whether their answers come back. Waits for ARP. Raises HostError.

    ``attached`` empty: it is not known which interfaces will be.
    """
    resolutions = resolve_paths(endpoint.addr for _, endpoint in backends)
    interfaces = {link.ifindex: link.name for link in attached}
    for name, endpoint in backends:
        yield judge_backend(name, endpoint, resolutions[endpoint.addr], interfaces.values())
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
            f"{where} is an address of this host: with forwarding nat a backend must be another "
            "host",
            "use the backend's own address",
        )
    if found.interface and attached and found.interface not in attached:
        return fail(
            "backend_not_attached",
            name,
            f"{where}: its route leaves by {found.interface}, which is not attached: replies would "
            "return untranslated",
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
                "put the backends into a subnet of their own behind this router",
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
