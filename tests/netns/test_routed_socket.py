# SPDX-License-Identifier: Apache-2.0
"""Packets that the host routes itself, on a wire of the test's own."""

from __future__ import annotations

import os
import socket

from pyroute2 import IPRoute

from tests.support.frames import SYN, End, Hop, Segment, checksum_errors
from tests.support.fresh_netns import enter_netns, in_fresh_netns, make_wire, open_netns
from xdp_router.adapters.routed_socket import RoutedSocket

CLIENT, BACKEND = End("198.18.0.2", 40000), End("198.18.1.2", 8080)
HOP = Hop(bytes.fromhex("020000000c01"), bytes.fromhex("020000000c02"))
OPEN = Segment(flags=SYN, seq=7, options=(("MSS", 1460),), ttl=60, ident=5)


@in_fresh_netns
def test_goes_out_as_from_its_source() -> None:
    """Another host's source address, a neighbour that has to be resolved, padding cut off."""
    with IPRoute() as ipr:
        wire = make_wire(ipr, "be", "198.18.1.1", BACKEND.addr)
        here = open_netns()
        enter_netns(wire.far_ns)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as tap:
            tap.bind(("bep", 0x0800))
            tap.settimeout(3)
            enter_netns(here)
            os.close(here)
            sender = RoutedSocket()
            assert sender.send(OPEN.but(pad=b"\xff" * 4).frame(CLIENT, BACKEND, HOP))
            got = tap.recv(2048)
            wanted = OPEN.but(ttl=59).frame(CLIENT, BACKEND, HOP)
            assert got[14:] == wanted[14:]
            assert not checksum_errors(got)
            sender.close()
            sender.close()


@in_fresh_netns
def test_what_cannot_go_is_told() -> None:
    """No route, or no packet: False, and nothing is raised."""
    sender = RoutedSocket()
    assert not sender.send(OPEN.frame(CLIENT, BACKEND, HOP))
    assert not sender.send(bytes(20))
    sender.close()
