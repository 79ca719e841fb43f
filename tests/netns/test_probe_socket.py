# SPDX-License-Identifier: Apache-2.0
"""Probes and re-injected frames on a real veth, answered by a real TCP stack."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyroute2 import IPRoute

from tests.support.fresh_netns import Wire, enter_netns, in_fresh_netns, make_wire, open_netns
from xdp_router.adapters.netlink import Path, resolve_paths
from xdp_router.adapters.probe_socket import ProbeSocket, ProbeTarget
from xdp_router.core.address import parse_addr

FAR = parse_addr("198.18.1.2")
PORT = 8080
_ETH_P_ALL = 3


def _far_socket(wire: Wire, family: int, kind: int, protocol: int = 0) -> socket.socket:
    here = open_netns()
    try:
        enter_netns(wire.far_ns)
        return socket.socket(family, kind, protocol)
    finally:
        enter_netns(here)
        os.close(here)


@contextmanager
def _setup(*, qdisc_bypass: bool = False) -> Iterator[tuple[IPRoute, Wire, ProbeSocket, Path]]:
    with IPRoute() as ipr:
        wire = make_wire(ipr, "be1", "198.18.1.1", "198.18.1.2")
        sender = ProbeSocket(qdisc_bypass=qdisc_bypass)
        path = resolve_paths([FAR])[FAR].path
        assert path is not None
        try:
            yield ipr, wire, sender, path
        finally:
            sender.close()
            os.close(wire.far_ns)


def _receive_tcp(sniffer: socket.socket) -> bytes:
    """The next IPv4 TCP frame."""
    while True:
        frame = sniffer.recv(2048)
        if frame[12:14] == b"\x08\x00" and frame[23] == 6:
            return frame


@pytest.mark.parametrize("qdisc_bypass", [False, True])
@in_fresh_netns
def test_probe_is_answered_by_a_real_server(qdisc_bypass: bool) -> None:
    """A listening kernel answers the probe with a SYN-ACK for its sequence number."""
    with _setup(qdisc_bypass=qdisc_bypass) as (_, wire, sender, path):
        with (
            _far_socket(wire, socket.AF_INET, socket.SOCK_STREAM) as server,
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as sniffer,
        ):
            server.bind(("198.18.1.2", PORT))
            server.listen()
            sniffer.bind(("be1", _ETH_P_ALL))
            sniffer.settimeout(3)
            before_ns = time.monotonic_ns()
            sent_ns = sender.send_probe(ProbeTarget(path, FAR, PORT), 60001, 0xFFFFFFFF)
            assert before_ns <= sent_ns <= time.monotonic_ns()
            answer = _receive_tcp(sniffer)
            while answer[26:30] != socket.inet_aton("198.18.1.2"):
                answer = _receive_tcp(sniffer)
            sport, dport, _, ack, _, flags = struct.unpack_from("!HHIIBB", answer, 34)
            assert (sport, dport, ack, flags) == (PORT, 60001, 0, 0x12)
        assert sender.counters["probe_sent"] == 1


@in_fresh_netns
def test_frame_arrives_as_it_was_given() -> None:
    """A re-injected frame leaves byte for byte."""
    with _setup() as (_, wire, sender, path):
        protocol = socket.htons(_ETH_P_ALL)
        with _far_socket(wire, socket.AF_PACKET, socket.SOCK_RAW, protocol) as sniffer:
            sniffer.settimeout(3)
            frame = bytes(ProbeTarget(path, FAR, PORT).probe(60002, 7)) + b"early data"
            assert sender.send_frame(wire.near, frame)
            assert _receive_tcp(sniffer) == frame
        assert sender.counters["frame_sent"] == 1


@in_fresh_netns
def test_interface_down_is_counted_and_up_again_is_used() -> None:
    """While the interface is down nothing is sent; right after a flap the first probe leaves."""
    with _setup() as (ipr, wire, sender, path):
        target = ProbeTarget(path, FAR, PORT)
        assert sender.send_probe(target, 60001, 1)
        ipr.link("set", index=wire.near, state="down")
        assert sender.send_probe(target, 60001, 2) == 0
        assert not sender.send_frame(wire.near, bytes(60))
        assert sender.counters["send_interface_down"] == 2
        ipr.link("set", index=wire.near, state="up")
        assert sender.send_probe(target, 60001, 3)
        ipr.link("set", index=wire.near, state="down")
        ipr.link("set", index=wire.near, state="up")
        assert sender.send_probe(target, 60001, 4)
        assert sender.counters["send_interface_down"] == 2


@in_fresh_netns
def test_deleted_interface_is_counted() -> None:
    """A deleted interface costs the probe, never the program; a new one works at once."""
    with _setup() as (ipr, wire, sender, path):
        target = ProbeTarget(path, FAR, PORT)
        assert sender.send_probe(target, 60001, 1)
        ipr.link("del", index=wire.near)
        assert sender.send_probe(target, 60001, 2) == 0
        assert sender.send_probe(target, 60001, 3) == 0
        assert sender.counters["send_interface_gone"] == 2
        again = make_wire(ipr, "be1", "198.18.1.1", "198.18.1.2", wire.far_ns)
        new = Path(again.near, path.dmac, path.smac, path.source_addr)
        assert sender.send_probe(ProbeTarget(new, FAR, PORT), 60001, 4)


@in_fresh_netns
def test_full_queue_is_counted() -> None:
    """Frames that the interface's queue has no room for are counted, not raised."""
    with _setup() as (ipr, wire, sender, path):
        target = ProbeTarget(path, FAR, PORT)
        ipr.tc("add", "tbf", index=wire.near, handle="1:", rate="8kbit", burst=128, limit=256)
        sent = [sender.send_probe(target, 60001, seq) for seq in range(50)]
        assert sent[-1] == 0
        assert sender.counters["probe_sent"] > 0
        assert sender.counters["send_no_buffers"] == 50 - sender.counters["probe_sent"]


