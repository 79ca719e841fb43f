# SPDX-License-Identifier: Apache-2.0
"""What a successor checks and reads before it takes over."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import structlog

from tests.support.bpf_programs import SMALL, IdleLoader
from tests.support.small_router import flow_entries, put_flow
from xdp_router.adapters.adoption import Former, require_room
from xdp_router.adapters.bpf_maps import Maps
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.map_specs import Sizes
from xdp_router.adapters.notes import Note, Notes
from xdp_router.adapters.pins import PinError, instance_dir
from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.core import abi
from xdp_router.core.config import config_from_flags
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.model import FlowKey
from xdp_router.daemon.kernel_state import KernelState
from xdp_router.daemon.takeover import (
    drain_leftovers,
    find_former,
    leftover_events,
    switch,
)

pytest_plugins = ("tests.support.netns",)

_EVENT = struct.Struct("=Q40s4IH4BHIIQ")
FIRST_PACKET = 1
S = 1_000_000_000
CONFIG = config_from_flags([("198.18.100.1:80", ["198.19.0.1:80", "198.19.0.2:80"])])


def first_packet(
    service: int, seen_ns: int, port: int, kind: int = FIRST_PACKET, proto: int = 6
) -> bytes:
    """A record of a first packet whose frame is 60 zeros."""
    key = abi.pack_shared_key(FlowKey(0xC6120001, port, 0xC6126401, 80, proto))
    head = (seen_ns, key, service, 0, 1, 7, 60, kind, 0, 0, 7, 0, 0, 0, seen_ns)
    return _EVENT.pack(*head).ljust(abi.RECORD_SMALL, b"\0")


class Ring:
    """Gives records as a ring buffer does."""

    def __init__(self, records: list[bytes]) -> None:
        self._records = records

    def drain(self, limit: int) -> list[bytes]:
        taken, self._records = self._records[:limit], self._records[limit:]
        return taken


def test_only_first_packets_whose_client_still_waits_are_handled() -> None:
    """Overdue ones, those of other services, and records that make no sense are dropped."""
    now_ns = time.monotonic_ns()
    records = [first_packet(0, now_ns - 10 * S, port) for port in range(2000)]
    records += [
        first_packet(0, now_ns, 4001),
        first_packet(9, now_ns, 4002),
        b"short",
        first_packet(3, now_ns, 4003),
    ]
    ring = cast(RingBuffer, Ring(records))
    waiting = drain_leftovers(ring, {0: 5 * S, 3: 5 * S})
    assert [first.key.client_port for first in waiting] == [4001, 4003]
    assert ring.drain(10) == []


def test_datagrams_go_with_the_first_of_their_flow() -> None:
    """Those behind one that is handled are, in their order; those behind an overdue one are not."""
    now_ns = time.monotonic_ns()
    later = abi.EventType.DATAGRAM
    records = [
        first_packet(0, now_ns - 10 * S, 1, proto=17),
        first_packet(0, now_ns, 2, proto=17),
        first_packet(0, now_ns, 1, later, 17),
        first_packet(0, now_ns, 2, later, 17),
        first_packet(0, now_ns, 2, later, 17),
    ]
    waiting = drain_leftovers(cast(RingBuffer, Ring(records)), {0: 5 * S})
    assert [(type(each).__name__, each.key.client_port) for each in waiting] == [
        ("FirstPacket", 2),
        ("Datagram", 2),
        ("Datagram", 2),
    ]


def test_a_data_plane_of_another_network_namespace_is_refused(bpffs: Path) -> None:
    """Its interfaces are others, whatever they are called; its own namespace may have it."""
    plane = DataPlane.create(IdleLoader(), SMALL, instance_dir(bpffs, ["eth0"]))
    former = find_former(bpffs, ["eth0"], None)
    assert former is not None
    former.close()
    Notes(plane.maps["notes"]).write(Note.NETNS, "4:1")
    with pytest.raises(XdpRouterError, match=r"eth0: .*another network namespace, 4:1.*detach"):
        find_former(bpffs, ["eth0"], None)
    plane.unpin()
    plane.close()
    assert find_former(bpffs, ["eth0"], None) is None


def _left(bpffs: Path, sizes: Sizes = SMALL) -> Former:
    """What a daemon that is gone has left, with flows 1 and 2."""
    plane = DataPlane.create(IdleLoader(), sizes, instance_dir(bpffs, ["eth0"]))
    state = KernelState(plane, CONFIG)
    state.write_all()
    for port in (1, 2):
        put_flow(state.maps, flow_entries(port, 5))
    plane.close()
    former = find_former(bpffs, ["eth0"], None)
    assert former is not None
    return former


def _taken(plane: DataPlane) -> None:
    assert Maps(plane.maps).control.read().flags & abi.CONTROL_HOLD


def test_another_size(bpffs: Path) -> None:
    """The new table is empty, the former one at hand and pinned; programs wait to move flows."""
    former = _left(bpffs)
    wanted = replace(SMALL, max_flows=3000)
    with structlog.testing.capture_logs() as told:
        plane = switch(former, IdleLoader(), wanted, _taken)
    assert told == [
        {
            "event": "map_resized",
            "log_level": "info",
            "map": "flow_table",
            "before": SMALL.max_flows,
            "size": 3000,
        }
    ]
    former.close()
    flows = Maps(plane.maps).flow_table
    assert flows.max_entries == 6000
    assert [batch.count for batch in flows.own_batches(64)] == [0]
    assert all(flows.read(key) for port in (1, 2) for key in flow_entries(port, 5))
    assert plane.pin_dir is not None
    assert (plane.pin_dir / "flow_table_previous").exists()
    KernelState(plane, CONFIG, adopted=True).write_all()
    assert not Maps(plane.maps).control.read().flags & abi.CONTROL_HOLD
    pin = plane.pin_dir / "flow_table_previous"
    pin.unlink()
    pin.mkdir()
    with pytest.raises(PinError, match="flow_table_previous: the pin cannot be removed"):
        plane.drop_previous("flow_table")
    pin.rmdir()
    plane.drop_previous("flow_table")
    plane.drop_previous("flow_table")
    assert not pin.exists()
    plane.close()


@pytest.mark.parametrize("then", [SMALL.max_flows, 3000, 1500])
def test_a_change_that_was_cut_short_goes_on(bpffs: Path, then: int) -> None:
    """The next one may have the former size, the same, or yet another: no flow is lost."""
    former = _left(bpffs)
    switch(former, IdleLoader(), replace(SMALL, max_flows=3000), _taken).close()
    former.close()
    again = find_former(bpffs, ["eth0"], None)
    assert again is not None
    plane = switch(again, IdleLoader(), replace(SMALL, max_flows=then), lambda _plane: None)
    again.close()
    flows = Maps(plane.maps).flow_table
    assert flows.max_entries == 2 * then
    assert all(flows.read(key) for port in (1, 2) for key in flow_entries(port, 5))
    plane.unpin()
    plane.close()


@pytest.mark.parametrize(("then", "size"), [(3000, 3000), (1500, 3000)])
def test_without_the_pin_of_its_program(bpffs: Path, then: int, size: int) -> None:
    """Nobody knows which interfaces run it: what it has begun is not finished for it, but kept."""
    former = _left(bpffs)
    switch(former, IdleLoader(), replace(SMALL, max_flows=3000), _taken).close()
    former.close()
    (instance_dir(bpffs, ["eth0"]) / "prog_xdp_router").unlink()
    again = find_former(bpffs, ["eth0"], None)
    assert again is not None
    plane = switch(again, IdleLoader(), replace(SMALL, max_flows=then), lambda _plane: None)
    again.close()
    flows = Maps(plane.maps).flow_table
    assert flows.max_entries == 2 * size
    assert all(flows.read(key) for port in (1, 2) for key in flow_entries(port, 5))
    plane.unpin()
    plane.close()


def test_no_room_to_finish_it(bpffs: Path) -> None:
    """Then the table keeps its size for now, and that is said."""
    former = _left(bpffs, replace(SMALL, max_flows=2))
    plane = switch(former, IdleLoader(), replace(SMALL, max_flows=3), _taken)
    former.close()
    for port in (11, 12):
        put_flow(Maps(plane.maps), flow_entries(port, 5))
    plane.close()
    again = find_former(bpffs, ["eth0"], None)
    assert again is not None
    with structlog.testing.capture_logs() as told:
        plane = switch(again, IdleLoader(), replace(SMALL, max_flows=50), _taken)
    again.close()
    (line,) = told
    assert (line["event"], line["size"], line["configured"]) == ("map_size_kept", 3, 50)
    flows = Maps(plane.maps).flow_table
    for port in (1, 2, 11, 12):
        assert all(flows.read(key) for key in flow_entries(port, 5))
    plane.unpin()
    plane.close()


def test_too_small_for_what_is_there(bpffs: Path) -> None:
    """Refused with the number; those of an unfinished change count."""
    former = _left(bpffs)
    require_room(former, replace(SMALL, max_flows=2))
    require_room(former, replace(SMALL, max_flows=3000))
    words = r"flow_table: 2 connections are .* max_flows = 1 .*--max-flows 2 or more, or with 1000"
    with pytest.raises(XdpRouterError, match=words):
        require_room(former, replace(SMALL, max_flows=1))
    plane = switch(former, IdleLoader(), replace(SMALL, max_flows=3000), _taken)
    former.close()
    put_flow(Maps(plane.maps), flow_entries(3, 5))
    plane.close()
    again = find_former(bpffs, ["eth0"], None)
    assert again is not None
    with pytest.raises(XdpRouterError, match="flow_table: 3 connections are"):
        require_room(again, replace(SMALL, max_flows=2))
    again.plane.unpin()
    again.close()


def test_events_of_a_ring_of_another_size(bpffs: Path) -> None:
    """They are read from the former's, once."""
    former = _left(bpffs)
    plane = switch(former, IdleLoader(), replace(SMALL, ring_bytes=4096), lambda _plane: None)
    assert leftover_events(former.plane, plane, {}) == []
    assert leftover_events(plane, plane, {}) == []
    plane.unpin()
    plane.close()
    former.close()
