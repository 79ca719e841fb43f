# SPDX-License-Identifier: Apache-2.0
"""The way to one backend of a lab, as its method has it, by the router's kernel alone.

    with path_to(lab, 0, family=6) as target:
        lab.client.connect(target)

``nat``, ``fullnat``: the backend's own address. ``dsr``: the service's address, which the router
routes to the backend, so the frame has the backend's MAC. ``ipip``: the same through a TUN device,
behind which each packet gets an outer header.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator

from xdp_router.lab import Lab, links
from xdp_router.lab.spec import Family

Address = tuple[str, int]

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_TUN = "xrtun"
_LARGEST_OUTER = 40
_PACKET_MAX = 65536


@contextlib.contextmanager
def path_to(
    lab: Lab, backend: int, *, family: Family = 4, outer: Family | None = None
) -> Iterator[Address]:
    """Where the client has to send while the block runs; ``outer``: of ``ipip``, else the same."""
    addresses = lab.addresses_of(family)
    with contextlib.ExitStack() as undo:
        if lab.spec.method == "dsr":
            hop = addresses.backends[backend][0]
            undo.enter_context(_route(lab, addresses.service[0], gateway=hop))
        elif lab.spec.method == "ipip":
            end = lab.addresses_of(outer or family).backends[backend][0]
            undo.enter_context(_tunnel(lab, addresses.service[0], end))
        else:
            yield addresses.backends[backend]
            return
        yield addresses.service


@contextlib.contextmanager
def _route(lab: Lab, service: str, **hop: object) -> Iterator[None]:
    dst = f"{service}/{128 if ':' in service else 32}"
    links.with_netlink(lab.router, lambda netlink: netlink.route("add", dst=dst, **hop))
    try:
        yield
    finally:
        links.with_netlink(lab.router, lambda netlink: netlink.route("del", dst=dst, **hop))


@contextlib.contextmanager
def _tunnel(lab: Lab, service: str, end: str) -> Iterator[None]:
    """What the router routes to the service goes to the tunnel's end, in an outer header."""

    def make() -> int:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", _TUN.encode(), _IFF_TUN | _IFF_NO_PI))
        return fd

    inner = socket.IPPROTO_IPV6 if ":" in service else socket.IPPROTO_IPIP
    family = socket.AF_INET6 if ":" in end else socket.AF_INET
    stop, stopped = os.pipe()
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, stop)
        tun = lab.router.run(make)
        undo.callback(os.close, tun)
        out = undo.enter_context(lab.router.socket(family, socket.SOCK_RAW, inner))
        thread = threading.Thread(target=_encapsulate, args=(tun, out, end, service, stop))
        thread.start()
        undo.callback(thread.join)
        undo.callback(os.close, stopped)
        index = links.ifindex(lab.router, _TUN)
        links.with_netlink(
            lab.router,
            lambda netlink: netlink.link("set", index=index, mtu=1500 - _LARGEST_OUTER, state="up"),
        )
        undo.enter_context(_route(lab, service, oif=index))
        yield


def _encapsulate(tun: int, out: socket.socket, end: str, service: str, stop: int) -> None:
    """Until ``stop`` ends. The kernel writes the outer header."""
    at, length = (24, 16) if ":" in service else (16, 4)
    wanted = socket.inet_pton(socket.AF_INET6 if length == 16 else socket.AF_INET, service)
    while True:
        ready, _, _ = select.select([tun, stop], [], [])
        if stop in ready:
            return
        packet = os.read(tun, _PACKET_MAX)
        if packet[at : at + length] == wanted:  # and no neighbour discovery of the device's own
            with contextlib.suppress(OSError):
                out.sendto(packet, (end, 0))
