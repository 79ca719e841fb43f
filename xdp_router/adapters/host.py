# SPDX-License-Identifier: Apache-2.0
"""Questions to the kernel about links, routes and neighbours of one network namespace.

A raw rtnetlink socket with pyroute2's message classes: a question costs tens of
microseconds, so it may be asked from the event loop, and ENOBUFS stays visible.
Addresses are host-order integers, IPv4 below 2**32; MACs are 6 bytes.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.marshal import MarshalRtnl
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from xdp_router.core.address import format_addr, is_ipv6
from xdp_router.core.errors import XdpRouterError

from .interface_address import InterfaceAddresses, is_link_local

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_GETROUTE = 26
RTM_NEWNEIGH, RTM_DELNEIGH, RTM_GETNEIGH = 28, 29, 30

_NLM_F_REQUEST = 0x01
_NLM_F_ACK = 0x04
_NLM_F_DUMP = 0x300
_NLM_F_CREATE = 0x400
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_RTNETLINK = 0
_ANSWER_TIMEOUT_S = 2.0
_RECV_BYTES = 1 << 18

_BITS: dict[int, int] = {socket.AF_INET: 32, socket.AF_INET6: 128}
_ARPHRD_ETHER = 1
_ETH_P_8021Q = 0x8100
_IFF_UP = 0x1
_IFF_LOWER_UP = 0x10000
_RTN_UNICAST = 1
_RTN_LOCAL = 2
_RTN_ANYCAST = 4
_NTF_USE = 0x01
_NTF_PROXY = 0x08
# What pyroute2 makes of enum xdp_attach_mode.
_XDP_MODES = {
    None: "none",
    "xdp": "native",
    "xdpgeneric": "generic",
    "xdpoffload": "offload",
    "xdpmulti": "multiple",
}

NUD_INCOMPLETE = 0x01
NUD_STALE = 0x04
NUD_FAILED = 0x20
_NUD_VALID = 0xDE  # REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT


class HostError(XdpRouterError):
    """The kernel refused a question or a change; the text says which."""


class NoSuchInterface(HostError):
    """The named interface does not exist in this network namespace."""

    def __init__(self, name: str, existing: list[str]) -> None:
        there = ", ".join(existing) or "none"
        super().__init__(
            f"interface {name} does not exist in this network namespace; existing: {there}"
        )
        self.name = name


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """One interface. ``up`` means administratively up and with carrier."""

    ifindex: int
    name: str
    mac: bytes
    mtu: int
    up: bool
    xdp_prog_id: int
    xdp_mode: str
    kind: str
    ethernet: bool
    """False for tun, ip tunnels, loopback: no Ethernet header, so XDP can't forward there."""
    lower: int = 0
    """Number of the interface that a VLAN lies on, or of a veth's other end; 0 if unknown."""
    lower_elsewhere: bool = False
    """``lower`` is a number of another network namespace."""
    addr: int = 0
    """Primary IPv4 address; 0: none."""
    master: int = 0
    """Number of the bridge or bond that it is a port of; 0: of none."""
    addr6: int = 0
    """A global IPv6 address; 0: none."""
    vlan: int = 0
    """Of a VLAN interface (802.1Q): the id of its tag; 0: of others."""


