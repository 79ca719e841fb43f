# SPDX-License-Identifier: Apache-2.0
"""The lab's wires carry what an XDP router needs: redirected frames and final checksums."""

from __future__ import annotations

import os
import select
import socket
import struct
import time

import pytest

from tests.support.netns import LabFactory
from xdp_router.lab import BackendSpec, Lab, LabSpec, Namespace, links, xdp_stub
from xdp_router.linux.ethtool import Offload, get_offload

pytest_plugins = ("tests.support.netns",)

ETHERTYPE = 0x88B5  # for local experiments
BOTH = LabSpec((BackendSpec("direct"), BackendSpec("line", delay_line=True)))
COUNT = 40
"""A default receive buffer holds 49 where each redirected frame takes a page (Linux 6.1)."""


def offloads(namespace: Namespace, ifname: str) -> tuple[bool, bool]:
    """TX checksum offload and GRO, as the driver reports them."""
    return namespace.run(
        lambda: (get_offload(ifname, Offload.TX_CHECKSUM), get_offload(ifname, Offload.GRO))
    )


def test_offloads_are_as_an_xdp_router_needs_them(make_lab: LabFactory) -> None:
    """TX checksum offload is off everywhere; GRO is on, except at the ends of a delay line."""
    lab = make_lab(BOTH)
    assert lab.delays[1] is not None
    ends = [(lab.client, "eth0"), *((lab.router, name) for name in lab.router_interfaces)]
    ends += [(backend, "eth0") for backend in lab.backends]
    assert [offloads(*end) for end in ends] == [(False, True)] * len(ends)
    assert [offloads(lab.delays[1], name) for name in "ab"] == [(False, False)] * 2


def redirected(lab: Lab, backend: int) -> int:
    """How many of COUNT frames arrive that XDP redirects from client0 to the backend's link."""
    out = links.ifindex(lab.router, f"be{backend + 1}")
    program = xdp_stub.load_redirect(out)
    links.with_netlink(
        lab.router,
        lambda netlink: netlink.link(
            "set", index=netlink.link_lookup(ifname="client0")[0], xdp_fd=program
        ),
    )
    os.close(program)
    destination = bytes.fromhex(links.mac(1, backend + 1, 2).replace(":", ""))
    source = bytes.fromhex(links.mac(1, backend + 1, 1).replace(":", ""))
    seen = 0
    with (
        lab.client.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sender,
        lab.backends[backend].socket(
            socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE)
        ) as receiver,
    ):
        sender.bind(("eth0", 0))
        for number in range(COUNT):
            sender.send(destination + source + struct.pack("!HI", ETHERTYPE, number) + bytes(50))
            time.sleep(0.0005)
        while seen < COUNT and select.select([receiver], [], [], 0.3)[0]:
            frame = receiver.recv(2000)
            assert struct.unpack_from("!I", frame, 14)[0] == seen
            seen += 1
    return seen


@pytest.mark.parametrize("backend", [0, 1], ids=["direct", "delay line"])
def test_redirected_frames_arrive(make_lab: LabFactory, backend: int) -> None:
    """Frames that native XDP redirects reach the backend, in order, also through a delay line."""
    assert redirected(make_lab(BOTH), backend) == COUNT


def test_redirected_frames_arrive_after_trouble(make_lab: LabFactory) -> None:
    """A backend takes redirected frames again after its link was down or it was silent."""
    lab = make_lab(BOTH)
    lab.down_backend(0)
    lab.up_backend(0)
    assert redirected(lab, 0) == COUNT
    lab.silence_backend(0)
    assert redirected(lab, 0) == 0
    lab.unsilence_backend(0)
    assert redirected(lab, 0) == COUNT


def test_redirected_frames_vanish_without_napi(make_lab: LabFactory) -> None:
    """The program on a delay line's end is what lets it take redirected frames."""
    lab = make_lab(BOTH)
    assert lab.delays[1] is not None
    links.set_deaf(lab.delays[1], "a", False)  # takes the program off
    assert redirected(lab, 1) == 0


def ones_complement(data: bytes) -> int:
    """The Internet checksum's sum; 0xffff if a checksum inside is right."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) // 2 * 2]))
    total += data[-1] << 8 if len(data) % 2 else 0
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def test_frames_carry_final_checksums(make_lab: LabFactory) -> None:
    """Every TCP frame on the router's client link has a complete, right checksum both ways."""
    lab = make_lab(BOTH)
    with lab.router.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
        tap.bind(("client0", 3))
        with lab.client.connect(lab.addresses.backends[0]) as peer:
            peer.sendall(b"odd")
            assert peer.recv(10) == b"odd"
            peer.sendall(b"x" * 1000)
            assert peer.recv(2000)
        checked = 0
        while select.select([tap], [], [], 0.3)[0]:
            frame = tap.recv(4000)
            if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
                continue
            length = struct.unpack_from("!H", frame, 16)[0]
            segment = frame[34 : 14 + length]
            pseudo = frame[26:34] + struct.pack("!HH", socket.IPPROTO_TCP, len(segment))
            assert ones_complement(pseudo + segment) == 0xFFFF
            checked += 1
    assert checked >= 8


def test_neighbours_are_resolved_by_arp(make_lab: LabFactory) -> None:
    """No neighbour is preset: the router learns a backend's MAC when there is traffic."""
    lab = make_lab(BOTH)

    def known() -> list[str]:
        return links.with_netlink(
            lab.router,
            lambda netlink: [
                entry.get_attr("NDA_LLADDR")
                for entry in netlink.get_neighbours(dst=lab.addresses.backends[1][0])
            ],
        )

    assert known() == []
    lab.client.connect(lab.addresses.backends[1]).close()
    assert known() == [links.mac(1, 2, 2)]
