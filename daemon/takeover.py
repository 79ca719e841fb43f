# SPDX-License-Identifier: Apache-2.0
"""What a daemon checks, and says, when it takes over the data plane of one that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from xdp_router.adapters import adoption, netlink, pin_lock, resize, sysctl
from xdp_router.adapters import bpf_syscall as bpf
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane, Loader
from xdp_router.adapters.map_specs import ENTRY_PROGRAM, MAP_SPECS, PREVIOUS, Sizes
from xdp_router.adapters.notes import Note, Notes
from xdp_router.adapters.pin_lock import PinLock
from xdp_router.adapters.pins import InstanceRef
from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.adapters.xdp_link import AttachMode
from xdp_router.core import abi
from xdp_router.core.abi import decode_event
from xdp_router.core.errors import AbiError, XdpRouterError
from xdp_router.core.events import Datagram, FirstPacket
from xdp_router.core.model import Backend, FlowKey

from .flow_mover import FlowMover

_BATCH = 1024
_SPECS = {spec.name: spec for spec in MAP_SPECS}
_FINISH_NS = 20_000_000_000
"""Without a daemon, XDP decides alone: longer than that nobody waits for another size."""
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


def switch(
    former: adoption.Former, loader: Loader, sizes: Sizes, taken: Callable[[DataPlane], None]
) -> DataPlane:
    """Put new programs, over maps of ``sizes``, in the place of the former's.

    Flows that are in a table of another size are left there for programs and daemon to move.
    ``taken`` is called when the new programs run. Raises XdpRouterError; before ``taken`` all is
    as it was then.
    """
    old = former.plane
    _finish_former_move(former, sizes)
    anew = resize.plan(old.maps, sizes)
    kept = [each for each in resize.unfinished(old.maps) if _is_other(old.maps, each, sizes)]
    with contextlib.ExitStack() as undo:
        plane = DataPlane.succeed(loader, old, sizes)
        undo.callback(plane.close)
        carry = resize.Carry(old.maps, plane.maps, anew)
        carry.copy()
        if any(before in plane.maps for _, before in PREVIOUS.values()):
            control = Maps(old.maps).control
            now = control.read()
            undo.callback(control.write, now)
            control.write(replace(now, flags=now.flags | abi.CONTROL_HOLD))
        fds = {name: link.fd for name, link in former.links.items()}
        plane.take_over(old, fds, carry.refresh)
        undo.pop_all()
    taken(plane)
    carry.finish()
    for name, (entries, entries_now) in anew.items():
        each = 2 if name in adoption.TWO_A_FLOW else 1
        _log.info("map_resized", map=name, before=entries // each, size=entries_now // each)
    for name in kept:
        _log.warning(
            "map_size_kept",
            map=name,
            size=bpf.map_info(old.maps[name]).max_entries // 2,
            configured=_SPECS[name].entries(sizes) // 2,
            mend="attach again when flows_moved is logged: its former change is under way",
        )
    return plane


def _finish_former_move(former: adoption.Former, sizes: Sizes) -> None:
    """Move what a daemon that is gone has not moved, if there is to be a third table: there can
    be one of before only.

    Not if it was killed before all interfaces had its program: the one before that looks for
    flows in another table.
    """
    old = former.plane
    if not any(_is_other(old.maps, name, sizes) for name in resize.unfinished(old.maps)):
        return
    program = old.programs.get(ENTRY_PROGRAM)
    if program is None:
        return  # somebody has removed its pin: which interfaces run it is not to be known
    entry = bpf.prog_info(program).id
    if all(bpf.link_info(each.fd).prog_id == entry for each in former.links.values()):
        FlowMover(Maps(old.maps).by_family.values(), old.drop_previous).run_at_once(_FINISH_NS)


def _is_other(maps: Mapping[str, int], name: str, sizes: Sizes) -> bool:
    """Whether a table is to have another size; one that nobody uses any more stays as it is."""
    return _SPECS[name].entries(sizes) not in (1, bpf.map_info(maps[name]).max_entries)


def leftover_events(
    former: DataPlane, plane: DataPlane, deadlines_ns: Mapping[int, int]
) -> list[FirstPacket | Datagram]:
    """``drain_leftovers`` of a former's ring that is not the one of ``plane``."""
    fd = former.maps["first_packet_events"]
    size = bpf.map_info(fd).max_entries
    if bpf.map_info(plane.maps["first_packet_events"]).id == bpf.map_info(fd).id:
        return []
    ring = RingBuffer(fd, size)
    try:
        return drain_leftovers(ring, deadlines_ns)
    finally:
        ring.close()


def report(former: adoption.Former, pins: Path | None, kept: list[Backend]) -> None:
    """Log what was taken over. ``kept``: backends that are there for their flows alone."""
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
