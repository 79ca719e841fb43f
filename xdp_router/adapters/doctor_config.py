# SPDX-License-Identifier: Apache-2.0
"""What ``attach`` would refuse because of the configuration: memory, room, where metrics are."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from xdp_router.core.config import RouterConfig
from xdp_router.core.config_metrics import format_metrics
from xdp_router.core.errors import XdpRouterError

from . import adoption, map_memory, resize
from . import bpf_syscall as bpf
from .dataplane import daemon_stays, occupied
from .doctor_finding import Finding, fail, ok, warn
from .map_sizes import sizes_of
from .map_specs import MAP_SPECS, Sizes
from .pins import InstanceRef, instance_of

_MUCH = 0.75
"""Of the memory that is available: what is left may be too little for all else."""


def check_room(pins: Path, interfaces: Sequence[str], config: RouterConfig) -> Iterator[Finding]:
    """Whether its maps can be made, and have room for the flows of a data plane that is there.

    Changes nothing. Raises XdpRouterError where that cannot be looked at.
    """
    taken = [found for each in interfaces if (found := instance_of(pins, each)) is not None]
    if not taken:
        yield judge_memory(sizes_of(config, len(interfaces)), 0, map_memory.available())
        return
    found = taken[0]
    if set(found.interfaces) != set(interfaces):
        if not daemon_stays(found.path):
            yield _refused("occupied", occupied(found.interfaces[0], found, alive=False))
        return
    yield from _beside(found, config)


def _beside(found: InstanceRef, config: RouterConfig) -> Iterator[Finding]:
    """Of a configuration that is to take over what is there: now, or when its daemon is stopped."""
    try:
        former = adoption.open_former(found)
    except XdpRouterError as error:
        yield _refused("cannot_be_taken_over", error)
        return
    try:
        counted: list[int] = []

        def sizes(retired: int) -> Sizes:
            counted[:] = [retired]
            ipv6 = former.has_ipv6_flows
            return sizes_of(config, len(found.interfaces), others=retired, ipv6_flows=ipv6)

        try:
            former.renumber(config, sizes)
        except XdpRouterError as error:
            yield _refused("does_not_fit", error)
            return
        wanted = sizes(counted[0] if counted else 0)
        try:
            adoption.require_room(former, wanted)
        except XdpRouterError as error:
            yield _refused("no_room_for_flows", error)
        kept = _kept(former.plane.maps, wanted)
        yield judge_memory(wanted, kept, map_memory.available())
    finally:
        former.close()


def _kept(maps: dict[str, int], wanted: Sizes) -> int:
    """Bytes of the maps that stay as they are, whatever is wanted."""
    anew = resize.plan(maps, wanted)
    total = 0
    for spec in MAP_SPECS:
        if spec.private or spec.name not in maps or spec.name in anew:
            continue
        if bpf.map_info(maps[spec.name]).max_entries > 1 or spec.entries(wanted) == 1:
            total += map_memory.bytes_of(spec, spec.entries(wanted))
    return total


def judge_memory(sizes: Sizes, kept: int, available: int) -> Finding:
    """Asks the kernel nothing. ``kept``: bytes of what is wanted that are there already;
    ``available``: 0: nobody knows."""
    needed = max(map_memory.memory_of(sizes) - kept, 0)
    subject = f"max_flows {sizes.max_flows}"
    text = (
        f"with pending_flows = {sizes.pending} the maps take {map_memory.shown(needed)} of kernel "
        f"memory{' more' if kept else ''}, and {map_memory.shown(available)} are available"
    )
    if not available or needed <= _MUCH * available:
        return ok("memory", subject, text)
    fitting = map_memory.most_flows(sizes, int(_MUCH * available) + kept)
    mend = f"max_flows = {fitting} at most" if fitting else "lower max_flows and pending_flows"
    if needed > available:
        return fail("no_memory", subject, f"{text}: attach is refused", mend)
    return warn("little_memory", subject, f"{text}: little is left for all else", mend)


def check_metrics(config: RouterConfig) -> Iterator[Finding]:
    """Whether metrics can be served where it says, while no daemon of ours does."""
    address = config.settings.metrics
    if address is None:
        return
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as handle:
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            handle.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            handle.bind((host, port))
        except OSError as error:
            yield fail(
                "metrics",
                format_metrics(address),
                f"metrics cannot be served there: {error.strerror}: attach is refused",
                f"stop who has it (ss -ltnp 'sport = {port}' shows who), or change metrics in "
                "[router]",
            )
            return
    yield ok("metrics", format_metrics(address), "metrics can be served there")


def _refused(code: str, error: Exception) -> Finding:
    what, colon, mend = str(error).rpartition(": ")
    return fail(code, "attach", what if colon else str(error), mend if colon else "see there")
