# SPDX-License-Identifier: Apache-2.0
"""What ``attach`` looks at, refuses and warns about before anything is changed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping

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
from xdp_router.core.model import Service
from xdp_router.core.probe_load import overloads

_log = structlog.get_logger()


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


def report_limits(config: RouterConfig, rooms: Mapping[int, int]) -> None:
    """Warn of limits and intervals that cannot be reached. ``rooms``: connections that the
    tables have room for, by family, which is the former's where they were taken over.
    """
    for each in shortfalls(limits_of(config.services, config.nat_ports), rooms):
        _log.warning("max_connections_out_of_reach", reason=each.text, mend=each.mend)
    for overload in overloads(config.services, config.settings.probe_rate):
        _log.warning("probe_interval_out_of_reach", reason=overload.text, mend=overload.mend)


def report_host(config: RouterConfig, found: Collection[netlink.LinkInfo], *, native: bool) -> None:
    """Warn of what on this host makes services slow, or unreachable."""
    findings = [each for link in found for each in check_interface(link, native=native)]
    _report([*findings, *_of_services(config.services, found)])


def report_services(services: Iterable[Service], interfaces: Iterable[str]) -> None:
    """The same of services that come later, where these interfaces are attached."""
    links = []
    for name in interfaces:
        with contextlib.suppress(netlink.NoSuchInterface):
            links.append(netlink.link_info(name))
    _report(_of_services(services, links))


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


def _report(findings: Iterable[HostWarning]) -> None:
    for finding in merge_uncertain(findings):
        _log.warning(
            finding.code, interface=finding.interface, detail=finding.text, mend=finding.mend
        )
