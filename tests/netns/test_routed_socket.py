# SPDX-License-Identifier: Apache-2.0
"""Packets that the host routes itself, on a wire of the test's own."""

from __future__ import annotations

import os
import socket

from pyroute2 import IPRoute
from scapy.layers.inet import TCP
from scapy.layers.inet6 import IPv6

from tests.support.frames import SYN, End, Hop, Segment, checksum_errors, ethernet
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
def test_ipv6_goes_out_as_from_its_source() -> None:
    """The same with IPv6: a client's source address, hop limit lowered, padding cut off."""
    target = "2001:db8:1::2"
    packet = IPv6(src="2001:db8:c::2", dst=target, hlim=60) / TCP(sport=40000, dport=80, seq=7)
    with IPRoute() as ipr:
        wire = make_wire(ipr, "be", "2001:db8:1::1", target)
        here = open_netns()
        enter_netns(wire.far_ns)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD)) as tap:
            tap.bind(("bep", 0x86DD))
            tap.settimeout(3)
            enter_netns(here)
            os.close(here)
            sender = RoutedSocket()
            assert sender.send(ethernet(HOP, bytes(packet), proto=0x86DD) + b"\xff" * 4)
            got = IPv6(tap.recv(2048)[14:])
            while TCP not in got:
                got = IPv6(tap.recv(2048)[14:])
            packet[IPv6].hlim = 59
            assert bytes(got) == bytes(packet)
            sender.close()
        os.close(wire.far_ns)


@in_fresh_netns
def test_what_cannot_go_is_told() -> None:
    """No route, or no packet: False, and nothing is raised."""
    sender = RoutedSocket()
    assert not sender.send(OPEN.frame(CLIENT, BACKEND, HOP))
    assert not sender.send(bytes(20))
    assert not sender.send(bytes(12) + b"\x86\xdd" + bytes(39))
    assert not sender.send(bytes(12) + b"\x08\x06" + bytes(60))
    ipv6 = IPv6(src="2001:db8::1", dst="2001:db8::2") / TCP()
    assert not sender.send(ethernet(HOP, bytes(ipv6), proto=0x86DD))
    sender.close()
