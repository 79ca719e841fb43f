# SPDX-License-Identifier: Apache-2.0
"""Two more routers' worth of way behind an end of a lab, with a narrow link where one wants it.

    router ==(edge link)== edge ==(middle link)== hop ---- far

``edge`` is the lab's client or a backend, which now forwards; ``far`` talks from beyond it.
All links take 1,500 bytes but those that are made narrow, at both their ends.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from xdp_router.lab import Lab, Namespace, links
from xdp_router.lab.spec import Family
from xdp_router.lab.wiring import FAMILIES

_FORWARDS = {
    "ipv6/conf/all/forwarding": "1",
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/ip_forward": "1",
}
NARROW = 1280
FAR_PORT = 9000
_NODAD = 0x02


@dataclass(frozen=True)
class LongPath:
    """``far`` has the address ``address``, of ``family``; ``hop`` is its router."""

    edge: Namespace
    hop: Namespace
    far: Namespace
    family: Family
    addresses: dict[Family, str]
    hop_addresses: dict[Family, str]
    """By which the hop speaks to the lab's router."""
    _more: dict[Family, int] = field(default_factory=lambda: {4: 0, 6: 0})

    @property
    def address(self) -> str:
        """Where ``far`` is."""
        return self.addresses[self.family]

    def another(self, family: Family) -> tuple[str, int]:
        """A further address of ``far``, which nobody knows a path to yet, and any port."""
        self._more[family] += 1
        base = ipaddress.ip_address(self.addresses[family])
        address = str(base + self._more[family])
        length = 24 if family == 4 else 64
        links.with_netlink(
            self.far,
            lambda netlink: netlink.addr(
                "add", index=netlink.link_lookup(ifname="eth0")[0], address=address,
                prefixlen=length, flags=_NODAD,
            ),
        )  # fmt: skip
        return address, 0

    def unreachable(self, on: bool) -> None:
        """Let the hop say that it has no way to ``far``, or have it again."""

        def change(netlink: Any) -> None:
            command = "add" if on else "del"
            for address in self.addresses.values():
                length = 128 if ":" in address else 32
                netlink.route(command, dst=f"{address}/{length}", type="unreachable")

        links.with_netlink(self.hop, change)


def set_mtu(namespace: Namespace, ifname: str, mtu: int) -> None:
    """Set what an interface takes."""
    index = links.ifindex(namespace, ifname)
    links.with_netlink(namespace, lambda netlink: netlink.link("set", index=index, mtu=mtu))


def narrow_edge(lab: Lab, side: str, mtu: int = NARROW) -> None:
    """The router's own link on a side becomes narrow."""
    edge, own = _edge(lab, side)
    set_mtu(lab.router, own, mtu)
    set_mtu(edge, "eth0", mtu)


def _edge(lab: Lab, side: str) -> tuple[Namespace, str]:
    return (lab.client, "client0") if side == "client" else (lab.backends[0], "be1")


@contextlib.contextmanager
def long_path(
    lab: Lab, side: str, middle_mtu: int = 1500, family: Family = 4
) -> Iterator[LongPath]:
    """Build the way behind the lab's client, or its first backend; it has both families."""
    edge, _ = _edge(lab, side)
    number = 240 if side == "client" else 242
    edges: dict[Family, str] = {}
    for each in FAMILIES:
        of = lab.addresses_of(each)
        edges[each] = of.client if side == "client" else of.backends[0][0]
    with contextlib.ExitStack() as undo:
        hop = undo.enter_context(_namespace(f"{lab.prefix}-{side}-hop"))
        far = undo.enter_context(_namespace(f"{lab.prefix}-{side}-far"))
        for namespace in (edge, hop, far):
            links.prepare(namespace, _FORWARDS, ipv6=True)
        links.connect(
            links.End(edge, "out0", links.mac(9, number, 1), _hosts(number, 1)),
            links.End(hop, "eth0", links.mac(9, number, 2), _hosts(number, 2)),
        )
        links.connect(
            links.End(hop, "out0", links.mac(9, number, 3), _hosts(number + 1, 1)),
            links.End(far, "eth0", links.mac(9, number, 4), _hosts(number + 1, 2)),
        )
        if middle_mtu != 1500:
            set_mtu(edge, "out0", middle_mtu)
            set_mtu(hop, "eth0", middle_mtu)
        for each in FAMILIES:
            middle, outer = (_network(each, at) for at in (number, number + 1))
            zero, length = ("0", 24) if each == 4 else ("", 64)
            links.default_route(far, f"{outer}1")
            links.default_route(hop, f"{middle}1")
            for network in (f"{middle}{zero}/{length}", f"{outer}{zero}/{length}"):
                _route(lab.router, network, edges[each])
            _route(edge, f"{outer}{zero}/{length}", f"{middle}2")
        addresses = {each: f"{_network(each, number + 1)}2" for each in FAMILIES}
        hops = {each: f"{_network(each, number)}2" for each in FAMILIES}
        yield LongPath(edge, hop, far, family, addresses, hops)


def _hosts(number: int, host: int) -> tuple[str, ...]:
    return tuple(f"{_network(each, number)}{host}/{24 if each == 4 else 64}" for each in FAMILIES)


def _network(family: Family, number: int) -> str:
    """What the addresses of a network begin with."""
    return f"198.18.{number}." if family == 4 else f"2001:db8:{number:x}::"


@contextlib.contextmanager
def _namespace(name: str) -> Iterator[Namespace]:
    namespace = Namespace.create(name)
    try:
        yield namespace
    finally:
        namespace.close()


def _route(namespace: Namespace, network: str, gateway: str) -> None:
    links.with_netlink(
        namespace, lambda netlink: netlink.route("replace", dst=network, gateway=gateway)
    )


class EchoServer:
    """Sends back what it gets, in a namespace; ``peers`` are the connections it took."""

    def __init__(self, namespace: Namespace, port: int = FAR_PORT) -> None:
        self.peers: list[socket.socket] = []
        self._listener = namespace.socket(socket.AF_INET6)  # takes both families
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("::", port))
        self._listener.listen(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self.peers.append(peer)
                threading.Thread(target=_echo, args=(peer,), daemon=True).start()

    def close(self) -> None:
        """Stop, and end all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for peer in self.peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()


def _echo(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := peer.recv(1 << 16):
            peer.sendall(data)