@dataclass(frozen=True, slots=True)
class Route:
    """How packets to an address leave. ``next_hop`` is the gateway, which may be an IPv6 one for
    IPv4 too, or the address itself. ``source_addr`` 0: none that the other end could answer."""

    ifindex: int
    next_hop: int
    source_addr: int
    local: bool


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A neighbour entry; ``mac`` is empty unless the state is a usable one."""

    state: int
    mac: bytes


def mac_bytes(text: str | None) -> bytes:
    """6 bytes of ``aa:bb:cc:dd:ee:ff``; empty for an address of another kind."""
    if not text:
        return b""
    raw = bytes.fromhex(text.replace(":", ""))
    return raw if len(raw) == 6 else b""


def kernel_family(addr: int) -> int:
    """The address family as the kernel numbers it."""
    return socket.AF_INET6 if is_ipv6(addr) else socket.AF_INET


def addr_from_text(text: str | None) -> int:
    """What the kernel's messages have; 0 for none, and for the unspecified, loopback, or any
    other address of ::/96."""
    if not text:
        return 0
    if ":" not in text:
        return int.from_bytes(socket.inet_pton(socket.AF_INET, text), "big")
    addr = int.from_bytes(socket.inet_pton(socket.AF_INET6, text), "big")
    return addr if is_ipv6(addr) else 0


def link_from_message(message: Any) -> LinkInfo:
    """Value of an RTM_NEWLINK message, which says nothing about addresses."""
    xdp = message.get_attr("IFLA_XDP")
    attached = None
    prog_id = 0
    if xdp is not None:
        attached = xdp.get_attr("IFLA_XDP_ATTACHED")
        for name in ("PROG_ID", "DRV_PROG_ID", "SKB_PROG_ID", "HW_PROG_ID"):
            prog_id = prog_id or xdp.get_attr(f"IFLA_XDP_{name}") or 0
    info = message.get_attr("IFLA_LINKINFO")
    kind = info.get_attr("IFLA_INFO_KIND") if info is not None else None
    flags = message["flags"]
    return LinkInfo(
        ifindex=message["index"],
        name=message.get_attr("IFLA_IFNAME"),
        mac=mac_bytes(message.get_attr("IFLA_ADDRESS")),
        mtu=message.get_attr("IFLA_MTU") or 0,
        up=bool(flags & _IFF_UP and flags & _IFF_LOWER_UP),
        xdp_prog_id=prog_id,
        xdp_mode=_XDP_MODES.get(attached, str(attached)),
        kind=kind or "",
        ethernet=message["ifi_type"] == _ARPHRD_ETHER,
        lower=message.get_attr("IFLA_LINK") or 0,
        master=message.get_attr("IFLA_MASTER") or 0,
        lower_elsewhere=message.get_attr("IFLA_LINK_NETNSID") is not None,
        vlan=_vlan_id(info) if kind == "vlan" else 0,
    )


def _vlan_id(info: Any) -> int:
    """Tag of the VLAN interface that IFLA_LINKINFO describes; 0: none of 802.1Q."""
    data = info.get_attr("IFLA_INFO_DATA")
    if data is None or (data.get_attr("IFLA_VLAN_PROTOCOL") or _ETH_P_8021Q) != _ETH_P_8021Q:
        return 0
    return data.get_attr("IFLA_VLAN_ID") or 0


class Rtnl:
    """One rtnetlink socket for questions, in the network namespace that it was made in.

    Close it, or use it as a context manager. Methods raise :class:`HostError`.
    """

    def __init__(self) -> None:
        self._marshal: Any = MarshalRtnl()
        self._seq = 0
        try:
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _RTNETLINK
            )
        except OSError as error:
            raise HostError(f"cannot ask the kernel by netlink: {error.strerror}") from error
        self._socket.bind((0, 0))
        self._socket.settimeout(_ANSWER_TIMEOUT_S)
        try:
            self._addresses = InterfaceAddresses()
        except OSError as error:
            self._socket.close()
            raise HostError(f"cannot ask for interface addresses: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. Calling it again does nothing."""
        self._socket.close()
        self._addresses.close()

    def with_address(self, link: LinkInfo, addr6: int | None = None) -> LinkInfo:
        """The link with the addresses that it has now; ``addr6``, if that one is known."""
        if addr6 is None:
            addr6 = self._addresses.primary6(link.ifindex)
        return replace(link, addr=self._addresses.primary(link.name), addr6=addr6)

    def parse(self, data: bytes) -> Iterator[Any]:
        """pyroute2 messages of one datagram."""
        yield from self._marshal.parse(data)

    def _ask(self, message: Any, kind: int, flags: int) -> list[Any]:
        """Send one request and collect its answers. Raises OSError with the kernel's errno."""
        self._seq += 1
        message["header"]["type"] = kind
        message["header"]["flags"] = flags | _NLM_F_REQUEST
        message["header"]["sequence_number"] = self._seq
        message.encode()
        self._socket.send(message.data)
        answers: list[Any] = []
        while True:
            for answer in self._marshal.parse(self._socket.recv(_RECV_BYTES)):
                header = answer["header"]
                if header["sequence_number"] != self._seq:
                    continue
                if header["error"] is not None:
                    raise OSError(header["error"].code, os.strerror(header["error"].code))
                if header["type"] in (_NLMSG_DONE, _NLMSG_ERROR):
                    return answers
                answers.append(answer)
            if answers and not flags & (_NLM_F_DUMP | _NLM_F_ACK):
                return answers

    def links(self) -> list[LinkInfo]:
        """Every interface of the namespace."""
        try:
            answers = self._ask(ifinfmsg(), RTM_GETLINK, _NLM_F_DUMP)
        except OSError as error:
            raise HostError(f"cannot list interfaces: {error}") from error
        return [self.with_address(link_from_message(answer)) for answer in answers]

    def link(self, name: str) -> LinkInfo:
        """One interface by name. Raises NoSuchInterface."""
        message = ifinfmsg()
        message["attrs"] = [("IFLA_IFNAME", name)]
        try:
            return self.with_address(link_from_message(self._ask(message, RTM_GETLINK, 0)[0]))
        except OSError as error:
            # An overlong name is ERANGE or EINVAL: it can't exist either.
            if error.errno in (errno.ENODEV, errno.ERANGE, errno.EINVAL):
                names = [link.name for link in self.links()]
                raise NoSuchInterface(name, names) from error
            raise HostError(f"cannot read interface {name}: {error}") from error

    def route(self, addr: int) -> Route | None:
        """The route to an address; None if there is none (or it is a blackhole)."""
        family = kernel_family(addr)
        message = rtmsg()
        message["family"] = family
        message["dst_len"] = _BITS[family]
        message["attrs"] = [("RTA_DST", format_addr(addr))]
        try:
            answer = self._ask(message, RTM_GETROUTE, 0)[0]
        except OSError as error:
            if error.errno in (
                errno.ENETUNREACH,
                errno.EHOSTUNREACH,
                errno.EINVAL,
                errno.EACCES,
                errno.ENETDOWN,
            ):
                return None
            if family == socket.AF_INET6 and error.errno in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
                return None  # a kernel without IPv6
            raise HostError(f"cannot look up the route to {format_addr(addr)}: {error}") from error
        ifindex = answer.get_attr("RTA_OIF")
        local = answer["type"] in (_RTN_LOCAL, _RTN_ANYCAST)
        if ifindex is None or not (local or answer["type"] == _RTN_UNICAST):
            return None
        via = answer.get_attr("RTA_VIA")
        gateway = addr_from_text(via["addr"] if via else answer.get_attr("RTA_GATEWAY"))
        source = addr_from_text(answer.get_attr("RTA_PREFSRC"))
        return Route(
            ifindex=ifindex,
            next_hop=gateway or addr,
            source_addr=0 if is_link_local(source) else source,
            local=local,
        )

    def prefixes(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Subnets that hosts answer each other in directly: (network, mask) by interface."""
        found: dict[int, set[tuple[int, int]]] = {}
        for family, bits in _BITS.items():
            try:
                addresses = list(self._addresses.dump(family))
            except OSError as error:
                if family == socket.AF_INET6 and error.errno == errno.EOPNOTSUPP:
                    continue  # a kernel without IPv6
                raise HostError(f"cannot list addresses: {error}") from error
            for each in addresses:
                mask = (1 << bits) - (1 << bits - each.length)
                network = each.addr & mask
                # All hosts of a link have link-local addresses: no client comes with one.
                if 0 < each.length < bits and not is_link_local(each.addr):
                    if family == socket.AF_INET6 and not is_ipv6(network):
                        continue
                    found.setdefault(each.ifindex, set()).add((network, mask))
        return {ifindex: tuple(sorted(subnets)) for ifindex, subnets in found.items()}

    def proxied(self, ifindex: int, addr: int) -> bool:
        """Whether the kernel is told to answer for an address there, as for its own."""
        message = ndmsg()
        message["family"] = kernel_family(addr)
        message["ifindex"] = ifindex
        message["flags"] = _NTF_PROXY
        message["attrs"] = [("NDA_DST", format_addr(addr))]
        try:
            return bool(self._ask(message, RTM_GETNEIGH, 0))
        except OSError:
            return False

    def neighbour(self, ifindex: int, addr: int) -> Neighbour | None:
        """The neighbour entry of an address on an interface, if there is one."""
        message = ndmsg()
        message["family"] = kernel_family(addr)
        message["ifindex"] = ifindex
        message["attrs"] = [("NDA_DST", format_addr(addr))]
        try:
            answer = self._ask(message, RTM_GETNEIGH, 0)[0]
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP):
                return None
            raise HostError(f"cannot look up neighbour {format_addr(addr)}: {error}") from error
        state = answer["state"]
        usable = state & _NUD_VALID
        return Neighbour(
            state=state, mac=mac_bytes(answer.get_attr("NDA_LLADDR")) if usable else b""
        )

    def use_neighbour(self, ifindex: int, addr: int) -> None:
        """Have the kernel resolve, or confirm, a neighbour as if a packet was sent to it.

        Not for permanent entries: NTF_USE would make them ordinary ones.
        """
        message = ndmsg()
        message["family"] = kernel_family(addr)
        message["ifindex"] = ifindex
        message["flags"] = _NTF_USE
        message["state"] = 0
        message["attrs"] = [("NDA_DST", format_addr(addr))]
        try:
            self._ask(message, RTM_NEWNEIGH, _NLM_F_CREATE | _NLM_F_ACK)
        except OSError as error:
            if error.errno in (errno.ENODEV, errno.ENETDOWN, errno.EINVAL):
                return  # The interface has just gone; its link event tells.
            raise HostError(f"cannot resolve neighbour {format_addr(addr)}: {error}") from error


def link_info(name: str) -> LinkInfo:
    """One interface of the current network namespace. Raises NoSuchInterface, HostError."""
    with Rtnl() as rtnl:
        return rtnl.link(name)
