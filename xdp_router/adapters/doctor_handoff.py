# SPDX-License-Identifier: Apache-2.0
"""Hand-off to the kernel: on which interfaces it is possible, and where it is needed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from xdp_router.linux.xdp_features import XdpFeatures

from .doctor_finding import Finding, ok, warn
from .doctor_target import Named
from .host import LinkInfo, Rtnl
from .kernel_forwarding import Obstacle, mend, read_facts, reply_obstacles, source_route


@dataclass(frozen=True, slots=True)
class HandoffFacts:
    """One interface. ``obstacles`` are those of either direction."""

    name: str
    kind: str
    takes_frames: bool
    obstacles: tuple[Obstacle, ...]


def check_handoff(attached: Collection[LinkInfo], services: Collection[Named]) -> Iterator[Finding]:
    """Findings about all interfaces that are, or will be, attached.

    Raises HostError, SysctlError, OSError.
    """
    generic = all(link.xdp_mode == "generic" for link in attached)
    facts = []
    with XdpFeatures() as features, Rtnl() as rtnl:
        sources = [source_route(rtnl, addr) for addr in {at.addr for _, at in services}]
        for link in attached:
            # A card may take frames only once it has a program; a veth's other end decides.
            certain = not generic and (link.kind == "veth" or link.xdp_mode == "native")
            takes = not certain or features.takes_frames(link.ifindex) is not False
            obstacles = reply_obstacles(read_facts(link.name, link.ifindex), sources)
            facts.append(HandoffFacts(link.name, link.kind, takes, tuple(obstacles)))
    yield from judge_handoff(facts)


def judge_handoff(interfaces: Collection[HandoffFacts]) -> Iterator[Finding]:
    """Findings that follow from the facts; asks the kernel nothing."""
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
        yield _possible(each, targets)


def _possible(facts: HandoffFacts, targets: Collection[str]) -> Finding:
    if not facts.obstacles:
        needed = f"needed for {', '.join(targets)}" if targets else "not needed now"
        return ok("handoff", facts.name, f"the kernel forwards what XDP leaves to it ({needed})")
    why = "; ".join(each.text for each in facts.obstacles)
    how = mend(change for each in facts.obstacles for change in each.changes)
    if not targets:
        return ok(
            "handoff",
            facts.name,
            f"the kernel cannot take over from XDP, and need not at the moment: {why}. To let "
            f"it: {how}",
        )
    return warn(
        "handoff",
        facts.name,
        f"what comes in here for {', '.join(targets)} has to be forwarded by the kernel, and is "
        f"dropped (no_path): {why}",
        f'{how}; or kernel_handoff = "set"',
    )
