# SPDX-License-Identifier: Apache-2.0
"""What ``attach`` looks at, refuses and warns about before anything is changed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import structlog

from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters import netlink, xdp_link
from xdp_router.adapters.gateway_checks import check_gateway
from xdp_router.adapters.host_checks import (
    HostWarning,
    check_interface,
    check_service,
    merge_uncertain,
)
from xdp_router.core.config import RouterConfig
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.flow_room import limits_of, shortfalls
from xdp_router.core.model import Backend, Service
from xdp_router.core.probe_load import overloads

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Fault:
    """What cannot be as it is configured, and what mends it."""

    text: str
    mend: str

    def __str__(self) -> str:
        return f"{self.text}: {self.mend}"


def check_interfaces(
    names: Iterable[str], former: Mapping[str, xdp_link.XdpLink], *, replace: bool
) -> list[netlink.LinkInfo]:
    """The interfaces, each of which XDP can forward by.

    ``former``: attachments that are taken over; another program that an interface has is
    refused, unless we are to ``replace`` it. Raises XdpRouterError, by name.
    """
    found = []
    for name in names:
        link = netlink.link_info(name)
        if not link.ethernet:
            raise XdpRouterError(
                f"{name} is not an Ethernet interface ({link.kind or 'no link header'}): "
                "XDP cannot forward there; attach the interfaces that clients and "
                "backends are reached by"
            )
        others = link.xdp_prog_id and not _runs(former.get(name), link)
        if others and not replace:
            raise xdp_link.AlreadyAttached(
                name, link.xdp_prog_id, xdp_link.program_name(link.xdp_prog_id)
            )
        found.append(link)
    return found


def _runs(attached: xdp_link.XdpLink | None, link: netlink.LinkInfo) -> bool:
    return attached is not None and bpf.link_info(attached.fd).prog_id == link.xdp_prog_id


def limit_faults(config: RouterConfig, rooms: Mapping[int, int]) -> dict[str, list[Fault]]:
    """Limits and intervals that cannot be reached, by the event that tells them. ``rooms``:
    connections that the tables have room for, by family, which is the former's where they were
    taken over.
    """
    limits = limits_of(config.services, config.nat_ports)
    return {
        "max_connections_out_of_reach": [
            Fault(each.text, each.mend) for each in shortfalls(limits, rooms)
        ],
        "probe_interval_out_of_reach": [
            Fault(each.text, each.mend)
            for each in overloads(config.services, config.settings.probe_rate)
        ],
    }


def report_limits(config: RouterConfig, rooms: Mapping[int, int]) -> None:
    """Warn of them."""
    faults = limit_faults(config, rooms)
    for each in faults["max_connections_out_of_reach"]:
        _log.warning("max_connections_out_of_reach", reason=each.text, mend=each.mend)
    for each in faults["probe_interval_out_of_reach"]:
        _log.warning("probe_interval_out_of_reach", reason=each.text, mend=each.mend)


def new_limit_faults(
    before: RouterConfig, after: RouterConfig, rooms: Mapping[int, int]
) -> list[str]:
    """What ``after`` brings of them, in words."""
    known = [each for faults in limit_faults(before, rooms).values() for each in faults]
    found = [each for faults in limit_faults(after, rooms).values() for each in faults]
    return [str(each) for each in found if each not in known]


def unreached(
    backends: Iterable[Backend],
    resolutions: Mapping[int, netlink.Resolution],
    services: Iterable[Service],
) -> list[str]:
    """Backends that no packet can be sent to, in words. ``resolutions``: by address."""
    names = {service.id: service.name for service in services}
    return [
        f"backend {each.name} of {names[each.service]} is down: {found.reason}"
        for each in backends
        if (found := resolutions.get(each.endpoint.addr)) is not None and found.path is None
    ]


def report_host(config: RouterConfig, found: Collection[netlink.LinkInfo], *, native: bool) -> None:
    """Warn of what on this host makes services slow, or unreachable."""
    findings = [each for link in found for each in check_interface(link, native=native)]
    report([*findings, *_of_services(config.services, found)])


def service_faults(services: Iterable[Service], interfaces: Iterable[str]) -> list[HostWarning]:
    """The same of services that come later, where these interfaces are attached; untold."""
    links = []
    for name in interfaces:
        with contextlib.suppress(netlink.NoSuchInterface):
            links.append(netlink.link_info(name))
    return merge_uncertain(_of_services(services, links))


def _of_services(
    services: Iterable[Service], found: Collection[netlink.LinkInfo]
) -> Iterator[HostWarning]:
    taken_up = []
    for service in services:
        gateway = bool(service.listener)
        if gateway:
            taken_up.append(service.endpoint)
        yield from check_service(service.endpoint, found, service.except_ports, taken_up=gateway)
    yield from check_gateway(taken_up, found)


def report(findings: Iterable[HostWarning]) -> None:
    """Tell each."""
    for finding in merge_uncertain(findings):
        _log.warning(
            finding.code, interface=finding.interface, detail=finding.text, mend=finding.mend
        )
