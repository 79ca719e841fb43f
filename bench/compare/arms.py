# SPDX-License-Identifier: Apache-2.0
"""The arms: where each one's clients connect to, and what makes that reach a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench import haproxy
from xdp_router.adapters.bpf_maps import Services
from xdp_router.core.abi import parse_addr
from xdp_router.core.model import Endpoint

Address = tuple[str, int]

DIRECT = "direct"
NFTABLES = "nftables round robin"
HASH = "consistent hash"
ROUNDROBIN = "HAProxy roundrobin"
LEASTCONN = "HAProxy leastconn"
RACE, SNAPSHOT, INLINE = "race", "snapshot", "inline"
ARMS = (DIRECT, NFTABLES, HASH, ROUNDROBIN, LEASTCONN, RACE, SNAPSHOT, INLINE)
OURS = (RACE, SNAPSHOT, INLINE)
BY_HAPROXY = {ROUNDROBIN: "roundrobin", LEASTCONN: "leastconn"}

NFTABLES_ADDRESS: Address = ("198.18.100.2", 80)
HAPROXY_ADDRESSES = {
    balance: (haproxy.ADDRESS, 80 + number) for number, balance in enumerate(BY_HAPROXY.values())
}
_SERVICE = "198.18.100.1"
_SERVICES = {RACE: 80, SNAPSHOT: 81, INLINE: 82, HASH: 83}
"""All of one router, at a port each."""
_TCP = 6
_NEVER_NS = 1 << 50


@dataclass(frozen=True, slots=True)
class Arm:
    """``targets``: where its connections go, in turn. ``source``: where they come from."""

    name: str
    source: str
    targets: tuple[Address, ...]


def arms_of(
    clients: Sequence[str], backends: Sequence[Address], without: Sequence[str] = ()
) -> tuple[Arm, ...]:
    """Each arm with a client address of its own: NAT keeps ports, and all meet the same servers."""
    targets: dict[str, tuple[Address, ...]] = {
        DIRECT: tuple(backends),
        NFTABLES: (NFTABLES_ADDRESS,),
        **{name: (HAPROXY_ADDRESSES[balance],) for name, balance in BY_HAPROXY.items()},
        **{name: ((_SERVICE, port),) for name, port in _SERVICES.items()},
    }
    return tuple(
        Arm(name, client, targets[name])
        for name, client in zip(ARMS, clients, strict=True)
        if name not in without
    )


def backend_name(service: str, server: str) -> str:
    """What the router calls a server as a backend of one of its services."""
    return f"{service}-{server}"


def router_config(backends: Sequence[Address]) -> str:
    """A service for each mode, and one that is to be made one of the hash alone; all else is as
    it is for whoever says nothing."""
    lines: list[str] = []
    for name, port in _SERVICES.items():
        mode = RACE if name == HASH else name
        prefix = "hash" if name == HASH else name
        lines += ["[[service]]", f'name = "{prefix}"', f'address = "{_SERVICE}:{port}"']
        lines += [f'mode = "{mode}"']
        for number, (host, at) in enumerate(backends, 1):
            backend = backend_name(prefix, f"b{number}")
            lines += ["[[service.backend]]", f'name = "{backend}"']
            lines += [f'address = "{host}:{at}"']
    return "\n".join(lines) + "\n"


def hash_alone(services: Services) -> None:
    """Leave the hash's service no event, so that XDP decides all of its first packets by hash.

    No configuration says so: a budget of one event a second is the smallest.
    """
    endpoint = Endpoint(parse_addr(_SERVICE), _SERVICES[HASH], _TCP)
    value = services.read(endpoint)
    if value is None:
        raise RuntimeError(f"the router has no service {_SERVICE}:{_SERVICES[HASH]}")
    services.write(endpoint, replace(value, event_interval_ns=_NEVER_NS, event_burst_ns=1))