@in_fresh_netns
def test_frame_longer_than_the_mtu_is_counted() -> None:
    """A frame that the kernel refuses for another reason is counted, not raised."""
    with _setup() as (_, wire, sender, _path):
        assert not sender.send_frame(wire.near, bytes(9000))
        assert sender.counters["send_failed"] == 1
        assert sender.counters["frame_sent"] == 0


@in_fresh_netns
def test_ipv6_probe_is_answered_by_a_real_server() -> None:
    """A listening kernel answers the probe with a SYN-ACK for its number, a closed port with a
    RST: it has found the checksum right."""
    with IPRoute() as ipr:
        wire = make_wire(ipr, "be1", "2001:db8:1::1", "2001:db8:1::2")
        far = parse_addr("2001:db8:1::2")
        path = resolve_paths([far])[far].path
        assert path is not None
        sender = ProbeSocket()
        with (
            _far_socket(wire, socket.AF_INET6, socket.SOCK_STREAM) as server,
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as sniffer,
        ):
            server.bind(("2001:db8:1::2", PORT))
            server.listen()
            sniffer.bind(("be1", _ETH_P_ALL))
            sniffer.settimeout(3)
            for port, seq, flags in ((PORT, 0xFFFFFFFF, 0x12), (PORT + 1, 7, 0x14)):
                assert sender.send_probe(ProbeTarget(path, far, port), 60001, seq)
                answer = sniffer.recv(2048)
                source = socket.inet_pton(socket.AF_INET6, "2001:db8:1::2")
                while answer[12:14] != b"\x86\xdd" or answer[20] != 6 or answer[22:38] != source:
                    answer = sniffer.recv(2048)
                assert struct.unpack_from("!HH", answer, 54) == (port, 60001)
                assert struct.unpack_from("!I", answer, 62)[0] == (seq + 1) & 0xFFFFFFFF
                assert answer[67] == flags
        assert sender.counters["probe_sent"] == 2
        sender.close()
        os.close(wire.far_ns)
