# SPDX-License-Identifier: Apache-2.0
"""Hand-off to the kernel: on which interfaces it is possible, and where it is needed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from xdp_router.core.address import is_ipv6
from xdp_router.linux.xdp_features import XdpFeatures

from . import kernel_forwarding_ipv6
from .doctor_finding import Finding, ok, warn
from .doctor_target import Named
from .host import LinkInfo, Rtnl
from .kernel_forwarding import (
    Obstacle,
    SourceRoute,
    how_to_mend,
    own_changes,
    own_source,
    read_facts,
    reply_obstacles,
    source_route,
)


@dataclass(frozen=True, slots=True)
class HandoffFacts:
    """One interface. ``obstacles`` are those of either direction, by address family."""

    name: str
    kind: str
    takes_frames: bool
    obstacles: Mapping[int, tuple[Obstacle, ...]]


def check_handoff(
    attached: Collection[LinkInfo],
    services: Collection[Named],
    fullnat: Collection[Named] = (),
    *,
    off: bool = False,
    made_local: Collection[int] = (),
) -> Iterator[Finding]:
    """Findings about all interfaces that are, or will be, attached.

    ``fullnat``: backends of such services, whose packets bear an address of ours; ``off``: the
    router hands nothing over, whatever the kernel would do; ``made_local``: addresses that are, or
    will be, this host's for its gateway's sake. Raises HostError, SysctlError, OSError.
    """
    generic = all(link.xdp_mode == "generic" for link in attached)
    facts = []
    with XdpFeatures() as features, Rtnl() as rtnl:
        addrs = {at.addr for _, at in services}
        sources = [
            SourceRoute(addr, local=True, ifindex=0)
            if addr in made_local
            else source_route(rtnl, addr)
            for addr in addrs
            if not is_ipv6(addr)
        ]
        routes = [rtnl.route(at.addr) for _, at in fullnat if not is_ipv6(at.addr)]
        own = {route.source_addr for route in routes if route is not None and not route.local}
        sources += map(own_source, sorted(own - {0}))
        for link in attached:
            # A card may take frames only once it has a program; a veth's other end decides.
            certain = not generic and (link.kind == "veth" or link.xdp_mode == "native")
            takes = not certain or features.takes_frames(link.ifindex) is not False
            obstacles = {}
            if sources or not addrs:
                ipv4 = read_facts(link.name, link.ifindex)
                obstacles[4] = tuple(reply_obstacles(ipv4, sources))
            if any(map(is_ipv6, addrs)):
                ipv6 = kernel_forwarding_ipv6.read_facts(link.name)
                obstacles[6] = tuple(kernel_forwarding_ipv6.obstacles(ipv6))
            facts.append(HandoffFacts(link.name, link.kind, takes, obstacles))
    yield from judge_handoff(facts, off=off)


def judge_handoff(interfaces: Collection[HandoffFacts], *, off: bool = False) -> Iterator[Finding]:
    """Findings that follow from the facts; asks the kernel nothing. ``off``: as configured."""
    lacking = [each.name for each in interfaces if not each.takes_frames]
    for each in interfaces:
        if not each.takes_frames:
            how = (
                "in the other end's namespace: ethtool -K PEER gro on"
                if each.kind == "veth"
                else "a transmit queue for each CPU (ethtool -L), or another driver"
            )
            yield warn(
                "takes_no_xdp_frames",
                each.name,
                "XDP cannot send by it: the kernel has to forward what leaves there, which is "
                "slower",
                how,
            )
        # What comes in here leaves by another one, if there is another one.
        targets = [name for name in lacking if name != each.name or len(interfaces) == 1]
        yield _switched_off(each, targets) if off else _possible(each, targets)


def _switched_off(facts: HandoffFacts, targets: Collection[str]) -> Finding:
    obstacles = tuple(each for found in facts.obstacles.values() for each in found)
    how = how_to_mend(obstacles)
    too = f", and {how}" if how else ""
    if not targets:
        return ok(
            "handoff",
            facts.name,
            'kernel_handoff is "off", and nothing has to be handed over at the moment',
        )
    return warn(
        "handoff",
        facts.name,
        f"what comes in here for {', '.join(targets)} has to be forwarded by the kernel, and is "
        'dropped (no_path): kernel_handoff is "off"',
        f'kernel_handoff = "check" (or "set", which also sets the sysctls that it takes){too}',
    )


def _possible(facts: HandoffFacts, targets: Collection[str]) -> Finding:
    stuck = {family: found for family, found in facts.obstacles.items() if found}
    if not stuck:
        needed = f"needed for {', '.join(targets)}" if targets else "not needed now"
        return ok("handoff", facts.name, f"the kernel forwards what XDP leaves to it ({needed})")
    obstacles = [each for found in stuck.values() for each in found]
    why = "; ".join(each.text for each in obstacles)
    how = how_to_mend(obstacles)
    # Where it forwards one family, that one's packets are all right.
    some = len(stuck) < len(facts.obstacles)
    what = f"IPv{next(iter(stuck))} " if some else ""
    if not targets:
        to_let_it = f". To let it: {how}"
        return ok(
            "handoff",
            facts.name,
            f"the kernel cannot take {what}over from XDP, and need not at the moment: "
            f"{why}{to_let_it}",
        )
    return warn(
        "handoff",
        facts.name,
        f"what {what}comes in here for {', '.join(targets)} has to be forwarded by the kernel, and "
        f"is dropped (no_path): {why}",
        f'{how}; or kernel_handoff = "set"' if own_changes(facts.name, obstacles) else how,
    )
