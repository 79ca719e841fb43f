# SPDX-License-Identifier: Apache-2.0
"""What is sent to a router: of which family and protocol, and how it gets to the backend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from xdp_router.core import abi
from xdp_router.core.model import ONE_SIDED, Endpoint, Forwarding, Mode

from .frames import ACK, PROTO_TCP, PROTO_UDP, SYN, tcp_frame, udp_frame

SERVICE_ADDR = abi.parse_addr("198.18.100.1")
BACKEND_ADDR = abi.parse_addr("198.19.1.2")
OUR_ADDR = abi.parse_addr("198.19.1.1")
"""The router's on the backend's side: probes and fullnat come from it."""
CLIENT_BASE = abi.parse_addr("198.18.0.2")
CLIENT_PORT_MIN = 16384
_PORT, _BACKEND_PORT = 80, 8080

FAMILIES = (4, 6)
PROTOCOLS = {"tcp": PROTO_TCP, "udp": PROTO_UDP}
_IN_IP = {4: 4, 6: 41}
"""What the outer header of a tunnel says is in it, by the family of that."""


def ipv6(addr: int) -> int:
    """The IPv6 address that takes an IPv4 one's place."""
    return 0x20010DB8 << 96 | addr


@dataclass(frozen=True, slots=True)
class Budget:
    """One service's budget of events; 0 and 0 is none."""

    interval_ns: int = 0
    burst_ns: int = 0


NO_BUDGET = Budget()
SPENT = Budget(1 << 50, 1)
"""Not one event to be had."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One service and who asks it. ``number`` is its id, and that of its backend; ``flags`` are
    the service's."""

    family: int = 4
    method: Forwarding = Forwarding.NAT
    proto: int = PROTO_TCP
    number: int = 0
    budget: Budget = NO_BUDGET
    flags: int = 0
    mode: Mode = Mode.RACE

    def at(self, addr: int) -> int:
        """An IPv4 address, or the IPv6 one that takes its place."""
        return addr if self.family == 4 else ipv6(addr)

    @property
    def service(self) -> Endpoint:
        """Where clients connect to."""
        return Endpoint(self.at(SERVICE_ADDR), _PORT + self.number, self.proto)

    @property
    def backend(self) -> Endpoint:
        """Where the server is; where replies leave the tuple alone, on the service's port."""
        port = self.service.port if self.one_sided else _BACKEND_PORT + self.number
        return Endpoint(self.at(BACKEND_ADDR), port, self.proto)

    @property
    def one_sided(self) -> bool:
        """Whether replies do not come through the router."""
        return self.method in ONE_SIDED

    @property
    def ways(self) -> tuple[str, ...]:
        """Names of the drivers of its flows: from the client, and back if that is seen."""
        return ("forward",) if self.one_sided else ("forward", "reply")

    @property
    def protocol(self) -> str:
        """``tcp`` or ``udp``."""
        return "udp" if self.proto == PROTO_UDP else "tcp"

    @property
    def name(self) -> str:
        """For people: ``nat udp IPv6``."""
        return f"{self.method.name.lower()} {self.protocol} IPv{self.family}"

    @property
    def arrives(self) -> int:
        """What the IP header at the backend says that it carries."""
        return _IN_IP[self.family] if self.method is Forwarding.IPIP else self.proto

    def frame(self, router_mac: bytes, client_mac: bytes, *, first: bool = False) -> bytes:
        """A client's packet of 64 bytes (78 of IPv6): of a flow that is, or its ``first`` one."""
        ends = (self.at(CLIENT_BASE), CLIENT_PORT_MIN), (self.service.addr, self.service.port)
        if self.proto == PROTO_UDP:
            return udp_frame(router_mac, client_mac, *ends)
        flags = SYN if first else ACK
        return tcp_frame(router_mac, client_mac, *ends, flags, seq=1, ack=0 if first else 1)


NAT = Traffic()
"""TCP over IPv4 to a service by nat: what is measured where nothing else is said."""


def combinations(
    methods: Iterable[Forwarding] = tuple(Forwarding),
    families: Iterable[int] = FAMILIES,
    protocols: Iterable[int] = (PROTO_TCP, PROTO_UDP),
) -> tuple[Traffic, ...]:
    """Each method with each family and protocol, numbered from 0."""
    methods, protocols = tuple(methods), tuple(protocols)
    made = [
        Traffic(family, method, proto)
        for family in families
        for method in methods
        for proto in protocols
    ]
    return tuple(replace(each, number=number) for number, each in enumerate(made))
