# SPDX-License-Identifier: Apache-2.0
"""Who is wired to whom in a lab, with which addresses, routes and sysctls.

``routed``: each on a wire of its own to the router, backend 2 here behind a delay line:

    client ns (eth0) ---- (client0) router ns (be1) ------------------------- (eth0) backend ns 1
                                              (be2) ---- (a) delay ns (b) ---- (eth0) backend ns 2

Client side 198.18.0.0/24 and 2001:db8:18::/64, backend i 198.19.i.0/24 and 2001:db8:19:i::/64.

``segment``: all at the ports of one switch, 198.18.0.0/23 and 2001:db8:18::/64; answers of backends
that have the service's addresses themselves go straight to the client:

    client ns (eth0) ---- (client) segment ns (router) ---- (lan0) router ns
                                              (be1) --------------------------- (eth0) backend ns 1
                                              (be2) ---- (a) delay ns (b) ---- (eth0) backend ns 2

The client sends everything else to the router, so the service's addresses need to be on no
interface of the router.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass

from . import decapsulation, links, vlan_tag
from .namespace import Namespace
from .spec import Family, LabSpec

CLIENT_INTERFACE = "client0"
SEGMENT_INTERFACE = "lan0"
FAMILIES: tuple[Family, ...] = (4, 6)

_BRIDGE = "segment"
_WHICH = ("all", "default")
_HOST = {
    **{f"ipv4/conf/{which}/rp_filter": "0" for which in _WHICH},
    **{f"ipv4/conf/{which}/accept_redirects": "0" for which in _WHICH},
}
_ROUTER = {
    **_HOST,
    **{f"ipv4/conf/{which}/send_redirects": "0" for which in _WHICH},
    "ipv4/ip_forward": "1",
    "ipv6/conf/all/forwarding": "1",
}
_BACKEND = {**_HOST, "core/somaxconn": "4096", "ipv4/tcp_max_syn_backlog": "8192"}
# The service's addresses on lo are nobody's business on the wire.
_SECRETIVE = {
    **{f"ipv4/conf/{which}/arp_ignore": "1" for which in _WHICH},
    **{f"ipv4/conf/{which}/arp_announce": "2" for which in _WHICH},
}
_MTU = 1500
_TUNNEL = 40
"""The larger outer header. Segments are kept so short that they fit with it."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The wires of a lab in namespaces that exist."""

    spec: LabSpec
    client: Namespace
    router: Namespace
    backends: tuple[Namespace, ...]
    delays: tuple[Namespace | None, ...]
    segment: Namespace | None

    @property
    def router_interfaces(self) -> tuple[str, ...]:
        """The router's interfaces; see the module's text."""
        if self.segment is not None:
            return (SEGMENT_INTERFACE,)
        return (CLIENT_INTERFACE, *(f"be{i}" for i in range(1, len(self.backends) + 1)))

    def lay(self) -> None:
        """Lay all wires."""
        links.prepare(self.client, _HOST, ipv6=True)
        links.prepare(self.router, _ROUTER, ipv6=True)
        if self.segment is not None:
            # No addresses here and in delay lines: the kernel in between must answer nothing.
            links.prepare(self.segment, {})
            links.bridge(self.segment, _BRIDGE)
        self.lay_client()
        for index in range(len(self.backends)):
            self.lay_backend(index)

    def _end(
        self, namespace: Namespace, ifname: str, mac: str, hosts: Mapping[Family, tuple[str, ...]]
    ) -> links.End:
        addresses = tuple(
            f"{host}/{self.spec.addresses_of(family).prefix_length}"
            for family in FAMILIES
            for host in hosts[family]
        )
        return links.End(namespace, ifname, mac, addresses)

    def _plug_in(self, end: links.End, port: str, mac: str) -> None:
        assert self.segment is not None
        links.connect(links.End(self.segment, port, mac), end)
        links.join_bridge(self.segment, port, _BRIDGE)

    def lay_client(self) -> None:
        """Lay the wire, or with a segment the two, of client and router."""
        of = {family: self.spec.addresses_of(family) for family in FAMILIES}
        ifname = SEGMENT_INTERFACE if self.segment else CLIENT_INTERFACE
        routers = {family: (of[family].client_router,) for family in FAMILIES}
        router = self._end(self.router, ifname, links.mac(0, 0, 1), routers)
        clients = {family: of[family].clients for family in FAMILIES}
        client = self._end(self.client, "eth0", links.mac(0, 0, 2), clients)
        if self.segment is None:
            links.connect(router, client)
        else:
            self._plug_in(router, "router", links.mac(3, 0, 1))
            self._plug_in(client, "client", links.mac(3, 0, 2))
        if self.spec.client_vlan is not None:
            for end in (router, client):
                vlan_tag.put_behind_tag(end.namespace, end.ifname, self.spec.client_vlan)
        for family in FAMILIES:
            links.default_route(self.client, of[family].client_router)

    def lay_backend(self, index: int) -> None:
        """Lay a backend's wire."""
        number = index + 1
        spec = self.spec.backends[index]
        namespace = self.backends[index]
        of = {family: self.spec.addresses_of(family) for family in FAMILIES}
        hosts = {family: (of[family].backends[index][0],) for family in FAMILIES}
        backend = self._end(namespace, "eth0", links.mac(1, number, 2), hosts)
        sysctls = {**_BACKEND, **(_SECRETIVE if self.spec.service_on_backends else {})}
        links.prepare(namespace, sysctls, ipv6=True)
        name = f"be{number}"
        if self.segment is None:
            gateways = {family: (of[family].backend_routers[index],) for family in FAMILIES}
            near = self._end(self.router, name, links.mac(1, number, 1), gateways)
        else:
            near = links.End(self.segment, name, links.mac(3, number, 3))
        delay = self.delays[index]
        if delay is None:
            links.connect(near, backend)
        else:
            links.prepare(delay, _HOST)
            links.connect(near, links.End(delay, "a", links.mac(2, number, 1), gro=False))
            links.connect(links.End(delay, "b", links.mac(2, number, 2), gro=False), backend)
        if self.segment is not None:
            links.join_bridge(self.segment, name, _BRIDGE)
        if spec.vlan is not None:
            vlan_tag.put_behind_tag(namespace, "eth0", spec.vlan)
            if self.segment is None:
                vlan_tag.put_behind_tag(self.router, name, spec.vlan)
        if self._apart(index):
            for family in FAMILIES:
                links.permanent_neighbour(
                    self.router, SEGMENT_INTERFACE, hosts[family][0], backend.mac
                )
        if self.spec.service_on_backends:
            links.add_to_loopback(namespace, (of[family].service[0] for family in FAMILIES))
        self.start_decapsulation(index)
        self.route_backend(index)

    def _apart(self, index: int) -> bool:
        """Whether backend and router share a segment but no VLAN, so that neither can ask."""
        return self.segment is not None and self.spec.backends[index].vlan != self.spec.client_vlan

    def start_decapsulation(self, index: int) -> None:
        """Make a backend of method ``ipip`` take outer headers off; others need nothing."""
        if self.spec.method != "ipip":
            return
        own = (self.spec.addresses_of(family).backends[index][0] for family in FAMILIES)
        program = decapsulation.load(*own)
        try:
            links.attach_xdp(self.backends[index], "eth0", program)
        finally:
            os.close(program)

    def route_backend(self, index: int) -> None:
        """Set a backend's routes and neighbours; they go when its link goes down.

        One that has the service's addresses prefers them as source: a server that answers a
        datagram without asking where it had been sent to answers rightly then.
        """
        namespace = self.backends[index]
        for family in FAMILIES:
            addresses = self.spec.addresses_of(family)
            gateway = addresses.backend_routers[index]
            if self._apart(index):
                links.permanent_neighbour(namespace, "eth0", gateway, links.mac(0, 0, 1))
            source = addresses.service[0] if self.spec.service_on_backends else None
            advmss = None
            if self.spec.method == "ipip":
                advmss = _MTU - _TUNNEL - (40 if family == 4 else 60)
            if source is not None or advmss is not None:
                host = f"{addresses.backends[index][0]}/{addresses.prefix_length}"
                subnet = str(ipaddress.ip_interface(host).network)
                links.subnet_route(namespace, "eth0", subnet, source=source, advmss=advmss)
            links.default_route(namespace, gateway, source=source, advmss=advmss)
