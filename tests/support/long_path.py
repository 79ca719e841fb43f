# SPDX-License-Identifier: Apache-2.0
"""Two more routers' worth of way behind an end of a lab, with a narrow link where one wants it.

    router ==(edge link)== edge ==(middle link)== hop ---- far

``edge`` is the lab's client or a backend, which now forwards; ``far`` talks from beyond it.
All links take 1,500 bytes but those that are made narrow, at both their ends.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xdp_router.lab import Lab, Namespace, links

_FORWARDS = {
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/ip_forward": "1",
}
NARROW = 1280
FAR_PORT = 9000


@dataclass(frozen=True)
class LongPath:
    """``far`` has the address ``address``; ``hop`` is its router."""

    edge: Namespace
    hop: Namespace
    far: Namespace
    address: str
    hop_address: str
    """By which the hop speaks to the lab's router."""

    def unreachable(self, on: bool) -> None:
        """Let the hop say that it has no way to ``far``, or have it again."""

        def change(netlink: Any) -> None:
            command = "add" if on else "del"
            netlink.route(command, dst=self.address + "/32", type="unreachable")

        links.with_netlink(self.hop, change)


def set_mtu(namespace: Namespace, ifname: str, mtu: int) -> None:
    """Set what an interface takes."""
    index = links.ifindex(namespace, ifname)
    links.with_netlink(namespace, lambda netlink: netlink.link("set", index=index, mtu=mtu))


def narrow_edge(lab: Lab, side: str) -> None:
    """The router's own link on a side becomes narrow."""
    edge, own = _edge(lab, side)
    set_mtu(lab.router, own, NARROW)
    set_mtu(edge, "eth0", NARROW)


def _edge(lab: Lab, side: str) -> tuple[Namespace, str]:
    return (lab.client, "client0") if side == "client" else (lab.backends[0], "be1")


@contextlib.contextmanager
def long_path(lab: Lab, side: str, middle_mtu: int = 1500) -> Iterator[LongPath]:
    """Build the way behind the lab's client, or its first backend."""
    edge, _ = _edge(lab, side)
    number = 240 if side == "client" else 242
    edge_address = lab.addresses.client if side == "client" else lab.addresses.backends[0][0]
    middle, outer = f"198.18.{number}", f"198.18.{number + 1}"
    with contextlib.ExitStack() as undo:
        hop = undo.enter_context(_namespace(f"{lab.prefix}-{side}-hop"))
        far = undo.enter_context(_namespace(f"{lab.prefix}-{side}-far"))
        for namespace in (edge, hop, far):
            links.prepare(namespace, _FORWARDS)
        links.connect(
            links.End(edge, "out0", links.mac(9, number, 1), (f"{middle}.1/24",)),
            links.End(hop, "eth0", links.mac(9, number, 2), (f"{middle}.2/24",)),
        )
        links.connect(
            links.End(hop, "out0", links.mac(9, number, 3), (f"{outer}.1/24",)),
            links.End(far, "eth0", links.mac(9, number, 4), (f"{outer}.2/24",)),
        )
        if middle_mtu != 1500:
            set_mtu(edge, "out0", middle_mtu)
            set_mtu(hop, "eth0", middle_mtu)
        links.default_route(far, f"{outer}.1")
        links.default_route(hop, f"{middle}.1")
        for network in (f"{middle}.0/24", f"{outer}.0/24"):
            _route(lab.router, network, edge_address)
        _route(edge, f"{outer}.0/24", f"{middle}.2")
        yield LongPath(edge, hop, far, f"{outer}.2", f"{middle}.2")


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
        self._listener = namespace.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("0.0.0.0", port))
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
