# SPDX-License-Identifier: Apache-2.0
"""The wires of a lab: veth pairs, addresses, routes, offloads and quiet sysctls, by netlink.

Each function does its work inside the namespaces that it is given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from xdp_router.linux.ethtool import Offload, set_offload

from . import xdp_stub
from .errors import LabError
from .namespace import Namespace

T = TypeVar("T")

_NODAD = 0x02
_PERMANENT = 0x80
_STEP = 1000
_SCOPE_LINK = 253
_KERNEL_PRIORITY = 256
"""What the kernel gives to its own routes to IPv6 subnets."""

# Neighbour discovery and autoconfiguration would be traffic that no test asked for.
_NO_IPV6 = {f"ipv6/conf/{which}/disable_ipv6": "1" for which in ("all", "default")}
_CALM_IPV6 = {
    f"ipv6/conf/{which}/{name}": value
    for which in ("all", "default")
    for name, value in {
        "disable_ipv6": "0",
        "accept_dad": "0",
        "dad_transmits": "0",
        "router_solicitations": "0",
        "accept_ra": "0",
        "autoconf": "0",
        "accept_redirects": "0",
        # A link that goes down keeps its addresses, as with IPv4.
        "keep_addr_on_down": "1",
        # Membership reports can't be switched off: they leave with the link's first milliseconds.
        "mldv1_unsolicited_report_interval": "1",
        "mldv2_unsolicited_report_interval": "1",
    }.items()
}


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


def prepare(namespace: Namespace, sysctls: dict[str, str], *, ipv6: bool = False) -> None:
    """Bring up ``lo`` and set sysctls (``net.`` names with slashes), those of IPv6 first.

    With ``ipv6`` the namespace speaks it, and says nothing of its own accord once its links are
    up; without it does not.
    """

    def body() -> None:
        for name, value in {**(_CALM_IPV6 if ipv6 else _NO_IPV6), **sysctls}.items():
            path = Path("/proc/sys/net") / name
            if name.startswith("ipv6/") and not path.exists():
                continue  # a kernel without IPv6 is quiet already
            path.write_text(value)
        with IPRoute() as netlink:
            netlink.link("set", index=_ifindex(netlink, namespace, "lo"), state="up")

    namespace.run(body)


def connect(first: End, second: End) -> None:
    """Wire two namespaces by a veth pair and bring both ends up."""

    def create(netlink: Any, **options: Any) -> None:
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
            **options,
        )

    with_netlink(first.namespace, create)
    index = ifindex(first.namespace, first.ifname)
    if index == ifindex(second.namespace, second.ifname):

        def renumber(netlink: Any) -> None:
            # An end whose peer has its own number counts as a device of hardware: the kernel may
            # take a second to notice its carrier, and IPv6 tells its groups only then.
            netlink.link("del", index=index)
            create(netlink, index=index + _STEP)

        with_netlink(first.namespace, renumber)
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
                _add_address(netlink, index, host, int(prefix))

    end.namespace.run(body)


def _add_address(netlink: Any, index: int, address: str, prefix: int) -> None:
    # Duplicate detection would keep an IPv6 address unusable for a second.
    flags = {"flags": _NODAD} if ":" in address else {}
    netlink.addr("replace", index=index, address=address, prefixlen=prefix, **flags)


def add_to_loopback(namespace: Namespace, addresses: Iterable[str]) -> None:
    """Make host addresses local; no neighbour is told of them (see ``arp_ignore``)."""

    def body(netlink: Any) -> None:
        index = _ifindex(netlink, namespace, "lo")
        for address in addresses:
            _add_address(netlink, index, address, 128 if ":" in address else 32)

    with_netlink(namespace, body)


def bridge(namespace: Namespace, name: str) -> None:
    """A learning switch without a life of its own: no spanning tree, no multicast queries."""

    def body(netlink: Any) -> None:
        try:
            netlink.link(
                "add",
                ifname=name,
                kind="bridge",
                br_stp_state=0,
                br_forward_delay=0,
                br_mcast_snooping=0,
            )
        except NetlinkError as error:
            raise LabError(
                f"no bridge can be made ({error}): this kernel lacks CONFIG_BRIDGE; use the "
                "topology 'routed'"
            ) from error
        netlink.link("set", index=_ifindex(netlink, namespace, name), state="up")

    with_netlink(namespace, body)


def join_bridge(namespace: Namespace, ifname: str, bridge_name: str) -> None:
    """Make an interface a port of the bridge."""

    def body(netlink: Any) -> None:
        master = _ifindex(netlink, namespace, bridge_name)
        netlink.link("set", index=_ifindex(netlink, namespace, ifname), master=master)

    with_netlink(namespace, body)


def attach_xdp(namespace: Namespace, ifname: str, program: int) -> None:
    """Put an XDP program on the interface in place of the one that is there; -1 for none."""

    def body(netlink: Any) -> None:
        netlink.link("set", index=_ifindex(netlink, namespace, ifname), xdp_fd=program)

    with_netlink(namespace, body)


def _attach(netlink: Any, index: int, action: int) -> None:
    program = xdp_stub.load_constant(action)
    try:
        netlink.link("set", index=index, xdp_fd=program)
    finally:
        os.close(program)


def set_deaf(namespace: Namespace, ifname: str, deaf: bool) -> None:
    """Let an interface lose (or no longer lose) every frame it receives; its carrier stays."""
    if not deaf:
        attach_xdp(namespace, ifname, -1)
        return
    with_netlink(
        namespace,
        lambda netlink: _attach(netlink, _ifindex(netlink, namespace, ifname), xdp_stub.XDP_DROP),
    )


def set_up(namespace: Namespace, ifname: str, up: bool) -> None:
    """Switch the interface up or down; routes through it go with it."""

    def body(netlink: Any) -> None:
        index = _ifindex(netlink, namespace, ifname)
        netlink.link("set", index=index, state="up" if up else "down")

    with_netlink(namespace, body)


def default_route(
    namespace: Namespace, gateway: str, *, source: str | None = None, advmss: int | None = None
) -> None:
    """Send everything that is not local to the gateway; further wishes are the route's own."""
    options = _route_options(source, advmss)
    with_netlink(
        namespace,
        lambda netlink: netlink.route("replace", dst=_any(gateway), gateway=gateway, **options),
    )


def subnet_route(
    namespace: Namespace,
    ifname: str,
    subnet: str,
    *,
    source: str | None = None,
    advmss: int | None = None,
) -> None:
    """Replace the kernel's own route to a subnet at the interface."""
    options = _route_options(source, advmss)

    def body(netlink: Any) -> None:
        index = _ifindex(netlink, namespace, ifname)
        options.update({"priority": _KERNEL_PRIORITY} if ":" in subnet else {"scope": _SCOPE_LINK})
        netlink.route("replace", dst=subnet, oif=index, **options)

    with_netlink(namespace, body)


def permanent_neighbour(namespace: Namespace, ifname: str, address: str, lladdr: str) -> None:
    """Let the kernel know a neighbour that it cannot ask."""

    def body(netlink: Any) -> None:
        index = _ifindex(netlink, namespace, ifname)
        netlink.neigh("replace", dst=address, lladdr=lladdr, ifindex=index, state=_PERMANENT)

    with_netlink(namespace, body)


def _any(gateway: str) -> str:
    return "::/0" if ":" in gateway else "0.0.0.0/0"


def _route_options(source: str | None, advmss: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if source is not None:
        options["prefsrc"] = source
    if advmss is not None:
        options["metrics"] = {"advmss": advmss}
    return options
