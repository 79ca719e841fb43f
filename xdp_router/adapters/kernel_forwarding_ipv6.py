# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel forwards IPv6 packets that XDP has rewritten and left to it.

It looks at no source address (there is no rp_filter, and one of its own is as good as another), so
both directions have the same obstacles. Forwarding is on for all interfaces or for none; since
Linux 6.17 one may be told to forward all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import sysctl
from .kernel_forwarding import Obstacle

_ALL = "net.ipv6.conf.all.forwarding"
_OWN = "force_forwarding"


@dataclass(frozen=True, slots=True)
class InterfaceFacts:
    """What the kernel goes by. ``forced`` None: this kernel has no such switch."""

    name: str
    present: bool
    disabled: bool = False
    forwarding: bool = False
    forced: bool | None = None


def read_facts(name: str) -> InterfaceFacts:
    """Look at an interface of the calling thread's namespace. Raises SysctlError."""
    if not sysctl.exists(_ALL):
        return InterfaceFacts(name, present=False)

    def on(key: str) -> bool:
        return sysctl.read(sysctl.of_interface(name, key, ipv6=True)) != "0"

    own = sysctl.exists(sysctl.of_interface("all", _OWN, ipv6=True))
    return InterfaceFacts(
        name=name,
        present=True,
        disabled=on("disable_ipv6"),
        forwarding=sysctl.read(_ALL) != "0",
        forced=on(_OWN) if own else None,
    )


def obstacles(facts: InterfaceFacts) -> list[Obstacle]:
    """What keeps packets that come in there from being forwarded; empty: nothing."""
    if not facts.present:
        return [Obstacle("this kernel runs without IPv6", (), "boot it without ipv6.disable=1")]
    found = []
    if facts.disabled:
        found.append(
            Obstacle(
                f"IPv6 is off on {facts.name}: the kernel drops what comes in there",
                ((sysctl.of_interface(facts.name, "disable_ipv6", ipv6=True), "0"),),
            )
        )
    if not facts.forwarding and not facts.forced:
        text = f"IPv6 forwarding is off on {facts.name}: the kernel drops what comes in for others"
        if facts.forced is None:
            change = _ALL, "1"
            text += (
                " (where it is on, an interface takes addresses and routes of router "
                "advertisements only with accept_ra=2)"
            )
        else:
            change = sysctl.of_interface(facts.name, _OWN, ipv6=True), "1"
        found.append(Obstacle(text, (change,)))
    return found
