# SPDX-License-Identifier: Apache-2.0
"""The wires of a lab: veth pairs, addresses, routes, offloads and quiet sysctls, by netlink.

Each function does its work inside the namespaces that it is given.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pyroute2 import IPRoute

from xdp_router.linux.ethtool import Offload, set_offload

from . import xdp_stub
from .errors import LabError
from .namespace import Namespace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class End:
    """One end of a wire. With ``gro`` off, an XDP program keeps NAPI running there."""

    namespace: Namespace
    ifname: str
    mac: str
    addresses: tuple[str, ...] = ()
    gro: bool = True


def mac(kind: int, index: int, end: int) -> str:
    """A fixed, locally administered address."""
    return f"02:58:52:{kind:02x}:{index:02x}:{end:02x}"


def with_netlink(namespace: Namespace, use: Callable[[Any], T]) -> T:
    """Call ``use`` with a netlink connection of the namespace."""

    def body() -> T:
        with IPRoute() as netlink:
            return use(netlink)

    return namespace.run(body)


def _ifindex(netlink: Any, namespace: Namespace, ifname: str) -> int:
    found = netlink.link_lookup(ifname=ifname)
    if not found:
        raise LabError(
            f"{namespace.name} has no interface {ifname}: take the lab down and up again"
        )
    return int(found[0])


def ifindex(namespace: Namespace, ifname: str) -> int:
    """The interface's index in the namespace. Raises LabError if there is none."""
    return with_netlink(namespace, lambda netlink: _ifindex(netlink, namespace, ifname))


def prepare(namespace: Namespace, sysctls: dict[str, str]) -> None:
    """Bring up ``lo`` and set sysctls (``net.`` names with slashes), IPv6 silenced first."""

    def body() -> None:
        # Neighbour discovery and autoconfiguration would be traffic that no test asked for.
        quiet = {"ipv6/conf/all/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1"}
        for name, value in {**quiet, **sysctls}.items():
            path = Path("/proc/sys/net") / name
            if name.startswith("ipv6/") and not path.exists():
                continue  # a kernel without IPv6 is quiet already
            path.write_text(value)
        with IPRoute() as netlink:
            netlink.link("set", index=_ifindex(netlink, namespace, "lo"), state="up")

    namespace.run(body)


def connect(first: End, second: End) -> None:
    """Wire two namespaces by a veth pair and bring both ends up."""

    def create(netlink: Any) -> None:
        netlink.link(
            "add",
            ifname=first.ifname,
            kind="veth",
            address=first.mac,
            peer={
                "ifname": second.ifname,
                "address": second.mac,
                "net_ns_fd": second.namespace.fd,
            },
        )

    with_netlink(first.namespace, create)
    # All settings before any end comes up: an end learns only then whether its peer runs NAPI,
    # and refuses redirected frames for good if it did not yet.
    for end in (first, second):
        _configure(end)
    for end in (first, second):
        set_up(end.namespace, end.ifname, True)


def _configure(end: End) -> None:
    def body() -> None:
        # A partial checksum becomes wrong for good once an XDP program rewrites and redirects.
        set_offload(end.ifname, Offload.TX_CHECKSUM, False)
        with IPRoute() as netlink:
            index = _ifindex(netlink, end.namespace, end.ifname)
            if not end.gro:
                _attach(netlink, index, xdp_stub.XDP_PASS)
            # After attaching: some kernels switch GRO on with an XDP program.
            set_offload(end.ifname, Offload.GRO, end.gro)
            for address in end.addresses:
                host, _, prefix = address.partition("/")
                netlink.addr("add", index=index, address=host, prefixlen=int(prefix))

    end.namespace.run(body)


def _attach(netlink: Any, index: int, action: int) -> None:
    program = xdp_stub.load_constant(action)
    try:
        netlink.link("set", index=index, xdp_fd=program)
    finally:
        os.close(program)


def set_deaf(namespace: Namespace, ifname: str, deaf: bool) -> None:
    """Let an interface lose (or no longer lose) every frame it receives; its carrier stays."""

    def body(netlink: Any) -> None:
        index = _ifindex(netlink, namespace, ifname)
        if deaf:
            _attach(netlink, index, xdp_stub.XDP_DROP)
        else:
            netlink.link("set", index=index, xdp_fd=-1)

    with_netlink(namespace, body)


def set_up(namespace: Namespace, ifname: str, up: bool) -> None:
    """Switch the interface up or down; routes through it go with it."""

    def body(netlink: Any) -> None:
        index = _ifindex(netlink, namespace, ifname)
        netlink.link("set", index=index, state="up" if up else "down")

    with_netlink(namespace, body)


def default_route(namespace: Namespace, gateway: str) -> None:
    """Send everything that is not local to the gateway."""
    with_netlink(
        namespace, lambda netlink: netlink.route("replace", dst="default", gateway=gateway)
    )
