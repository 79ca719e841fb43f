# SPDX-License-Identifier: Apache-2.0
"""What a daemon checks, and says, when it takes over the data plane of one that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from xdp_router.adapters import adoption, netlink, pin_lock, sysctl
from xdp_router.adapters.map_specs import Sizes
from xdp_router.adapters.notes import Note, Notes
from xdp_router.adapters.pin_lock import PinLock
from xdp_router.adapters.pins import InstanceRef
from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.adapters.xdp_link import AttachMode
from xdp_router.core.abi import decode_event
from xdp_router.core.errors import AbiError, XdpRouterError
from xdp_router.core.events import Datagram, FirstPacket
from xdp_router.core.model import Backend, FlowKey

_BATCH = 1024
_TWO_A_FLOW = ("flow_table", "flow_table6")
"""Tables whose size is told in flows, as ``max_flows`` has it."""
_log = structlog.get_logger()


async def lock_pins(lock: PinLock, go_on: Callable[[], None]) -> None:
    """Wait for the lock: two that take over one data plane at once would both go on with it.

    ``go_on`` raises when there is no use in waiting. Raises PinsBusy.
    """
    end = time.monotonic() + pin_lock.WAIT_S
    while not lock.try_lock():
        if time.monotonic() > end:
            raise lock.busy()
        await asyncio.sleep(pin_lock.LOOK_S)
        go_on()


def find_former(
    pins: Path, interfaces: Sequence[str], mode: AttachMode | None
) -> adoption.Former | None:
    """Open what a daemon has left on ``interfaces``, if one has. Changes nothing.

    Raises XdpRouterError when it cannot be taken over, naming the path, and what to do.
    """
    found = adoption.find_former(pins, interfaces)
    if found is None:
        return None
    former = adoption.open_former(found)
    try:
        _check(found, former, mode)
    except BaseException:
        former.close()
        raise
    return former


def _check(found: InstanceRef, former: adoption.Former, mode: AttachMode | None) -> None:
    detach = f"xdp-routerd detach {' '.join(found.interfaces)}, which ends its connections"
    netns = Notes(former.plane.maps["notes"]).read(Note.NETNS)
    if netns and netns != sysctl.namespace_id():
        raise XdpRouterError(
            f"{found.path}: the data plane is of another network namespace, {netns}: attach "
            f"there, choose another directory with --pins, or {detach}"
        )
    for name, attached in former.links.items():
        ifindex = netlink.link_info(name).ifindex
        if attached.ifindex != ifindex:
            raise XdpRouterError(
                f"{name}: the data plane that was found ({found.path}) is on interface number "
                f"{attached.ifindex}, and {name} is number {ifindex}: {detach}"
            )
        if mode not in (None, attached.mode):
            raise XdpRouterError(
                f"{name}: the data plane that was found ({found.path}) is attached in "
                f"{attached.mode.value} mode: take it over with --xdp-mode auto, or {detach}"
            )


def report(former: adoption.Former, pins: Path | None, sizes: Sizes, kept: list[Backend]) -> None:
    """Log what was taken over. ``kept``: backends that are there for their flows alone."""
    for name, (entries, wanted) in former.resized(sizes).items():
        each = 2 if name in _TWO_A_FLOW else 1
        _log.warning(
            "map_size_kept",
            map=name,
            size=entries // each,
            configured=wanted // each,
            mend="detach, then attach: this ends its connections",
        )
    _log.info(
        "adopted",
        interfaces=list(former.links),
        pins=str(pins),
        draining=[backend.name for backend in kept],
    )


def drain_leftovers(
    ring: RingBuffer, deadlines_ns: Mapping[int, int]
) -> list[FirstPacket | Datagram]:
    """Empty the ring; gives the first packets that are not overdue yet, and what is behind them.

    ``deadlines_ns``: by service id. Of the others XDP decides when the SYN is sent again, or has
    decided already; what else happened without a daemon is told by the flows' entries.
    """
    now_ns = time.monotonic_ns()
    waiting: list[FirstPacket | Datagram] = []
    flows: set[FlowKey] = set()
    dropped = 0
    while records := ring.drain(_BATCH):
        for record in records:
            try:
                event = decode_event(record)
            except AbiError:
                dropped += 1
                continue
            if isinstance(event, FirstPacket) and (
                now_ns - event.seen_ns < deadlines_ns.get(event.service, 0)
            ):
                waiting.append(event)
                flows.add(event.key)
            elif isinstance(event, Datagram) and event.key in flows:
                waiting.append(event)
            else:
                dropped += 1
    if dropped or waiting:
        _log.info("leftover_events", handled=len(waiting), dropped=dropped)
    return waiting
