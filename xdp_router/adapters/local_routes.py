# SPDX-License-Identifier: Apache-2.0
"""Addresses that this host takes without having them on an interface: ``ip route add local``.

Routes of ours bear a protocol number of their own, so that nobody's else are ever removed.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

from pyroute2.netlink.rtnl.rtmsg import rtmsg

from xdp_router.core.address import format_addr, parse_addr

from .host import HostError, Rtnl, kernel_family

PROTOCOL = 120
"""Of our routes: ``ip route show table local proto 120``."""
LOOPBACK = "lo"
_RTM_NEWROUTE, _RTM_DELROUTE = 24, 25
_NLM_F_ACK, _NLM_F_EXCL, _NLM_F_CREATE = 0x04, 0x200, 0x400
_RT_TABLE_LOCAL = 255
_RT_SCOPE_HOST = 254
_RTN_LOCAL = 2
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_BITS: dict[int, int] = {socket.AF_INET: 32, socket.AF_INET6: 128}


class LocalRoutes(Rtnl):
    """Of the network namespace that it was made in. Methods raise HostError."""

    def add(self, addr: int) -> bool:
        """Have this host take what is sent to an address; False: such a route is there already."""
        try:
            self._ask(_message(addr), _RTM_NEWROUTE, _NLM_F_CREATE | _NLM_F_EXCL | _NLM_F_ACK)
        except OSError as error:
            if error.errno == errno.EEXIST:
                return False
            mend = f": ip link set {LOOPBACK} up" if error.errno == errno.ENETDOWN else ""
            raise HostError(
                f"cannot take {format_addr(addr)} for this host (ip route add local "
                f"{format_addr(addr)} dev {LOOPBACK}): {error.strerror or error}{mend}"
            ) from error
        return True

    def remove(self, addr: int) -> bool:
        """Undo ``add``; False: the route was not there, or is not ours."""
        try:
            self._ask(_message(addr), _RTM_DELROUTE, _NLM_F_ACK)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.ENOENT, errno.ENETDOWN, errno.ENODEV):
                return False
            raise HostError(
                f"cannot remove the local route to {format_addr(addr)}: {error.strerror or error}: "
                f"ip route del local {format_addr(addr)} dev {LOOPBACK} proto {PROTOCOL}"
            ) from error
        return True

    def is_local(self, addr: int) -> bool:
        """Whether this host takes what is sent to an address, for whatever reason."""
        route = self.route(addr)
        return route is not None and route.local

    def on_interfaces(self) -> set[int]:
        """Addresses that interfaces have."""
        found: set[int] = set()
        for family in _FAMILIES:
            try:
                found.update(each.addr for each in self._addresses.dump(family))
            except OSError as error:
                if family == socket.AF_INET6 and error.errno == errno.EOPNOTSUPP:
                    continue  # a kernel without IPv6
                raise HostError(f"cannot list addresses: {error}") from error
        return found


def _message(addr: int) -> rtmsg:
    family = kernel_family(addr)
    message = rtmsg()
    message["family"] = family
    message["dst_len"] = _BITS[family]
    message["table"] = _RT_TABLE_LOCAL
    message["proto"] = PROTOCOL
    message["scope"] = _RT_SCOPE_HOST
    message["type"] = _RTN_LOCAL
    message["attrs"] = [
        ("RTA_DST", format_addr(addr)),
        ("RTA_OIF", socket.if_nametoindex(LOOPBACK)),
    ]
    return message


def format_addresses(addrs: Iterable[int]) -> str:
    """For the notes."""
    return " ".join(map(format_addr, sorted(addrs)))


def parse_addresses(text: str) -> set[int]:
    """Undoes ``format_addresses``. Raises ValueError."""
    return set(map(parse_addr, text.split()))
