# SPDX-License-Identifier: Apache-2.0
"""What a successor checks and reads before it takes over."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import cast

import pytest

from tests.support.bpf_programs import SMALL, IdleLoader
from xdp_router.adapters.dataplane import DataPlane
from xdp_router.adapters.notes import Note, Notes
from xdp_router.adapters.pins import instance_dir
from xdp_router.adapters.ringbuf import RingBuffer
from xdp_router.core import abi
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.model import FlowKey
from xdp_router.daemon.takeover import drain_leftovers, find_former

pytest_plugins = ("tests.support.netns",)

_EVENT = struct.Struct("=Q40s4IH4BHIIQ")
FIRST_PACKET = 1
S = 1_000_000_000


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
